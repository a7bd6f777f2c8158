package system_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/google/uuid"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// The page's sentences on how a runtime is started and what its tree tells.

func TestAnAgentAloneOnDiskIsAProcessOfThisMachine(t *testing.T) {
	t.Parallel()
	dir := host(t)
	addr := ownHost() + ":4711"
	a := system.NewAgent(uuid.New(), osfs.New(dir), system.WithStore(image(t, plain+"BIN env otters/tools/env\n")), system.WithReference(ref),
		system.WithAgentPuller(pullSelf), system.WithStaticModelResolver("http://model", "key"), system.WithAddr(addr), system.WithOverrides(role("serve")))
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	ready(t, a, done)
	args := strings.Split(prompt(t, a, "args"), "\n")
	if want := []string{"serve", "--root", dir, "--model", "offline/otter", "--addr", addr, dir + "/workspace"}; !slices.Equal(args, want) {
		t.Errorf("%v, want %v", args, want)
	}
	env := prompt(t, a, "env")
	if !strings.Contains(env, "OFFLINE_API_KEY=key\n") || strings.Contains(env, "GORACE") || strings.Contains(env, "LISTEN_FDS") {
		t.Errorf("environment\n%s", env)
	}
	if res := a.Exec(t.Context(), "env", nil, ""); res.Err != nil || !strings.Contains(res.Stdout, "PATH="+dir+"/usr/bin\n") || strings.Contains(res.Stdout, "OFFLINE_API_KEY") {
		t.Errorf("%+v", res)
	}
	if l := a.Process().Confinement.Level; l != "off" {
		t.Errorf("level %s", l)
	}
	stopped(t, a, done)
	if err := a.Probe(t.Context()); err == nil {
		t.Error("it answers still")
	}
	go func() { done <- a.Start(context.Background()) }()
	ready(t, a, nil)
	stopped(t, a, done)
	if err := a.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAnAgentInMemoryNeedsASpawner(t *testing.T) {
	t.Parallel()
	a := system.NewAgent(uuid.New(), memfs.New(), system.WithStore(image(t, plain)), system.WithReference(ref),
		system.WithAgentPuller(pullSelf), system.WithAddr("127.0.0.1:9"))
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "give a Spawner") || a.FailureReason() != executor.FailureInit {
		t.Errorf("%q, %v", a.FailureReason(), err)
	}
}

// mute is a Cmd that heeds no signal but one, and refuses SIGTERM where it is told to.
type mute struct {
	mu      sync.Mutex
	signals []os.Signal
	heeds   os.Signal
	refuses bool
	done    chan struct{}
	files   []string
	env     []string
}

func (m *mute) Command(string, ...string) system.Cmd { return m }
func (m *mute) Start() error                         { return nil }
func (m *mute) Wait() error                          { <-m.done; return nil }
func (m *mute) SetStdout(io.Writer)                  {}
func (m *mute) SetStderr(io.Writer)                  {}
func (m *mute) SetDir(string)                        {}
func (m *mute) SetEnv(env []string)                  { m.env = env }
func (m *mute) Signal(sig os.Signal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.signals = append(m.signals, sig)
	switch {
	case sig == m.heeds:
		close(m.done)
	case m.refuses && sig == syscall.SIGTERM:
		return errors.New("it takes no such signal")
	}
	return nil
}

func TestASignalThatIsRefusedIsFollowedByAKill(t *testing.T) {
	t.Parallel()
	for name, refuses := range map[string]bool{"refused": true, "not heeded within the grace": false} {
		m := &mute{heeds: os.Kill, refuses: refuses, done: make(chan struct{})}
		h := inMemory(t, plain, system.WithAgentDefaults(system.WithSpawner(m), system.WithStopGrace(1)))
		a := created(t, h.Provider, nil)
		done := make(chan error, 1)
		go func() { done <- a.Run(context.Background()) }()
		if err := started(t, a, m); err != nil {
			t.Fatal(err)
		}
		stopped(t, a, done)
		if want := []os.Signal{syscall.SIGTERM, os.Kill}; !slices.Equal(m.signals, want) {
			t.Errorf("%s: it got %v, want %v", name, m.signals, want)
		}
	}
}

// taker is a mute that takes files, and keeps what each of them is.
type taker struct{ *mute }

func (s taker) Command(string, ...string) system.Cmd { return s }
func (s taker) SetFiles(files []*os.File) {
	for i, f := range files {
		if ln, err := net.FileListener(f); err == nil && i == 0 {
			s.files = append(s.files, ln.Addr().String())
			ln.Close()
			continue
		}
		token := make([]byte, 256)
		n, err := f.Read(token)
		if err == nil && n > 16 {
			s.files = append(s.files, "a token")
		}
	}
}

func TestACmdThatTakesFilesIsHandedTheListenerForARuntimeThatTakesIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files  bool
		opts   []system.ProviderOption
		handed bool
	}{
		"both take it":              {true, []system.ProviderOption{system.WithLabelReader(inherit)}, true},
		"a runtime that does not":   {true, nil, false},
		"a Cmd that does not":       {false, []system.ProviderOption{system.WithLabelReader(inherit)}, false},
		"an allocator of another's": {true, []system.ProviderOption{system.WithLabelReader(inherit), system.WithLoopbackAllocator(fixed{})}, false},
	} {
		m := &mute{heeds: syscall.SIGTERM, done: make(chan struct{})}
		spawner := system.Spawner(m)
		if c.files {
			spawner = taker{m}
		}
		store := image(t, plain)
		p := system.NewProvider(memfs.New(), func(spec.Reference) oras.ReadOnlyTarget { return store },
			append(c.opts, system.WithHostFS(memfs.New()), system.WithPuller(pullText), system.WithAgentDefaults(system.WithSpawner(spawner)))...)
		a := created(t, p, nil)
		if err := a.Probe(t.Context()); name == "both take it" && !errors.Is(err, system.ErrNotRunning) {
			t.Errorf("%s: a probe ahead of the start: %v", name, err)
		}
		done := make(chan error, 1)
		go func() { done <- a.Run(context.Background()) }()
		if err := started(t, a, m); err != nil {
			t.Fatal(err)
		}
		want := ""
		if c.handed {
			want = a.Addr() + ", a token"
		}
		if got := strings.Join(m.files, ", "); got != want {
			t.Errorf("%s: it was handed %q, want %q", name, got, want)
		}
		if got := strings.Contains(strings.Join(m.env, "\n"), "LISTEN_FDS=2\nLISTEN_FDNAMES=runtime:serve-token"); got != c.handed {
			t.Errorf("%s: its environment is %v", name, m.env)
		}
		stopped(t, a, done)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Worst input: a process that is being started meanwhile has a copy of the listener.
func TestARuntimeThatBindsItsAddressIsStartedOnceThatIsFree(t *testing.T) {
	t.Parallel()
	var copied net.Listener
	allocator := system.Loopback(func() (net.Listener, error) {
		ln, err := ownPort()
		if err != nil {
			return nil, err
		}
		f, err := ln.(*net.TCPListener).File()
		if err == nil {
			copied, err = net.FileListener(f)
			f.Close()
		}
		return ln, err
	})
	let := make(chan struct{})
	h := inMemory(t, plain, system.WithLoopbackAllocator(allocator))
	h.starting = func() error {
		select {
		case <-let:
			return nil
		default:
			return errors.New("its address is not free")
		}
	}
	a := created(t, h.Provider, nil)
	t.Cleanup(func() { copied.Close() })
	go func() {
		// Whoever looks whether it is free finds that it is not.
		if c, err := copied.Accept(); err == nil {
			c.Close()
		}
		close(let)
		copied.Close()
	}()
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	if _, err := executor.WaitForStatus(t.Context(), a, executor.StatusStarting, executor.StatusFailed); err != nil {
		t.Fatal(err)
	}
	ready(t, a, done)
	stopped(t, a, done)
}

// pullText is for programs that a Spawner only names.
func pullText(_ context.Context, _ spec.Reference, w io.Writer) error {
	_, err := io.WriteString(w, "program")
	return err
}

// started waits until the agent's process is there.
func started(t *testing.T, a *system.Agent, m *mute) error {
	t.Helper()
	if _, err := executor.WaitForStatus(t.Context(), a, executor.StatusStarting); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// A signal of no meaning is delivered once there is a process.
	for a.Signal(ctx, syscall.SIGUSR1) != nil {
		if a.Status() != executor.StatusStarting {
			return errors.New("the agent is " + a.Status().String())
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.signals = nil
	return nil
}

func TestTheViewsFoldersAreAskedForOnceWithTheToolsNames(t *testing.T) {
	t.Parallel()
	var asked []string
	rt, err := system.MaterializeContent(t.Context(), memfs.New(), uuid.New(), "", system.MaterializeOptions{
		Store: image(t, plain+"BIN cat otters/tools/cat\nBIN env otters/tools/env\n"), Ref: ref,
		View: executor.WorkspaceView{Root: "/agent", Isolated: true},
		ViewBinDirsForTools: func(names []string) []string {
			asked = append(asked, strings.Join(names, " "))
			return []string{"/opt/bins/" + names[0], "/opt/bins/" + names[1]}
		},
	})
	if err != nil || !slices.Equal(asked, []string{"cat env"}) {
		t.Errorf("asked with %q, %v", asked, err)
	}
	if b := rt.Config.Tools[0].Binary; b != "/opt/bins/cat/cat" {
		t.Errorf("without ToolBinaryPath the first tool is at %s", b)
	}
}

// The page has provenance.image_digest empty without WithImageRef, for want of anything that knows it.
// Ours does know: it is the digest of the manifest that was loaded.
func TestProvenanceHasTheImagesDigestWhateverNamesIt(t *testing.T) {
	t.Parallel()
	h := inMemory(t, plain)
	a := prepared(t, created(t, h.Provider, nil))
	c := a.Runtime().Config
	if p := c.Provenance; p.ImageDigest == "" || p.ImageDigest != c.Image.Digest || p.RuntimeRef != "otters/runtime" || p.RuntimeDigest != "" {
		t.Errorf("%+v of image %+v", p, c.Image)
	}
}

// Worst input: what is started meanwhile has a copy of the tool, open for writing, until its exec.
func TestAToolThatWasJustWrittenIsRunWhateverElseIsStarted(t *testing.T) {
	t.Parallel()
	store, over := image(t, plain+"BIN tool otters/tools/tool\n"), make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(over)
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					if err := exec.Command("/bin/true").Run(); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 20 {
		a := prepared(t, system.NewAgent(uuid.New(), osfs.New(host(t)), system.WithStore(store), system.WithReference(ref),
			system.WithAgentPuller(func(_ context.Context, _ spec.Reference, w io.Writer) error {
				_, err := io.WriteString(w, "#!/bin/sh\nread -r line\necho \"$1 $line\"\n")
				return err
			}), system.WithStaticModelResolver("http://model", "key")))
		if res := a.Exec(t.Context(), "tool", []string{"runs"}, "fed\n"); res.Err != nil || res.Stdout != "runs fed\n" {
			t.Fatalf("%+v", res)
		}
	}
}
