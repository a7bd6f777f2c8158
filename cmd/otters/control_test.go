package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: what follows a BIN is the BIN's own, its streams and its exit code are the program's.
// Worst inputs: arguments that look like flags, an interrupt, output that would act on a terminal.

func TestExecPassesArgumentsStreamsAndExitCode(t *testing.T) {
	t.Parallel()
	f := &fake{agents: []*daemonv1.Agent{someAgent()}}
	socket := serve(t, f)
	check(t, otters(t.Context(), socket, "in\x1b", "exec", "guide", "jq", "-r", "--socket", "x", "--", "-h"),
		outcome{code: 7, out: "in\x1b", err: "in\x1b"})
	want := &daemonv1.ExecStart{Agent: "guide", Bin: "jq", Args: []string{"-r", "--socket", "x", "--", "-h"}}
	if diff := cmp.Diff(want, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	ms, most := int64(1500), int64(2<<20)
	check(t, otters(t.Context(), socket, "", "exec", "--timeout", "1.5s", "--max-output", "2m", "guide", "jq", "--timeout"), outcome{code: 7})
	want = &daemonv1.ExecStart{Agent: "guide", Bin: "jq", Args: []string{"--timeout"}, TimeoutMs: &ms, MaxOutput: &most}
	if diff := cmp.Diff(want, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	for flag, bad := range map[string]string{"--timeout": "0", "--max-output": "-1"} {
		if got := otters(t.Context(), socket, "", "exec", flag, bad, "guide", "jq"); got.code != exitUsage || !strings.Contains(got.err, flag+" ") || !strings.Contains(got.err, "want") {
			t.Errorf("%s %s: %+v", flag, bad, got)
		}
	}
	var out bytes.Buffer
	term := &app{in: strings.NewReader("a\x1b[2J\n"), out: &out, err: &out, outTerm: true, errTerm: true}
	if code := term.run(t.Context(), []string{"--socket", socket, "exec", "guide", "cat"}); code != 7 || out.String() != "a␛[2J\na␛[2J\n" {
		t.Errorf("on a terminal: %d, %q", code, out.String())
	}
}

func TestAnInterruptCancelsTheExec(t *testing.T) {
	t.Parallel()
	f := &fake{hang: true}
	socket := serve(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan outcome)
	go func() { done <- otters(ctx, socket, "", "exec", "guide", "cat") }()
	<-f.created
	cancel()
	check(t, <-done, outcome{code: exitInterrupted, err: "otters: interrupted\n"})
	<-f.hungUp
}

func TestRestartAndKill(t *testing.T) {
	t.Parallel()
	a := someAgent()
	f := &fake{agents: []*daemonv1.Agent{a}, states: []*daemonv1.AgentSummary{{Id: "1", Name: "guide", Status: "ready"}}}
	socket := serve(t, f)
	check(t, otters(t.Context(), socket, "", "restart", "guide"), outcome{out: "guide 1 ready\n"})
	check(t, otters(t.Context(), socket, "", "kill", "guide"), outcome{out: "guide\n"})
	if r := f.last().(*daemonv1.KillAgentRequest); r.GetSignal() != "KILL" {
		t.Errorf("signal %q", r.GetSignal())
	}
	check(t, otters(t.Context(), socket, "", "kill", "-s", "HUP", "guide"), outcome{out: "guide\n"})
	if r := f.last().(*daemonv1.KillAgentRequest); r.GetSignal() != "HUP" {
		t.Errorf("signal %q", r.GetSignal())
	}
}
