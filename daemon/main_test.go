package daemon

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/otters-sh/otters/internal/leak"
	"github.com/otters-sh/otters/internal/testprograms"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// built are the real programs that the daemon needs.
var built = testprograms.Of("cmd/otters-sandbox", "cmd/otters-runtime", "cmd/otters-tools", "cmd/otters-attack", "executor/executortest/scripted")

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		os.Exit(bareRuntime(os.Args[1:]))
	}
	// Nobody's credentials are those of who runs the tests.
	_ = os.Setenv("DOCKER_CONFIG", "/nonexistent")
	code := leak.Code(m.Run())
	if err := stocked.check(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	_ = built.Remove()
	if stocked.dir != "" {
		_ = os.RemoveAll(stocked.dir)
	}
	os.Exit(code)
}

// patience is how long a test waits for what is to come, on however slow a machine.
const patience = 3 * time.Minute

// testDaemon is a daemon in this process over real programs.
type testDaemon struct {
	*Daemon
	t      *testing.T
	home   string
	socket string
	api    daemonv1.DaemonServiceClient
	end    func() error
}

// boot starts a daemon on home. It ends with the test, and its agents with it.
func boot(t *testing.T, home string, change ...func(*Config)) *testDaemon {
	t.Helper()
	cfg := Config{
		Home: home, Socket: filepath.Join(home, "ottersd.sock"), Programs: built.For(t), Version: "test",
		Logger: slog.New(slog.NewTextHandler(newTestLog(t), nil)), closeTimeout: patience,
	}
	for _, c := range change {
		c(&cfg)
	}
	if _, err := os.Stat(filepath.Join(home, "config.yaml")); errors.Is(err, fs.ErrNotExist) {
		writeHome(t, home, "config.yaml", "ready-timeout: 1h\n")
	}
	d, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.Serve(ctx) }()
	var once sync.Once
	var ended error
	end := func() error {
		once.Do(func() {
			cancel()
			ended = <-served
		})
		return ended
	}
	td := &testDaemon{Daemon: d, t: t, home: home, socket: cfg.Socket, end: end}
	td.api = daemonv1.NewDaemonServiceClient(testConn(t, cfg.Socket, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20))))
	t.Cleanup(func() {
		// Agents outlive a daemon, and must not outlive the test.
		stopCtx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		select {
		case <-d.sup.over.Done():
		default:
			if _, err := d.sup.stopAll(stopCtx); err != nil {
				t.Errorf("stop agents: %v", err)
			}
		}
		if err := end(); err != nil {
			t.Errorf("daemon ended with %v", err)
		}
	})
	return td
}

// testLog writes the daemon's log to the test's, until that is over: an agent's last goroutine may have
// something to say then.
type testLog struct {
	t    *testing.T
	mu   sync.Mutex
	over bool
}

func newTestLog(t *testing.T) *testLog {
	l := &testLog{t: t}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.over = true
	})
	return l
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// build makes an image of files, by path.
func (d *testDaemon) build(tag string, files map[string]string) (*daemonv1.BuildResponse, error) {
	d.t.Helper()
	return d.send(tarOf(d.t, files), &daemonv1.BuildOptions{Tags: []string{tag}})
}

// tarOf is an archive of files, by path.
func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func (d *testDaemon) send(archive []byte, opts *daemonv1.BuildOptions) (*daemonv1.BuildResponse, error) {
	d.t.Helper()
	stream, err := d.api.Build(d.t.Context())
	if err != nil {
		return nil, err
	}
	parts := []*daemonv1.BuildRequest{{Part: &daemonv1.BuildRequest_Options{Options: opts}}}
	for len(archive) > 0 {
		n := min(len(archive), 64<<10)
		parts = append(parts, &daemonv1.BuildRequest{Part: &daemonv1.BuildRequest_Archive{Archive: archive[:n]}})
		archive = archive[n:]
	}
	for _, p := range parts {
		if err := stream.Send(p); err != nil {
			break // the cause comes with the answer
		}
	}
	return stream.CloseAndRecv()
}

// guide is an agent with a document, a file and a tool, on the offline model.
var guide = map[string]string{
	"Agentfile": `FROM scratch
MODEL offline/otter
NAME guide
CONTEXT RIVERS "about rivers" file://rivers.md
ADD lines.txt
BIN wc otters/tools/wc
BIN cat otters/tools/cat
`,
	"rivers.md": "# Rivers\n\nThe Severn is the longest river.\n",
	"lines.txt": "one\ntwo\nthree\n",
}

// image builds files under tag and fails the test if that fails.
func (d *testDaemon) image(tag string, files map[string]string) {
	d.t.Helper()
	if _, err := d.build(tag, files); err != nil {
		d.t.Fatal(err)
	}
}

// create makes an agent and fails the test if that fails.
func (d *testDaemon) create(req *daemonv1.CreateAgentRequest) *daemonv1.AgentSummary {
	d.t.Helper()
	r, err := d.api.CreateAgent(d.t.Context(), req)
	if err != nil {
		d.t.Fatal(err)
	}
	return r.GetAgent()
}

// await watches agent until its status is one of want.
func (d *testDaemon) await(agent string, want ...string) *daemonv1.AgentSummary {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	stream, err := d.api.WatchAgent(ctx, &daemonv1.WatchAgentRequest{Agent: agent})
	if err != nil {
		d.t.Fatal(err)
	}
	var last *daemonv1.AgentSummary
	for {
		m, err := stream.Recv()
		if err != nil {
			d.t.Fatalf("agent %s: wait for %v: %v; last %v", agent, want, err, last)
		}
		last = m.GetAgent()
		for _, w := range want {
			if last.GetStatus() == w {
				return last
			}
		}
		if last.GetStatus() == "failed" {
			d.t.Fatalf("agent %s: wait for %v: %v", agent, want, last)
		}
	}
}

func (d *testDaemon) get(agent string) *daemonv1.Agent {
	d.t.Helper()
	r, err := d.api.GetAgent(d.t.Context(), &daemonv1.GetAgentRequest{Agent: agent})
	if err != nil {
		d.t.Fatal(err)
	}
	return r.GetAgent()
}

// turn is what came of one prompt.
type turn struct {
	run, session string
	types        []string
	text         string
	calls        []string
	results      []string
	reason       string
}

func (d *testDaemon) prompt(ctx context.Context, agent, session, text string) (turn, error) {
	d.t.Helper()
	stream, err := d.api.Prompt(ctx, &daemonv1.PromptRequest{Agent: agent, SessionId: session, Text: text})
	if err != nil {
		return turn{}, err
	}
	var got turn
	for {
		ev, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		if len(got.types) == 0 {
			got.run, got.session = ev.GetRunId(), ev.GetSessionId()
		} else if ev.GetRunId() != "" || ev.GetSessionId() != "" {
			d.t.Errorf("event %d carries ids again", len(got.types))
		}
		got.types = append(got.types, ev.GetType())
		switch ev.GetType() {
		case "text.delta":
			got.text += ev.GetContent()
		case "tool.call":
			got.calls = append(got.calls, ev.GetTool())
		case "tool.result":
			got.results = append(got.results, ev.GetContent())
		case "turn.finish":
			got.reason = ev.GetReason()
		}
	}
}

// ask is prompt that must succeed.
func (d *testDaemon) ask(agent, session, text string) turn {
	d.t.Helper()
	got, err := d.prompt(d.t.Context(), agent, session, text)
	if err != nil {
		d.t.Fatalf("prompt %q: %v (after %v)", text, err, got.types)
	}
	return got
}

// ending waits for the end of processes that run now.
type ending []*os.File

func processes(t *testing.T, pids ...int32) ending {
	t.Helper()
	var out ending
	for _, pid := range pids {
		f, err := process(t, pid)
		if err != nil {
			t.Fatalf("process %d does not run: %v", pid, err)
		}
		out = append(out, f)
	}
	return out
}

func process(t *testing.T, pid int32) (*os.File, error) {
	fd, err := unix.PidfdOpen(int(pid), unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), fmt.Sprint("pid ", pid))
	t.Cleanup(func() { _ = f.Close() })
	return f, nil
}

// running are the processes of an agent that may end at any time, none where it has ended.
func (d *testDaemon) running(agent string) ending {
	d.t.Helper()
	was := d.get(agent)
	var out ending
	for _, pid := range []int32{was.GetPid(), was.GetMonitorPid()} {
		if pid == 0 {
			continue
		}
		if f, err := process(d.t, pid); err == nil {
			out = append(out, f)
		}
	}
	// What has ended since may have left its number to another process.
	if is := d.get(agent); is.GetPid() != was.GetPid() || is.GetMonitorPid() != was.GetMonitorPid() {
		return nil
	}
	return out
}

// gone waits for their end.
func (e ending) gone(t *testing.T) {
	t.Helper()
	for _, f := range e {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(patience.Milliseconds()))
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(fds, int(patience.Milliseconds()))
		}
		if err != nil || n != 1 {
			t.Errorf("%s still runs (%v)", f.Name(), err)
		}
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
