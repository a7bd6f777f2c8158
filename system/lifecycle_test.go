package system_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/metadata"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/internal/rootfs"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// image builds an agent image in memory and tags it latest.
func image(t *testing.T, agentfile string) *memory.Store {
	t.Helper()
	store := memory.New()
	res, err := agentoci.Build(t.Context(), store, []byte(agentfile), agentoci.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Tag(t.Context(), res.Descriptor, "latest"); err != nil {
		t.Fatal(err)
	}
	return store
}

const plain = "FROM scratch\nRUNTIME otters/runtime\nMODEL offline/otter\nNAME tested\n"

// host is a folder for agents that their own users can get through to.
func host(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// provider works in dir with the test program as runtime and tools.
func provider(t *testing.T, dir, agentfile string, opts ...system.ProviderOption) *system.Provider {
	t.Helper()
	fs, err := rootfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	store := image(t, agentfile)
	all := append([]system.ProviderOption{
		system.WithMonitor(monitor), system.WithSandbox(level), system.WithLogDir(t.TempDir()), system.WithPuller(pullSelf), system.WithLabelReader(inherit),
		system.WithAgentDefaults(system.WithStaticModelResolver("http://127.0.0.1:1/v1", "otr_key"), system.WithDigestResolver(func(ref string) string {
			return "sha256:" + strings.Repeat("0", 64)
		})),
	}, opts...)
	p := system.NewProvider(fs, func(spec.Reference) oras.ReadOnlyTarget { return store }, all...)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		fs.Close()
	})
	return p
}

func pullSelf(_ context.Context, _ spec.Reference, w io.Writer) error {
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func inherit(context.Context, spec.Reference) (map[string]string, error) {
	return map[string]string{system.ListenerLabel: "inherit", system.SessionsLabel: "offline"}, nil
}

func role(r string) spec.Override { return spec.WithExtraEnvs(spec.Env{Key: roleVar, Value: r}) }

var ref = spec.Reference{Name: "tested", Tag: "latest"}

// created is an agent that is stopped and removed with the test.
func created(t *testing.T, p *system.Provider, extra []system.AgentOption, overrides ...spec.Override) *system.Agent {
	t.Helper()
	a, err := p.CreateWithOptions(t.Context(), uuid.New(), ref, extra, overrides...)
	if err != nil {
		t.Fatal(err)
	}
	return a.(*system.Agent)
}

// running starts an agent and plays the supervisor: it waits for the first answer and says ready.
func running(t *testing.T, a *system.Agent) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	again := a.Status() == executor.StatusFailed
	go func() { done <- a.Run(context.Background()) }()
	if again {
		if _, err := executor.WaitForStatus(t.Context(), a, executor.StatusPulling, executor.StatusStarting); err != nil {
			t.Fatal(err)
		}
	}
	ready(t, a, done)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return done
}

func ready(t *testing.T, a *system.Agent, done <-chan error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := executor.WaitForStatus(ctx, a, executor.StatusStarting, executor.StatusFailed)
	if err != nil || s == executor.StatusFailed {
		t.Fatalf("agent is %v (%v): %v; %v", s, a.FailureReason(), err, drained(done))
	}
	for a.Probe(ctx) != nil {
		if ctx.Err() != nil || a.Status() == executor.StatusFailed {
			t.Fatalf("never ready: %v (%v); %v", a.Status(), a.FailureReason(), drained(done))
		}
	}
	if !a.StatusTracker().Set(executor.StatusReady) {
		t.Fatalf("ready was refused from %v", a.Status())
	}
}

func drained(done <-chan error) error {
	select {
	case err := <-done:
		return err
	default:
		return nil
	}
}

func prompt(t *testing.T, a *system.Agent, text string) string {
	t.Helper()
	var b strings.Builder
	if err := a.Prompt(t.Context(), executor.PromptRequest{SessionID: "s", Prompt: text}, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

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
	plainP := provider(t, host(t), plain, system.WithLabelReader(nil))
	open := created(t, plainP, nil, role("serve"))
	running(t, open)
	if checks, err := open.ChecksCallers(t.Context()); err != nil || checks {
		t.Errorf("a runtime without a token is told to check: %v, %v", checks, err)
	}
}

// provides reads the labels of a runtime that lists its capabilities.
func provides(list string) agentoci.LabelReader {
	return func(context.Context, spec.Reference) (map[string]string, error) {
		return map[string]string{system.CapabilitiesLabel: list}, nil
	}
}

func TestCapabilitiesAreThoseOfTheRuntime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list  string
		names []string
		says  string // empty where they are provided
	}{
		{"notes,note_list", []string{"notes", "note-list"}, ""},
		{" notes , note-list ", []string{"note_list"}, ""},
		{"notes", nil, ""},
		{"notes", []string{"notes", "shell"}, "CAPABILITY shell: the runtime does not provide it; there are notes"},
		{"", []string{"notes"}, "CAPABILITY notes: the runtime does not provide it; it provides none"},
	} {
		err := system.CheckCapabilities(map[string]string{system.CapabilitiesLabel: c.list}, c.names)
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, system.ErrConfig) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q with %q: error %v", c.names, c.list, err)
		}
	}
	if err := system.CheckCapabilities(map[string]string{"other": "x"}, []string{"any"}); err != nil {
		t.Errorf("an image that does not tell: %v", err)
	}
}

func TestEachFailureHasItsReason(t *testing.T) {
	t.Parallel()
	notExecutable := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(notExecutable, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(garbage, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
	failing := func(context.Context, spec.Reference, io.Writer) error { return errors.New("registry is gone") }
	for name, c := range map[string]struct {
		file      string
		provider  []system.ProviderOption
		agent     []system.AgentOption
		overrides []spec.Override
		ref       spec.Reference
		reason    executor.FailureReason
		is        error
		says      string
	}{
		"an image that is not there":     {ref: spec.Reference{Name: "x", Tag: "gone"}, reason: executor.FailurePull, is: system.ErrPull},
		"a runtime that can't be pulled": {provider: []system.ProviderOption{system.WithPuller(failing)}, reason: executor.FailurePull, is: system.ErrPull, says: "registry is gone"},
		"a required setting":             {file: plain + "CONFIG region!\n", reason: executor.FailureConfig, is: system.ErrConfig, says: "region"},
		"a capability that is not there": {file: plain + "CAPABILITY note-list sudo\n", provider: []system.ProviderOption{system.WithLabelReader(provides("notes,note_list"))},
			reason: executor.FailureConfig, is: system.ErrConfig, says: "CAPABILITY sudo: the runtime does not provide it; there are notes, note_list"},
		"no model":                          {file: "FROM scratch\nRUNTIME otters/runtime\n", reason: executor.FailureModel, is: system.ErrModel},
		"an unknown provider":               {agent: []system.AgentOption{system.WithModelResolver(func(string) (string, string, error) { return "", "", errors.New("no such provider") })}, reason: executor.FailureModel, is: system.ErrModel, says: "no such provider"},
		"a runtime that is not executable":  {agent: []system.AgentOption{system.WithAgentLocalRuntime(notExecutable)}, reason: executor.FailureInit, says: "not executable"},
		"a runtime that is no program":      {agent: []system.AgentOption{system.WithAgentLocalRuntime(garbage)}, reason: executor.FailureInit},
		"a runtime that exits":              {overrides: []spec.Override{role("exit 3")}, reason: executor.FailureCrashed, is: system.ErrCrashed, says: "exit code 3: the runtime says why"},
		"a runtime that exits with 0":       {overrides: []spec.Override{role("exit 0")}, reason: executor.FailureCrashed, is: system.ErrCrashed},
		"a runtime that refuses its config": {overrides: []spec.Override{role("exit 78")}, reason: executor.FailureConfig, is: system.ErrConfig, says: "the runtime says why"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := c.file
			if file == "" {
				file = plain
			}
			dir := host(t)
			p := provider(t, dir, file, c.provider...)
			overrides := append([]spec.Override{role("serve")}, c.overrides...)
			r := c.ref
			if r == (spec.Reference{}) {
				r = ref
			}
			got, err := p.CreateWithOptions(t.Context(), uuid.New(), r, c.agent, overrides...)
			if err != nil {
				t.Fatal(err)
			}
			a := got.(*system.Agent)
			err = a.Run(t.Context())
			if a.Status() != executor.StatusFailed || a.FailureReason() != c.reason || err == nil {
				t.Fatalf("agent is %v (%v): %v; want failed (%v)", a.Status(), a.FailureReason(), err, c.reason)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v is not %v", err, c.is)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q lacks %q", err, c.says)
			}
			if _, err := os.Stat(filepath.Join(dir, a.UUID().String(), "root.new")); err == nil {
				t.Error("half a tree was left behind")
			}
			if err := a.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAFailedStartCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	var once sync.Once
	p := provider(t, host(t), plain, system.WithPuller(func(ctx context.Context, r spec.Reference, w io.Writer) error {
		err := error(nil)
		once.Do(func() { err = errors.New("passing") })
		return errors.Join(err, pullSelf(ctx, r, w))
	}))
	a := created(t, p, nil, role("serve"))
	if err := a.Run(t.Context()); !errors.Is(err, system.ErrPull) {
		t.Fatal(err)
	}
	if err := a.Prepare(t.Context()); !errors.Is(err, system.ErrPull) {
		t.Errorf("a later Prepare saw %v, want the same error", err)
	}
	running(t, a)
}

func TestPrepareIsIdempotentAndConcurrentCallersSeeOneResult(t *testing.T) {
	t.Parallel()
	var pulls sync.Map
	p := provider(t, host(t), plain, system.WithPuller(func(ctx context.Context, r spec.Reference, w io.Writer) error {
		pulls.Store(uuid.New(), r)
		return pullSelf(ctx, r, w)
	}))
	a := created(t, p, nil, role("serve"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := a.Prepare(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	pulls.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d pulls, want 1", n)
	}
	if a.Status() != executor.StatusPulling {
		t.Errorf("Prepare moved the status to %v", a.Status())
	}
}

func TestCancelDuringPullLeavesNothingAndMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	dir := host(t)
	entered := make(chan struct{})
	var once sync.Once
	p := provider(t, dir, plain, system.WithPuller(func(ctx context.Context, r spec.Reference, w io.Writer) error {
		first := false
		once.Do(func() { first = true })
		if first {
			close(entered)
			<-ctx.Done()
			return ctx.Err()
		}
		return pullSelf(ctx, r, w)
	}))
	a := created(t, p, nil, role("serve"))
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	<-entered
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || a.Status() != executor.StatusStopped {
		t.Fatalf("%v, %v", a.Status(), err)
	}
	entries, _ := os.ReadDir(filepath.Join(dir, a.UUID().String()))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "root") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
	running(t, a)
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
	agents, err := second.LoadWithOptions(t.Context(), func(uuid.UUID) []system.AgentOption { return []system.AgentOption{gateway} })
	if err != nil || len(agents) != 1 {
		t.Fatal(agents, err)
	}
	b := agents[0].(*system.Agent)
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
	if err := syscall.Kill(before.PID, 0); err == nil && !zombie(before.PID) {
		t.Error("the runtime survived its stop")
	}
	// It can be started again as if nothing had happened.
	running(t, b)
}

func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
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
			victim, sig := pr.PID, syscall.SIGKILL
			if asked {
				// The monitor takes SIGTERM for a request to stop.
				victim, sig = pr.MonitorPID, syscall.SIGTERM
			}
			if err := syscall.Kill(victim, sig); err != nil {
				t.Fatal(err)
			}
			waitGone(t, pr.MonitorPID)
			second := provider(t, dir, plain)
			agents, err := second.Load(t.Context())
			if err != nil || len(agents) != 1 {
				t.Fatal(agents, err)
			}
			b := agents[0].(*system.Agent)
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

// waitGone waits until the process has ended; pid 1 of this machine may leave it a zombie.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if syscall.Kill(pid, 0) != nil || zombie(pid) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is still there", pid)
		}
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
	a := created(t, p, []system.AgentOption{system.WithAgentToken("tok"), system.WithDaemonURL("unix:///x")})
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
	for _, key := range []string{"otr_key", "tok", "OTTERSD_URL", "LISTEN_FDS"} {
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

// marked are the processes of the host whose command lines hold mark.
func marked(t *testing.T, mark string) []string {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Error(err)
	}
	var all []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), mark) {
			all = append(all, f)
		}
	}
	return all
}

func TestMountsAtLevelOff(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	for name, c := range map[string]struct {
		mount executor.Mount
		says  string
	}{
		"a folder":                 {executor.Mount{Host: source, Target: "/workspace/src"}, ""},
		"read-only, unenforceable": {executor.Mount{Host: source, Target: "/workspace/src", ReadOnly: true}, "read-only"},
		"over the tools":           {executor.Mount{Host: source, Target: "/usr/bin/cat"}, "below one of"},
		"out of the tree":          {executor.Mount{Host: source, Target: "/workspace/../../x"}, ""},
		"a host path not there":    {executor.Mount{Host: source + "/gone", Target: "/workspace/src"}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := host(t)
			p := provider(t, dir, plain, system.WithSandbox(sandbox.Off))
			a := created(t, p, []system.AgentOption{system.WithMounts([]executor.Mount{c.mount})}, role("serve"))
			err := a.Prepare(t.Context())
			if name == "a folder" {
				if err != nil {
					t.Fatal(err)
				}
				link := filepath.Join(dir, a.UUID().String(), "root/workspace/src")
				if got, err := os.Readlink(link); err != nil || got != source {
					t.Errorf("%q, %v", got, err)
				}
				if err := a.ReapplyMounts(); err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, system.ErrConfig) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v", err)
			}
		})
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

func TestRegistryIsBuiltOnceAndAnswersNotImplementedWithoutATarget(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	r := p.Registry()
	if r != p.Registry() {
		t.Error("two registries")
	}
	if _, err := r.List(t.Context()); !errors.Is(err, executor.ErrNotImplemented) {
		t.Error(err)
	}
	if _, err := r.Resolve(t.Context(), "x"); !errors.Is(err, executor.ErrNotImplemented) {
		t.Error(err)
	}
	if _, err := r.Fetch(t.Context(), ocispec.Descriptor{}); !errors.Is(err, executor.ErrNotImplemented) {
		t.Error(err)
	}
}

func TestATreeWhoseMakingWasCutShortIsMadeAnew(t *testing.T) {
	t.Parallel()
	dir := host(t)
	first := provider(t, dir, plain)
	a := created(t, first, nil, role("serve"))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	// The process died between the rename into place and the handle that tells of it.
	tree := filepath.Join(dir, a.UUID().String(), "root")
	if err := os.MkdirAll(filepath.Join(tree, "etc", "half"), 0o755); err != nil {
		t.Fatal(err)
	}
	second := provider(t, dir, plain)
	agents, err := second.Load(t.Context())
	if err != nil || len(agents) != 1 {
		t.Fatal(agents, err)
	}
	running(t, agents[0].(*system.Agent))
	if _, err := os.Stat(filepath.Join(tree, "etc", "half")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half a tree was used: %v", err)
	}
}

// Ten tools that share their bytes are unpacked once, ten that do not ten times.
func TestToolsOfTheSameBytesArePulledOnce(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	file.WriteString(plain)
	for i := range 10 {
		file.WriteString("BIN tool" + strconv.Itoa(i) + " tools/t" + strconv.Itoa(i) + "\n")
	}
	for what, c := range map[string]struct {
		path func(name string) string
		want int32
	}{
		"same bytes":  {func(string) string { return "/multi" }, 1},
		"other bytes": {func(name string) string { return "/" + name }, 10},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var pulls atomic.Int32
			dir := host(t)
			p := provider(t, dir, file.String(),
				system.WithAgentDefaults(system.WithDigestResolver(func(ref string) string {
					return digest.FromString(ref).String()
				})),
				system.WithPuller(func(ctx context.Context, r spec.Reference, w io.Writer) error {
					if strings.HasPrefix(r.Name, "tools/") {
						pulls.Add(1)
					}
					return pullSelf(ctx, r, w)
				}),
				system.WithIdentifier(func(_ context.Context, r spec.Reference) (agentoci.BinaryInfo, error) {
					if r.Name == "otters/runtime" {
						return agentoci.BinaryInfo{Layer: digest.FromString("runtime"), Path: "/runtime"}, nil
					}
					return agentoci.BinaryInfo{Layer: digest.FromString("layer"), Path: c.path(r.Name)}, nil
				}))
			a := created(t, p, nil, role("serve"))
			if err := a.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			again := created(t, p, nil, role("serve"))
			if err := again.Prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := pulls.Load(); n != c.want {
				t.Errorf("%d pulls, want %d", n, c.want)
			}
			for i := range 10 {
				if _, err := os.Stat(filepath.Join(dir, again.UUID().String(), "root/usr/bin/tool"+strconv.Itoa(i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
