package daemon

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/otters-sh/otters/internal/gate"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: a method is called only by whom the table names, on both protocols. Worst inputs: a
// method that the table does not have, a connection without a principal, a foreign authority.

// testAPI serves impl on a socket as the daemon does, to p.
func testAPI(t *testing.T, impl daemonv1.DaemonServiceServer, p principal) string {
	t.Helper()
	socket := filepath.Join(emptyHome(t), "s")
	l, err := gate.ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	hosts := gate.LoopbackHosts(l.Addr())
	split := newSplitter(l, p)
	grpcServer, httpServer := newGRPC(impl, hosts), newHTTP(impl, hosts, slog.New(slog.DiscardHandler))
	var running sync.WaitGroup
	running.Go(func() { _ = split.run() })
	running.Go(func() { _ = grpcServer.Serve(split.http2) })
	running.Go(func() { _ = httpServer.Serve(split.http1) })
	t.Cleanup(func() {
		_ = split.close()
		grpcServer.Stop()
		_ = httpServer.Close()
		running.Wait()
	})
	return socket
}

func testConn(t *testing.T, socket string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
	conn, err := grpc.NewClient("unix://"+socket, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func testHTTP(t *testing.T, socket string) *http.Client {
	t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// emptyAPI implements nothing of any service.
type emptyAPI struct {
	daemonv1.UnimplementedDaemonServiceServer
}

func (emptyAPI) registryAPI() daemonv1.RegistryServiceServer {
	return daemonv1.UnimplementedRegistryServiceServer{}
}

func (emptyAPI) images() daemonv1.ImageServiceServer {
	return daemonv1.UnimplementedImageServiceServer{}
}

func (emptyAPI) conversations() daemonv1.ConversationServiceServer {
	return daemonv1.UnimplementedConversationServiceServer{}
}

// everyMethod calls fn for each method of the services with its path and an empty request.
func everyMethod(t *testing.T, fn func(path string, req proto.Message, clientStream bool)) {
	t.Helper()
	for _, file := range []protoreflect.FileDescriptor{
		daemonv1.File_otters_daemon_v1_daemon_proto, daemonv1.File_otters_daemon_v1_registry_proto, daemonv1.File_otters_daemon_v1_images_proto,
		daemonv1.File_otters_daemon_v1_conversations_proto,
	} {
		everyMethodOf(t, file.Services().Get(0), fn)
	}
}

func everyMethodOf(t *testing.T, service protoreflect.ServiceDescriptor, fn func(path string, req proto.Message, clientStream bool)) {
	t.Helper()
	methods := service.Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		in, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
		if err != nil {
			t.Fatal(err)
		}
		fn("/"+string(service.FullName())+"/"+string(m.Name()), in.New().Interface(), m.IsStreamingClient())
	}
}

func callGRPC(t *testing.T, conn *grpc.ClientConn, path string, req proto.Message) codes.Code {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, path)
	if err != nil {
		return status.Code(err)
	}
	_ = stream.SendMsg(req)
	_ = stream.CloseSend()
	return status.Code(stream.RecvMsg(req))
}

func callConnect(t *testing.T, client *http.Client, path string, req proto.Message, clientStream bool) codes.Code {
	t.Helper()
	c := connect.NewClient[emptyMessage, emptyMessage](client, "http://localhost"+path, connect.WithCodec(rawCodec{}))
	var err error
	switch {
	case clientStream:
		s := c.CallClientStream(t.Context())
		_, err = s.CloseAndReceive()
	case path == daemonv1.DaemonService_WatchAgent_FullMethodName, path == daemonv1.DaemonService_Prompt_FullMethodName, path == daemonv1.DaemonService_Logs_FullMethodName,
		path == daemonv1.ImageService_SaveImage_FullMethodName, path == daemonv1.ImageService_PushImage_FullMethodName, path == daemonv1.ImageService_PullImage_FullMethodName,
		path == daemonv1.ConversationService_ShowSession_FullMethodName, path == daemonv1.ConversationService_ExportSessions_FullMethodName:
		var s *connect.ServerStreamForClient[emptyMessage]
		if s, err = c.CallServerStream(t.Context(), connect.NewRequest(&emptyMessage{})); err == nil {
			for s.Receive() {
			}
			err = s.Err()
			_ = s.Close()
		}
	default:
		_, err = c.CallUnary(t.Context(), connect.NewRequest(&emptyMessage{}))
	}
	if err == nil {
		return codes.OK
	}
	return codes.Code(connect.CodeOf(err))
}

// emptyMessage is any message without a field set.
type emptyMessage struct{}

type rawCodec struct{}

func (rawCodec) Name() string                { return "proto" }
func (rawCodec) Marshal(any) ([]byte, error) { return nil, nil }
func (rawCodec) Unmarshal([]byte, any) error { return nil }

func TestEveryMethodIsInTheTableAndNothingElse(t *testing.T) {
	t.Parallel()
	rest := make(map[string]principal, len(access))
	for k, v := range access {
		rest[k] = v
	}
	everyMethod(t, func(path string, _ proto.Message, _ bool) {
		if rest[path] == nobody {
			t.Errorf("%s: nobody may call it", path)
		}
		delete(rest, path)
	})
	if len(rest) > 0 {
		t.Errorf("methods that there are not: %v", rest)
	}
	if err := authorize("/otters.daemon.v1.DaemonService/New", operator); codeOf(err) != codes.PermissionDenied {
		t.Errorf("a method outside the table: %v", err)
	}
}

func TestEveryMethodIsRefusedToNobodyAndReachedByTheOperator(t *testing.T) {
	t.Parallel()
	// UNIMPLEMENTED comes from the implementation, so a call that gets it has passed the table.
	impl := emptyAPI{}
	for _, c := range []struct {
		p    principal
		want codes.Code
	}{{nobody, codes.PermissionDenied}, {operator, codes.Unimplemented}} {
		socket := testAPI(t, impl, c.p)
		conn, client := testConn(t, socket), testHTTP(t, socket)
		everyMethod(t, func(path string, req proto.Message, clientStream bool) {
			if got := callGRPC(t, conn, path, req); got != c.want {
				t.Errorf("%s by %s over HTTP/2: %v, want %v", path, c.p, got, c.want)
			}
			want := c.want
			if path == daemonv1.DaemonService_Exec_FullMethodName {
				want = codes.Unknown // 505: HTTP/1.1 has no streams both ways
			}
			if got := callConnect(t, client, path, req, clientStream); got != want {
				t.Errorf("%s by %s over HTTP/1.1: %v, want %v", path, c.p, got, want)
			}
		})
	}
}

func TestA1ForeignNamesAreRefusedBesideOwnOnes(t *testing.T) {
	t.Parallel()
	socket := testAPI(t, daemonv1.UnimplementedDaemonServiceServer{}, operator)
	for authority, want := range map[string]codes.Code{"localhost": codes.Unimplemented, "evil.example": codes.PermissionDenied} {
		conn := testConn(t, socket, grpc.WithAuthority(authority))
		_, err := daemonv1.NewDaemonServiceClient(conn).Info(t.Context(), &daemonv1.InfoRequest{})
		if status.Code(err) != want {
			t.Errorf("authority %s: %v, want %v", authority, err, want)
		}
	}
	client := testHTTP(t, socket)
	for _, c := range []struct {
		name, host, key, value string
		want                   int
	}{
		{name: "own host", host: "localhost", want: http.StatusNotImplemented},
		{name: "foreign host", host: "evil.example", want: http.StatusMisdirectedRequest},
		{name: "A2 foreign origin", host: "localhost", key: "Origin", value: "http://evil.example", want: http.StatusForbidden},
		{name: "A2 null origin", host: "localhost", key: "Origin", value: "null", want: http.StatusForbidden},
		{name: "A2 cross-site", host: "localhost", key: "Sec-Fetch-Site", value: "cross-site", want: http.StatusForbidden},
		{name: "A2 simple type", host: "localhost", key: "Content-Type", value: "text/plain", want: http.StatusUnsupportedMediaType},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+daemonv1.DaemonService_Info_FullMethodName, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		req.Header.Set("Content-Type", "application/json")
		if c.key != "" {
			req.Header.Set(c.key, c.value)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", c.name, resp.Status, c.want)
		}
		if resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: headers %v", c.name, resp.Header)
		}
	}
}
