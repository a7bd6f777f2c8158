package system_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/util"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// What the contract's page says of each name, a test a sentence; names_test.go has the types. The
// sentences on Prepare, Run, Start, Stop, Exec, notes and sessions that hold for every executor are
// in executor/executortest; those that need a process are in lifecycle_test.go and handle_test.go.

// held is a provider in memory with what was done in it.
type held struct {
	*system.Provider
	*spawner
	fs   billy.Filesystem
	host billy.Filesystem

	mu     sync.Mutex
	pulled []string
	stores []spec.Reference
}

func inMemory(t *testing.T, agentfile string, opts ...system.ProviderOption) *held {
	t.Helper()
	h := &held{spawner: new(spawner), fs: memfs.New(), host: memfs.New()}
	store := image(t, agentfile)
	h.Provider = system.NewProvider(h.fs, func(r spec.Reference) oras.ReadOnlyTarget {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.stores = append(h.stores, r)
		return store
	}, append([]system.ProviderOption{
		system.WithHostFS(h.host), system.WithLoopbackAllocator(fixed{}), system.WithPuller(h.pull),
		system.WithAgentDefaults(system.WithSpawner(h.spawner), system.WithDialer(h.spawner), system.WithStaticModelResolver("http://model", "key")),
	}, opts...)...)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *held) pull(_ context.Context, ref spec.Reference, w io.Writer) error {
	h.mu.Lock()
	h.pulled = append(h.pulled, ref.Name)
	h.mu.Unlock()
	_, err := io.WriteString(w, "program of "+ref.Name)
	return err
}

func (h *held) read(t *testing.T, a executor.Agent, name string) string {
	t.Helper()
	text, err := util.ReadFile(h.fs, path.Join(a.UUID().String(), "root", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// environment is what the runtime was spawned with.
func (h *held) environment() string {
	h.spawner.mu.Lock()
	defer h.spawner.mu.Unlock()
	return strings.Join(h.env, "\n") + "\n"
}

func prepared(t *testing.T, a *system.Agent) *system.Agent {
	t.Helper()
	if err := a.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestCreateReservesAnAddressAndMaterialisesNothing(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	a := created(t, h.Provider, nil)
	if a.Addr() != "127.0.0.1:9" || len(h.pulled) != 0 || len(h.stores) != 1 || h.stores[0] != ref {
		t.Errorf("address %s, pulled %v, stores for %v", a.Addr(), h.pulled, h.stores)
	}
	if _, err := h.fs.Stat(a.UUID().String() + "/root"); err == nil {
		t.Error("there is a tree")
	}
	created(t, h.Provider, nil)
	if len(h.stores) != 2 {
		t.Errorf("a store was asked for %d times, want once per Create", len(h.stores))
	}
}

func TestAStopHasTenSecondsUnlessAnotherTimeIsGiven(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	if got := created(t, h.Provider, nil).StopGrace(); got != 10*time.Second {
		t.Errorf("%v", got)
	}
	if got := created(t, h.Provider, []system.AgentOption{system.WithStopGrace(time.Minute)}).StopGrace(); got != time.Minute {
		t.Errorf("%v", got)
	}
}

func TestAddrIsEmptyOnAnAgentMadeWithoutOne(t *testing.T) {
	t.Parallel()
	if got := system.NewAgent(uuid.New(), memfs.New()).Addr(); got != "" {
		t.Errorf("address %s", got)
	}
	if got := system.NewAgent(uuid.New(), memfs.New(), system.WithAddr("127.0.0.1:1")).Addr(); got != "127.0.0.1:1" {
		t.Errorf("address %s", got)
	}
}

func TestNewAgentAloneLivesByItsOptions(t *testing.T) {
	t.Parallel()
	s, fs := new(spawner), memfs.New()
	var stdout, stderr bytes.Buffer
	id := uuid.New()
	a := system.NewAgent(id, fs, system.WithStore(image(t, plain)), system.WithReference(ref), system.WithOverrides(spec.WithModel("other/name")),
		system.WithStaticModelResolver("http://one", "k1"), system.WithSpawner(s), system.WithDialer(s), system.WithAddr("127.0.0.1:9"),
		system.WithStdout(&stdout), system.WithStderr(&stderr),
		system.WithAgentPuller(func(_ context.Context, _ spec.Reference, w io.Writer) error {
			_, err := io.WriteString(w, "p")
			return err
		}))
	if a.UUID() != id || a.Runtime() != nil {
		t.Errorf("%s, %v", a.UUID(), a.Runtime())
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	ready(t, a, done)
	if got := prompt(t, a, "alone"); got != "alone" {
		t.Errorf("answer %q", got)
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if stdout.String() != "from memory\n" || stderr.String() != "a complaint\n" {
		t.Errorf("the writers got %q and %q", stdout.String(), stderr.String())
	}
	if !strings.Contains(strings.Join(s.env, " "), "OTHER_API_KEY=k1") || s.dir != "/workspace" {
		t.Errorf("spawned in %s with %v", s.dir, s.env)
	}
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if infos, _ := fs.ReadDir("/"); len(infos) != 0 {
		t.Errorf("left behind: %s", names(infos))
	}
}

func TestOptionsOfOneAgentComeAfterTheDefaultsAndStayItsOwn(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain, system.WithAgentDefaults(system.WithDaemonURL("unix:///default"), system.WithAgentToken("default-token")))
	own := created(t, h.Provider, []system.AgentOption{system.WithDaemonURL("unix:///own")})
	other := created(t, h.Provider, nil)
	for a, want := range map[*system.Agent]string{own: "unix:///own", other: "unix:///default"} {
		running(t, a)
		if env := h.environment(); !strings.Contains(env, "OTTERSD_URL="+want+"\nOTTERS_AGENT_TOKEN=default-token\n") {
			t.Errorf("want %s in\n%s", want, env)
		}
		if err := a.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnEmptyTokenOrURLLeavesBothVariablesOut(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	for _, opts := range [][]system.AgentOption{{system.WithAgentToken("t")}, {system.WithDaemonURL("u")}, {system.WithAgentToken(""), system.WithDaemonURL("u")}} {
		a := created(t, h.Provider, opts)
		running(t, a)
		if env := h.environment(); strings.Contains(env, "OTTERSD_URL") || strings.Contains(env, "OTTERS_AGENT_TOKEN") {
			t.Errorf("environment\n%s", env)
		}
		if err := a.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALocalRuntimeOfTheHostFSIsRunAndNonePulled(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain, system.WithLocalRuntime("/opt/mine"))
	if err := util.WriteFile(h.host, "/opt/mine", []byte("my own"), 0o755); err != nil {
		t.Fatal(err)
	}
	a := prepared(t, created(t, h.Provider, nil))
	if got := h.read(t, a, system.RuntimeBin); got != "my own" || len(h.pulled) != 0 {
		t.Errorf("runtime %q, pulled %v", got, h.pulled)
	}
	b := created(t, h.Provider, []system.AgentOption{system.WithAgentLocalRuntime("/opt/none")})
	if err := b.Prepare(t.Context()); err == nil || b.FailureReason() != executor.FailureInit {
		t.Errorf("a program that is not there: %v (%v)", err, b.FailureReason())
	}
}

func TestTheLogIsAppendedTo(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain, system.WithLogDir("/logs"))
	a := created(t, h.Provider, nil)
	for range 2 {
		running(t, a)
		if err := a.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	log, err := util.ReadFile(h.host, "/logs/"+a.UUID().String()+".log")
	if err != nil || strings.Count(string(log), `"stream":"stdout","line":"from memory"`) != 2 || strings.Count(string(log), `"stream":"stderr","line":"a complaint"`) != 2 {
		t.Errorf("log\n%s%v", log, err)
	}
}

func TestTheDigestResolverIsAskedForImageRuntimeAndTools(t *testing.T) {
	t.Parallel()
	digests := map[string]string{"example.org/agent:1": "sha256:" + zeros[:63] + "1", "otters/runtime": "sha256:" + zeros[:63] + "2", "otters/tools/cat": "sha256:" + zeros[:63] + "3"}
	h := inMemory(t, plain+"BIN cat otters/tools/cat\nBIN env otters/tools/env\n")
	a := prepared(t, created(t, h.Provider, []system.AgentOption{
		system.WithImageRef("example.org/agent:1"), system.WithDigestResolver(func(ref string) string { return digests[ref] }),
	}))
	c := a.Runtime().Config
	if p := c.Provenance; p.ImageDigest != digests["example.org/agent:1"] || p.RuntimeRef != "otters/runtime" || p.RuntimeDigest != digests["otters/runtime"] {
		t.Errorf("provenance %+v", p)
	}
	if c.Tools[0].Ref != "otters/tools/cat" || c.Tools[0].Digest != digests["otters/tools/cat"] || c.Tools[1].Digest != "" {
		t.Errorf("tools %+v", c.Tools)
	}
	if text := h.read(t, a, "etc/agent.yaml"); !strings.Contains(text, "image_digest: "+digests["example.org/agent:1"]) || !strings.Contains(text, "runtime_digest: "+digests["otters/runtime"]) {
		t.Errorf("agent.yaml\n%s", text)
	}
}

func TestCapabilitiesAreInAgentYAMLAndToldToTheModel(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	a := prepared(t, created(t, h.Provider, []system.AgentOption{system.WithCapabilities([]executor.Capability{{Name: "job_submit", Description: "submits a job"}})}))
	for _, name := range []string{"etc/agent.yaml", "etc/context/AGENT.md"} {
		if text := h.read(t, a, name); !strings.Contains(text, "job_submit") || !strings.Contains(text, "submits a job") {
			t.Errorf("%s\n%s", name, text)
		}
	}
}

func TestAUsageIsWrittenWhereThereIsAFetcherAndItsPathIsAlwaysTold(t *testing.T) {
	t.Parallel()
	const file = plain + "BIN cat otters/tools/cat\n"
	fetch := func(_ context.Context, r spec.Reference) (string, error) { return "how to use " + r.Name, nil }
	for name, c := range map[string]struct {
		provider []system.ProviderOption
		agent    []system.AgentOption
		want     string
	}{
		"none":         {},
		"the provider": {provider: []system.ProviderOption{system.WithUsageFetcher(fetch)}, want: "how to use otters/tools/cat"},
		"the agent":    {agent: []system.AgentOption{system.WithAgentUsageFetcher(fetch)}, want: "how to use otters/tools/cat"},
	} {
		h := inMemory(t, file, c.provider...)
		a := prepared(t, created(t, h.Provider, c.agent))
		if got := a.Runtime().Config.Tools[0].Usage; got != "etc/data/bins/cat/USAGE.md" {
			t.Errorf("%s: path %q", name, got)
		}
		text, err := util.ReadFile(h.fs, a.UUID().String()+"/root/etc/data/bins/cat/USAGE.md")
		if string(text) != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

func TestAPullerOfOneAgentIsForThatAgentOnly(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	own := prepared(t, created(t, h.Provider, []system.AgentOption{system.WithAgentPuller(func(_ context.Context, _ spec.Reference, w io.Writer) error {
		_, err := io.WriteString(w, "its own")
		return err
	})}))
	if got := h.read(t, own, system.RuntimeBin); got != "its own" || len(h.pulled) != 0 {
		t.Errorf("%q, pulled %v", got, h.pulled)
	}
	if got := h.read(t, prepared(t, created(t, h.Provider, nil)), system.RuntimeBin); got != "program of otters/runtime" {
		t.Errorf("%q", got)
	}
}

func TestAFreshAgentsModelIsResolvedOnceByStart(t *testing.T) {
	t.Parallel()
	var asked []string
	h := inMemory(t, plain, system.WithAgentDefaults(system.WithModelResolver(func(name string) (string, string, error) {
		asked = append(asked, name)
		return "u", "k", nil
	})))
	a := created(t, h.Provider, nil, spec.WithModel("offline/other"))
	for want := 1; want <= 2; want++ {
		running(t, a)
		if len(asked) != want || asked[0] != "offline/other" {
			t.Errorf("asked for %v at start %d", asked, want)
		}
		if err := a.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStopReturnsTheContextsErrorWhenItEndsFirst(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	a := created(t, h.Provider, nil)
	done := running(t, a)
	h.spawner.mu.Lock()
	last := h.last
	h.spawner.mu.Unlock()
	last.deaf <- struct{}{} // SIGTERM is not heeded.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Stop: %v", err)
	}
	if err := drained(done); err != nil {
		t.Errorf("Run has ended: %v", err)
	}
	last.srv.Stop()
	if err := <-done; err != nil || a.Status() != executor.StatusStopped {
		t.Errorf("%v, %v", a.Status(), err)
	}
	if err := a.Stop(ctx); err != nil {
		t.Errorf("Stop of a stopped agent: %v", err)
	}
}

func TestProbeIsNilOnlyWhenTheRuntimeSaysThatItIsReady(t *testing.T) {
	t.Parallel()
	broken := errors.New("no way through")
	a := system.NewAgent(uuid.New(), memfs.New(), system.WithAddr("127.0.0.1:9"), system.WithDialer(system.DialerFunc(
		func(context.Context, string) (*grpc.ClientConn, error) { return nil, broken })))
	if err := a.Probe(t.Context()); !errors.Is(err, broken) {
		t.Errorf("a dialer that fails: %v", err)
	}
	h := inMemory(t, plain)
	b := created(t, h.Provider, nil)
	done := running(t, b)
	if err := b.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-done
	if err := b.Probe(t.Context()); err == nil {
		t.Error("a runtime that is gone is ready")
	}
}

func TestReapplyMountsMakesLinksAndDocumentAgain(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	if err := h.host.MkdirAll("/data", 0o755); err != nil {
		t.Fatal(err)
	}
	a := created(t, h.Provider, []system.AgentOption{system.WithMounts([]executor.Mount{{Host: "/data", Target: "/workspace/data", Description: "what is known"}})})
	if err := a.ReapplyMounts(); err == nil {
		t.Error("there is no workspace yet")
	}
	prepared(t, a)
	root := a.UUID().String() + "/root/"
	doc := h.read(t, a, "etc/context/MOUNTS.md")
	for _, name := range []string{"workspace/data", "etc/context/MOUNTS.md"} {
		if err := h.fs.Remove(root + name); err != nil {
			t.Fatal(err)
		}
	}
	// An agent that was loaded has its mounts too.
	next := system.NewProvider(h.fs, nil, system.WithHostFS(h.host), system.WithLoopbackAllocator(fixed{}), system.WithAgentDefaults(system.WithSpawner(h.spawner)))
	b := loaded(t, next)
	for range 2 {
		if err := b.ReapplyMounts(); err != nil {
			t.Fatal(err)
		}
		if got := h.read(t, a, "etc/context/MOUNTS.md"); got != doc || !strings.Contains(got, "what is known") {
			t.Errorf("MOUNTS.md is %q, was %q", got, doc)
		}
		if info, err := h.fs.Lstat(root + "workspace/data"); err != nil {
			t.Errorf("%v, %v", info, err)
		}
	}
}

func TestRegistryIsMadeAtItsFirstUseAndOnce(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	var wg sync.WaitGroup
	all := make(chan executor.Registry, 8)
	for range cap(all) {
		wg.Go(func() { all <- h.Registry() })
	}
	wg.Wait()
	first := <-all
	for range cap(all) - 1 {
		if r := <-all; r != first || r == nil {
			t.Error("another registry")
		}
	}
	if infos, _ := h.fs.ReadDir("/"); len(infos) != 0 {
		t.Errorf("the registry made %s", names(infos))
	}
}
