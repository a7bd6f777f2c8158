package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/proto/otters/daemon/v1/daemonv1connect"
)

// Invariant: an agent is what the API says it is, from build to removal, across daemons; nothing of
// it is left afterwards. Worst inputs: the daemon goes while the agent runs, the agent goes while
// the daemon is away, a removal of a running agent.

func TestAnAgentFromBuildToRemoval(t *testing.T) {
	t.Parallel()
	d := boot(t, emptyHome(t))
	d.image("guide", guide)
	sum := d.create(&daemonv1.CreateAgentRequest{Image: "guide", Envs: []*daemonv1.EnvVar{{Key: "COLOUR", Value: "as blue as the sea"}}})
	if sum.GetName() != "guide" || sum.GetImage() != "guide:latest" || sum.GetModel() != "offline/otter" || !strings.HasPrefix(sum.GetDigest(), "sha256:") {
		t.Errorf("summary %v", sum)
	}
	d.await("guide", "ready")

	a := d.get("guide")
	if a.GetPid() == 0 || a.GetMonitorPid() == 0 || a.GetAddress() == "" || !a.GetServeTokenChecked() || len(a.GetWarnings()) != 0 || a.GetSummary().GetStartedAtMs() == 0 {
		t.Errorf("agent %v", a)
	}
	if !strings.HasPrefix(a.GetRuntimeRef(), "otters/runtime:latest") || !strings.HasPrefix(a.GetRuntimeDigest(), "sha256:") || len(a.GetTools()) != 2 {
		t.Errorf("runtime %q %q, tools %v", a.GetRuntimeRef(), a.GetRuntimeDigest(), a.GetTools())
	}
	if !slices.Contains(a.GetEnvs(), "COLOUR") || strings.Contains(a.String(), "as the sea") {
		t.Errorf("envs %v; want the name and no value", a.GetEnvs())
	}
	if os.Geteuid() == 0 && a.GetUid() < 1000 {
		t.Errorf("uid %d under a root daemon", a.GetUid())
	}

	got := d.ask("guide", "", "use wc -l on ../etc/data/lines.txt")
	if id, err := uuid.Parse(got.run); err != nil || id.Version() != 7 {
		t.Errorf("run id %q: want a UUIDv7", got.run)
	}
	if !slices.Equal(got.calls, []string{"wc"}) || len(got.results) != 1 || !strings.HasPrefix(strings.TrimSpace(got.results[0]), "3 ") || got.reason != "done" {
		t.Errorf("turn %+v", got)
	}
	if again := d.ask("guide", got.session, "who are you"); again.session != got.session || again.run == got.run {
		t.Errorf("second turn %+v", again)
	}

	running := processes(t, a.GetPid(), a.GetMonitorPid())
	stopped, err := d.api.StopAgent(t.Context(), &daemonv1.StopAgentRequest{Agent: "guide"})
	if err != nil || stopped.GetAgent().GetStatus() != "stopped" || stopped.GetAgent().GetReason() != "" {
		t.Fatalf("stop: %v, %v", stopped, err)
	}
	running.gone(t)
	if _, err := d.prompt(t.Context(), "guide", "", "hello"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(hintOf(err), "otters start guide") {
		t.Errorf("prompt to a stopped agent: %v, hint %q", err, hintOf(err))
	}

	started, err := d.api.StartAgent(t.Context(), &daemonv1.StartAgentRequest{Agent: "guide"})
	if err != nil || started.GetAgent().GetStatus() == "stopped" {
		t.Fatalf("start: %v, %v", started, err)
	}
	d.await("guide", "ready")
	if _, err := d.api.StartAgent(t.Context(), &daemonv1.StartAgentRequest{Agent: "guide"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("start of a running agent: %v", err)
	}
	d.ask("guide", got.session, "use cat on ../etc/data/lines.txt")
	d.removal(t, "guide")
}

// removal removes a running agent and looks for what is left.
func (d *testDaemon) removal(t *testing.T, agent string) {
	t.Helper()
	a := d.get(agent)
	if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: agent}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("removal of a running agent: %v", err)
	}
	running := processes(t, a.GetPid(), a.GetMonitorPid())
	if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: agent, Force: true}); err != nil {
		t.Fatal(err)
	}
	running.gone(t)
	for _, path := range []string{a.GetRoot(), filepath.Dir(a.GetRoot()), a.GetLogFile()} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	if rows, err := d.db.agents(t.Context()); err != nil || len(rows) != 0 {
		t.Errorf("rows %v, %v", rows, err)
	}
	if _, err := d.api.GetAgent(t.Context(), &daemonv1.GetAgentRequest{Agent: agent}); status.Code(err) != codes.NotFound {
		t.Errorf("get after removal: %v", err)
	}
	if list, err := d.api.ListAgents(t.Context(), &daemonv1.ListAgentsRequest{}); err != nil || len(list.GetAgents()) != 0 {
		t.Errorf("list after removal: %v, %v", list, err)
	}
}

func hintOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if h, ok := d.(*daemonv1.Hint); ok {
			return h.GetText()
		}
	}
	return ""
}

func TestK16AgentsOutliveTheDaemonAndTheNextTakesThemOver(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	first := boot(t, home)
	first.image("guide", guide)
	for _, name := range []string{"on", "killed", "stopped"} {
		first.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: name})
		first.await(name, "ready")
	}
	first.halt("stopped")
	session := first.ask("on", "", "who are you").session
	before, killed := first.get("on"), first.get("killed")
	if err := first.end(); err != nil {
		t.Fatalf("the first daemon ended with %v", err)
	}
	running := processes(t, before.GetPid(), before.GetMonitorPid())
	victim := processes(t, killed.GetPid())
	if p, err := os.FindProcess(int(killed.GetPid())); err != nil || p.Kill() != nil {
		t.Fatalf("kill: %v", err)
	}
	victim.gone(t)

	second := boot(t, home)
	second.await("on", "ready")
	after := second.get("on")
	if after.GetPid() != before.GetPid() || after.GetMonitorPid() != before.GetMonitorPid() {
		t.Errorf("pid %d and %d, before %d and %d: the runtime was restarted", after.GetPid(), after.GetMonitorPid(), before.GetPid(), before.GetMonitorPid())
	}
	if was, is := before.GetSummary().GetStartedAtMs(), after.GetSummary().GetStartedAtMs(); was != is {
		t.Errorf("started at %d, before %d", is, was)
	}
	// The model call of this turn goes through the gateway with the token of the first daemon.
	if got := second.ask("on", session, "use wc -l on ../etc/data/lines.txt"); got.session != session || len(got.results) != 1 || got.reason != "done" {
		t.Errorf("turn after the take-over: %+v", got)
	}
	// Its monitor may have been busy with the end when the second daemon asked.
	if s := second.await("killed", "failed"); s.GetReason() != "crashed" || !strings.Contains(s.GetMessage(), "SIGKILL") {
		t.Errorf("the agent killed meanwhile: %v", s)
	}
	if s := second.get("stopped").GetSummary(); s.GetStatus() != "stopped" {
		t.Errorf("the stopped agent: %v", s)
	}
	for _, name := range []string{"killed", "stopped"} {
		second.begin(name)
	}
	second.halt("on")
	running.gone(t)
}

func TestShutdownAnswersAndStopsAgentsOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	d := boot(t, home)
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide"})
	d.await("guide", "ready")
	a := d.get("guide")
	running := processes(t, a.GetPid(), a.GetMonitorPid())
	if r, err := d.api.Shutdown(t.Context(), &daemonv1.ShutdownRequest{}); err != nil || r.GetRunning() != 1 || r.GetStopped() != 0 {
		t.Fatalf("shutdown: %v, %v", r, err)
	}
	<-d.sup.over.Done()
	if err := d.end(); err != nil {
		t.Fatal(err)
	}
	again := boot(t, home)
	again.await("guide", "ready")
	if r, err := again.api.Shutdown(t.Context(), &daemonv1.ShutdownRequest{StopAgents: true}); err != nil || r.GetRunning() != 0 || r.GetStopped() != 1 {
		t.Fatalf("shutdown with stop: %v, %v", r, err)
	}
	running.gone(t)
	if err := again.end(); err != nil {
		t.Fatal(err)
	}
	last := boot(t, home)
	if s := last.get("guide").GetSummary(); s.GetStatus() != "stopped" {
		t.Errorf("after the shutdown: %v", s)
	}
}

func TestASecondDaemonIsRefusedAndTheFirstServesOn(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	_, err := Open(t.Context(), Config{Home: d.home, Socket: filepath.Join(filepath.Dir(d.home), "other.sock"), Programs: built.For(t)})
	if !errors.Is(err, ErrHomeInUse) {
		t.Fatalf("got %v, want ErrHomeInUse", err)
	}
	if _, err := d.api.Info(t.Context(), &daemonv1.InfoRequest{}); err != nil {
		t.Errorf("the first daemon: %v", err)
	}
}

func TestTheHTTPSideServesTheSameAPI(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	var info struct{ Version, Home, Platform string }
	got := postJSON(t, d.socket, daemonv1.DaemonService_Info_FullMethodName, "{}")
	if err := json.Unmarshal([]byte(got.body), &info); err != nil || got.code != http.StatusOK || info.Home != d.home || info.Version != "test" {
		t.Errorf("info: %+v, %v", got, err)
	}
	if got := postJSON(t, d.socket, daemonv1.DaemonService_CreateAgent_FullMethodName, `{"image":"guide","name":"web"}`); got.code != http.StatusOK {
		t.Fatalf("create: %+v", got)
	}
	d.await("web", "ready")
	for name, opt := range map[string][]connect.ClientOption{"connect": nil, "gRPC-Web": {connect.WithGRPCWeb()}, "JSON": {connect.WithProtoJSON()}} {
		client := daemonv1connect.NewDaemonServiceClient(testHTTP(t, d.socket), "http://localhost", opt...)
		stream, err := client.Prompt(t.Context(), &daemonv1.PromptRequest{Agent: "web", Text: "use wc -l on ../etc/data/lines.txt"})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var types []string
		for stream.Receive() {
			types = append(types, stream.Msg().GetType())
		}
		if err := stream.Err(); err != nil || !slices.Contains(types, "tool.result") || types[len(types)-1] != "turn.finish" {
			t.Errorf("%s: %v, %v", name, types, err)
		}
		_ = stream.Close()
		_, err = client.GetAgent(t.Context(), &daemonv1.GetAgentRequest{Agent: "nobody"})
		var ce *connect.Error
		if !errors.As(err, &ce) || ce.Code() != connect.CodeNotFound || len(ce.Details()) == 0 {
			t.Fatalf("%s: unknown agent: %v", name, err)
		}
		if v, err := ce.Details()[0].Value(); err != nil || v.(*daemonv1.Hint).GetText() == "" {
			t.Errorf("%s: hint %v, %v", name, v, err)
		}
	}
}

func TestLogsTellWhatTheRuntimeWrote(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", RuntimePath: script(t, "echo out; echo err >&2; exit 3"), Sandbox: "off"})
	d.await("guide", "failed")
	stream, err := d.api.Logs(t.Context(), &daemonv1.LogsRequest{Agent: "guide"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		if m.GetAtMs() == 0 {
			t.Errorf("line without time: %v", m)
		}
		got = append(got, m.GetStream()+": "+m.GetLine())
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"stderr: err", "stdout: out"}) {
		t.Errorf("log %q", got)
	}
	if a := d.get("guide"); a.GetLastExit().GetCode() != 3 || !slices.Equal(a.GetLastExit().GetStderr(), []string{"err"}) {
		t.Errorf("last exit %v", a.GetLastExit())
	}
}

// script is a runtime written in shell.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runtime")
	if err := writeProgram(path, "#!/bin/sh\n"+text+"\n"); err != nil {
		t.Fatal(err)
	}
	return path
}

// writeProgram writes a program that anybody may run. No child that is forked meanwhile keeps it open for writing,
// and thus from being run.
func writeProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return errors.Join(os.WriteFile(path, []byte(text), 0o755), os.Chmod(path, 0o755))
}

func TestPromptsInFlightEndClearlyWhenTheDaemonGoes(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	hold := make(chan struct{})
	defer close(hold)
	d := boot(t, scripted(t, home, hold))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Model: "scripted/m"})
	d.await("guide", "ready")
	stream, err := d.api.Prompt(t.Context(), &daemonv1.PromptRequest{Agent: "guide", Text: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	d.await("guide", "working")
	if err := d.end(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("the prompt ended with %v", err)
	}
	second := boot(t, home)
	second.await("guide", "ready")
}

func TestCancellingAPromptCancelsTheModelCall(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	defer close(hold)
	home := newHome(t)
	d := boot(t, scripted(t, home, hold))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Model: "scripted/m"})
	d.await("guide", "ready")
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := d.api.Prompt(ctx, &daemonv1.PromptRequest{Agent: "guide", Text: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	d.await("guide", "working")
	// It works for as long as one call is in flight.
	if got := d.ask("guide", "", "answer at once"); got.reason != "done" {
		t.Errorf("another turn: %+v", got)
	}
	if s := d.get("guide").GetSummary().GetStatus(); s != "working" {
		t.Errorf("it is %s while a call is in flight", s)
	}
	cancel()
	d.await("guide", "ready")
}
