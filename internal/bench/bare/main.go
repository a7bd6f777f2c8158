// Command bare is the least runtime there can be: gRPC on an inherited listener, and an answer to
// Ready. It is the floor that starting an agent is held against.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

type server struct {
	agentv1.UnimplementedAgentRuntimeServer
}

func (server) Ready(context.Context, *agentv1.ReadyRequest) (*agentv1.ReadyResponse, error) {
	return &agentv1.ReadyResponse{Ready: true}, nil
}

func main() {
	// The first descriptor of the socket-activation protocol.
	ln, err := net.FileListener(os.NewFile(3, "runtime"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
	s := grpc.NewServer()
	agentv1.RegisterAgentRuntimeServer(s, server{})
	if err := s.Serve(ln); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}
