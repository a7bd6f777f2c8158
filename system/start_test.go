package system_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// Invariant: what does not need each other in a start does not wait for each other, a second start makes
// nothing anew, and the first answer of a runtime is what ends the wait for it.

// Each pull waits until the others have begun and the tree's own files are written.
func TestPullsAndWritesGoSideBySide(t *testing.T) {
	t.Parallel()
	dir := host(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var begun sync.WaitGroup
	begun.Add(3)
	all := make(chan struct{})
	go func() {
		begun.Wait()
		close(all)
	}()
	var home string
	var pulls atomic.Int32
	pull := func(_ context.Context, r spec.Reference, w io.Writer) error {
		pulls.Add(1)
		begun.Done()
		select {
		case <-all:
		case <-ctx.Done():
			return errors.New("the other pulls have not begun")
		}
		for {
			if _, err := os.Lstat(filepath.Join(home, "root.new/etc/agent.yaml")); err == nil {
				break
			}
			if ctx.Err() != nil {
				return errors.New("the tree is not written")
			}
			time.Sleep(time.Millisecond)
		}
		// Programs of different bytes.
		if _, err := io.WriteString(w, r.String()); err != nil {
			return err
		}
		return pullSelf(ctx, r, w)
	}
	p := provider(t, dir, plain+"BIN env otters/tools/env\nBIN cat otters/tools/cat\n", system.WithPuller(pull),
		system.WithAgentDefaults(system.WithDigestResolver(func(string) string { return "" })))
	a := created(t, p, nil, role("serve"))
	home = filepath.Join(dir, a.UUID().String())
	if err := a.Prepare(t.Context()); err != nil || pulls.Load() != 3 {
		t.Errorf("%d pulls, %v", pulls.Load(), err)
	}
}

func TestAnotherStartHasTheSameTreeAndTheFirstAnswerIsEnough(t *testing.T) {
	t.Parallel()
	dir := host(t)
	var pulls atomic.Int32
	p := provider(t, dir, plain+"CONTEXT ABOUT <<END\nknown\nEND\n", system.WithPuller(func(ctx context.Context, r spec.Reference, w io.Writer) error {
		pulls.Add(1)
		return pullSelf(ctx, r, w)
	}))
	a := created(t, p, nil, role("late"))
	tree := filepath.Join(dir, a.UUID().String(), "root")
	var was [2]os.FileInfo
	for i := range 2 {
		done := make(chan error, 1)
		go func() { done <- a.Run(context.Background()) }()
		if _, err := executor.WaitForStatus(t.Context(), a, executor.StatusStarting, executor.StatusFailed); err != nil {
			t.Fatal(err)
		}
		// One call, made before the runtime answers anybody, is what its first answer comes to.
		probed := make(chan error, 1)
		go func() { probed <- a.Probe(t.Context()) }()
		for end := time.Now().Add(patience); a.Process().PID == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("nothing runs: %v", drained(done))
			}
		}
		select {
		case err := <-probed:
			t.Fatalf("start %d: answered before it was there: %v", i, err)
		default:
		}
		begin := filepath.Join(tree, "workspace/begin")
		if err := os.WriteFile(begin, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := <-probed; err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		a.StatusTracker().Set(executor.StatusReady)
		for j, name := range []string{".", "etc/context/ABOUT.md"} {
			info, err := os.Stat(filepath.Join(tree, name))
			if err != nil {
				t.Fatal(err)
			}
			if was[j] != nil && !os.SameFile(was[j], info) {
				t.Errorf("%s is another one at the second start", name)
			}
			was[j] = info
		}
		if err := a.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(begin); err != nil {
			t.Fatal(err)
		}
	}
	if n := pulls.Load(); n != 1 {
		t.Errorf("%d pulls for two starts", n)
	}
}
