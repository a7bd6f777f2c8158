//go:build linux

package sandbox_test

import (
	"errors"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/otters-sh/otters/sandbox"
)

// Invariant: each start that is expected has one monitor, and none is left of those that don't come.
// Worst inputs: many at once, one that is taken back, one whose program is not there.
func TestAnExpectedStartHasAMonitorOfItsOwn(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	monitors := func(want int) {
		t.Helper()
		for end := time.Now().Add(patience); l.Monitors() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d monitors, want %d", l.Monitors(), want)
			}
		}
	}
	const n = 4
	var expected [n]*sandbox.Expected
	for i := range expected {
		expected[i] = l.Expect(sandbox.Off)
	}
	back := l.Expect(sandbox.Off)
	monitors(n + 1)
	back.Close()
	monitors(n)
	var all sync.WaitGroup
	var running [n]*sandbox.Process
	for i, e := range expected {
		spec := shell(t, "exec sleep 1000")
		all.Go(func() {
			p, err := e.Start(deadline(t), spec)
			if err != nil {
				t.Error(err)
			}
			running[i] = p
			e.Close()
		})
	}
	all.Wait()
	if got := l.Monitors(); got != n {
		t.Errorf("%d monitors of %d programs", got, n)
	}
	for _, p := range running {
		if p != nil {
			if err := p.Stop(deadline(t), 0); err != nil {
				t.Error(err)
			}
			p.Close()
		}
	}
	monitors(0)

	missing := shell(t, "")
	missing.Path = "/nowhere"
	e := l.Expect(sandbox.Off)
	if _, err := e.Start(deadline(t), missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
	e.Close()
	monitors(0)
}

// A launcher that is closed leaves no start waiting, expected or not.
func TestAnExpectedStartOfAClosedLauncherIsRefused(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	e, other := l.Expect(sandbox.Off), l.Expect(sandbox.Off)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Start(deadline(t), shell(t, "")); err == nil {
		t.Error("it was started")
	}
	e.Close()
	other.Close()
	l.Expect(sandbox.Off).Close()
	if n := l.Monitors(); n > 0 {
		t.Errorf("%d monitors are left", n)
	}
}
