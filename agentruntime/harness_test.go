package agentruntime_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/otters-sh/otters/agentruntime"
	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

const modelKey = "otr_secretkey"

// agent is a tree with a model behind it, and what serves it.
type agent struct {
	t     *testing.T
	root  string
	model *modelserver.Server
	opts  agentruntime.Options
	addr  string
	stop  func() error
}

// newAgent makes a tree with the tools cat and sh. more is appended to its agent.yaml.
func newAgent(t *testing.T, more string, answer func(modelserver.Request) modelserver.Answer) *agent {
	t.Helper()
	a := &agent{t: t, root: t.TempDir(), model: modelserver.Start(answer)}
	t.Cleanup(a.model.Close)
	for _, dir := range []string{"etc/context", "etc/data/bins/cat", "usr/bin", "workspace", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(a.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/bin/cat", filepath.Join(a.root, "usr/bin/cat")); err != nil {
		t.Fatal(err)
	}
	a.write("etc/agent.yaml", `id: 0193-1
name: guide
model: test/m1
context: [{name: STYLE, file: etc/context/STYLE.md}]
tools:
  - {name: cat, description: prints files, usage: etc/data/bins/cat/USAGE.md}
  - {name: sh, binary: /bin/sh}
`+more)
	a.write("etc/data/bins/cat/USAGE.md", "cat FILE prints FILE.")
	a.write("etc/context/STYLE.md", "Be short.")
	a.write("etc/context/AGENT.md", "You are guide.")
	a.write("etc/context/MOUNTS.md", "No mounts.")
	a.write("etc/context/WORKSPACE.md", "Folders.")
	a.opts = agentruntime.Options{Root: a.root, Environ: []string{"PATH=" + os.Getenv("PATH"),
		"TEST_API_BASE=" + a.model.URL, "TEST_API_KEY=" + modelKey, "OTTERS_AGENT_TOKEN=agenttoken", "OTTERSD_URL=http://x",
		"RUNTIME_SECRET_TOKEN=abc", "RUNTIME_MAX_TOKENS_X=1", "GREETING=hello"}}
	return a
}

func (a *agent) write(name, text string) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(a.root, name), []byte(text), 0o644); err != nil {
		a.t.Fatal(err)
	}
}

// serve starts the runtime on a listener of the loopback and returns a client of it.
func (a *agent) serve() agentv1.AgentRuntimeClient {
	a.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.t.Fatal(err)
	}
	a.opts.Listener, a.addr = l, l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- agentruntime.Serve(ctx, a.opts) }()
	done := false
	a.stop = func() error {
		if done {
			return nil
		}
		done = true
		cancel()
		return <-served
	}
	a.t.Cleanup(func() {
		if err := a.stop(); err != nil {
			a.t.Errorf("serve: %v", err)
		}
	})
	return agentv1.NewAgentRuntimeClient(a.dial())
}

func (a *agent) dial() *grpc.ClientConn {
	a.t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+a.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { cc.Close() })
	return cc
}

func runContext() context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "otters-run", "run-7", "traceparent", "00-ab-cd-01", "other", "x")
}

// stream runs a turn and returns its events; each is given to seen first.
func stream(ctx context.Context, c agentv1.AgentRuntimeClient, session, prompt string, seen func(*agentv1.ChatStreamEvent)) ([]*agentv1.ChatStreamEvent, error) {
	s, err := c.ChatStream(ctx, &agentv1.ChatStreamRequest{SessionId: session, Prompt: prompt})
	if err != nil {
		return nil, err
	}
	var events []*agentv1.ChatStreamEvent
	for {
		e, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		events = append(events, e)
		if seen != nil {
			seen(e)
		}
	}
}

func types(events []*agentv1.ChatStreamEvent) string {
	var list []string
	for _, e := range events {
		list = append(list, e.GetType())
	}
	return strings.Join(list, " ")
}

// find returns the first event of a type.
func find(t *testing.T, events []*agentv1.ChatStreamEvent, kind string) *agentv1.ChatStreamEvent {
	t.Helper()
	for _, e := range events {
		if e.GetType() == kind {
			return e
		}
	}
	t.Fatalf("no %s in %s", kind, types(events))
	return nil
}

func toolCall(id, name, args string) modelserver.Answer {
	return modelserver.Answer{Calls: []modelserver.Call{{ID: id, Name: name, Args: args}}}
}

// callThenSay asks for one call and then repeats its result.
func callThenSay(name, args string) func(modelserver.Request) modelserver.Answer {
	return func(r modelserver.Request) modelserver.Answer {
		if last := r.Last(); last.Role == "tool" {
			return modelserver.Answer{Text: "it says " + last.Content}
		}
		return toolCall("call1", name, args)
	}
}

// say answers every prompt with the same text.
func say(text string) func(modelserver.Request) modelserver.Answer {
	return func(modelserver.Request) modelserver.Answer { return modelserver.Answer{Text: text} }
}

func messages(t *testing.T, c agentv1.AgentRuntimeClient, session string) []*agentv1.SessionMessage {
	t.Helper()
	resp, err := c.ListSessionMessages(context.Background(), &agentv1.ListSessionMessagesRequest{SessionId: session})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetMessages()
}
