package main

// Invariant: sessions are read and written only while nobody serves the tree, in memory that does not
// grow with them, and a command's exit code tells what was wrong. Worst inputs: a session of a thousand
// long messages; a kill in the middle of an import; a runtime that was killed in the middle of a turn.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/internal/testprograms"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// ran is what came of a command.
type ran struct {
	code     int
	out, err string
}

// runtimeProgram is the program with arguments, ready to be run.
func runtimeProgram(t *testing.T, in io.Reader, env []string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env, cmd.Stdin = append([]string{asRuntime + "=1", "GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}, env...), in
	return cmd
}

func runWith(t *testing.T, in io.Reader, args ...string) ran {
	t.Helper()
	cmd := runtimeProgram(t, in, nil, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// sized is an export of a session with n prompts and answers of length bytes.
func sized(w io.Writer, n, length int) error {
	_, err := fmt.Fprintf(w, "%s\n%s\n", `{"type":"header","format":"otters.sessions","version":1}`, `{"type":"session","id":"s","last_active":7}`)
	text := strings.Repeat("x", length)
	for i := 1; i <= n && err == nil; i++ {
		_, err = fmt.Fprintf(w, `{"type":"turn","turn":%d,"prompt":%d,"active":true,"run":"","reason":"done","started_at":5,"finished_at":6,"input_tokens":1,"output_tokens":2}
{"type":"message","created_at":5,"body":{"role":"user","parts":[{"kind":"text","text":"%s"}]}}
{"type":"message","created_at":5,"body":{"role":"assistant","parts":[{"kind":"text","text":"%s"}]}}
`, i, i, text, text)
	}
	if err == nil {
		_, err = fmt.Fprintf(w, `{"type":"end","sessions":1,"turns":%d,"messages":%d,"summaries":0,"notes":0}`+"\n", n, 2*n)
	}
	return err
}

// peak is the most memory that a process, which waits, has had, in KiB. It is asked while the process
// lives: what the kernel keeps of an ended one counts its parent's too.
func peak(t *testing.T, p *os.Process) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

// importPeak imports n prompts and answers, and returns the peak before the end.
func importPeak(t *testing.T, program, root string, n, length int) int64 {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "session", "import", "--root", root)
	cmd.Stdin = r
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	last := &held{w: w}
	if err := sized(last, n, length); err != nil {
		t.Fatal(err)
	}
	kib := peak(t, cmd.Process)
	if err := errors.Join(last.flush(), w.Close(), cmd.Wait()); err != nil {
		t.Fatalf("import: %v: %s", err, out.String())
	}
	if want := fmt.Sprintf(`{"sessions":1,"turns":%d,"messages":%d,"summaries":0,"notes":0}`+"\n", n, 2*n); out.String() != want {
		t.Fatalf("import: %s", out.String())
	}
	return kib
}

// held passes on all but what was written last.
type held struct {
	w    io.Writer
	last []byte
}

func (h *held) Write(p []byte) (int, error) {
	err := h.flush()
	h.last = append(h.last[:0], p...)
	return len(p), err
}

func (h *held) flush() error {
	_, err := h.w.Write(h.last)
	return err
}

// outputPeak runs a command that writes more than least bytes, and returns its peak when that much has
// been read.
func outputPeak(t *testing.T, least int64, program string, args ...string) int64 {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, out, least); err != nil {
		t.Fatal(err)
	}
	kib := peak(t, cmd.Process)
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return kib
}

func TestAThousandLongMessagesTakeNoMoreMemoryThanTwenty(t *testing.T) {
	if os.Getenv("OTTERS_LOAD") == "" {
		t.Skip("it takes long; make load runs it")
	}
	t.Parallel()
	// What the race detector keeps beside everything would hide what is measured.
	programs := testprograms.Of("cmd/otters-runtime")
	defer programs.Remove()
	program := filepath.Join(programs.For(t), "otters-runtime")
	// A pipe takes less than five of these, so the process waits when it is asked.
	const length = 20_000
	var few, many [3]int64
	for i, kib := range []*[3]int64{&few, &many} {
		root, n := tree(t), []int{10, 500}[i]
		least := int64(n-5) * 2 * length
		kib[0] = importPeak(t, program, root, n, length)
		kib[1] = outputPeak(t, least, program, "session", "export", "--root", root)
		kib[2] = outputPeak(t, least, program, "session", "show", "--root", root, "--limit", "1000", "--", "s")
	}
	for i, what := range []string{"import", "export", "show"} {
		t.Logf("%s: a thousand messages take %d KiB, twenty %d KiB", what, many[i], few[i])
		if more := many[i] - few[i]; more > 15_000 {
			t.Errorf("%s: 20 MB of messages take %d KiB, 400 KB %d KiB", what, many[i], few[i])
		}
	}
}

func TestSessionsAreReachedOnlyWhileNobodyServesThem(t *testing.T) {
	t.Parallel()
	root := tree(t)
	model := serveModel(t, modelserver.Script(modelserver.Answer{Text: "hello"}))
	p, c := handedOver(t, root, model)
	if _, err := c.Chat(withToken(), &agentv1.ChatRequest{SessionId: "-s", Prompt: "hi"}); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"ls", "export", "import"} {
		if got := runWith(t, nil, "session", verb, "--root", root); got.code != exitRefused || !strings.Contains(got.err, "another runtime serves this tree; stop it first") {
			t.Errorf("%s while it is served: %+v", verb, got)
		}
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exit(t)
	if got := runWith(t, nil, "session", "ls", "--root", root); got.code != 0 || !strings.HasPrefix(got.out, `{"id":"-s","messages":2,"last_active":`) {
		t.Errorf("%+v", got)
	}
	if got := runWith(t, nil, "session", "show", "--root", root, "--", "-s"); got.code != 0 || !strings.Contains(got.out, `{"role":"user","content":"hi","created_at":`) {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{exitNoSession, "session none: there is no such session", []string{"show", "--root", root, "none"}},
		{exitInput, "limit: want 0 to 1000", []string{"show", "--root", root, "--limit", "-1", "--", "-s"}},
		{exitInput, "line 1: bad input", []string{"import", "--root", root}},
		{78, "is no agent's tree", []string{"ls", "--root", t.TempDir()}},
		{78, "give --root DIR", []string{"ls"}},
		{2, "0 arguments", []string{"rm", "--root", root}},
		{2, "1 arguments", []string{"ls", "--root", root, "x"}},
		{2, "unknown command \"swim\"", []string{"swim"}},
		{2, "want ls, show", nil},
	} {
		got := runWith(t, nil, append([]string{"session"}, c.args...)...)
		line, more, _ := strings.Cut(got.err, "\n")
		if got.code != c.code || !strings.Contains(line, c.says) || (more == "") == (c.code == 2) {
			t.Errorf("%v: %+v", c.args, got)
		}
	}
	if got := runWith(t, nil, "session", "rm", "--root", root, "--", "-s"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := runWith(t, nil, "session", "ls", "--root", root); got.code != 0 || got.out != "" {
		t.Errorf("%+v", got)
	}
}

func TestAnImportThatIsKilledStoresNothing(t *testing.T) {
	t.Parallel()
	root := tree(t)
	var text bytes.Buffer
	if err := sized(&text, 50, 10_000); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := runtimeProgram(t, r, nil, "session", "import", "--root", root)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	// Once all but the end is in the pipe, nearly all of it was read.
	if _, err := w.Write(text.Bytes()[:text.Len()-200]); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	_ = w.Close()
	if got := runWith(t, nil, "session", "ls", "--root", root); got.code != 0 || got.out != "" {
		t.Errorf("%+v", got)
	}
	if got := runWith(t, &text, "session", "import", "--root", root); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := runWith(t, nil, "session", "ls", "--root", root); !strings.HasPrefix(got.out, `{"id":"s","messages":100,`) {
		t.Errorf("%+v", got)
	}
}

func TestTheTurnOfAKilledRuntimeIsExportedAsInterrupted(t *testing.T) {
	t.Parallel()
	root := tree(t)
	fifo := filepath.Join(root, "workspace/fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	model := serveModel(t, modelserver.Script(
		modelserver.Answer{Text: "wait", Calls: []modelserver.Call{{ID: "1", Name: "sh", Args: `{"args":["-c","echo $$ > fifo; exec sleep 1000"]}`}}},
	))
	p, c := handedOver(t, root, model)
	broken := make(chan error, 1)
	go func() {
		_, err := c.Chat(withToken(), &agentv1.ChatRequest{SessionId: "s", Prompt: "go"})
		broken <- err
	}()
	p.killBeside(t, toolPID(t, fifo))
	<-broken
	got := runWith(t, nil, "session", "export", "--root", root)
	if got.code != 0 || !strings.Contains(got.out, `"reason":"interrupted"`) || !strings.Contains(got.out, `"text":"wait"`) {
		t.Fatalf("%+v", got)
	}
	other := tree(t)
	if in := runWith(t, strings.NewReader(got.out), "session", "import", "--root", other); in.code != 0 {
		t.Errorf("%+v", in)
	}
	if again := runWith(t, nil, "session", "export", "--root", other); again.out != got.out {
		t.Errorf("%s, was %s", again.out, got.out)
	}
}

func TestPromptAnswersOnceAndGoesOn(t *testing.T) {
	t.Parallel()
	root := tree(t)
	model := serveModel(t, modelserver.Script(modelserver.Answer{Text: "one\ntwo"}, modelserver.Answer{Text: "more"}, modelserver.Answer{Text: "else"}, modelserver.Answer{Status: 400}))
	prompt := func(in string, args ...string) ran {
		cmd := runtimeProgram(t, strings.NewReader(in), []string{"TEST_API_BASE=" + model.URL, "TEST_API_KEY=otr_secret"}, append([]string{"prompt", "--root", root, "--model", "test/m"}, args...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run()
		return ran{code: cmd.ProcessState.ExitCode(), out: out.String(), err: errs.String()}
	}
	first := prompt("", "hello")
	session, ok := strings.CutPrefix(strings.TrimSpace(first.err), "go on with --session ")
	if first.code != 0 || first.out != "one\ntwo\n" || !ok || session == "" {
		t.Fatalf("%+v", first)
	}
	second := prompt("and then?\n", "--session", session, "--json")
	lines := strings.Split(strings.TrimSpace(second.out), "\n")
	if second.code != 0 || lines[0] != `{"session_id":"`+session+`","type":"step.start","step":1}` || !strings.Contains(lines[len(lines)-1], `"type":"turn.finish","step":1,`) ||
		!strings.Contains(lines[len(lines)-1], `"usage":{"input_tokens":`) || !strings.HasSuffix(lines[len(lines)-1], `"reason":"done"}`) {
		t.Errorf("%+v", second)
	}
	if got := prompt("", "--session", session, "--regenerate"); got.code != 0 || got.out != "else\n" {
		t.Errorf("%+v", got)
	}
	reqs := model.Requests()
	if n := len(reqs[1].Messages); reqs[1].Last().Content != "and then?\n" || reqs[1].Messages[n-2].Content != "one\ntwo" || reqs[2].Last().Content != "and then?\n" {
		t.Errorf("the model got %v, then %v", reqs[1].Messages, reqs[2].Messages)
	}
	if got := runWith(t, nil, "session", "ls", "--root", root); !strings.HasPrefix(got.out, `{"id":"`+session+`","messages":4,`) {
		t.Errorf("%+v", got)
	}
	if got := prompt("", "hello"); got.code != 1 || got.out != "" || strings.Contains(got.err, "secret") || !strings.Contains(got.err, "\notters-runtime: model m: 400") {
		t.Errorf("of a model that refuses: %+v", got)
	}
	for says, args := range map[string][]string{
		`unexpected argument "b"`: {"a", "b"}, "needs --session": {"--regenerate"}, "give no text": {"--regenerate", "--session", "s", "x"},
	} {
		if got := prompt("", args...); got.code != 2 || !strings.Contains(got.err, says) {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := prompt("", " "); got.code != 1 || !strings.Contains(got.err, "prompt: it is empty") {
		t.Errorf("%+v", got)
	}
}

func TestTheExportInTheManualIsTaken(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/runtime.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "An export is JSON lines")
	_, rest, _ = strings.Cut(rest, "```json\n")
	text, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/runtime.md has no example of an export")
	}
	root := tree(t)
	if got := runWith(t, strings.NewReader(text), "session", "import", "--root", root); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := runWith(t, nil, "session", "export", "--root", root, "--notes"); got.out != text {
		t.Errorf("came out as\n%s", got.out)
	}
}
