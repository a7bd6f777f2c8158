package system_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

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
	running(t, loaded(t, provider(t, dir, plain)))
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
