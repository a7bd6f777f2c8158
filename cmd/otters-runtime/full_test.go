package main

// Invariant: where there is no room the runtime says so in one line or in a status, and goes on with
// what needs no room. Worst inputs: no byte can be written at the start; the last one is written in the
// middle of a session.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// startFull runs the runtime with files of at most so many blocks of 512 bytes.
func startFull(t *testing.T, blocks, root string, model *modelserver.Server) (*process, agentv1.AgentRuntimeClient) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l, addr := listener(t)
	p := &process{Cmd: exec.Command("/bin/sh", "-c", `ulimit -f "$1" && exec "$0" serve --root "$2"`, exe, blocks, root), ended: make(chan struct{})}
	p.Env = []string{asRuntime + "=1", "GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin", "LISTEN_FDS=1", "TEST_API_BASE=" + model.URL}
	p.ExtraFiles, p.Stderr = []*os.File{l}, &p.stderr
	p.run(t)
	return p, dial(t, addr)
}

func TestNoRoomAtTheStart(t *testing.T) {
	t.Parallel()
	p, _ := startFull(t, "0", tree(t), serveModel(t, modelserver.Script()))
	code := p.exit(t)
	lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	if last := lines[len(lines)-1]; code != 1 || !strings.HasPrefix(last, "otters-runtime: sessions: ") || strings.Contains(p.stderr.String(), "goroutine") {
		t.Errorf("exit code %d, said %q", code, p.stderr.String())
	}
}

func TestNoRoomInTheMiddle(t *testing.T) {
	t.Parallel()
	model := serveModel(t, func(modelserver.Request) modelserver.Answer { return modelserver.Answer{Pieces: []string{"ok"}} })
	p, c := startFull(t, "600", tree(t), model)
	ctx := context.Background()
	stored := 0
	var err error
	for err == nil && stored < 100 {
		_, err = c.Chat(ctx, &agentv1.ChatRequest{SessionId: "s", Prompt: strings.Repeat("x", 30<<10)})
		stored++
	}
	if stored < 2 || status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "sessions cannot be stored: the disk is full, or a file is at its size limit") {
		t.Errorf("prompt %d: error %v", stored, err)
	}
	s, err := c.ChatStream(ctx, &agentv1.ChatStreamRequest{SessionId: "s", Prompt: strings.Repeat("x", 30<<10)})
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the stream ends with %v", err)
	}
	list, err := c.ListSessionMessages(ctx, &agentv1.ListSessionMessagesRequest{SessionId: "s"})
	if err != nil || len(list.GetMessages()) < 2*(stored-1) {
		t.Errorf("%d messages of %d prompts, error %v", len(list.GetMessages()), stored, err)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.exit(t); code != 0 || strings.Contains(p.stderr.String(), "goroutine") {
		t.Errorf("exit code %d, said %q", code, p.stderr.String())
	}
}

func TestNoRoomForAnAnswer(t *testing.T) {
	t.Parallel()
	sentence := strings.Repeat("word ", 200) + "end. "
	model := serveModel(t, func(modelserver.Request) modelserver.Answer {
		return modelserver.Answer{Pieces: strings.SplitAfter(strings.Repeat(sentence, 500), ". ")}
	})
	root := tree(t)
	p, c := startFull(t, "600", root, model)
	s, err := c.ChatStream(context.Background(), &agentv1.ChatStreamRequest{SessionId: "s", Prompt: "go"})
	var heard, reason string
	for err == nil {
		var e *agentv1.ChatStreamEvent
		if e, err = s.Recv(); e.GetType() == "text.delta" {
			heard += e.GetContent()
		}
		reason += e.GetReason()
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "the disk is full, or a file is at its size limit") || reason != "interrupted" {
		t.Errorf("the stream ends with %q, error %v", reason, err)
	}
	if len(heard) < len(sentence) || len(heard) == 500*len(sentence) {
		t.Fatalf("%d bytes were heard of %d", len(heard), 500*len(sentence))
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.exit(t); code != 0 || strings.Contains(p.stderr.String(), "goroutine") {
		t.Errorf("exit code %d, said %q", code, p.stderr.String())
	}
	// Once there is room, what was heard is there.
	got := runWith(t, nil, "session", "show", "--root", root, "s")
	if got.code != 0 || !strings.Contains(got.out, heard[:len(heard)-len(sentence)]) || !strings.Contains(got.out, `\"incomplete\":true,\"reason\":\"interrupted\"`) {
		t.Errorf("exit code %d, %.300s %s", got.code, got.out, got.err)
	}
}

func TestNoRoomForARemoval(t *testing.T) {
	t.Parallel()
	root := tree(t)
	var text bytes.Buffer
	if err := sized(&text, 20, 10_000); err != nil {
		t.Fatal(err)
	}
	if got := runWith(t, &text, "session", "import", "--root", root); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, blocks := range []string{"40", "80"} { // not enough to open them, and enough
		cmd := exec.Command("/bin/sh", "-c", `ulimit -f "$1" && exec "$0" session rm --root "$2" s`, exe, blocks, root)
		cmd.Env = []string{asRuntime + "=1", "GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}
		var out bytes.Buffer
		cmd.Stderr = &out
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(out.String(), "the disk is full, or a file is at its size limit; make room: ") {
			t.Errorf("with files of %s blocks: %v, said %s", blocks, err, out.String())
		}
	}
	if got := runWith(t, nil, "session", "ls", "--root", root); !strings.HasPrefix(got.out, `{"id":"s","messages":40,`) {
		t.Errorf("%+v", got)
	}
	if got := runWith(t, nil, "session", "rm", "--root", root, "s"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}
