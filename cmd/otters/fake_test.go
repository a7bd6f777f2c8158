package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// fake is a daemon at the seam of the API: it keeps what it was asked and answers from fields.
type fake struct {
	daemonv1.UnimplementedDaemonServiceServer

	images []*daemonv1.Image
	agents []*daemonv1.Agent
	states []*daemonv1.AgentSummary
	events []*daemonv1.PromptResponse
	hang   bool // Prompt waits for its cancel after the events
	logs   []string
	fakeConversations
	refuse  error
	created chan struct{} // closed once a hanging prompt has begun

	mu     sync.Mutex
	asked  []any
	hungUp chan struct{}
}

func (f *fake) note(req any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, req)
	return f.refuse
}

// last is the last request it got.
func (f *fake) last() any {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 {
		return nil
	}
	return f.asked[len(f.asked)-1]
}

// refusal is an error of the daemon, with what a person can do.
func refusal(code codes.Code, message, hint string, details ...protoadapt.MessageV1) error {
	st, err := status.New(code, message).WithDetails(append(details, protoadapt.MessageV1Of(&daemonv1.Hint{Text: hint}))...)
	if err != nil {
		return err
	}
	return st.Err()
}

func (f *fake) find(name string) (*daemonv1.Agent, error) {
	for _, a := range f.agents {
		if a.GetSummary().GetName() == name || a.GetSummary().GetId() == name {
			return a, nil
		}
	}
	return nil, refusal(codes.NotFound, "agent \""+name+"\": not found", "list agents with `otters ps`")
}

func (f *fake) Info(_ context.Context, r *daemonv1.InfoRequest) (*daemonv1.InfoResponse, error) {
	return &daemonv1.InfoResponse{
		Version: "v9.8.7", Pid: 4711, Home: "/home/o", Socket: "/run/o.sock", Registry: "127.0.0.1:5527",
		StartedAtMs: 1_700_000_000_123, Agents: 2, AgentsRunning: 1, Providers: []string{"offline", "other"},
		Platform: "linux/amd64", SchemaVersion: 3, Confinement: &daemonv1.Confinement{Level: "off", Open: []string{"The network is open."}},
	}, f.note(r)
}

func (f *fake) Build(s grpc.ClientStreamingServer[daemonv1.BuildRequest, daemonv1.BuildResponse]) error {
	var first *daemonv1.BuildRequest
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if first == nil {
			first = r
		}
	}
	if err := f.note(first); err != nil {
		return err
	}
	return s.SendAndClose(&daemonv1.BuildResponse{Digest: "sha256:abc", References: first.GetOptions().GetTags(), Warnings: []string{"CONTEXT X is empty"}})
}

func (f *fake) ListImages(_ context.Context, r *daemonv1.ListImagesRequest) (*daemonv1.ListImagesResponse, error) {
	return &daemonv1.ListImagesResponse{Images: f.images}, f.note(r)
}

func (f *fake) CreateAgent(_ context.Context, r *daemonv1.CreateAgentRequest) (*daemonv1.CreateAgentResponse, error) {
	return &daemonv1.CreateAgentResponse{Agent: &daemonv1.AgentSummary{Id: "0199aaaa", Name: r.GetName(), Status: "pulling"}}, f.note(r)
}

func (f *fake) ListAgents(_ context.Context, r *daemonv1.ListAgentsRequest) (*daemonv1.ListAgentsResponse, error) {
	out := &daemonv1.ListAgentsResponse{}
	for _, a := range f.agents {
		out.Agents = append(out.Agents, a.GetSummary())
	}
	return out, f.note(r)
}

func (f *fake) GetAgent(_ context.Context, r *daemonv1.GetAgentRequest) (*daemonv1.GetAgentResponse, error) {
	// It is asked after others too, so it is not the last that a test looks for.
	if f.refuse != nil {
		return nil, f.refuse
	}
	a, err := f.find(r.GetAgent())
	return &daemonv1.GetAgentResponse{Agent: a}, err
}

func (f *fake) WatchAgent(r *daemonv1.WatchAgentRequest, s grpc.ServerStreamingServer[daemonv1.WatchAgentResponse]) error {
	for _, state := range f.states {
		if err := s.Send(&daemonv1.WatchAgentResponse{Agent: state}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) StartAgent(_ context.Context, r *daemonv1.StartAgentRequest) (*daemonv1.StartAgentResponse, error) {
	a, err := f.find(r.GetAgent())
	return &daemonv1.StartAgentResponse{Agent: a.GetSummary()}, errors.Join(err, f.note(r))
}

func (f *fake) StopAgent(_ context.Context, r *daemonv1.StopAgentRequest) (*daemonv1.StopAgentResponse, error) {
	if err := f.note(r); err != nil {
		return nil, err
	}
	a, err := f.find(r.GetAgent())
	return &daemonv1.StopAgentResponse{Agent: a.GetSummary()}, err
}

func (f *fake) RestartAgent(_ context.Context, r *daemonv1.RestartAgentRequest) (*daemonv1.RestartAgentResponse, error) {
	a, err := f.find(r.GetAgent())
	return &daemonv1.RestartAgentResponse{Agent: a.GetSummary()}, errors.Join(err, f.note(r))
}

func (f *fake) KillAgent(_ context.Context, r *daemonv1.KillAgentRequest) (*daemonv1.KillAgentResponse, error) {
	a, err := f.find(r.GetAgent())
	return &daemonv1.KillAgentResponse{Agent: a.GetSummary()}, errors.Join(err, f.note(r))
}

// Exec writes the input back, to both streams, and ends with code 7, or waits where hang is set.
func (f *fake) Exec(s grpc.BidiStreamingServer[daemonv1.ExecRequest, daemonv1.ExecResponse]) error {
	start, err := s.Recv()
	if err != nil {
		return err
	}
	if err := f.note(start.GetStart()); err != nil {
		return err
	}
	for !f.hang {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		out := &daemonv1.ExecResponse{Part: &daemonv1.ExecResponse_Stdout{Stdout: m.GetStdin()}}
		errs := &daemonv1.ExecResponse{Part: &daemonv1.ExecResponse_Stderr{Stderr: m.GetStdin()}}
		if err := errors.Join(s.Send(out), s.Send(errs)); err != nil {
			return err
		}
	}
	if f.hang {
		close(f.created)
		<-s.Context().Done()
		close(f.hungUp)
		return s.Context().Err()
	}
	return s.Send(&daemonv1.ExecResponse{Part: &daemonv1.ExecResponse_Exit{Exit: &daemonv1.ExecExit{Code: 7}}})
}

func (f *fake) RemoveAgent(_ context.Context, r *daemonv1.RemoveAgentRequest) (*daemonv1.RemoveAgentResponse, error) {
	if err := f.note(r); err != nil {
		return nil, err
	}
	a, err := f.find(r.GetAgent())
	return &daemonv1.RemoveAgentResponse{Id: a.GetSummary().GetId(), Name: a.GetSummary().GetName()}, err
}

func (f *fake) Prompt(r *daemonv1.PromptRequest, s grpc.ServerStreamingServer[daemonv1.PromptResponse]) error {
	if err := f.note(r); err != nil {
		return err
	}
	for _, ev := range f.events {
		if err := s.Send(ev); err != nil {
			return err
		}
	}
	if f.hang {
		close(f.created)
		<-s.Context().Done()
		close(f.hungUp)
	}
	return s.Context().Err()
}

func (f *fake) Logs(r *daemonv1.LogsRequest, s grpc.ServerStreamingServer[daemonv1.LogsResponse]) error {
	if _, err := f.find(r.GetAgent()); err != nil {
		return err
	}
	if err := f.note(r); err != nil {
		return err
	}
	for i, line := range f.logs {
		if err := s.Send(&daemonv1.LogsResponse{Stream: "stderr", Line: line, AtMs: int64(i) * 1_700_000_000_123}); err != nil {
			return err
		}
	}
	return nil
}

// tempDir is a folder that agents' own users can pass through, with a path that is short enough for sockets
// below it, whatever TMPDIR is.
func tempDir(t testing.TB) string {
	t.Helper()
	parent := os.TempDir()
	if len(parent) > 40 {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "ot")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// serve serves f and returns its socket.
func serve(t *testing.T, f *fake) string {
	t.Helper()
	f.created, f.hungUp = make(chan struct{}), make(chan struct{})
	socket := filepath.Join(tempDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(16 << 20)) // the daemon's
	daemonv1.RegisterDaemonServiceServer(server, f)
	daemonv1.RegisterConversationServiceServer(server, fakeTalk{fake: f})
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return socket
}

// result is what a command left.
type outcome struct {
	code     int
	out, err string
}

// otters runs the program in this process against a socket.
func otters(ctx context.Context, socket, in string, args ...string) outcome {
	var out, errs bytes.Buffer
	a := &app{in: strings.NewReader(in), out: &out, err: &errs}
	code := a.run(ctx, append([]string{"--socket", socket}, args...))
	return outcome{code, out.String(), errs.String()}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeProgram writes what is to be run. No process is forked meanwhile, since it would have the file open
// for writing until it runs another program, and the kernel runs no program that somebody may write (ETXTBSY).
func writeProgram(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	writeFile(t, path, text)
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
