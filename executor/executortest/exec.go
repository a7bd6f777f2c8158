package executortest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/executor"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
	"github.com/otters-sh/otters/spec"
)

// exec runs a BIN that is there and wants it to have run.
func (s *suite) exec(a executor.Agent, bin, stdin string, args ...string) executor.ExecResult {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	res := a.Exec(ctx, bin, args, stdin)
	if res.Err != nil {
		s.Fatalf("exec %s: %v", bin, res.Err)
	}
	return res
}

func execute(s *suite) {
	a := s.create(bins() + "ENV GREETING=hi\n")
	if res := a.Exec(s.Context(), "echo", nil, ""); res.Err == nil {
		s.Error("a BIN ran ahead of the agent's first run")
	}
	s.run(a)
	if res := s.exec(a, "echo", "fed", "one", "two three"); res.Stdout != "one two three\nfed" || res.ExitCode != 0 || res.Stderr != "" {
		s.Errorf("echo: %+v", res)
	}
	if res := s.exec(a, "fail", ""); res.ExitCode != 7 || res.Stderr != "as asked\n" {
		s.Errorf("fail: %+v", res)
	}
	if env := variables(s.exec(a, "env", "").Stdout); env["GREETING"] != "hi" || env["HOME"] == "" || env["OTTERS_AGENT_ROOT"] == "" {
		s.Errorf("the BIN's environment is %v", env)
	}
	// It starts in the working folder, and what it writes there is there for the next one.
	if res := s.exec(a, "write", "kept", "file.txt"); res.ExitCode != 0 {
		s.Errorf("write: %+v", res)
	}
	if res := s.exec(a, "read", "", "file.txt"); res.Stdout != "kept" {
		s.Errorf("read: %+v", res)
	}
	for _, bin := range []string{"sh", "../../bin/sh", "", "runtime"} {
		if res := a.Exec(s.Context(), bin, nil, ""); res.Err == nil {
			s.Errorf("%q is no BIN of the agent and ran: %+v", bin, res)
		}
	}
}

func cancelExec(s *suite) {
	a := s.create(bins())
	s.run(a)
	for _, cause := range []string{"cancel", "deadline"} {
		ctx, cancel := context.WithCancel(s.Context())
		if cause == "deadline" {
			ctx, cancel = context.WithTimeout(s.Context(), 100*time.Millisecond)
		}
		done := make(chan error, 1)
		go func() { done <- a.Exec(ctx, "hang", nil, "").Err }()
		if cause == "cancel" {
			s.await(a, "held")
			cancel()
		}
		if err := s.ended(done); err == nil || !errors.Is(err, ctx.Err()) {
			s.Errorf("%s: %v", cause, err)
		}
		cancel()
		// What the BIN started is gone with it.
		s.await(a, "free")
	}
}

// await waits until the tool held says want.
func (s *suite) await(a executor.Agent, want string) {
	s.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		res := s.exec(a, "held", "")
		if strings.TrimSpace(res.Stdout) == want {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("it is not %s: %+v", want, res)
		}
	}
}

func executeStream(s *suite) {
	a := s.create(bins())
	x, ok := a.(executor.StreamExecer)
	if !ok {
		s.Skip("the agent is no executor.StreamExecer")
	}
	s.run(a)
	in := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	var out, errs bytes.Buffer
	if res := x.ExecStream(s.Context(), "echo", nil, bytes.NewReader(in), &out, &errs); res.Err != nil || res.ExitCode != 0 {
		s.Fatalf("%+v", res)
	}
	if !bytes.Equal(out.Bytes(), append([]byte("\n"), in...)) || errs.Len() > 0 {
		s.Errorf("%d bytes came back as %d, and %q", len(in), out.Len(), errs.String())
	}
	if res := x.ExecStream(s.Context(), "fail", nil, nil, nil, &errs); res.Err != nil || res.ExitCode != 7 || errs.String() != "as asked\n" {
		s.Errorf("%+v, %q", res, errs.String())
	}
}

func mounts(s *suite) {
	source := openDir(s.T)
	if err := os.Chmod(source, 0o777); err != nil {
		s.Fatal(err)
	}
	given := filepath.Join(source, "given.txt")
	if err := errors.Join(os.WriteFile(given, []byte("given"), 0o644), os.Chmod(given, 0o644)); err != nil {
		s.Fatal(err)
	}
	a := s.create(bins(), spec.WithMounts(spec.Mount{Host: source, Target: "/workspace/src", Description: "what is given"}))
	s.run(a)
	if m := a.Runtime().Config.Mounts; len(m) != 1 || m[0].ReadOnly || m[0].Description != "what is given" {
		s.Errorf("agent.yaml tells of %+v", m)
	}
	if res := s.exec(a, "read", "", "src/given.txt"); res.Stdout != "given" {
		s.Errorf("read: %+v", res)
	}
	if res := s.exec(a, "write", "made", "src/made.txt"); res.ExitCode != 0 {
		s.Errorf("write: %+v", res)
	}
	if got, err := os.ReadFile(filepath.Join(source, "made.txt")); string(got) != "made" {
		s.Errorf("the host has %q, %v", got, err)
	}
	// Read-only is enforced or refused, and never a promise.
	b := s.create(bins(), spec.WithMounts(spec.Mount{Host: source, Target: "/workspace/src", ReadOnly: true}))
	if err := b.Prepare(s.Context()); err != nil {
		s.status(b, executor.StatusFailed, executor.FailureConfig)
	} else {
		s.run(b)
		if res := s.exec(b, "write", "spoilt", "src/given.txt"); res.ExitCode == 0 {
			s.Error("a read-only mount was written to")
		}
		if res := s.exec(b, "read", "", "src/given.txt"); res.Stdout != "given" {
			s.Errorf("a read-only mount can't be read: %+v", res)
		}
	}
	// When the agent goes, the mount's source stays.
	if err := a.Stop(s.Context()); err != nil {
		s.Fatal(err)
	}
	if err := a.Remove(s.Context()); err != nil {
		s.Fatal(err)
	}
	if got, err := os.ReadFile(given); string(got) != "given" {
		s.Errorf("after removal the host has %q, %v", got, err)
	}
}

func tokens(s *suite) {
	a := s.create(bins())
	s.run(a)
	env := s.env(a)
	if env["OTTERSD_URL"] != s.w.DaemonURL || env["OTTERS_AGENT_TOKEN"] != s.w.AgentToken {
		s.Errorf("the runtime has %q and %q", env["OTTERSD_URL"], env["OTTERS_AGENT_TOKEN"])
	}
	if !strings.HasPrefix(env["OFFLINE_API_KEY"], "modelkey-") || env["OFFLINE_API_BASE"] == "" {
		s.Errorf("the runtime has the key %q at %q", env["OFFLINE_API_KEY"], env["OFFLINE_API_BASE"])
	}
	tool := s.exec(a, "env", "").Stdout
	for _, secret := range []string{s.w.AgentToken, "modelkey-", "_API_KEY", "OTTERS_AGENT_TOKEN", "LISTEN_FD"} {
		if strings.Contains(tool, secret) {
			s.Errorf("the BIN's environment has %s:\n%s", secret, tool)
		}
	}
	// Nor are they in the tree's documents, nor is a variable's value.
	for _, doc := range []string{"../etc/agent.yaml", "../etc/context/AGENT.md", "../etc/context/WORKSPACE.md"} {
		text := s.exec(a, "read", "", doc).Stdout
		if text == "" || strings.Contains(text, s.w.AgentToken) || strings.Contains(text, "modelkey-") {
			s.Errorf("%s holds %q", doc, text)
		}
	}
}

func resolveAgain(s *suite) {
	a := s.create(agentfile)
	done := s.run(a)
	first := s.env(a)["OFFLINE_API_KEY"]
	s.stop(a, done)
	s.run(a)
	if second := s.env(a)["OFFLINE_API_KEY"]; first == "" || second == "" || first == second {
		s.Errorf("the keys of two starts are %q and %q", first, second)
	}
}

func strangers(s *suite) {
	a := s.create(agentfile)
	s.run(a)
	if !strings.Contains(s.env(a)["LISTEN_FDNAMES"], "serve-token") {
		s.Skip("the runtime is given no serve token")
	}
	conn, err := grpc.NewClient("passthrough:///"+a.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	_, err = agentv1.NewAgentRuntimeClient(conn).Chat(ctx, &agentv1.ChatRequest{Prompt: "who are you"})
	if code := status.Code(err); code != codes.Unauthenticated && code != codes.Unavailable {
		s.Errorf("a stranger at %s: %v", a.Addr(), err)
	}
	if got := s.ask(a, "hello"); got != "hello" {
		s.Errorf("the owner is answered %q", got)
	}
	if err := a.Probe(ctx); err != nil {
		s.Error(fmt.Errorf("the owner's probe: %w", err))
	}
}
