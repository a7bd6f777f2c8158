package daemon

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: a stop ends everything within its time, a kill at once, and neither is an end that a
// policy answers; what the operator runs in an agent ends with the call, the agent or the daemon.
// Worst inputs: a runtime that ignores SIGTERM, a BIN that reads for ever, one that writes for ever, a
// client that goes.

// stubborn ignores SIGTERM, says when it does, and takes no time of the processor.
const stubborn = "trap '' TERM; echo deaf; exec /bin/sleep 3600"

// deaf waits until a stubborn runtime ignores SIGTERM.
func (d *testDaemon) deaf(agent string) *daemonv1.Agent {
	d.t.Helper()
	d.await(agent, "starting")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		// The runtime may speak before the monitor's report of its start is here.
		if lines, a := d.logs(agent), d.get(agent); len(lines) > 0 && a.GetPid() > 0 {
			return a
		}
	}
	d.t.Fatalf("agent %s says nothing", agent)
	return nil
}

// logs is what the agent's log has now.
func (d *testDaemon) logs(agent string) []string {
	d.t.Helper()
	stream, err := d.api.Logs(d.t.Context(), &daemonv1.LogsRequest{Agent: agent})
	if err != nil {
		d.t.Fatal(err)
	}
	var out []string
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			d.t.Fatal(err)
		}
		out = append(out, m.GetLine())
	}
}

func TestAStopWaitsAsLongAsTheAgentMayTakeAndNoLonger(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	first := boot(t, home)
	first.image("guide", guide)
	first.create(&daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: script(t, stubborn), Restart: "always", StopTimeoutMs: proto.Int64(200)})
	a := first.deaf("guide")
	if a.GetStopTimeoutMs() != 200 {
		t.Errorf("stop timeout %d ms", a.GetStopTimeoutMs())
	}
	// The next daemon knows it too.
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	d := boot(t, home)
	running := processes(t, a.GetPid(), a.GetMonitorPid())
	r, err := d.api.StopAgent(t.Context(), &daemonv1.StopAgentRequest{Agent: "guide"})
	if err != nil || r.GetAgent().GetStatus() != "stopped" {
		t.Fatalf("%v, %v", r, err)
	}
	running.gone(t)
	exit := d.get("guide").GetLastExit()
	if exit.GetSignal() != "SIGKILL" {
		t.Errorf("last exit %v", exit)
	}
	for _, ms := range []int64{-1, 3_600_001} {
		if _, err := d.api.CreateAgent(t.Context(), &daemonv1.CreateAgentRequest{Image: "guide", StopTimeoutMs: &ms}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d ms: %v", ms, err)
		}
	}
}

func TestAKillWaitsForNothingAndOtherSignalsAreTheRuntimes(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t), slow)
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", Name: "deaf", RuntimePath: script(t, stubborn), Restart: "always", StopTimeoutMs: proto.Int64(3_600_000)})
	a := d.deaf("deaf")
	running := processes(t, a.GetPid(), a.GetMonitorPid())
	// A stop that would take an hour, and the kill that ends it.
	stopped := make(chan error, 1)
	go func() {
		_, err := d.api.StopAgent(t.Context(), &daemonv1.StopAgentRequest{Agent: "deaf"})
		stopped <- err
	}()
	for deadline := time.Now().Add(patience); !d.agent("deaf").isHalted(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the stop does not begin")
		}
	}
	r, err := d.api.KillAgent(t.Context(), &daemonv1.KillAgentRequest{Agent: "deaf"})
	if err != nil || r.GetAgent().GetStatus() != "stopped" || r.GetAgent().GetNextTryAtMs() != 0 {
		t.Errorf("%v, %v", r, err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("the stop: %v", err)
	}
	running.gone(t)
	if _, err := d.api.KillAgent(t.Context(), &daemonv1.KillAgentRequest{Agent: "deaf"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("kill of a stopped agent: %v", err)
	}

	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "hears", Restart: "on-failure"})
	d.await("hears", "ready")
	for _, bad := range []string{"SIGNOPE", "0", "65", "-1"} {
		if _, err := d.api.KillAgent(t.Context(), &daemonv1.KillAgentRequest{Agent: "hears", Signal: bad}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("signal %q: %v", bad, err)
		}
	}
	if _, err := d.api.KillAgent(t.Context(), &daemonv1.KillAgentRequest{Agent: "hears", Signal: "abrt"}); err != nil {
		t.Fatal(err)
	}
	s := d.until("hears", func(s *daemonv1.AgentSummary) bool { return s.GetNextTryAtMs() > 0 })
	if s.GetReason() != "crashed" || s.GetAttempts() != 1 {
		t.Errorf("after SIGABRT: %v", s)
	}
}

// isHalted tells whether somebody has asked for the end of the agent's run.
func (s *supervised) isHalted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run.halted
}

func TestARestartIsAnotherProcessOfTheSameAgent(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide"})
	d.await("guide", "ready")
	before := d.get("guide")
	running := processes(t, before.GetPid(), before.GetMonitorPid())
	session := d.ask("guide", "", "who are you").session
	for range 2 { // a running one, and a stopped one
		if _, err := d.api.RestartAgent(t.Context(), &daemonv1.RestartAgentRequest{Agent: "guide"}); err != nil {
			t.Fatal(err)
		}
		d.await("guide", "ready")
		after := d.get("guide")
		// The number of a process that has ended may be another's.
		running.gone(t)
		if after.GetPid() == 0 || after.GetSummary().GetId() != before.GetSummary().GetId() {
			t.Errorf("after %v, before %v", after, before)
		}
		if got := d.ask("guide", session, "who are you"); got.session != session {
			t.Errorf("session %q, want %q", got.session, session)
		}
		d.halt("guide")
	}
}

// ran is what came of an exec.
type ran struct {
	out, err string
	code     int32
}

// exec begins a BIN; the caller sends its input.
func (d *testDaemon) exec(ctx context.Context, agent, bin string, args ...string) daemonv1.DaemonService_ExecClient {
	d.t.Helper()
	stream, err := d.api.Exec(ctx)
	if err != nil {
		d.t.Fatal(err)
	}
	_ = stream.Send(&daemonv1.ExecRequest{Part: &daemonv1.ExecRequest_Start{Start: &daemonv1.ExecStart{Agent: agent, Bin: bin, Args: args}}})
	return stream
}

// execWithin begins a BIN with bounds of its own.
func (d *testDaemon) execWithin(start *daemonv1.ExecStart) daemonv1.DaemonService_ExecClient {
	d.t.Helper()
	stream, err := d.api.Exec(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	_ = stream.Send(&daemonv1.ExecRequest{Part: &daemonv1.ExecRequest_Start{Start: start}})
	return stream
}

func collect(stream daemonv1.DaemonService_ExecClient) (ran, error) {
	var r ran
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return r, err
		}
		r.out += string(m.GetStdout())
		r.err += string(m.GetStderr())
		if e := m.GetExit(); e != nil {
			r.code = e.GetCode()
		}
	}
}

func send(t *testing.T, stream daemonv1.DaemonService_ExecClient, text string) {
	t.Helper()
	if err := stream.Send(&daemonv1.ExecRequest{Part: &daemonv1.ExecRequest_Stdin{Stdin: []byte(text)}}); err != nil {
		t.Error(err)
	}
}

func TestExecPassesStreamsAndExitCodeOn(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide"})
	d.await("guide", "ready")
	// Output comes while input is open still.
	cat := d.exec(t.Context(), "guide", "cat")
	for _, line := range []string{"one\n", "two\n"} {
		send(t, cat, line)
		got := ""
		for got != line {
			m, err := cat.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got += string(m.GetStdout()); !strings.HasPrefix(line, got) {
				t.Fatalf("got %q, want %q", got, line)
			}
		}
	}
	if err := cat.CloseSend(); err != nil {
		t.Error(err)
	}
	if r, err := collect(cat); err != nil || r != (ran{}) {
		t.Errorf("the end: %+v, %v", r, err)
	}
	// The BIN ends though its input does not.
	if r, err := collect(d.exec(t.Context(), "guide", "wc", "-l", "../etc/data/lines.txt")); err != nil || r.code != 0 || !strings.Contains(r.out, "3") {
		t.Errorf("wc: %+v, %v", r, err)
	}
	if r, err := collect(d.exec(t.Context(), "guide", "cat", "/nosuch")); err != nil || r.code == 0 || r.err == "" || r.out != "" {
		t.Errorf("a BIN that fails: %+v, %v", r, err)
	}
	for _, c := range []struct {
		agent, bin string
		code       codes.Code
		want       string
	}{
		{"guide", "sh", codes.FailedPrecondition, "no such BIN; it has wc, cat"},
		{"guide", "../../../bin/sh", codes.FailedPrecondition, "no such BIN"},
		{"guide", "", codes.FailedPrecondition, "no such BIN"},
		{"nobody", "cat", codes.NotFound, "nobody"},
	} {
		if _, err := collect(d.exec(t.Context(), c.agent, c.bin)); status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in %s: %v; want %v with %q", c.bin, c.agent, err, c.code, c.want)
		}
	}
	d.boundsOfExec()
	first, err := d.api.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send(t, first, "no start")
	if _, err := collect(first); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a start: %v", err)
	}
}

// boundsOfExec runs BINs of guide into their bounds, each beside one that keeps within.
func (d *testDaemon) boundsOfExec() {
	t := d.t
	t.Helper()
	for _, c := range []struct {
		ms, output *int64
		args       []string
		code       codes.Code
		want, out  string
	}{
		{nil, proto.Int64(14), []string{"../etc/data/lines.txt"}, codes.OK, "", "one\ntwo\nthree\n"},
		{nil, proto.Int64(13), []string{"../etc/data/lines.txt"}, codes.ResourceExhausted, "more than 13 bytes; it was killed", "one\ntwo\nthree"},
		{nil, proto.Int64(100_000), []string{"/dev/zero"}, codes.ResourceExhausted, "more than 100000 bytes; it was killed", strings.Repeat("\x00", 100_000)},
		{proto.Int64(60_000), proto.Int64(1 << 40), []string{"../etc/data/lines.txt"}, codes.OK, "", "one\ntwo\nthree\n"},
		{proto.Int64(200), nil, nil, codes.DeadlineExceeded, "more than 200ms; it was killed", ""},
		{proto.Int64(0), nil, nil, codes.InvalidArgument, "want 1 ms to 24h", ""},
		{proto.Int64(86_400_001), nil, nil, codes.InvalidArgument, "want 1 ms to 24h", ""},
		{nil, proto.Int64(0), nil, codes.InvalidArgument, "want 1 to 1099511627776", ""},
		{nil, proto.Int64(1<<40 + 1), nil, codes.InvalidArgument, "want 1 to 1099511627776", ""},
	} {
		start := &daemonv1.ExecStart{Agent: "guide", Bin: "cat", Args: c.args, TimeoutMs: c.ms, MaxOutput: c.output}
		r, err := collect(d.execWithin(start))
		if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.want) || r.out != c.out {
			t.Errorf("cat %q within %s: %d bytes %.50q, exit code %d, %.200q, %v; want %v with %q", c.args, start, len(r.out), r.out, r.code, r.err, err, c.code, c.want)
		}
	}
}

// waiting begins a cat that waits for input, and returns its process.
func (d *testDaemon) waiting(ctx context.Context, agent string) (daemonv1.DaemonService_ExecClient, ending) {
	d.t.Helper()
	stream := d.exec(ctx, agent, "cat", "-", "/proc/self/stat")
	send(d.t, stream, "x")
	if m, err := stream.Recv(); err != nil || string(m.GetStdout()) != "x" {
		d.t.Fatalf("%v, %v", m, err)
	}
	cwd, err := filepath.EvalSymlinks(filepath.Join(d.get(agent).GetRoot(), "workspace"))
	if err != nil {
		d.t.Fatal(err)
	}
	var pids []int32
	// A BIN runs under a monitor, which is the daemon's child.
	all := childrenOf(d.t, syscall.Getpid())
	for _, monitor := range all {
		all = append(all, childrenOf(d.t, int(monitor.pid))...)
	}
	for _, p := range all {
		if strings.Contains(p.command, "cat") && strings.Contains(p.command, "/proc/self/stat") && p.cwd == cwd {
			pids = append(pids, p.pid)
		}
	}
	if len(pids) == 0 {
		d.t.Fatal("the BIN is not below the daemon")
	}
	return stream, processes(d.t, pids...)
}

func TestAnExecEndsWithItsCallItsAgentAndTheDaemon(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Sandbox: "off"})
	d.await("guide", "ready")

	ctx, cancel := context.WithCancel(t.Context())
	_, bin := d.waiting(ctx, "guide")
	cancel()
	bin.gone(t)

	stream, bin := d.waiting(t.Context(), "guide")
	d.halt("guide")
	bin.gone(t)
	if _, err := collect(stream); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "being stopped") {
		t.Errorf("after the stop: %v", err)
	}

	stream, bin = d.waiting(t.Context(), "guide")
	if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: "guide"}); err != nil {
		t.Fatal(err)
	}
	bin.gone(t)
	if _, err := collect(stream); err == nil {
		t.Error("the call outlived its agent")
	}

	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Sandbox: "off"})
	d.await("guide", "ready")
	stream, bin = d.waiting(t.Context(), "guide")
	if err := d.agent("guide").halt(t.Context()); err != nil {
		t.Fatal(err)
	}
	bin.gone(t)
	_, _ = collect(stream)
	stream, bin = d.waiting(t.Context(), "guide")
	if err := d.end(); err != nil {
		t.Fatal(err)
	}
	bin.gone(t)
	if _, err := collect(stream); status.Code(err) != codes.Unavailable {
		t.Errorf("after the daemon: %v", err)
	}
}

// What level limited refuses of a file's path, its mode and times, the tools do by its descriptor.
func TestTheToolsThatWriteWorkAtEveryLevel(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	agentfile := "FROM scratch\nMODEL offline/otter\n"
	for _, tool := range []string{"write", "edit", "sed", "tar", "cat"} {
		agentfile += "BIN " + tool + " otters/tools/" + tool + "\n"
	}
	d.image("writer", map[string]string{"Agentfile": agentfile + "ADD holt/\n", "holt/SKILL.md": "---\nname: holt\n---\n", "holt/ref/notes.md": "of a skill"})
	for _, level := range hostLevels(t) {
		name := string(level)
		d.create(&daemonv1.CreateAgentRequest{Image: "writer", Name: name, Sandbox: name})
		d.await(name, "ready")
		for _, call := range [][]string{
			{"write", "notes.txt", "one otter"}, {"write", "d/more.txt", "more"}, {"edit", "notes.txt", "--old", "one", "--new", "two"}, {"sed", "-i", "s/otter/otters/", "notes.txt"},
			{"write", "-a", "notes.txt", ", and more"}, {"tar", "-c", "-f", "a.tar.gz", "notes.txt", "d"}, {"tar", "-x", "-f", "a.tar.gz", "-C", "out"},
		} {
			if r, err := collect(d.exec(t.Context(), name, call[0], call[1:]...)); err != nil || r.code != 0 {
				t.Errorf("%s: %q: %+v, %v", level, call, r, err)
			}
		}
		r, err := collect(d.exec(t.Context(), name, "cat", "out/notes.txt", "out/d/more.txt"))
		if err != nil || r.out != "two otters, and moremore" {
			t.Errorf("%s: %+v, %v", level, r, err)
		}
		r, err = collect(d.exec(t.Context(), name, "cat", "../etc/data/skills/holt/SKILL.md", "../etc/data/skills/holt/ref/notes.md"))
		if err != nil || r.out != "---\nname: holt\n---\nof a skill" {
			t.Errorf("%s: a skill's files: %+v, %v", level, r, err)
		}
	}
}
