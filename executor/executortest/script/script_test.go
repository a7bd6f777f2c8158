package script

import (
	"context"
	"go/parser"
	"go/token"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// served runs r and returns a connection to it.
func served(t *testing.T, r *Runtime) *grpc.ClientConn {
	t.Helper()
	ln := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ctx, ln) }()
	conn, err := grpc.NewClient("passthrough:///mem", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		<-ended
	})
	return conn
}

// each calls every call of the service with an empty request.
func each(t *testing.T, ctx context.Context, conn *grpc.ClientConn) map[string]codes.Code {
	t.Helper()
	desc := agentv1.AgentRuntime_ServiceDesc
	got := make(map[string]codes.Code)
	for _, m := range desc.Methods {
		got[m.MethodName] = status.Code(conn.Invoke(ctx, "/"+desc.ServiceName+"/"+m.MethodName, &emptypb.Empty{}, &emptypb.Empty{}))
	}
	for _, s := range desc.Streams {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+desc.ServiceName+"/"+s.StreamName)
		if err == nil {
			err = stream.SendMsg(&emptypb.Empty{})
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err == nil {
			err = stream.RecvMsg(&emptypb.Empty{})
		}
		got[s.StreamName] = status.Code(err)
	}
	return got
}

func TestEveryCallOfTheContractIsServed(t *testing.T) {
	t.Parallel()
	got := each(t, t.Context(), served(t, new(Runtime)))
	if len(got) < 13 {
		t.Errorf("%d calls, the contract has 13", len(got))
	}
	for name, code := range got {
		if code == codes.Unimplemented || code == codes.Internal || code == codes.Unknown {
			t.Errorf("%s: %v", name, code)
		}
	}
}

func TestNoCallIsAnsweredWithoutTheToken(t *testing.T) {
	t.Parallel()
	conn := served(t, &Runtime{Token: "tok"})
	for name, code := range each(t, t.Context(), conn) {
		if code != codes.Unauthenticated {
			t.Errorf("%s: %v", name, code)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "otters-serve-token", "tok")
	for name, code := range each(t, ctx, conn) {
		if code == codes.Unauthenticated {
			t.Errorf("%s with it: %v", name, code)
		}
	}
}

// It is made from the proto alone, so that it stands for any runtime and not for ours.
func TestTheRuntimeKnowsNothingOfOursButTheProto(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if ours, ok := strings.CutPrefix(p, "github.com/otters-sh/otters/"); ok && !strings.HasPrefix(ours, "proto/") {
				t.Errorf("%s imports %s", name, p)
			}
		}
	}
}
