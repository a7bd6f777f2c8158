//go:build linux

package sandbox_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"github.com/otters-sh/otters/sandbox"
)

// Invariant: a level counts as lacking only where the host was seen to lack it. The three worst inputs:
// a trial that finds no room, one that is made again, and a host that does lack the level.
func TestALevelThatCouldNotBeTriedIsNotGivenUp(t *testing.T) {
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, newLauncher(t, sandbox.LauncherOptions{Warm: -1}), sandbox.Strict)
	room := t.TempDir()
	t.Setenv("TMPDIR", filepath.Join(room, "missing")) // where the trial has its state
	if err := l.Lacks(sandbox.Strict); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("without room: %v", err)
	}
	if got := l.Strongest(); got != sandbox.Strict {
		t.Errorf("without room agents would run at %s", got)
	}
	if slices.Contains(l.Supported(), sandbox.Strict) {
		t.Error("it was not found to be supported")
	}
	t.Setenv("TMPDIR", room)
	if err := l.Lacks(sandbox.Strict); err != nil || !slices.Contains(l.Supported(), sandbox.Strict) {
		t.Errorf("with room: %v", err)
	}
	t.Setenv("TMPDIR", filepath.Join(room, "missing"))
	if err := l.Lacks(sandbox.Strict); err != nil {
		t.Errorf("it was found before: %v", err)
	}
}
