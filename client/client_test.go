package client

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: a call ends with its context and its error says what, why and what to do. Worst
// inputs: a socket that is there with nobody behind it, or with another user behind it; a daemon
// that dies during the call; a build folder with a pipe, a cycle of symlinks or no end.

// fake is a daemon at the seam of the API.
type fake struct {
	daemonv1.UnimplementedDaemonServiceServer
	info   func(context.Context) (*daemonv1.InfoResponse, error)
	agent  func(string) (*daemonv1.GetAgentResponse, error)
	watch  []string
	prompt func(grpc.ServerStreamingServer[daemonv1.PromptResponse]) error
	build  func(grpc.ClientStreamingServer[daemonv1.BuildRequest, daemonv1.BuildResponse]) error
}

func (f *fake) Info(ctx context.Context, _ *daemonv1.InfoRequest) (*daemonv1.InfoResponse, error) {
	return f.info(ctx)
}

func (f *fake) GetAgent(_ context.Context, r *daemonv1.GetAgentRequest) (*daemonv1.GetAgentResponse, error) {
	return f.agent(r.GetAgent())
}

func (f *fake) WatchAgent(_ *daemonv1.WatchAgentRequest, s grpc.ServerStreamingServer[daemonv1.WatchAgentResponse]) error {
	for _, state := range f.watch {
		if err := s.Send(&daemonv1.WatchAgentResponse{Agent: &daemonv1.AgentSummary{Name: "a", Status: state}}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) Prompt(_ *daemonv1.PromptRequest, s grpc.ServerStreamingServer[daemonv1.PromptResponse]) error {
	return f.prompt(s)
}

func (f *fake) Build(s grpc.ClientStreamingServer[daemonv1.BuildRequest, daemonv1.BuildResponse]) error {
	return f.build(s)
}

// shortDir is a folder with a path that is short enough for a socket in it, whatever TMPDIR is.
func shortDir(t *testing.T) string {
	t.Helper()
	parent := os.TempDir()
	if len(parent) > 40 {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "oc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func serve(t *testing.T, f *fake) (*Client, *grpc.Server) {
	t.Helper()
	socket := filepath.Join(shortDir(t), "with space%41?.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	daemonv1.RegisterDaemonServiceServer(server, f)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	c, err := Dial(t.Context(), Options{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, server
}

func TestDialSaysWhyThereIsNoDaemon(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		socket, says string
		noDaemon     bool
	}{
		"nothing there":           {filepath.Join(dir, "none.sock"), "is not there", true},
		"no folder":               {filepath.Join(dir, "no", "none.sock"), "is not there", true},
		"nobody listens":          {stale, "nothing listens on socket " + stale, true},
		"a file":                  {file, "nothing listens", true},
		"a path that is too long": {"/" + strings.Repeat("x", 107), "108 bytes", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Dial(t.Context(), Options{Socket: c.socket})
			if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, ErrNoDaemon) != c.noDaemon {
				t.Fatalf("error %v; want %q, ErrNoDaemon %v", err, c.says, c.noDaemon)
			}
			var e *Error
			if c.noDaemon && (!errors.As(err, &e) || !strings.Contains(e.Hint, "otters daemon start")) {
				t.Errorf("no hint how to start one: %#v", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ctx, Options{Socket: stale}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestErrorsCarryCodeHintAndCandidates(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, &fake{agent: func(name string) (*daemonv1.GetAgentResponse, error) {
		if name == "known" {
			return &daemonv1.GetAgentResponse{Agent: &daemonv1.Agent{Root: "/r"}}, nil
		}
		st, err := status.New(codes.FailedPrecondition, `agent "x": name fits 2 agents`).WithDetails(
			protoadapt.MessageV1Of(&daemonv1.Hint{Text: "name it by id"}),
			protoadapt.MessageV1Of(&daemonv1.AmbiguousName{Name: "x", Candidates: []*daemonv1.AgentSummary{{Id: "1"}, {Id: "2"}}}))
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}})
	if a, err := c.Agent(t.Context(), "known"); err != nil || a.GetRoot() != "/r" {
		t.Fatalf("known agent: %v, %v", a, err)
	}
	_, err := c.Agent(t.Context(), "x")
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %#v", err)
	}
	if e.Code != codes.FailedPrecondition || e.Hint != "name it by id" || len(e.Candidates) != 2 || e.Error() != `agent "x": name fits 2 agents` {
		t.Errorf("error %+v", e)
	}
	if status.Code(errors.Unwrap(e)) != codes.FailedPrecondition {
		t.Errorf("cause %v", errors.Unwrap(e))
	}
	if _, err := c.Agents(t.Context()); !errors.As(err, &e) || e.Code != codes.Unimplemented || !strings.Contains(e.Hint, "otters version") {
		t.Errorf("unknown call: %+v", err)
	}
}

func TestDaemonThatEndsDuringACallIsNoDaemon(t *testing.T) {
	t.Parallel()
	called := make(chan struct{})
	c, server := serve(t, &fake{info: func(ctx context.Context) (*daemonv1.InfoResponse, error) {
		close(called)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	go func() { <-called; server.Stop() }()
	_, err := c.Info(t.Context())
	if !errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "ended during the call") {
		t.Fatalf("error %v", err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, &fake{info: func(ctx context.Context) (*daemonv1.InfoResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Info(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
}

func TestEndingTheLoopCancelsTheTurn(t *testing.T) {
	t.Parallel()
	cancelled := make(chan struct{})
	c, _ := serve(t, &fake{prompt: func(s grpc.ServerStreamingServer[daemonv1.PromptResponse]) error {
		if err := s.Send(&daemonv1.PromptResponse{Type: "text.delta", Content: "a"}); err != nil {
			return err
		}
		<-s.Context().Done()
		close(cancelled)
		return s.Context().Err()
	}})
	for ev, err := range c.Prompt(t.Context(), &daemonv1.PromptRequest{Agent: "a", Text: "hi"}) {
		if err != nil || ev.GetContent() != "a" {
			t.Fatalf("event %v, %v", ev, err)
		}
		break
	}
	<-cancelled // The daemon heard of it.
}

func TestWaitReady(t *testing.T) {
	t.Parallel()
	cases := map[string][]string{
		"ready":   {"pulling", "starting", "ready", "working"},
		"failed":  {"starting", "failed"},
		"removed": {"starting"},
		"stopped": {"stopped"},
	}
	for want, states := range cases {
		c, _ := serve(t, &fake{watch: states})
		got, err := c.WaitReady(t.Context(), "a")
		if err != nil || got.GetStatus() != want {
			t.Errorf("after %v: %v, %v; want %s", states, got, err, want)
		}
	}
}

// TestSocketOfAnotherUserIsRefused (A3, A4, seen from the client): listen(2) fixes the credentials
// that a client sees, so a thread that changes its user for that moment is another user's server.
func TestSocketOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to listen as another user")
	}
	t.Parallel()
	socket := filepath.Join(shortDir(t), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	keep := ^uintptr(0)
	_, _, none := unix.RawSyscall(unix.SYS_SETRESUID, keep, 4242, keep)
	err = unix.Listen(fd, 4)
	unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep)
	runtime.UnlockOSThread()
	if none != 0 {
		t.Skipf("root of a namespace without user 4242: %v", none)
	}
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for own, allowed := range map[int]bool{4242: true, 0: true, 1000: false} {
		err := checkPeer(conn.(*net.UnixConn), own)
		if (err == nil) != allowed {
			t.Errorf("user %d at a socket of 4242: %v", own, err)
		}
		if err != nil && !strings.Contains(err.Error(), "served by user 4242") {
			t.Errorf("error %v", err)
		}
	}
}
