package daemon

import (
	"context"
	"net"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/otters-sh/otters/internal/gate"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// principal is who calls. The zero value is nobody.
type principal int

const (
	nobody principal = iota
	// operator is whoever passed the socket's check: the daemon's own user or root.
	operator
)

func (p principal) String() string {
	if p == operator {
		return "operator"
	}
	return "nobody"
}

// access names who may call each method. A method that is not here may be called by nobody.
var access = map[string]principal{
	daemonv1.DaemonService_Info_FullMethodName:         operator,
	daemonv1.DaemonService_Shutdown_FullMethodName:     operator,
	daemonv1.DaemonService_Build_FullMethodName:        operator,
	daemonv1.DaemonService_ListImages_FullMethodName:   operator,
	daemonv1.DaemonService_CreateAgent_FullMethodName:  operator,
	daemonv1.DaemonService_ListAgents_FullMethodName:   operator,
	daemonv1.DaemonService_GetAgent_FullMethodName:     operator,
	daemonv1.DaemonService_WatchAgent_FullMethodName:   operator,
	daemonv1.DaemonService_StartAgent_FullMethodName:   operator,
	daemonv1.DaemonService_StopAgent_FullMethodName:    operator,
	daemonv1.DaemonService_RemoveAgent_FullMethodName:  operator,
	daemonv1.DaemonService_RestartAgent_FullMethodName: operator,
	daemonv1.DaemonService_KillAgent_FullMethodName:    operator,
	daemonv1.DaemonService_Exec_FullMethodName:         operator,
	daemonv1.DaemonService_Prompt_FullMethodName:       operator,
	daemonv1.DaemonService_Logs_FullMethodName:         operator,

	daemonv1.RegistryService_GC_FullMethodName:    operator,
	daemonv1.RegistryService_Fsck_FullMethodName:  operator,
	daemonv1.RegistryService_Login_FullMethodName: operator,

	daemonv1.ConversationService_ListSessions_FullMethodName:   operator,
	daemonv1.ConversationService_ShowSession_FullMethodName:    operator,
	daemonv1.ConversationService_RemoveSession_FullMethodName:  operator,
	daemonv1.ConversationService_ExportSessions_FullMethodName: operator,
	daemonv1.ConversationService_ImportSessions_FullMethodName: operator,
	daemonv1.ConversationService_PromptObject_FullMethodName:   operator,
	daemonv1.ConversationService_ListNotes_FullMethodName:      operator,
	daemonv1.ConversationService_GetNote_FullMethodName:        operator,
	daemonv1.ConversationService_SetNote_FullMethodName:        operator,
	daemonv1.ConversationService_RemoveNote_FullMethodName:     operator,
	daemonv1.ConversationService_PinNote_FullMethodName:        operator,

	daemonv1.ImageService_InspectImage_FullMethodName: operator,
	daemonv1.ImageService_TagImage_FullMethodName:     operator,
	daemonv1.ImageService_RemoveImage_FullMethodName:  operator,
	daemonv1.ImageService_SaveImage_FullMethodName:    operator,
	daemonv1.ImageService_LoadImage_FullMethodName:    operator,
	daemonv1.ImageService_PushImage_FullMethodName:    operator,
	daemonv1.ImageService_PullImage_FullMethodName:    operator,
	daemonv1.ImageService_BuildBin_FullMethodName:     operator,
	daemonv1.ImageService_PruneImages_FullMethodName:  operator,
}

// authorize decides whether p may call method.
func authorize(method string, p principal) error {
	if allowed := access[method]; allowed == nobody || p != allowed {
		return fail(codes.PermissionDenied, "", "%s: %s may not call it", method, p)
	}
	return nil
}

type principalKey struct{}

// apiConn is an accepted connection with the principal its listener vouches for.
type apiConn struct {
	net.Conn
	// first is what was read to tell the protocol, and is read again.
	first     []byte
	principal principal
}

func (c *apiConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// socketCredentials carries the principal of the connection into the calls made on it.
type socketCredentials struct{}

type socketAuth struct {
	credentials.CommonAuthInfo
	principal principal
}

func (socketAuth) AuthType() string { return "socket" }

func (socketCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info := socketAuth{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}
	if ac, ok := c.(*apiConn); ok {
		info.principal = ac.principal
	}
	return c, info, nil
}

func (socketCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fail(codes.Internal, "", "socket credentials are for the server")
}

func (socketCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "socket"}
}
func (s socketCredentials) Clone() credentials.TransportCredentials { return s }
func (socketCredentials) OverrideServerName(string) error           { return nil }

// admit is the check of every gRPC call: the :authority it was addressed to, then the table.
func admit(ctx context.Context, method string, hosts []string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if err := gate.CheckAuthority(md.Get(":authority"), hosts); err != nil {
		return fail(codes.PermissionDenied, "", "%w", err)
	}
	var p principal
	if pr, ok := peer.FromContext(ctx); ok {
		if info, ok := pr.AuthInfo.(socketAuth); ok {
			p = info.principal
		}
	}
	return authorize(method, p)
}

func grpcUnary(hosts []string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := admit(ctx, info.FullMethod, hosts); err != nil {
			return nil, toStatus(err).Err()
		}
		resp, err := next(ctx, req)
		if err != nil {
			return nil, toStatus(err).Err()
		}
		return resp, nil
	}
}

func grpcStream(hosts []string) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := admit(ss.Context(), info.FullMethod, hosts); err != nil {
			return toStatus(err).Err()
		}
		return toStatus(next(srv, ss)).Err()
	}
}

// withPrincipal is http.Server's ConnContext.
func withPrincipal(ctx context.Context, c net.Conn) context.Context {
	if ac, ok := c.(*apiConn); ok {
		return context.WithValue(ctx, principalKey{}, ac.principal)
	}
	return ctx
}

// connectAccess is the table in front of the HTTP/1.1 side; Host is internal/gate's.
type connectAccess struct{}

var _ connect.Interceptor = connectAccess{}

func connectPrincipal(ctx context.Context) principal {
	p, _ := ctx.Value(principalKey{}).(principal)
	return p
}

func (connectAccess) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := authorize(req.Spec().Procedure, connectPrincipal(ctx)); err != nil {
			return nil, toConnect(err)
		}
		resp, err := next(ctx, req)
		if err != nil {
			return nil, toConnect(err)
		}
		return resp, nil
	}
}

func (connectAccess) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (connectAccess) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := authorize(conn.Spec().Procedure, connectPrincipal(ctx)); err != nil {
			return toConnect(err)
		}
		if err := next(ctx, conn); err != nil {
			return toConnect(err)
		}
		return nil
	}
}

// noStore keeps answers out of every cache.
func noStore(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}
