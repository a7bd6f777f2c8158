package daemon

import (
	"context"
	"errors"
	"io"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/proto/otters/daemon/v1/daemonv1connect"
)

// maxJSONDepth bounds the nesting of a JSON message; none of ours nests deeper than ten.
const maxJSONDepth = 64

// httpHandler serves the same implementation as gRPC-Web and JSON.
func httpHandler(impl daemonv1.DaemonServiceServer) http.Handler {
	opts := []connect.HandlerOption{
		connect.WithInterceptors(connectAccess{}),
		connect.WithReadMaxBytes(maxRequestBytes),
		connect.WithCodec(strictJSON{"json"}),
		connect.WithCodec(strictJSON{"json; charset=utf-8"}),
		// Nothing is compressed on a socket, and what is not unpacked can't be a bomb.
		connect.WithCompression("gzip", nil, nil),
	}
	mux := http.NewServeMux()
	mux.Handle(daemonv1connect.NewDaemonServiceHandler(connectServer{impl}, opts...))
	if r, ok := impl.(registryKeeper); ok {
		mux.Handle(daemonv1connect.NewRegistryServiceHandler(r.registryAPI(), opts...))
	}
	if own, ok := impl.(withImages); ok {
		mux.Handle(imagesHandler(own.images(), opts...))
	}
	if own, ok := impl.(withConversations); ok {
		mux.Handle(conversationsHandler(own.conversations(), opts...))
	}
	return noStore(mux)
}

// strictJSON refuses unknown fields, so that nothing a client asked for is passed over.
type strictJSON struct{ name string }

func (c strictJSON) Name() string { return c.name }

func (strictJSON) Marshal(m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, errors.New("not a message")
	}
	return protojson.Marshal(msg)
}

func (strictJSON) Unmarshal(b []byte, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return errors.New("not a message")
	}
	if len(b) == 0 {
		return errors.New("empty body: want a JSON object such as {}")
	}
	return protojson.UnmarshalOptions{RecursionLimit: maxJSONDepth}.Unmarshal(b, msg)
}

// connectServer adapts the streams; the other calls have one shape on both sides.
type connectServer struct{ daemonv1.DaemonServiceServer }

var _ daemonv1connect.DaemonServiceHandler = connectServer{}

func (s connectServer) Build(ctx context.Context, in *connect.ClientStream[daemonv1.BuildRequest]) (*daemonv1.BuildResponse, error) {
	up := &received[daemonv1.BuildRequest, daemonv1.BuildResponse]{connectStream: connectStream{ctx}, in: in}
	err := s.DaemonServiceServer.Build(up)
	return up.answer, err
}

func (s connectServer) WatchAgent(ctx context.Context, req *daemonv1.WatchAgentRequest, out *connect.ServerStream[daemonv1.WatchAgentResponse]) error {
	return s.DaemonServiceServer.WatchAgent(req, download[daemonv1.WatchAgentResponse]{connectStream{ctx}, out})
}

func (s connectServer) Prompt(ctx context.Context, req *daemonv1.PromptRequest, out *connect.ServerStream[daemonv1.PromptResponse]) error {
	return s.DaemonServiceServer.Prompt(req, download[daemonv1.PromptResponse]{connectStream{ctx}, out})
}

func (s connectServer) Logs(ctx context.Context, req *daemonv1.LogsRequest, out *connect.ServerStream[daemonv1.LogsResponse]) error {
	return s.DaemonServiceServer.Logs(req, download[daemonv1.LogsResponse]{connectStream{ctx}, out})
}

// Exec is not served on this side: its streams go both ways at once, which HTTP/1.1 can't.
func (connectServer) Exec(context.Context, *connect.BidiStream[daemonv1.ExecRequest, daemonv1.ExecResponse]) error {
	return fail(codes.Unimplemented, "use gRPC over HTTP/2", "exec: HTTP/1.1 has no streams both ways")
}

// connectStream is the part of grpc.ServerStream that the implementation uses: the context. It sets
// no headers and sends nothing untyped.
type connectStream struct{ ctx context.Context }

var errUntyped = errors.New("not used on this side")

func (s connectStream) Context() context.Context   { return s.ctx }
func (connectStream) SetHeader(metadata.MD) error  { return errUntyped }
func (connectStream) SendHeader(metadata.MD) error { return errUntyped }
func (connectStream) SetTrailer(metadata.MD)       {}
func (connectStream) SendMsg(any) error            { return errUntyped }
func (connectStream) RecvMsg(any) error            { return errUntyped }

type download[T any] struct {
	connectStream
	out *connect.ServerStream[T]
}

var _ grpc.ServerStreamingServer[daemonv1.PromptResponse] = download[daemonv1.PromptResponse]{}

// Send passes one message on at once; connect flushes after each.
func (d download[T]) Send(m *T) error { return d.out.Send(m) }

// received is a stream of a client with one answer.
type received[Req, Res any] struct {
	connectStream
	in     *connect.ClientStream[Req]
	answer *Res
}

var _ grpc.ClientStreamingServer[daemonv1.BuildRequest, daemonv1.BuildResponse] = (*received[daemonv1.BuildRequest, daemonv1.BuildResponse])(nil)

// Recv returns the next message, or io.EOF after the last.
func (r *received[Req, Res]) Recv() (*Req, error) {
	if r.in.Receive() {
		return r.in.Msg(), nil
	}
	if err := r.in.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

// SendAndClose keeps the answer for the caller to return.
func (r *received[Req, Res]) SendAndClose(m *Res) error {
	r.answer = m
	return nil
}
