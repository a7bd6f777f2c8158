package agentruntime_test

// Invariant: with a serve token nobody without it is answered by any service; a tree that cannot be
// served as it says is refused with the key and the reason. Worst inputs: a token that is a prefix of
// the right one; a setting that is known but not honoured; contexts that lead out of the tree.

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/agentruntime"
	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

func TestOnlyTheServeTokenIsAnswered(t *testing.T) {
	t.Parallel()
	const token = "ots_0123456789abcdef"
	a := newAgent(t, "", say("ok"))
	a.opts.ServeToken = token
	c := a.serve()
	cc := a.dial()
	calls := map[string]func(context.Context) error{
		"ready":  func(ctx context.Context) error { _, err := c.Ready(ctx, &agentv1.ReadyRequest{}); return err },
		"health": func(ctx context.Context) error { _, err := c.Health(ctx, &agentv1.HealthRequest{}); return err },
		"chat":   func(ctx context.Context) error { return chat(ctx, c, "s", "x") },
		"stream": func(ctx context.Context) error { _, err := stream(ctx, c, "s", "x", nil); return err },
		"list":   func(ctx context.Context) error { return list(ctx, c, 1) },
		"grpc health": func(ctx context.Context) error {
			_, err := healthv1.NewHealthClient(cc).Check(ctx, &healthv1.HealthCheckRequest{Service: "openotters.agent.v1.AgentRuntime"})
			return err
		},
		"reflection": func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			s, err := reflectionv1.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
			if err != nil {
				return err
			}
			// A call that is over already takes no message, and Recv says why.
			if err := s.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			_, err = s.Recv()
			return err
		},
	}
	for name, call := range calls {
		if err := call(metadata.AppendToOutgoingContext(context.Background(), agentruntime.ServeTokenKey, token)); err != nil {
			t.Errorf("%s with the token: %v", name, err)
		}
		for _, wrong := range [][]string{{}, {""}, {token[:len(token)-1]}, {token + "x"}, {token, token}} {
			ctx := context.Background()
			for _, w := range wrong {
				ctx = metadata.AppendToOutgoingContext(ctx, agentruntime.ServeTokenKey, w)
			}
			if err := call(ctx); status.Code(err) != codes.Unauthenticated || strings.Contains(err.Error(), token) {
				t.Errorf("%s with tokens %q: %v", name, wrong, err)
			}
		}
	}
}

func TestWhatCannotBeServedIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	config := func(kv string) func(*agent) {
		return func(a *agent) { a.write("etc/agent.yaml", "id: x\nmodel: test/m\nconfigs: {"+kv+"}\n") }
	}
	yaml := func(text string) func(*agent) {
		return func(a *agent) { a.write("etc/agent.yaml", text) }
	}
	claude := func(base, configs string) func(*agent) {
		return func(a *agent) {
			a.write("etc/agent.yaml", "id: x\nmodel: anthropic/claude-1\nconfigs:\n  "+configs+"\n")
			a.opts.Environ = append(a.opts.Environ, "ANTHROPIC_API_BASE="+base, "ANTHROPIC_API_KEY="+modelKey)
		}
	}
	for name, c := range map[string]struct {
		spoil func(*agent)
		want  string
	}{
		"unknown key":    {config(`max-tokns: "1"`), "config max-tokns: unknown key; known are max-tokens"},
		"bad number":     {config(`max-tokens: "many"`), `config max-tokens: bad value "many"; want a whole number from 1 to 1048576`},
		"out of range":   {config(`temperature: "2.5"`), "config temperature: bad value"},
		"not a number":   {config(`top-p: "NaN"`), "config top-p: bad value"},
		"empty":          {config(`max-iterations: ""`), "config max-iterations: bad value"},
		"strategy":       {config(`memory-strategy: forget`), "config memory-strategy: bad value \"forget\"; want slide or summarize"},
		"odd strategy":   {config(`memory-strategy: forget`), `config memory-strategy: bad value "forget"`},
		"memory tokens":  {config(`memory-max-tokens: "-5"`), "config memory-max-tokens:"},
		"top-k":          {config(`top-k: "5"`), "config top-k: OpenAI Chat Completions has no such setting"},
		"notes":          {config(`notes-max-count: "0"`), "config notes-max-count:"},
		"notes section":  {config(`notes-prompt-section: inside`), "config notes-prompt-section:"},
		"duration":       {config(`tool-timeout: "5"`), `config tool-timeout: bad value "5"; want a duration`},
		"soft over hard": {config(`turn-soft-timeout: 2h`), "config turn-soft-timeout: 2h0m0s is not below turn-timeout, which is 30m0s"},
		"output":         {config(`tool-max-output: "1"`), "config tool-max-output:"},
		"no yaml":        {func(a *agent) { os.Remove(filepath.Join(a.root, "etc/agent.yaml")) }, "agent.yaml: no such file"},
		"broken yaml":    {yaml("id: [\n"), "etc/agent.yaml:"},
		"yaml is a pipe": {func(a *agent) {
			path := filepath.Join(a.root, "etc/agent.yaml")
			if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
				a.t.Fatal(err)
			}
		}, "etc/agent.yaml is no regular file"},
		"yaml of a list":   {yaml("[a]\n"), "etc/agent.yaml:"},
		"yaml without id":  {yaml("model: test/m\n"), "it has no id"},
		"huge yaml":        {yaml("id: x\n#" + strings.Repeat("x", 4<<20)), "over 4194304 bytes"},
		"wrong yaml type":  {yaml("id: x\nconfigs: [a]\n"), "etc/agent.yaml:"},
		"no model":         {yaml("id: x\n"), "no model"},
		"odd model":        {yaml("id: x\nmodel: gpt\n"), "want provider/name"},
		"unknown provider": {yaml("id: x\nmodel: nobody/m\n"), "NOBODY_API_BASE is not set"},
		"capability":       {yaml("id: x\nmodel: test/m\ncapabilities: [{name: job-submit}]\n"), "capability job-submit: nothing here provides it; there are notes, note_list"},
		"capability taken": {yaml("id: x\nmodel: test/m\ncapabilities: [{name: notes}]\ntools: [{name: note_get, binary: /bin/sh}]\n"), "capability note_get: a tool has the same name"},
		"missing context":  {yaml("id: x\nmodel: test/m\ncontext: [{name: GONE, file: etc/context/GONE.md}]\n"), "context GONE:"},
		"context outside":  {yaml("id: x\nmodel: test/m\ncontext: [{name: OUT, file: ../../etc/passwd}]\n"), "context OUT:"},
		"context by link": {func(a *agent) {
			yaml("id: x\nmodel: test/m\ncontext: [{name: L, file: etc/context/L.md}]\n")(a)
			if err := os.Symlink("/etc/passwd", filepath.Join(a.root, "etc/context/L.md")); err != nil {
				a.t.Fatal(err)
			}
		}, "context L:"},
		"huge context": {func(a *agent) { a.write("etc/context/STYLE.md", strings.Repeat("x", 1<<20+1)) }, "context STYLE: etc/context/STYLE.md is longer than 1048576 bytes"},
		"missing tool": {yaml("id: x\nmodel: test/m\ntools: [{name: gone}]\n"), "tool gone:"},
		"tool no program": {func(a *agent) {
			yaml("id: x\nmodel: test/m\ntools: [{name: plain, binary: " + strconv.Quote(a.root+"/etc/agent.yaml") + "}]\n")(a)
		}, "is not executable"},
		"same tool twice":   {yaml("id: x\nmodel: test/m\ntools: [{name: a.b, binary: /bin/sh}, {name: a_b, binary: /bin/sh}]\n"), "tool a_b: the model would know it as a_b, like tool a.b"},
		"anthropic's base":  {claude("http://127.0.0.1:1/v1", ""), "ends in /v1"},
		"a penalty":         {claude("http://127.0.0.1:1", `presence-penalty: "1"`), "config presence-penalty: Anthropic Messages has no such setting"},
		"another penalty":   {claude("http://127.0.0.1:1", `frequency-penalty: "1"`), "config frequency-penalty: Anthropic Messages has no such setting"},
		"hot":               {claude("http://127.0.0.1:1", `temperature: "1.5"`), "config temperature: 1.5 is more than 1"},
		"hot and thinking":  {claude("http://127.0.0.1:1", "temperature: \"0.5\"\n  thinking: adaptive"), "config temperature: only 1 goes with thinking"},
		"top-k, thinking":   {claude("http://127.0.0.1:1", "top-k: \"5\"\n  thinking: \"1024\""), "config top-k: does not go with thinking"},
		"top-p, thinking":   {claude("http://127.0.0.1:1", "top-p: \"0.5\"\n  thinking: \"1024\""), "config top-p: 0.5 is less than 0.95"},
		"thinks too much":   {claude("http://127.0.0.1:1", `thinking: "4096"`), "config thinking: 4096 tokens are not below max-tokens, which is 4096"},
		"no room to think":  {claude("http://127.0.0.1:1", "max-tokens: \"1024\"\n  thinking: adaptive"), "config thinking: max-tokens is 1024"},
		"thinks too little": {config(`thinking: "5"`), `config thinking: bad value "5"; want off, adaptive or a number of tokens from 1024`},
		"thinking":          {config(`thinking: adaptive`), "config thinking: OpenAI Chat Completions has no such setting"},
		"no root":           {func(a *agent) { a.opts.Root = "" }, "--root"},
		"missing root":      {func(a *agent) { a.opts.Root += "/gone" }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, "", say("ok"))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			a.opts.Listener = l
			c.spoil(a)
			err = agentruntime.Serve(context.Background(), a.opts)
			if !errors.Is(err, agentruntime.ErrConfig) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), modelKey) {
				t.Errorf("error %v, want %s", err, c.want)
			}
			if _, err := os.Stat(filepath.Join(a.root, "var/lib/sessions.db")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("sessions were made: %v", err)
			}
		})
	}
}

func TestEverySettingThatIsKnownIsTaken(t *testing.T) {
	t.Parallel()
	a := newAgent(t, `configs:
  max-tokens: "10"
  max-iterations: "2"
  memory-strategy: slide
  memory-max-messages: "6"
  memory-max-tokens: "0"
  temperature: "0"
  top-p: "0.9"
  presence-penalty: "-1"
  frequency-penalty: "1.5"
  notes-prompt-section: "off"
  notes-max-bytes-per: "10"
  notes-max-count: "5"
`, callThenSay("cat", "{}"))
	c := a.serve()
	if err := chat(context.Background(), c, "s", "x"); err != nil {
		t.Fatal(err)
	}
	raw := string(a.model.Requests()[0].Raw)
	for _, want := range []string{`"max_tokens":10`, `"temperature":0`, `"top_p":0.9`, `"presence_penalty":-1`, `"frequency_penalty":1.5`} {
		if !strings.Contains(raw, want) {
			t.Errorf("%s is not in %s", want, raw)
		}
	}
}

func TestDatabasesThatCannotBeUsedEndTheRuntime(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*testing.T, string){
		"newer": func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec("PRAGMA user_version = 99"); err != nil {
				t.Fatal(err)
			}
		},
		"no database": func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("nonsense ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a folder": func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, "", say("ok"))
			spoil(t, filepath.Join(a.root, "var/lib/sessions.db"))
			a.opts.Addr = "127.0.0.1:0"
			err := agentruntime.Serve(context.Background(), a.opts)
			if err == nil || errors.Is(err, agentruntime.ErrConfig) || !strings.HasPrefix(err.Error(), "sessions: ") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A stop that comes while the sessions are being opened makes their opening fail, and is one in order.
func TestAStopBeforeTheSessionsAreOpen(t *testing.T) {
	t.Parallel()
	stopping, cancel := context.WithCancel(t.Context())
	cancel()
	// Either of two events may be seen first.
	for range 50 {
		if err := agentruntime.WatchUnopened(stopping, stopping.Err()); err != nil {
			t.Fatal(err)
		}
	}
	if err := agentruntime.WatchUnopened(t.Context(), io.ErrUnexpectedEOF); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("sessions that can't be opened: %v", err)
	}
}

func TestSessionsOutliveARestart(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	if err := chat(context.Background(), a.serve(), "s", "first"); err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(a.root, "var/lib/sessions.db"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("sessions have mode %v", info.Mode())
	}
	c := a.serve()
	if err := chat(context.Background(), c, "s", "second"); err != nil {
		t.Fatal(err)
	}
	if n := len(messages(t, c, "s")); n != 4 {
		t.Errorf("%d messages", n)
	}
	if n := len(a.model.Requests()[1].Messages); n != 4 { // system, first, ok, second
		t.Errorf("the model got %d messages", n)
	}
}

func TestAModelThatIsNotThereIsToldInTheTurn(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	nobody, free, err := modelserver.Refusing()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(free)
	a.opts.Environ = append(a.opts.Environ, "TEST_API_BASE="+nobody+"/v1")
	c := a.serve()
	if r, err := c.Ready(context.Background(), &agentv1.ReadyRequest{}); err != nil || !r.GetReady() {
		t.Errorf("ready %v, error %v", r, err)
	}
	if err := chat(context.Background(), c, "s", "x"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "model_error: model m1: cannot be reached") {
		t.Errorf("error %v", err)
	}
	events, err := stream(context.Background(), c, "s", "x", nil)
	if err != nil || !strings.Contains(find(t, events, "error").GetContent(), "cannot be reached") || events[len(events)-1].GetReason() != "model_error" {
		t.Errorf("events %v, error %v", events, err)
	}
}

func TestATreeIsServedOnce(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	c := a.serve()
	if _, err := c.Ready(context.Background(), &agentv1.ReadyRequest{}); err != nil {
		t.Fatal(err)
	}
	second := a.opts
	second.Listener, second.Addr = nil, "127.0.0.1:0"
	if err := agentruntime.Serve(context.Background(), second); err == nil || !strings.Contains(err.Error(), "another runtime serves this tree") {
		t.Errorf("the second runtime: %v", err)
	}
	if err := chat(context.Background(), c, "s", "x"); err != nil {
		t.Errorf("the first runtime: %v", err)
	}
}
