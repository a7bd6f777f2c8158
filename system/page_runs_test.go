package system_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/memfs"
	"github.com/google/uuid"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// The page's sentences on the life of an agent.

// stopped stops an agent whose Run or Start ends on done.
func stopped(t *testing.T, a *system.Agent, done <-chan error) {
	t.Helper()
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || a.Status() != executor.StatusStopped {
		t.Fatalf("%v, %v", a.Status(), err)
	}
}

func TestRunGoesFromPullingThroughStartingToStopped(t *testing.T) {
	t.Parallel()
	var seen []string
	var a *system.Agent
	see := func(where string) { seen = append(seen, where+" "+a.Status().String()) }
	h := inMemory(t, plain, system.WithPuller(func(_ context.Context, _ spec.Reference, w io.Writer) error {
		see("pull")
		_, err := io.WriteString(w, "p")
		return err
	}))
	h.starting = func() error { see("start"); return nil }
	a = created(t, h.Provider, nil)
	see("created")
	done := running(t, a)
	see("answers")
	stopped(t, a, done)
	see("after")
	if got, want := strings.Join(seen, ", "), "created pulling, pull pulling, start starting, answers ready, after stopped"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

func TestPrepareAloneLeavesTheStatusAndAFailureHasItsReason(t *testing.T) {
	t.Parallel()
	a := prepared(t, created(t, inMemory(t, plain).Provider, nil))
	if s, r := a.StatusTracker().Snapshot(); s != executor.StatusPulling || r != executor.FailureNone {
		t.Errorf("%v %q", s, r)
	}
	gone := func(context.Context, spec.Reference, io.Writer) error { return errors.New("gone") }
	for want, c := range map[executor.FailureReason]struct {
		file string
		opt  system.AgentOption
	}{
		executor.FailurePull:   {plain, system.WithAgentPuller(gone)},
		executor.FailureModel:  {plain, system.WithModelResolver(func(string) (string, string, error) { return "", "", errors.New("no key") })},
		executor.FailureConfig: {plain + "CONFIG region!\n", system.WithAddr("127.0.0.1:9")},
		executor.FailureInit:   {plain, system.WithAgentLocalRuntime("/none")},
	} {
		b := created(t, inMemory(t, c.file).Provider, []system.AgentOption{c.opt})
		err := b.Prepare(t.Context())
		if s, r := b.StatusTracker().Snapshot(); err == nil || s != executor.StatusFailed || r != want || system.FailureOf(err) != want {
			t.Errorf("%v %q, %v; want %q", s, r, err, want)
		}
		if again := b.Prepare(t.Context()); again == nil || again.Error() != err.Error() {
			t.Errorf("a later caller saw %v, the first %v", again, err)
		}
	}
}

func TestFailureReasonIsNoneInEveryStatusButFailed(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	broken := true
	h.starting = func() error {
		if broken {
			return errors.New("broken")
		}
		return nil
	}
	a := created(t, h.Provider, nil)
	if err := a.Run(t.Context()); err == nil || a.Status() != executor.StatusFailed || a.FailureReason() != executor.FailureInit {
		t.Fatalf("%v %q, %v", a.Status(), a.FailureReason(), err)
	}
	broken = false
	done := running(t, a)
	for _, s := range []executor.Status{executor.StatusReady, executor.StatusWorking} {
		if a.StatusTracker().Set(s); a.Status() != s || a.FailureReason() != executor.FailureNone {
			t.Errorf("%v %q", a.Status(), a.FailureReason())
		}
	}
	stopped(t, a, done)
	if err := a.Remove(t.Context()); err != nil || a.FailureReason() != executor.FailureNone {
		t.Errorf("%q, %v", a.FailureReason(), err)
	}
}

func TestRuntimeIsNilBeforePrepareAndStaysTheSameAfter(t *testing.T) {
	t.Parallel()
	a := created(t, inMemory(t, plain).Provider, nil)
	if a.Runtime() != nil {
		t.Error("there is a runtime")
	}
	rt := prepared(t, a).Runtime()
	if rt == nil || rt.ID != a.UUID() {
		t.Fatalf("%+v", rt)
	}
	stopped(t, a, running(t, a))
	if a.Runtime() != rt {
		t.Error("another runtime")
	}
}

func TestStartIsRefusedWhileTheAgentIsBusyAndAfterItsRemoval(t *testing.T) {
	t.Parallel()
	entered, release := make(chan string), make(chan struct{})
	h := inMemory(t, plain, system.WithPuller(func(_ context.Context, _ spec.Reference, w io.Writer) error {
		entered <- "pulling"
		<-release
		_, err := io.WriteString(w, "p")
		return err
	}))
	h.starting = func() error {
		entered <- "starting"
		<-release
		return nil
	}
	a := created(t, h.Provider, nil)
	done := make(chan error, 1)
	go func() { done <- a.Start(context.Background()) }()
	refused := func(status string) {
		t.Helper()
		if err := a.Start(t.Context()); !errors.Is(err, system.ErrRunning) || a.Status().String() != status {
			t.Errorf("Start while %v, want %s: %v", a.Status(), status, err)
		}
	}
	for range 2 {
		refused(<-entered)
		release <- struct{}{}
	}
	ready(t, a, done)
	refused("ready")
	a.StatusTracker().Set(executor.StatusWorking)
	refused("working")
	stopped(t, a, done)
	go func() { <-entered; release <- struct{}{} }()
	stopped(t, a, running(t, a)) // Its twin.
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); !errors.Is(err, system.ErrRemoved) {
		t.Errorf("Start after removal: %v", err)
	}
}

func TestTheModelThatIsAskedForAgainIsTheResolvedOne(t *testing.T) {
	t.Parallel()
	var asked []string
	h := inMemory(t, plain, system.WithAgentDefaults(system.WithModelResolver(func(name string) (string, string, error) {
		asked = append(asked, name)
		return "http://" + name, "key" + strings.Repeat("!", len(asked)), nil
	})))
	a := created(t, h.Provider, nil, spec.WithModel("offline/other"))
	for n := 1; n <= 3; n++ {
		stopped(t, a, running(t, a))
		if env := h.environment(); !strings.Contains(env, "OFFLINE_API_KEY=key"+strings.Repeat("!", n)+"\n") || !strings.Contains(env, "OFFLINE_API_BASE=http://offline/other\n") {
			t.Errorf("start %d has\n%s", n, env)
		}
	}
	if got := strings.Join(asked, " "); got != "offline/other offline/other offline/other" {
		t.Errorf("asked for %s", got)
	}
}

func TestAModelThatIsGoneAtTheNextStartFailsIt(t *testing.T) {
	t.Parallel()
	var gone atomic.Bool
	h := inMemory(t, plain, system.WithAgentDefaults(system.WithModelResolver(func(string) (string, string, error) {
		if gone.Load() {
			return "", "", errors.New("taken off the list")
		}
		return "u", "k", nil
	})))
	a := created(t, h.Provider, nil)
	stopped(t, a, running(t, a))
	gone.Store(true)
	if err := a.Start(t.Context()); !errors.Is(err, system.ErrModel) || a.FailureReason() != executor.FailureModel {
		t.Errorf("%v %q, %v", a.Status(), a.FailureReason(), err)
	}
	gone.Store(false)
	stopped(t, a, running(t, a))
}

func TestStopIsANoOpOnAnAgentThatDoesNotRun(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	a := created(t, h.Provider, nil)
	is := func(want executor.Status) {
		t.Helper()
		if err := a.Stop(t.Context()); err != nil || a.Status() != want {
			t.Errorf("%v, %v; want %v", a.Status(), err, want)
		}
	}
	is(executor.StatusPulling)
	stopped(t, a, running(t, a))
	is(executor.StatusStopped)
	h.starting = func() error { return errors.New("broken") }
	if err := a.Start(t.Context()); err == nil {
		t.Fatal("it started")
	}
	is(executor.StatusFailed)
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	is(executor.StatusRemoved)
}

func TestStopReturnsWhenRunHasAndTheStatusIsSet(t *testing.T) {
	t.Parallel()
	a := created(t, inMemory(t, plain).Provider, nil)
	done := running(t, a)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := a.Stop(t.Context()); err != nil || a.Status() != executor.StatusStopped {
				t.Errorf("%v, %v", a.Status(), err)
			}
		})
	}
	wg.Wait()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheStatusMayBeReadWhileItChangesAndNoSubscriberHoldsItUp(t *testing.T) {
	t.Parallel()
	a := created(t, inMemory(t, plain).Provider, nil)
	idle, end := a.SubscribeStatus() // It is not read until the end.
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				_, _, _ = a.Status(), a.FailureReason(), a.Addr()
			}
		}
	})
	for range 3 {
		stopped(t, a, running(t, a))
	}
	close(over)
	wg.Wait()
	if s := <-idle; s != executor.StatusStopped {
		t.Errorf("the latest is %v", s)
	}
	end()
	if _, ok := <-idle; ok {
		t.Error("the subscription is open")
	}
}

func TestTheStatusTrackerIsTheAgentsOwn(t *testing.T) {
	t.Parallel()
	a := created(t, inMemory(t, plain).Provider, nil)
	if !a.StatusTracker().SetFailure(executor.FailureReadinessTimeout) || a.Status() != executor.StatusFailed || a.FailureReason() != executor.FailureReadinessTimeout {
		t.Errorf("%v %q", a.Status(), a.FailureReason())
	}
}

func TestTheIDAndTheAddressStayFromStartToStartAndAfterALoad(t *testing.T) {
	t.Parallel()
	dir := host(t)
	// Between two providers nobody holds the address.
	p := provider(t, dir, plain, system.WithLoopbackAllocator(system.Loopback(ownPort)))
	a := created(t, p, nil, role("serve"))
	id, addr := a.UUID(), a.Addr()
	usual := created(t, provider(t, host(t), plain), nil).Addr()
	if hostname, _, err := net.SplitHostPort(usual); err != nil || hostname != "127.0.0.1" {
		t.Errorf("address %s, %v", usual, err)
	}
	if other := created(t, p, nil); other.Addr() == addr {
		t.Errorf("two agents at %s", addr)
	} else if err := other.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		done := running(t, a)
		if a.Addr() != addr {
			t.Errorf("%s became %s", addr, a.Addr())
		}
		stopped(t, a, done)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	b := loaded(t, provider(t, dir, plain))
	stopped(t, b, running(t, b))
	if b.UUID() != id || b.Addr() != addr {
		t.Errorf("%s at %s became %s at %s", id, addr, b.UUID(), b.Addr())
	}
}

// stuck is a filesystem that nothing is removed from while it is set.
type stuck struct {
	billy.Filesystem
	on *atomic.Bool
}

var errStuck = errors.New("the disk is stuck")

func (s stuck) Rename(from, to string) error {
	if s.on.Load() {
		return errStuck
	}
	return s.Filesystem.Rename(from, to)
}

func (s stuck) Remove(name string) error {
	if s.on.Load() {
		return errStuck
	}
	return s.Filesystem.Remove(name)
}

func TestRemoveReturnsTheFilesystemsErrorAndMayBeCalledAgain(t *testing.T) {
	t.Parallel()
	fs, on, s := memfs.New(), new(atomic.Bool), new(spawner)
	store := image(t, plain)
	p := system.NewProvider(stuck{fs, on}, func(spec.Reference) oras.ReadOnlyTarget { return store },
		system.WithHostFS(memfs.New()), system.WithLoopbackAllocator(fixed{}), system.WithPuller(pullSelf),
		system.WithAgentDefaults(system.WithSpawner(s), system.WithDialer(s), system.WithModelResolver(model.StaticResolver("u", "k"))))
	t.Cleanup(func() { p.Close() })
	a := created(t, p, nil)
	stopped(t, a, running(t, a))
	on.Store(true)
	if err := a.Remove(t.Context()); !errors.Is(err, errStuck) || a.Status() != executor.StatusFailed {
		t.Errorf("%v, %v", a.Status(), err)
	}
	on.Store(false)
	if err := a.Remove(t.Context()); err != nil || a.Status() != executor.StatusRemoved {
		t.Errorf("%v, %v", a.Status(), err)
	}
	if infos, _ := fs.ReadDir("/"); names(infos) != ".store seal.key" {
		t.Errorf("left behind: %s", names(infos))
	}
}

func TestRemoveDoesNotStopARunningAgent(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	a := created(t, h.Provider, nil)
	done := running(t, a)
	if err := a.Remove(t.Context()); !errors.Is(err, system.ErrRunning) {
		t.Errorf("Remove: %v", err)
	}
	if got := prompt(t, a, "still here"); got != "still here" {
		t.Errorf("answer %q", got)
	}
	stopped(t, a, done)
	if err := a.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := h.fs.Stat(a.UUID().String()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
}

// allocated counts, and fails where it is told to.
type allocated struct {
	calls atomic.Int32
	err   error
}

func (a *allocated) Reserve() (string, error) {
	a.calls.Add(1)
	return "127.0.0.1:9", a.err
}

func TestTheAllocatorIsAskedOnceAndItsErrorLeavesNothing(t *testing.T) {
	t.Parallel()
	alloc := new(allocated)
	h := inMemory(t, plain, system.WithLoopbackAllocator(alloc))
	a := created(t, h.Provider, nil)
	for range 2 {
		stopped(t, a, running(t, a))
	}
	if n := alloc.calls.Load(); n != 1 || a.Addr() != "127.0.0.1:9" {
		t.Errorf("asked %d times, address %s", n, a.Addr())
	}
	alloc.err = errors.New("all ports are taken")
	id := uuid.New()
	if _, err := h.Create(t.Context(), id, ref); !errors.Is(err, system.ErrNoAddress) || !errors.Is(err, alloc.err) {
		t.Error(err)
	}
	if _, err := h.fs.Stat(id.String()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it left a folder: %v", err)
	}
	alloc.err = nil
	if _, err := h.Create(t.Context(), id, ref); err != nil {
		t.Errorf("the id is taken: %v", err)
	}
}

func TestDefaultsAreForLoadedAgentsTooAndDestroyRemovesThemAll(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	created(t, h.Provider, nil)
	prepared(t, created(t, h.Provider, nil))
	store := image(t, plain)
	next := system.NewProvider(h.fs, func(spec.Reference) oras.ReadOnlyTarget { return store },
		system.WithHostFS(h.host), system.WithLoopbackAllocator(fixed{}), system.WithPuller(h.pull),
		system.WithAgentDefaults(system.WithSpawner(h.spawner), system.WithDialer(h.spawner), system.WithStaticModelResolver("http://next", "next-key")))
	t.Cleanup(func() { next.Close() })
	agents, err := next.Load(t.Context())
	if err != nil || len(agents) != 2 {
		t.Fatal(agents, err)
	}
	for _, a := range agents {
		stopped(t, a.(*system.Agent), running(t, a.(*system.Agent)))
		if env := h.environment(); !strings.Contains(env, "OFFLINE_API_KEY=next-key\n") {
			t.Errorf("environment\n%s", env)
		}
	}
	if again, err := next.Load(t.Context()); err != nil || len(again) != 0 {
		t.Errorf("what this provider has already was loaded again: %v, %v", again, err)
	}
	if err := next.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if infos, _ := h.fs.ReadDir("/"); names(infos) != ".store seal.key" {
		t.Errorf("left behind: %s", names(infos))
	}
}
