// Package flow sets the flow-control windows of gRPC connections between processes of one machine.
//
// By default grpc-go sizes its windows by what the way between two hosts holds, which it measures with a
// ping for each burst of messages it receives (its package internal/transport, bdp_estimator.go). Between
// processes of one machine that says nothing, and each ping wakes both of them (docs/performance.md has what
// that costs a prompt). Fixed windows also bound what waits for a slow reader.
package flow

import "google.golang.org/grpc"

// The windows, in bytes: what may be under way to one reader of a stream, and to all of a connection's.
// A message may be larger than either.
const (
	streamWindow = 256 << 10
	connWindow   = 1 << 20
)

// Dial is the option of a client.
func Dial() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow)}
}

// Serve is the option of a server.
func Serve() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow)}
}
