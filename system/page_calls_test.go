package system_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/executor/executortest/script"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
	"github.com/otters-sh/otters/system"
)

// The page's sentences on the calls of a runtime.

var errNotFound = status.Error(codes.NotFound, "no session")

// served is an agent that was never run and whose Dialer leads to rt.
func served(t *testing.T, rt agentv1.AgentRuntimeServer) *system.Agent {
	t.Helper()
	ln := bufconn.Listen(1 << 16)
	srv := grpc.NewServer()
	agentv1.RegisterAgentRuntimeServer(srv, rt)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(ln)
	}()
	conn, err := grpc.NewClient("passthrough:///mem", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		srv.Stop()
		<-ended
	})
	return system.NewAgent(uuid.New(), memfs.New(), system.WithAddr("127.0.0.1:9"), system.WithDialer(system.DialerFunc(
		func(context.Context, string) (*grpc.ClientConn, error) { return conn, nil })))
}

// calls are all calls of a runtime that an agent has.
func calls(ctx context.Context, a *system.Agent) map[string]func() error {
	one := func(_ any, err error) error { return err }
	return map[string]func() error{
		"Probe":  func() error { return a.Probe(ctx) },
		"Prompt": func() error { return a.Prompt(ctx, executor.PromptRequest{Prompt: "p"}, io.Discard) },
		"PromptStream": func() error {
			return a.PromptStream(ctx, executor.PromptRequest{Prompt: "p"}, func(executor.PromptEvent) {})
		},
		"PromptObject": func() error {
			return one(a.PromptObject(ctx, executor.ObjectPromptRequest{Prompt: "p", Schema: []byte("{}")}))
		},
		"ListSessions":        func() error { return one(a.ListSessions(ctx)) },
		"ListSessionMessages": func() error { return one(a.ListSessionMessages(ctx, "s", 0)) },
		"DeleteSession":       func() error { return a.DeleteSession(ctx, "s") },
		"ListNotes":           func() error { return one(a.ListNotes(ctx, false)) },
		"SaveNote":            func() error { return one(a.SaveNote(ctx, "k", "v", 0, 0)) },
		"GetNote":             func() error { return one(a.GetNote(ctx, "k")) },
		"SetNoteInContext":    func() error { return one(a.SetNoteInContext(ctx, "k", true)) },
		"DeleteNote":          func() error { return one(a.DeleteNote(ctx, "k")) },
	}
}

func TestADialerIsAllThatACallNeeds(t *testing.T) {
	t.Parallel()
	all := calls(t.Context(), served(t, new(script.Runtime)))
	// A note is saved before it is read.
	for _, name := range []string{"Probe", "Prompt", "PromptStream", "PromptObject", "ListSessions", "ListSessionMessages", "DeleteSession", "ListNotes", "SaveNote", "GetNote", "SetNoteInContext", "DeleteNote"} {
		if err := all[name](); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryCallOfAnAgentWithoutAnAddressFails(t *testing.T) {
	t.Parallel()
	for name, call := range calls(t.Context(), system.NewAgent(uuid.New(), memfs.New(), system.WithDialer(new(spawner)))) {
		if err := call(); err == nil || !strings.Contains(err.Error(), "no address") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryCallOfAnAgentThatDoesNotRunFails(t *testing.T) {
	t.Parallel()
	a := created(t, provider(t, host(t), plain), nil, role("serve"))
	for name, call := range calls(t.Context(), a) {
		if err := call(); !errors.Is(err, system.ErrNotRunning) {
			t.Errorf("%s: %v", name, err)
		}
	}
	running(t, a)
	if err := calls(t.Context(), a)["Prompt"](); err != nil {
		t.Error(err)
	}
}

func TestACallThatTheRuntimeHasNotIsNotImplemented(t *testing.T) {
	t.Parallel()
	for name, call := range calls(t.Context(), served(t, agentv1.UnimplementedAgentRuntimeServer{})) {
		if err := call(); name != "Probe" && !errors.Is(err, executor.ErrNotImplemented) || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProbeTellsWhyARuntimeIsNotReady(t *testing.T) {
	t.Parallel()
	if err := served(t, &script.Runtime{Deaf: true}).Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("Ready was false: %v", err)
	}
	if err := served(t, agentv1.UnimplementedAgentRuntimeServer{}).Probe(t.Context()); err == nil {
		t.Error("a call that failed passes for ready")
	}
	if err := served(t, new(script.Runtime)).Probe(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPromptWritesTheFinalAnswerAndNothingElse(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := served(t, new(script.Runtime)).Prompt(t.Context(), executor.PromptRequest{Prompt: "tool"}, &b); err != nil || b.String() != "tool" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestPromptStreamCallsBackSynchronouslyForEveryEvent(t *testing.T) {
	t.Parallel()
	var types []string
	var inside atomic.Int32
	err := served(t, new(script.Runtime)).PromptStream(t.Context(), executor.PromptRequest{Prompt: "two words"}, func(e executor.PromptEvent) {
		if inside.Add(1) != 1 {
			t.Error("two events at once")
		}
		types = append(types, e.Type)
		inside.Add(-1)
	})
	if want := []string{"step.start", "text.delta", "text.delta", "step.finish", "turn.finish"}; err != nil || !slices.Equal(types, want) {
		t.Errorf("%v, %v; want %v", types, err, want)
	}
}

func TestPromptStreamReturnsWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	err := served(t, new(script.Runtime)).PromptStream(ctx, executor.PromptRequest{Prompt: "hang"}, func(executor.PromptEvent) { cancel() })
	if err == nil || ctx.Err() == nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}

func TestPromptObjectIsOutsideOfAnySession(t *testing.T) {
	t.Parallel()
	a := served(t, new(script.Runtime))
	if _, err := a.PromptObject(t.Context(), executor.ObjectPromptRequest{Prompt: "p", Schema: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	if s, err := a.ListSessions(t.Context()); err != nil || len(s) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	// Its twin does have one.
	if err := a.Prompt(t.Context(), executor.PromptRequest{SessionID: "s", Prompt: "p"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	if s, err := a.ListSessions(t.Context()); err != nil || len(s) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestADeletedSessionIsDropped(t *testing.T) {
	t.Parallel()
	a := served(t, new(script.Runtime))
	for _, id := range []string{"one", "two"} {
		if err := a.Prompt(t.Context(), executor.PromptRequest{SessionID: id, Prompt: id}, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.DeleteSession(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if s, err := a.ListSessions(t.Context()); err != nil || len(s) != 1 || s[0].ID != "two" {
		t.Errorf("%+v, %v", s, err)
	}
	if m, err := a.ListSessionMessages(t.Context(), "two", 1); err != nil || len(m) != 1 || m[0].Role != "assistant" {
		t.Errorf("the newest message is %+v, %v", m, err)
	}
}

func TestOnlyANoteThatIsNotThereIsErrNoteNotFound(t *testing.T) {
	t.Parallel()
	a := served(t, new(script.Runtime))
	for _, name := range []string{"GetNote", "SetNoteInContext"} {
		if err := calls(t.Context(), a)[name](); !errors.Is(err, executor.ErrNoteNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if had, err := a.DeleteNote(t.Context(), "k"); had || err != nil {
		t.Errorf("deleting what is not there: %v, %v", had, err)
	}
	for name, call := range calls(t.Context(), served(t, nothingThere{})) {
		if err := call(); errors.Is(err, executor.ErrNoteNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// nothingThere knows no session.
type nothingThere struct {
	agentv1.UnimplementedAgentRuntimeServer
}

func (nothingThere) ListSessionMessages(context.Context, *agentv1.ListSessionMessagesRequest) (*agentv1.ListSessionMessagesResponse, error) {
	return nil, errNotFound
}

func (nothingThere) DeleteSession(context.Context, *agentv1.DeleteSessionRequest) (*agentv1.DeleteSessionResponse, error) {
	return nil, errNotFound
}

func TestDroppingASessionThatIsNotThereIsNoError(t *testing.T) {
	t.Parallel()
	for _, rt := range []agentv1.AgentRuntimeServer{nothingThere{}, new(script.Runtime)} {
		if err := served(t, rt).DeleteSession(t.Context(), "none"); err != nil {
			t.Errorf("%T: %v", rt, err)
		}
	}
	if _, err := served(t, nothingThere{}).ListSessionMessages(t.Context(), "none", 0); err == nil {
		t.Error("reading one is")
	}
}

func TestADialerFuncIsCalledWithContextAndAddress(t *testing.T) {
	t.Parallel()
	type key struct{}
	broken := errors.New("no way through")
	dial := system.DialerFunc(func(ctx context.Context, addr string) (*grpc.ClientConn, error) {
		if ctx.Value(key{}) != "mine" || addr != "127.0.0.1:9" {
			t.Errorf("called with %v and %s", ctx.Value(key{}), addr)
		}
		return nil, broken
	})
	ctx := context.WithValue(t.Context(), key{}, "mine")
	if _, err := dial.Dial(ctx, "127.0.0.1:9"); !errors.Is(err, broken) {
		t.Error(err)
	}
	a := system.NewAgent(uuid.New(), memfs.New(), system.WithAddr("127.0.0.1:9"), system.WithDialer(dial))
	for name, call := range calls(ctx, a) {
		if err := call(); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExecBeforeTheFirstRunAnswersAnErrorInItsResult(t *testing.T) {
	t.Parallel()
	a := created(t, provider(t, host(t), plain+"BIN env otters/tools/env\n"), nil, role("serve"))
	if res := a.Exec(t.Context(), "env", nil, ""); res.Err == nil || res.ExitCode != -1 || res.Stdout != "" {
		t.Errorf("%+v", res)
	}
	running(t, a)
	res := a.Exec(t.Context(), "env", nil, "")
	if res.Err != nil || res.ExitCode != 0 {
		t.Fatalf("%+v", res)
	}
	// It is the runtime's environment, less what is secret.
	tool := "\n" + res.Stdout
	for _, line := range strings.Split(prompt(t, a, "env"), "\n") {
		name, _, _ := strings.Cut(line, "=")
		secret := strings.HasPrefix(name, "OFFLINE_API_") || strings.HasPrefix(name, "LISTEN_")
		if strings.Contains(tool, "\n"+line+"\n") == secret {
			t.Errorf("%s: in the BIN's environment is %v", line, secret)
		}
	}
	if !strings.Contains(tool, "/usr/bin\n") {
		t.Errorf("no PATH in%s", tool)
	}
}
