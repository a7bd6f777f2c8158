package main

// Invariant: the process takes its listener and token from whoever started it, ends with 0 in the
// grace time when asked, with 78 and one line when it cannot be configured, and loses nothing that
// was complete when it is killed. Worst inputs: a kill in the middle of a tool; SIGTERM in the middle
// of an answer; descriptors under wrong names or for another process.

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

const (
	asRuntime = "OTTERS_TEST_RUN_AS_RUNTIME"
	token     = "ots_0123456789abcdef"
)

// TestMain lets the test binary be the runtime: a real process without another build.
func TestMain(m *testing.M) {
	if os.Getenv(asRuntime) != "" {
		os.Unsetenv(asRuntime)
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func TestSocketActivationWithServeToken(t *testing.T) {
	t.Parallel()
	model := serveModel(t, modelserver.Script(
		modelserver.Answer{Calls: []modelserver.Call{{ID: "1", Name: "sh", Args: `{"args":["-c","env; ls /proc/self/fd"]}`}}},
		modelserver.Answer{Text: "done"}))
	p, c := handedOver(t, tree(t), model)
	if r, err := c.Ready(withToken(), &agentv1.ReadyRequest{}); err != nil || !r.GetReady() {
		t.Fatalf("with the token: %v, %v", r, err)
	}
	if _, err := c.Ready(context.Background(), &agentv1.ReadyRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without the token: %v", err)
	}
	s, err := c.ChatStream(withToken(), &agentv1.ChatStreamRequest{SessionId: "s", Prompt: "go"})
	if err != nil {
		t.Fatal(err)
	}
	for e, err := s.Recv(); err == nil; e, err = s.Recv() {
		if e.GetType() != "tool.result" {
			continue
		}
		if strings.Contains(e.GetContent(), "LISTEN_") || strings.Contains(e.GetContent(), "otr_secret") {
			t.Errorf("the tool saw %s", e.GetContent())
		}
		if !strings.Contains(e.GetContent(), "\n0\n1\n2\n3\n") || strings.Contains(e.GetContent(), "\n3\n4") {
			t.Errorf("the tool has descriptors beside its three and that of ls: %s", e.GetContent())
		}
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.exit(t); code != 0 || p.stderr.Len() != 0 {
		t.Errorf("exit code %d, said %q", code, p.stderr.String())
	}
}

func TestAToolCannotReadTheEnvironmentOfTheRuntime(t *testing.T) {
	t.Parallel()
	model := serveModel(t, modelserver.Script(
		modelserver.Answer{Calls: []modelserver.Call{{ID: "1", Name: "sh", Args: `{"args":["-c","cat /proc/self/environ && echo own; cat /proc/$PPID/environ && echo runtimes"]}`}}},
		modelserver.Answer{Text: "done"}))
	root := tree(t)
	exe := asOrdinaryUser(t, root)
	l, addr := listener(t)
	p := &process{Cmd: exec.Command(exe, "serve", "--root", root), ended: make(chan struct{})}
	p.Env = []string{asRuntime + "=1", "GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin", "LISTEN_FDS=1", "TEST_API_BASE=" + model.URL, "TEST_API_KEY=otr_secret"}
	p.ExtraFiles, p.Stderr = []*os.File{l}, &p.stderr
	if os.Getuid() == 0 {
		p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	}
	p.run(t)
	if _, err := dial(t, addr).Chat(context.Background(), &agentv1.ChatRequest{SessionId: "s", Prompt: "go"}); err != nil {
		t.Fatal(err)
	}
	got := model.Requests()[1].Last().Content
	if !strings.Contains(got, "own\n") || strings.Contains(got, "runtimes\n") || !strings.Contains(got, "exit code 1") || strings.Contains(got, "otr_secret") {
		t.Errorf("the tool read %q", got)
	}
}

// ordinary is a user without rights of its own.
const ordinary = 65534

// asOrdinaryUser gives the tree to an ordinary user where the test runs as root, to whom nothing is
// closed, and returns a path of the test binary that this user can run.
func asOrdinaryUser(t *testing.T, root string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil || os.Getuid() != 0 {
		return exe
	}
	for dir := filepath.Dir(filepath.Dir(root)); dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode()&0o001 == 0 {
			t.Skipf("an ordinary user does not reach the tree: %s is closed, error %v", dir, err)
		}
	}
	link := filepath.Join(root, "runtime")
	if err := os.Link(exe, link); err != nil {
		t.Skipf("the test binary cannot be linked into the tree: %v", err)
	}
	if err := errors.Join(os.Chmod(link, 0o755), os.Chmod(filepath.Dir(root), 0o755)); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err == nil && path != link {
			err = os.Chown(path, ordinary, ordinary)
		}
		return err
	})
	if errors.Is(err, syscall.EINVAL) {
		t.Skip("this user namespace has no other user")
	}
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func TestStartedByHandItSaysThatCallersAreNotChecked(t *testing.T) {
	t.Parallel()
	model := serveModel(t, modelserver.Script())
	for _, pid := range []string{"", "1"} { // descriptors for another process are not taken
		env := []string{"TEST_API_BASE=" + model.URL}
		if pid != "" {
			env = append(env, "LISTEN_FDS=1", "LISTEN_PID="+pid)
		}
		stderr, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer stderr.Close()
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(exe, "serve", "--root", tree(t), "--addr", "127.0.0.1:0")
		cmd.Env, cmd.Stderr = append(env, asRuntime+"=1", "GORACE=atexit_sleep_ms=0"), w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		w.Close()
		buf := make([]byte, 0, 1024)
		for bytes.Count(buf, []byte("\n")) < 2 {
			n, err := stderr.Read(buf[len(buf):cap(buf)])
			if err != nil {
				t.Fatalf("said %q: %v", buf, err)
			}
			buf = buf[:len(buf)+n]
		}
		lines := strings.Split(string(buf), "\n")
		addr, found := strings.CutPrefix(lines[0], "listening on ")
		if lines[1] != "callers are not checked: no serve token was handed over" || !found {
			t.Errorf("said %q", lines)
		}
		if _, err := dial(t, addr).Ready(context.Background(), &agentv1.ReadyRequest{}); err != nil {
			t.Error(err)
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestBadConfigurationEndsWith78AndOneLine(t *testing.T) {
	t.Parallel()
	root := tree(t)
	yaml := filepath.Join(root, "etc/agent.yaml")
	if err := os.WriteFile(yaml, []byte("id: x\nmodel: test/m\nconfigs: {max-tokens: lots}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	good := tree(t)
	model := serveModel(t, modelserver.Script())
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"bad value":    {[]string{"serve", "--root", root, "--addr", "127.0.0.1:0"}, 78, "config max-tokens"},
		"no base":      {[]string{"serve", "--root", tree(t), "--addr", "127.0.0.1:0"}, 78, "TEST_API_BASE is not set"},
		"no tree":      {[]string{"serve", "--root", root + "/gone", "--addr", "127.0.0.1:0"}, 78, "no such file"},
		"no address":   {[]string{"serve", "--root", good}, 78, "--addr"},
		"odd address":  {[]string{"serve", "--root", good, "--addr", "nowhere"}, 1, "listen on nowhere"},
		"odd flag":     {[]string{"serve", "--rooot", root}, 2, "rooot"},
		"odd argument": {[]string{"serve", "x"}, 2, `unexpected argument "x"`},
		"odd command":  {[]string{"swim"}, 2, `unknown command "swim"`},
		"no command":   {nil, 2, "no command"},
		"odd listing":  {[]string{"capabilities", "x"}, 2, `unexpected argument "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var env []string
			if slices.Contains(c.args, good) {
				env = append(env, "TEST_API_BASE="+model.URL)
			}
			p := start(t, c.args, env)
			code := p.exit(t)
			line, more, _ := strings.Cut(p.stderr.String(), "\n")
			if code != c.code || !strings.HasPrefix(line, "otters-runtime: ") || !strings.Contains(line, c.want) || (more == "") == (c.code == 2) {
				t.Errorf("exit code %d, said %q", code, p.stderr.String())
			}
		})
	}
}

func TestItTellsItsCapabilities(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "capabilities")
	cmd.Env = []string{asRuntime + "=1", "GORACE=atexit_sleep_ms=0"}
	out, err := cmd.Output()
	if err != nil || string(out) != "notes\nnote_list\nnote_get\nnote_save\nnote_delete\nnote_pin\n" {
		t.Errorf("printed %q, error %v", out, err)
	}
}

func TestWrongDescriptorsAreRefused(t *testing.T) {
	t.Parallel()
	model := serveModel(t, modelserver.Script())
	l, _ := listener(t)
	for name, c := range map[string]struct {
		env   []string
		files []*os.File
		want  string
	}{
		"unknown name":   {[]string{"LISTEN_FDS=1", "LISTEN_FDNAMES=other"}, []*os.File{l}, "unknown name"},
		"short names":    {[]string{"LISTEN_FDS=2", "LISTEN_FDNAMES=runtime"}, []*os.File{l, l}, "1 names for 2 descriptors"},
		"twice":          {[]string{"LISTEN_FDS=2", "LISTEN_FDNAMES=runtime:runtime"}, []*os.File{l, l}, "named twice"},
		"no listener":    {[]string{"LISTEN_FDS=1", "LISTEN_FDNAMES=runtime"}, []*os.File{tokenFile(t, "x")}, "not a listener"},
		"empty token":    {[]string{"LISTEN_FDS=2", "LISTEN_FDNAMES=runtime:serve-token"}, []*os.File{l, tokenFile(t, "\n")}, "16 to 4096 bytes, this one 0"},
		"endless token":  {[]string{"LISTEN_FDS=2", "LISTEN_FDNAMES=runtime:serve-token"}, []*os.File{l, tokenFile(t, strings.Repeat("x", 9000))}, "this one 4097"},
		"not a number":   {[]string{"LISTEN_FDS=x"}, nil, "want 0 to 16"},
		"gone":           {[]string{"LISTEN_FDS=1"}, nil, "not a listener"},
		"far too many":   {[]string{"LISTEN_FDS=17"}, nil, "want 0 to 16"},
		"negative":       {[]string{"LISTEN_FDS=-1"}, nil, "want 0 to 16"},
		"token is a dir": {[]string{"LISTEN_FDS=1", "LISTEN_FDNAMES=serve-token"}, []*os.File{dir(t)}, "is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, []string{"serve", "--root", tree(t), "--addr", "127.0.0.1:0"}, append(c.env, "TEST_API_BASE="+model.URL), c.files...)
			if code := p.exit(t); code != 1 || !strings.Contains(p.stderr.String(), c.want) || strings.Contains(p.stderr.String(), "listening") {
				t.Errorf("exit code %d, said %q", code, p.stderr.String())
			}
		})
	}
}

func dir(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestAKilledRuntimeFindsItsSessionsAgain(t *testing.T) {
	t.Parallel()
	root := tree(t)
	fifo := filepath.Join(root, "workspace/fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	model := serveModel(t, modelserver.Script(
		modelserver.Answer{Text: "one"},
		modelserver.Answer{Text: "wait", Calls: []modelserver.Call{{ID: "1", Name: "sh", Args: `{"args":["-c","echo $$ > fifo; exec sleep 1000"]}`}}},
		modelserver.Answer{Text: "three"},
	))
	p, c := handedOver(t, root, model)
	if _, err := c.Chat(withToken(), &agentv1.ChatRequest{SessionId: "s", Prompt: "first"}); err != nil {
		t.Fatal(err)
	}
	broken := make(chan error, 1)
	go func() {
		_, err := c.Chat(withToken(), &agentv1.ChatRequest{SessionId: "s", Prompt: "second"})
		broken <- err
	}()
	p.killBeside(t, toolPID(t, fifo))
	if err := <-broken; err == nil {
		t.Error("the caller of a killed runtime was told of no error")
	}

	_, c = handedOver(t, root, model)
	if _, err := c.Chat(withToken(), &agentv1.ChatRequest{SessionId: "s", Prompt: "third"}); err != nil {
		t.Fatal(err)
	}
	list, err := c.ListSessionMessages(withToken(), &agentv1.ListSessionMessagesRequest{SessionId: "s"})
	if err != nil {
		t.Fatal(err)
	}
	msgs := list.GetMessages()
	if len(msgs) != 6 || msgs[0].GetContent() != "first" || !strings.Contains(msgs[3].GetContent(), `"wait"`) ||
		!strings.Contains(msgs[3].GetContent(), `"incomplete":true,"reason":"interrupted"`) || msgs[4].GetContent() != "third" {
		t.Errorf("messages %v", msgs)
	}
	reqs := model.Requests()
	for _, m := range reqs[len(reqs)-1].Messages {
		if m.Role == "tool" && m.ToolCallID == "1" && strings.HasPrefix(m.Content, "interrupted: ") {
			return
		}
	}
	t.Errorf("the model was not told of the interrupted call: %s", reqs[len(reqs)-1].Raw)
}

func TestSIGTERMInAnAnswerStoresItAndEndsQuickly(t *testing.T) {
	t.Parallel()
	root := tree(t)
	model := serveModel(t, modelserver.Script(modelserver.Answer{Text: "half", Hold: make(chan struct{})}))
	p, c := handedOver(t, root, model)
	s, err := c.ChatStream(withToken(), &agentv1.ChatStreamRequest{SessionId: "s", Prompt: "go"})
	if err != nil {
		t.Fatal(err)
	}
	var text, reason string
	for e, err := s.Recv(); err == nil; e, err = s.Recv() {
		if e.GetType() == "text.delta" {
			if text += e.GetContent(); text == "half" {
				if err := p.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
		}
		reason = e.GetReason()
	}
	if reason != "interrupted" {
		t.Errorf("the last event tells the reason %q", reason)
	}
	if code := p.exit(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	_, c = handedOver(t, root, model)
	list, err := c.ListSessionMessages(withToken(), &agentv1.ListSessionMessagesRequest{SessionId: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if m := list.GetMessages(); len(m) != 2 || m[1].GetContent() != `[{"kind":"text","text":"half","incomplete":true,"reason":"interrupted"}]` {
		t.Errorf("messages %v", m)
	}
}

func TestVersionIsPrinted(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "version")
	cmd.Env = []string{asRuntime + "=1"}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) || !strings.HasPrefix(string(out), "otters-runtime ") {
		t.Errorf("printed %q, error %v", out, err)
	}
}
