package system_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/metadata"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

func TestAnAgentLivesFromCreateToRemove(t *testing.T) {
	t.Parallel()
	dir := host(t)
	p := provider(t, dir, plain)
	a := created(t, p, nil, role("serve"))
	if a.Status() != executor.StatusPulling || a.Runtime() != nil || a.Addr() == "" {
		t.Fatalf("a new agent is %v, runtime %v, address %q", a.Status(), a.Runtime(), a.Addr())
	}
	done := running(t, a)
	if got := prompt(t, a, "hello there"); got != "hello there" {
		t.Errorf("answer %q", got)
	}
	if pr := a.Process(); pr.PID == 0 || pr.MonitorPID == 0 {
		t.Errorf("process %+v", pr)
	}
	addr := a.Addr()
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || a.Status() != executor.StatusStopped {
		t.Fatalf("after stop: %v, %v", a.Status(), err)
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Errorf("stop of a stopped agent: %v", err)
	}
	go func() { _ = a.Start(context.Background()) }()
	ready(t, a, nil)
	if a.Addr() != addr {
		t.Errorf("address %s became %s", addr, a.Addr())
	}
	if err := a.Remove(t.Context()); !errors.Is(err, system.ErrRunning) {
		t.Errorf("a running agent was removed: %v", err)
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.Status() != executor.StatusRemoved {
		t.Errorf("status %v", a.Status())
	}
	if err := a.Start(t.Context()); !errors.Is(err, system.ErrRemoved) {
		t.Errorf("a removed agent was started: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Name() != ".store" && e.Name() != "seal.key" {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestTheRuntimeGetsExactlyItsEnvironmentAndArguments(t *testing.T) {
	t.Parallel()
	t.Run("", func(t *testing.T) {
		p := provider(t, host(t), plain+"CONFIG max-tokens=77\nENV GREETING=hi\n")
		a := created(t, p, []system.AgentOption{system.WithDaemonURL("unix:///x"), system.WithAgentToken("tok")}, role("serve"))
		running(t, a)
		var names []string
		env := make(map[string]string)
		for _, line := range strings.Split(prompt(t, a, "env"), "\n") {
			k, v, _ := strings.Cut(line, "=")
			names = append(names, k)
			env[k] = v
		}
		slices.Sort(names)
		want := []string{
			"GREETING", "HOME", "LANG", "LISTEN_FDNAMES", "LISTEN_FDS", "OFFLINE_API_BASE", "OFFLINE_API_KEY", "OTTERSD_URL", "OTTERS_AGENT_ROOT",
			"OTTERS_AGENT_TOKEN", "PATH", "RUNTIME_MAX_TOKENS", roleVar, "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
		}
		if !slices.Equal(names, want) {
			t.Errorf("K4: environment is\n%v, want\n%v", names, want)
		}
		root := env["OTTERS_AGENT_ROOT"]
		for k, v := range map[string]string{
			"PATH": filepath.Join(root, "usr/bin"), "HOME": filepath.Join(root, "home"), "TMPDIR": filepath.Join(root, "tmp"), "LANG": "C.UTF-8", "RUNTIME_MAX_TOKENS": "77",
			"OFFLINE_API_KEY": "otr_key", "OFFLINE_API_BASE": "http://127.0.0.1:1/v1", "OTTERS_AGENT_TOKEN": "tok", "OTTERSD_URL": "unix:///x", "GREETING": "hi",
		} {
			if env[k] != v {
				t.Errorf("%s=%q, want %q", k, env[k], v)
			}
		}
		if got, want := prompt(t, a, "args"), strings.Join([]string{"serve", "--root", root, "--model", "offline/otter", "--addr", a.Addr(), filepath.Join(root, "workspace")}, "\n"); got != want {
			t.Errorf("arguments and folder\n%s\nwant\n%s", got, want)
		}
	})
}

func TestATokenWithoutAnAddressIsNotHandedOut(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	a := created(t, p, []system.AgentOption{system.WithAgentToken("tok")}, role("serve"))
	running(t, a)
	if env := prompt(t, a, "env"); strings.Contains(env, "OTTERS_AGENT_TOKEN") || strings.Contains(env, "OTTERSD_URL") {
		t.Errorf("one of two came alone:\n%s", env)
	}
}

func TestSetAgentTokenTakesEffectAtTheNextStart(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	a := created(t, p, []system.AgentOption{system.WithAgentToken("one"), system.WithDaemonURL("unix:///x")}, role("serve"))
	running(t, a)
	a.SetAgentToken("two")
	if env := prompt(t, a, "env"); !strings.Contains(env, "OTTERS_AGENT_TOKEN=one") {
		t.Error("the running process has another token")
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	running(t, a)
	if env := prompt(t, a, "env"); !strings.Contains(env, "OTTERS_AGENT_TOKEN=two") {
		t.Error("the next start has the old token")
	}
}

func TestStartResolvesTheModelAgain(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 2)
	keys <- "first"
	keys <- "second"
	p := provider(t, host(t), plain)
	a := created(t, p, []system.AgentOption{system.WithModelResolver(func(string) (string, string, error) {
		return "http://127.0.0.1:1/v1", <-keys, nil
	})}, role("serve"))
	for _, want := range []string{"first", "second"} {
		running(t, a)
		if env := prompt(t, a, "env"); !strings.Contains(env, "OFFLINE_API_KEY="+want) {
			t.Errorf("the %s key is not there", want)
		}
		if err := a.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOutgoingMetadataReachesTheRuntime(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	a := created(t, p, nil, role("serve"))
	running(t, a)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "otters-run", "r1")
	var b strings.Builder
	if err := a.Prompt(ctx, executor.PromptRequest{Prompt: "run"}, &b); err != nil || b.String() != "r1" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestOnlyTheHolderOfTheServeTokenIsAnswered(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	a := created(t, p, nil, role("serve"))
	running(t, a)
	if checks, err := a.ChecksCallers(t.Context()); err != nil || !checks {
		t.Errorf("a caller without the token was answered: %v, %v", checks, err)
	}
	if err := a.Probe(t.Context()); err != nil {
		t.Errorf("the holder was refused: %v", err)
	}
	// A runtime that was given --addr has no token to check.
	plainP := provider(t, host(t), plain, append(apart(t, level), system.WithLabelReader(nil))...)
	open := created(t, plainP, nil, role("serve"))
	running(t, open)
	if checks, err := open.ChecksCallers(t.Context()); err != nil || checks {
		t.Errorf("a runtime without a token is told to check: %v, %v", checks, err)
	}
}

func TestTheNextProviderTakesARunningAgentOver(t *testing.T) {
	t.Parallel()
	dir := host(t)
	var handed []net.Addr
	gateway := system.WithGateway(func(ln net.Listener) { handed = append(handed, ln.Addr()) })
	first := provider(t, dir, plain)
	a := created(t, first, []system.AgentOption{gateway}, role("serve"))
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	ready(t, a, done)
	before := a.Process()
	runtime := processOf(t, before.PID)
	answer := prompt(t, a, "pid")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, system.ErrDetached) {
		t.Fatalf("Run returned %v", err)
	}
	if _, err := first.Create(t.Context(), uuid.New(), ref); err == nil {
		t.Error("a closed provider created an agent")
	}

	second := provider(t, dir, plain)
	b := loaded(t, second, gateway)
	if ok, err := b.Attach(t.Context()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ready(t, b, nil)
	if after := b.Process(); after.PID != before.PID || !after.StartedAt.Equal(before.StartedAt) {
		t.Errorf("process %+v became %+v", before, after)
	}
	if got := prompt(t, b, "pid"); got != answer {
		t.Errorf("pid %s became %s", answer, got)
	}
	if len(handed) != 2 || handed[0].String() != handed[1].String() {
		t.Errorf("gateway listeners: %v", handed)
	}
	if b.Runtime().Source.Envs[0].Value != "serve" {
		t.Error("the value of a variable is lost")
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.Status() != executor.StatusStopped {
		t.Errorf("status %v", b.Status())
	}
	if !runtime.gone() {
		t.Error("the runtime survived its stop")
	}
	// It can be started again as if nothing had happened.
	running(t, b)
}

func TestAnExitThatNobodyWatchedIsFoundAtLoad(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{false, true} {
		t.Run("asked "+strconv.FormatBool(asked), func(t *testing.T) {
			t.Parallel()
			dir := host(t)
			first := provider(t, dir, plain)
			a := created(t, first, nil, role("serve"))
			done := make(chan error, 1)
			go func() { done <- a.Run(context.Background()) }()
			ready(t, a, done)
			pr := a.Process()
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			<-done
			monitor := processOf(t, pr.MonitorPID)
			victim, sig := pr.PID, syscall.SIGKILL
			if asked {
				// The monitor takes SIGTERM for a request to stop.
				victim, sig = pr.MonitorPID, syscall.SIGTERM
			}
			if err := syscall.Kill(victim, sig); err != nil {
				t.Fatal(err)
			}
			monitor.waitGone(t)
			b := loaded(t, provider(t, dir, plain))
			if ok, err := b.Attach(t.Context()); ok || err != nil {
				t.Fatal(ok, err)
			}
			want := executor.StatusFailed
			if asked {
				want = executor.StatusStopped
			}
			if b.Status() != want {
				t.Errorf("status %v (%v), want %v", b.Status(), b.FailureReason(), want)
			}
			if exit := b.Process().LastExit; exit == nil || !asked && exit.Signal != "SIGKILL" {
				t.Errorf("last exit %+v", exit)
			}
		})
	}
}

func TestAnAgentOfARootProviderHasAUserOfItsOwn(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give agents users of their own")
	}
	dir := host(t)
	p := provider(t, dir, plain)
	a, b := created(t, p, nil, role("serve")), created(t, p, nil, role("serve"))
	running(t, a)
	running(t, b)
	uidOf := func(a *system.Agent) int {
		// What it calls itself inside is another matter.
		st, err := os.Stat("/proc/" + strconv.Itoa(a.Process().PID) + "/task")
		if err != nil {
			t.Fatal(err)
		}
		return int(st.Sys().(*syscall.Stat_t).Uid)
	}
	ua, ub := uidOf(a), uidOf(b)
	if ua == 0 || ub == 0 || ua == ub || ua != a.Process().UID {
		t.Errorf("user ids %d and %d, reported %d", ua, ub, a.Process().UID)
	}
	home := filepath.Join(dir, a.UUID().String())
	for path, want := range map[string]struct {
		uid  int
		mode os.FileMode
	}{
		"": {0, 0o711}, "handle.json": {0, 0o600}, "state": {0, 0o700}, "root": {0, 0o750},
		"root/etc": {0, 0o755}, "root/etc/agent.yaml": {0, 0o644}, "root/usr/bin": {0, 0o755},
		"root/workspace": {ua, 0o700}, "root/tmp": {ua, 0o700}, "root/home/.config": {ua, 0o700}, "root/var/lib": {ua, 0o700},
	} {
		info, err := os.Stat(filepath.Join(home, path))
		if err != nil {
			t.Error(err)
			continue
		}
		if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != want.uid || info.Mode().Perm() != want.mode {
			t.Errorf("%s: user %d mode %o, want %d %o", path, uid, info.Mode().Perm(), want.uid, want.mode)
		}
	}
}

func TestTheHandleShowsNoSecret(t *testing.T) {
	t.Parallel()
	dir := host(t)
	p := provider(t, dir, plain)
	a := created(t, p, []system.AgentOption{system.WithAgentToken("agent-secret"), system.WithDaemonURL("unix:///x")},
		role("serve"), spec.WithExtraEnvs(spec.Env{Key: "PASSWORD", Value: "hunter2-secret"}))
	running(t, a)
	for _, name := range []string{"handle.json", "root/etc/agent.yaml", "root/etc/context/AGENT.md"} {
		text, err := os.ReadFile(filepath.Join(dir, a.UUID().String(), name))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"agent-secret", "hunter2-secret", "otr_key"} {
			if strings.Contains(string(text), secret) {
				t.Errorf("%s holds %s", name, secret)
			}
		}
	}
	if env := prompt(t, a, "env"); !strings.Contains(env, "PASSWORD=hunter2-secret") {
		t.Error("the runtime did not get the value")
	}
}

func TestExecRunsADeclaredBinWithoutKeys(t *testing.T) {
	t.Parallel()
	dir := host(t)
	p := provider(t, dir, plain+"BIN env otters/tools/env\nBIN hang otters/tools/hang\nENV GREETING=hi\n")
	a := created(t, p, []system.AgentOption{system.WithAgentToken("agent-secret"), system.WithDaemonURL("unix:///x")})
	if res := a.Exec(t.Context(), "env", nil, ""); res.Err == nil {
		t.Error("a BIN ran before there was a workspace")
	}
	if err := a.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	res := a.Exec(t.Context(), "env", nil, "")
	if res.Err != nil || res.ExitCode != 0 || !strings.Contains(res.Stdout, "GREETING=hi") {
		t.Fatalf("%+v", res)
	}
	for _, key := range []string{"otr_key", "agent-secret", "OTTERSD_URL", "LISTEN_FDS"} {
		if strings.Contains(res.Stdout, key) {
			t.Errorf("the BIN got %s:\n%s", key, res.Stdout)
		}
	}
	if res := a.Exec(t.Context(), "sh", nil, ""); res.Err == nil || !strings.Contains(res.Err.Error(), "env, hang") {
		t.Errorf("an undeclared BIN: %+v", res)
	}
	mark := "mark-" + uuid.NewString()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil && len(marked(t, mark)) < 2 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	res = a.Exec(ctx, "hang", []string{mark}, "")
	if !errors.Is(res.Err, context.Canceled) {
		t.Fatalf("%+v", res)
	}
	if left := marked(t, mark); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	home := filepath.Join(dir, a.UUID().String(), "state")
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("left in the state folder: %v %v", left, err)
	}
}

func TestNotesAndSessionsPassThrough(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	a := created(t, p, nil, role("serve"))
	running(t, a)
	ctx := t.Context()
	if _, err := a.GetNote(ctx, "k"); !errors.Is(err, executor.ErrNoteNotFound) {
		t.Errorf("a missing note: %v", err)
	}
	if res, err := a.SaveNote(ctx, "k", "v", 0, 0); err != nil || res.Overwrote || res.Note.Content != "v" {
		t.Errorf("%+v, %v", res, err)
	}
	if n, err := a.GetNote(ctx, "k"); err != nil || n.Content != "v" {
		t.Errorf("%+v, %v", n, err)
	}
	if _, err := a.DeleteNote(ctx, "k"); !errors.Is(err, executor.ErrNotImplemented) {
		t.Errorf("a call that the runtime has not: %v", err)
	}
	if s, err := a.ListSessions(ctx); err != nil || len(s) != 1 || s[0].ID != "s1" {
		t.Errorf("%+v, %v", s, err)
	}
	if m, err := a.ListSessionMessages(ctx, "s1", 5); err != nil || len(m) != 1 || m[0].CreatedAt != 5 {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := a.ListSessionMessages(ctx, "s1", -1); err == nil {
		t.Error("a negative limit was passed on")
	}
}

func TestACallThatIsCancelledEndsAndTheNextOneWorks(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	a := created(t, p, nil, role("serve"))
	running(t, a)
	ctx, cancel := context.WithCancel(t.Context())
	err := a.PromptStream(ctx, executor.PromptRequest{Prompt: "hang"}, func(executor.PromptEvent) { cancel() })
	if err == nil {
		t.Error("a cancelled turn ended well")
	}
	if got := prompt(t, a, "still here"); got != "still here" {
		t.Errorf("answer %q", got)
	}
}

func TestACallOnAStoppedAgentFailsAtOnce(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	a := created(t, p, nil, role("serve"))
	if err := a.Probe(t.Context()); !errors.Is(err, system.ErrNotRunning) {
		t.Errorf("probe: %v", err)
	}
}
