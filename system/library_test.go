package system_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/google/uuid"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/internal/rootfs"
	"github.com/otters-sh/otters/model"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// Ask creates an agent below root, runs it, prompts it and removes it.
func Ask(ctx context.Context, root billy.Filesystem, store system.StoreFor, puller agentoci.Puller,
	resolver model.Resolver, image spec.Reference, text string, opts ...system.ProviderOption) (string, error) {
	p := system.NewProvider(root, store, append(opts, system.WithPuller(puller),
		system.WithAgentDefaults(system.WithModelResolver(resolver)))...)
	defer p.Close()
	a, err := p.Create(ctx, uuid.New(), image)
	if err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	for a.Probe(ctx) != nil {
		select {
		case err := <-ended: // It never came up; the error says why.
			return "", errors.Join(err, a.Remove(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
	var answer strings.Builder
	err = a.(executor.Prompter).Prompt(ctx, executor.PromptRequest{SessionID: "1", Prompt: text}, &answer)
	return answer.String(), errors.Join(err, a.Stop(ctx), <-ended, a.Remove(ctx))
}

func TestAskIsAProgramOfThirtyLinesThatThePageShows(t *testing.T) {
	t.Parallel()
	code, err := os.ReadFile("library_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(code), "\n// Ask creates")
	body, _, ok := strings.Cut(rest, "\n}\n")
	if !ok {
		t.Fatal("the program is not where it was")
	}
	program := "// Ask creates" + body + "\n}\n"
	if n := strings.Count(program, "\n"); n > 30 {
		t.Errorf("%d lines", n)
	}
	page, err := os.ReadFile("../docs/executors.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```go\n"+program+"```\n") {
		t.Error("docs/executors.md does not show it")
	}
}

func TestSystemIsALibrary(t *testing.T) {
	t.Parallel()
	resolver := model.StaticResolver("http://127.0.0.1:1/v1", "key")
	for name, open := range map[string]func(string) (billy.Filesystem, error){
		"on disk by a descriptor":  func(dir string) (billy.Filesystem, error) { return rootfs.Open(dir) },
		"on disk by billy's osfs":  func(dir string) (billy.Filesystem, error) { return osfs.New(dir), nil },
		"on disk by a bound osfs":  func(dir string) (billy.Filesystem, error) { return osfs.New(dir, osfs.WithBoundOS()), nil },
		"on disk, folder not made": func(dir string) (billy.Filesystem, error) { return osfs.New(filepath.Join(dir, "agents")), nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, mounted := host(t), t.TempDir()
			root, err := open(dir)
			if err != nil {
				t.Fatal(err)
			}
			store := image(t, plain+"ENV "+roleVar+"=serve\n")
			answer, err := Ask(t.Context(), root, func(spec.Reference) oras.ReadOnlyTarget { return store }, pullSelf, resolver, ref, "hello there",
				system.WithMonitor(monitor), system.WithAgentDefaults(system.WithMounts([]executor.Mount{{Host: mounted, Target: "/workspace/m"}})))
			if err != nil || answer != "hello there" {
				t.Errorf("%q, %v", answer, err)
			}
			// What went wrong is told.
			_, err = Ask(t.Context(), root, func(spec.Reference) oras.ReadOnlyTarget { return store }, pullSelf, resolver, spec.Reference{Name: "x", Tag: "none"}, "hello",
				system.WithMonitor(monitor))
			if !errors.Is(err, system.ErrPull) {
				t.Errorf("an image that is not there: %v", err)
			}
		})
	}
	t.Run("wholly in memory", func(t *testing.T) {
		t.Parallel()
		s, store := new(spawner), image(t, plain)
		answer, err := Ask(t.Context(), memfs.New(), func(spec.Reference) oras.ReadOnlyTarget { return store },
			func(_ context.Context, _ spec.Reference, w io.Writer) error {
				_, err := io.WriteString(w, "program")
				return err
			},
			resolver, ref, "hello there", system.WithHostFS(memfs.New()), system.WithLoopbackAllocator(fixed{}),
			system.WithAgentDefaults(system.WithSpawner(s), system.WithDialer(s)))
		if err != nil || answer != "hello there" {
			t.Errorf("%q, %v", answer, err)
		}
	})
}
