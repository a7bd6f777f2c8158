package system_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/testprograms"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
	"github.com/otters-sh/otters/sandbox"
)

// The test program doubles as the runtime and as a tool of the agents under test: the variable, or
// the name it is called by, says so.
const roleVar = "TEST_ROLE"

// sleep is for ever, as far as a test is concerned; it ends in case nobody kills the process.
const sleep = time.Hour

func TestMain(m *testing.M) {
	switch {
	case filepath.Base(os.Args[0]) == "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
		os.Exit(0)
	case filepath.Base(os.Args[0]) == "cat":
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case filepath.Base(os.Args[0]) == "take":
		take(os.Args[1])
		fmt.Println("taken")
		os.Exit(0)
	case filepath.Base(os.Args[0]) == "sleeper":
		time.Sleep(sleep)
		os.Exit(1)
	case filepath.Base(os.Args[0]) == "hang":
		// Leaves a grandchild behind that would outlive it.
		self, err := os.Executable()
		if err != nil {
			os.Exit(1)
		}
		cmd := exec.Command(self)
		cmd.Args = append([]string{"sleeper"}, os.Args[1:]...)
		if err := cmd.Start(); err != nil {
			os.Exit(1)
		}
		fmt.Println("up")
		time.Sleep(sleep)
		os.Exit(1)
	}
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(runtimeMain(role))
	}
	code, err := withMonitor(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// monitor is the path of otters-sandbox, built for this run.
var monitor string

func withMonitor(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "otters-system-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	programs := testprograms.Of("cmd/otters-sandbox")
	defer programs.Remove()
	bin, err := programs.Dir()
	if err != nil {
		return 0, err
	}
	monitor = filepath.Join(bin, "otters-sandbox")
	// Inside strict there is no loader, so that a program is static.
	program = filepath.Join(dir, "program")
	cmd := exec.Command("go", "test", "-c", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build program: %w: %s", err, out)
	}
	return m.Run(), nil
}

// program is this test program as a static one, and level the sandbox level of agents; empty is the
// default, the strongest.
var (
	program string
	level   = sandbox.Level(os.Getenv("OTTERS_TEST_SANDBOX"))
)

// runtimeMain is a runtime made from the contract alone. What it does is in role:
//
//	serve    answers until SIGTERM
//	exit N   writes a line to standard error and exits with N
//	deaf     never answers Ready with true
//	stubborn ignores SIGTERM
//	late     serves once there is a file "begin" in its working folder
//
// "handles DIR" is no runtime but the process of TestAKilledWriterLeavesAWholeHandle.
func runtimeMain(role string) int {
	verb, arg, _ := strings.Cut(role, " ")
	if verb == "exit" {
		fmt.Fprintln(os.Stderr, "the runtime says why")
		code, _ := strconv.Atoi(arg)
		return code
	}
	if verb == "handles" {
		fmt.Fprintln(os.Stderr, writeHandles(arg))
		return 1
	}
	if verb == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	ln, token, err := listenerAndToken()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for verb == "late" {
		if _, err := os.Stat("begin"); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Println("serving", ln.Addr())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT)
	if verb != "stubborn" {
		ctx, stop = signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	}
	defer stop()
	srv := grpc.NewServer()
	agentv1.RegisterAgentRuntimeServer(srv, &scripted{token: token, ready: verb != "deaf"})
	go func() {
		<-ctx.Done()
		srv.Stop()
	}()
	if err := srv.Serve(ln); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// leave starts a process in a session of its own, whose command line holds mark.
func leave(mark string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Args, cmd.Env = []string{"sleeper", mark}, []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// take uses so many MiB of memory for a moment.
func take(mib string) {
	n, err := strconv.Atoi(mib)
	if err != nil {
		panic(err)
	}
	b := make([]byte, n<<20)
	for i := 0; i < len(b); i += 1024 {
		b[i] = 1
	}
	runtime.KeepAlive(b)
}

func listenerAndToken() (net.Listener, string, error) {
	if os.Getenv("LISTEN_FDS") == "2" {
		if names := os.Getenv("LISTEN_FDNAMES"); names != "runtime:serve-token" {
			return nil, "", fmt.Errorf("descriptors are named %q", names)
		}
		ln, err := net.FileListener(os.NewFile(3, "runtime"))
		if err != nil {
			return nil, "", err
		}
		token, err := io.ReadAll(os.NewFile(4, "serve-token"))
		return ln, string(token), err
	}
	for i, a := range os.Args {
		if a == "--addr" {
			ln, err := net.Listen("tcp", os.Args[i+1])
			return ln, "", err
		}
	}
	return nil, "", fmt.Errorf("no --addr")
}

// scripted answers every call of the contract that system makes.
type scripted struct {
	agentv1.UnimplementedAgentRuntimeServer
	token string
	ready bool

	mu    sync.Mutex
	notes map[string]string
}

func (s *scripted) check(ctx context.Context) error {
	if s.token == "" {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get("otters-serve-token"); len(got) != 1 || got[0] != s.token {
		return status.Error(codes.Unauthenticated, "wrong serve token")
	}
	return nil
}

func (s *scripted) Ready(ctx context.Context, _ *agentv1.ReadyRequest) (*agentv1.ReadyResponse, error) {
	return &agentv1.ReadyResponse{Ready: s.ready}, s.check(ctx)
}

// ChatStream answers "env", "args", "run" and "pid" with what they name, "hang" with silence,
// "listen", "read:PATH", "write:PATH", "take:MIB" of memory, "leave:MARK" and "get:ADDRESS" with what came of it, and
// everything else with itself, a word an event.
func (s *scripted) ChatStream(req *agentv1.ChatStreamRequest, stream grpc.ServerStreamingServer[agentv1.ChatStreamEvent]) error {
	if err := s.check(stream.Context()); err != nil {
		return err
	}
	var words []string
	switch req.Prompt {
	case "env":
		words = []string{strings.Join(os.Environ(), "\n")}
	case "args":
		dir, _ := os.Getwd()
		words = []string{strings.Join(append(os.Args[1:], dir), "\n")}
	case "pid":
		words = []string{strconv.Itoa(os.Getpid()), " ", strconv.Itoa(os.Getuid())}
	case "listen":
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		words = []string{"listens"}
		if err != nil {
			words = []string{"denied"}
		} else {
			_ = ln.Close()
		}
	case "run":
		md, _ := metadata.FromIncomingContext(stream.Context())
		words = md.Get("otters-run")
	case "hang":
		if err := stream.Send(&agentv1.ChatStreamEvent{Type: "step.start", Step: 1}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	default:
		words = strings.SplitAfter(req.Prompt, " ")
		verb, arg, _ := strings.Cut(req.Prompt, ":")
		var err error
		var out string
		switch verb {
		case "read":
			var b []byte
			b, err = os.ReadFile(arg)
			out = string(b)
		case "write":
			err, out = os.WriteFile(arg, []byte("written"), 0o666), "done"
		case "get":
			var c net.Conn
			if c, err = net.Dial("tcp", arg); err == nil {
				var b []byte
				b, err = io.ReadAll(c)
				_ = c.Close()
				out = string(b)
			}
		case "take":
			take(arg)
			out = "taken"
		case "leave":
			err, out = leave(arg), "left"
		default:
			verb = ""
		}
		if err != nil {
			out = "denied"
		}
		if verb != "" {
			words = []string{out}
		}
	}
	events := []*agentv1.ChatStreamEvent{{Type: "step.start", Step: 1}}
	for _, w := range words {
		events = append(events, &agentv1.ChatStreamEvent{Type: "text.delta", Step: 1, Content: w})
	}
	events = append(events, &agentv1.ChatStreamEvent{Type: "turn.finish", Reason: "done", Usage: &agentv1.Usage{InputTokens: 3, OutputTokens: 5}})
	for _, ev := range events {
		if err := stream.Send(ev); err != nil {
			return err
		}
	}
	return nil
}

func (s *scripted) ListSessions(context.Context, *agentv1.ListSessionsRequest) (*agentv1.ListSessionsResponse, error) {
	return &agentv1.ListSessionsResponse{Sessions: []*agentv1.Session{{Id: "s1", MessageCount: 2, LastActive: 7}}}, nil
}

func (s *scripted) ListSessionMessages(_ context.Context, r *agentv1.ListSessionMessagesRequest) (*agentv1.ListSessionMessagesResponse, error) {
	return &agentv1.ListSessionMessagesResponse{Messages: []*agentv1.SessionMessage{{Role: "user", Content: r.SessionId, CreatedAt: int64(r.Limit)}}}, nil
}

func (s *scripted) SaveNote(_ context.Context, r *agentv1.SaveNoteRequest) (*agentv1.SaveNoteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notes == nil {
		s.notes = make(map[string]string)
	}
	_, over := s.notes[r.Key]
	s.notes[r.Key] = r.Content
	return &agentv1.SaveNoteResponse{Note: &agentv1.Note{Key: r.Key, Content: r.Content}, Overwrote: over}, nil
}

func (s *scripted) GetNote(_ context.Context, r *agentv1.GetNoteRequest) (*agentv1.GetNoteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content, ok := s.notes[r.Key]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no note %q", r.Key)
	}
	return &agentv1.GetNoteResponse{Note: &agentv1.Note{Key: r.Key, Content: content}}, nil
}
