// Package executortest is the contract of package executor as a test suite. Whoever writes an
// executor runs it from a test of their own; what passes keeps the contract.
//
//	func TestContract(t *testing.T) {
//		executortest.Run(t, executortest.Options{New: func(t *testing.T, w *executortest.World) executor.Provider {
//			return mine.NewProvider(w.Dir, w.StoreFor, w.Pull, w.ResolveModel)
//		}})
//	}
//
// Every test gets a World of its own, makes its images itself, and runs them with a scripted runtime
// and scripted tools (package script) that are made from the runtime contract alone. The suite needs
// no network but the loopback, and leaves nothing behind where the executor leaves nothing behind.
// Only the tests import it.
package executortest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
)

// Options say how to make the executor under test. Only New is required.
type Options struct {
	// New makes a provider in the world w: it keeps its agents below w.Dir, and takes images,
	// programs, credentials and token from w. It is called once for each test, and again with the
	// same w to find the agents of the first one. What it needs to clean up it registers with t.
	New func(t *testing.T, w *World) executor.Provider
	// Close lets go of a provider before the next one is made in its world. An executor whose
	// agents are executor.Attachers leaves running agents running. Nil does nothing; the suite has
	// then stopped all agents before, or skips.
	Close func(executor.Provider) error
	// Program is command scripted, built for where the agents run. Empty builds it for this
	// machine, static, with the go command in PATH.
	Program string
	// Skip names tests of the suite that the executor can't pass, with the reason of each, which is
	// printed. Tests of optional interfaces are skipped by themselves.
	Skip map[string]string
}

// World is what one test gives an executor to work with. Its methods are safe for concurrent use.
type World struct {
	// Dir is a folder of the host that is empty at first. Every user may pass through its parents.
	Dir string
	// Host is an address of the loopback that nobody else binds. A port of 127.0.0.1 that an executor lets go,
	// so that a runtime can bind it, may be taken meanwhile by anybody; one of Host is not.
	Host string
	// DaemonURL and AgentToken are for OTTERSD_URL and OTTERS_AGENT_TOKEN of every agent.
	DaemonURL, AgentToken string

	program string

	mu     sync.Mutex
	images map[string]*memory.Store
	pulls  map[string]int
	// pulling, where not nil, is called ahead of each pull.
	pulling  func(ctx context.Context) error
	resolved int
	tags     int
}

// Run runs the suite, each test as a parallel subtest of t.
func Run(t *testing.T, o Options) {
	if o.New == nil {
		t.Fatal("executortest: Options.New is not set")
	}
	if o.Program == "" {
		o.Program = build(t)
	}
	for name := range o.Skip {
		if _, ok := tests[name]; !ok {
			t.Errorf("executortest: Options.Skip names %q, which is no test of the suite", name)
		}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if why, ok := o.Skip[name]; ok {
				t.Skip(why)
			}
			test(newSuite(t, o))
		})
	}
}

// build makes the scripted program.
func build(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	program := filepath.Join(dir, "scripted")
	cmd := exec.Command("go", "build", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", program, "github.com/otters-sh/otters/executor/executortest/scripted")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("executortest: build the scripted runtime: %v\n%s", err, out)
	}
	return program
}

// openDir is a folder that agents' own users can get through to.
func openDir(t *testing.T) string {
	t.Helper()
	// A link in the way is no part of what an agent calls it.
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Names of the images that the suite's agents are made of.
const (
	// inheriting is a runtime image whose label asks for the listener by descriptor, plain one
	// without; both are the scripted program.
	inheriting, plain = "otters/scripted", "otters/scripted-plain"
	// broken is a runtime image without a program in it, gone one that can't be pulled.
	broken, gone = "otters/broken", "otters/gone"
	tool         = "otters/tool"
)

// agentfile is the least agent.
const agentfile = "FROM scratch\nRUNTIME " + inheriting + "\nMODEL offline/otter\nNAME tested\n"

// StoreFor is the target that holds the image ref, under ref's tag and digest.
func (w *World) StoreFor(ref spec.Reference) oras.ReadOnlyTarget {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.store(ref.Name)
}

// store is the store of one repository; the caller holds mu.
func (w *World) store(name string) *memory.Store {
	if w.images == nil {
		w.images = make(map[string]*memory.Store)
	}
	if w.images[name] == nil {
		w.images[name] = memory.New()
	}
	return w.images[name]
}

// image builds an agent's image.
func (w *World) image(t *testing.T, agentfile string) spec.Reference {
	t.Helper()
	w.mu.Lock()
	w.tags++
	ref := spec.Reference{Name: "tested/agent", Tag: fmt.Sprintf("t%d", w.tags)}
	store := w.store(ref.Name)
	w.mu.Unlock()
	res, err := agentoci.Build(t.Context(), store, []byte(agentfile), agentoci.BuildOptions{})
	if err == nil {
		err = store.Tag(t.Context(), res.Descriptor, ref.Tag)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// Pull writes the program of a runtime's or a tool's image.
func (w *World) Pull(ctx context.Context, ref spec.Reference, out io.Writer) error {
	w.mu.Lock()
	if w.pulls == nil {
		w.pulls = make(map[string]int)
	}
	w.pulls[ref.Name]++
	pulling := w.pulling
	w.mu.Unlock()
	if pulling != nil {
		if err := pulling(ctx); err != nil {
			return err
		}
	}
	switch ref.Name {
	case broken:
		_, err := io.WriteString(out, "this is no program\n")
		return err
	case gone:
		return errors.New("the registry is gone")
	}
	f, err := os.Open(w.program)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(out, f)
	return err
}

// Labels are the labels of a runtime's or a tool's image.
func (w *World) Labels(_ context.Context, ref spec.Reference) (map[string]string, error) {
	if ref.Name == inheriting {
		return map[string]string{agentoci.AnnotationListener: "inherit"}, nil
	}
	return nil, nil
}

// Digest is the digest of a runtime's or a tool's image, which stands for the same bytes always.
func (w *World) Digest(ref string) string { return digest.FromString(ref).String() }

// ResolveModel answers the address and the key of a model: another key each time. Models of any
// provider but "offline" are refused.
func (w *World) ResolveModel(model string) (apiURL, apiKey string, err error) {
	if !strings.HasPrefix(model, "offline/") {
		return "", "", fmt.Errorf("%s: no such provider", model)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resolved++
	return "http://127.0.0.1:1/v1", fmt.Sprintf("modelkey-%d", w.resolved), nil
}

// patience bounds a wait for something that happens at once on an idle machine, and in seconds on a busy one.
const patience = 3 * time.Minute

// probePause is between two probes of a runtime that is not there yet.
const probePause = 2 * time.Millisecond
