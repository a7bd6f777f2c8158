// Command bare is the least program of its kind there can be, three times, on an inherited listener: a
// runtime that answers Ready alone, which the start of an agent is held against, and with grpc or
// bytes and an address as its arguments a relay to the runtime there, of ChatStream's events or of
// whatever comes, which the way of a prompt through the daemon is held against.
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

	"github.com/otters-sh/otters/internal/flow"
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
	if len(args) == 2 && args[0] == "bytes" {
		return relayBytes(ln, args[1])
	}
	s := grpc.NewServer(flow.Serve()...)
	if len(args) == 0 {
		agentv1.RegisterAgentRuntimeServer(s, server{})
		return s.Serve(ln)
	}
	if len(args) != 2 || args[0] != "grpc" {
		return errors.New("usage: bare [grpc|bytes ADDR]")
	}
	conn, err := grpc.NewClient("passthrough:///"+args[1], append(flow.Dial(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return err
	}
	defer conn.Close()
	agentv1.RegisterAgentRuntimeServer(s, server{next: agentv1.NewAgentRuntimeClient(conn)})
	return s.Serve(ln)
}

// relayBytes runs until it is killed, as its connections do.
func relayBytes(ln net.Listener, addr string) error {
	for {
		in, err := ln.Accept()
		if err != nil {
			return err
		}
		out, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
			go func() {
				// By reads and writes, as every relay that looks at what it passes on.
				_, _ = io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
				_ = to.Close()
			}()
		}
	}
}
