// Command bare is the least program of its kind there can be, twice, on an inherited listener: a
// runtime that answers Ready alone, which the start of an agent is held against, and with an address
// as its argument a relay of ChatStream to the runtime there, which the way of a prompt through the
// daemon is held against.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

type server struct {
	agentv1.UnimplementedAgentRuntimeServer
	next agentv1.AgentRuntimeClient
}

func (server) Ready(context.Context, *agentv1.ReadyRequest) (*agentv1.ReadyResponse, error) {
	return &agentv1.ReadyResponse{Ready: true}, nil
}

func (s server) ChatStream(req *agentv1.ChatStreamRequest, out grpc.ServerStreamingServer[agentv1.ChatStreamEvent]) error {
	in, err := s.next.ChatStream(out.Context(), req)
	if err != nil {
		return err
	}
	for {
		ev, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = out.Send(ev)
		}
		if err != nil {
			return err
		}
	}
}

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func serve(args []string) error {
	// The first descriptor of the socket-activation protocol.
	ln, err := net.FileListener(os.NewFile(3, "runtime"))
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	if len(args) == 0 {
		agentv1.RegisterAgentRuntimeServer(s, server{})
		return s.Serve(ln)
	}
	conn, err := grpc.NewClient("passthrough:///"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	agentv1.RegisterAgentRuntimeServer(s, server{next: agentv1.NewAgentRuntimeClient(conn)})
	return s.Serve(ln)
}
