//go:build linux

package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/otters-sh/otters/sandbox"
)

// Invariant: what a level lacks is found out without trying another one. Strict alone is tried with a
// monitor, which here only leaves a trace.
func TestALevelIsTriedForItsOwnSake(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, trace := filepath.Join(dir, "monitor"), filepath.Join(dir, "trace")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho tried >"+trace+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: script, Warm: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Lacks(sandbox.Off); err != nil {
		t.Error(err)
	}
	_ = l.Lacks(sandbox.Limited) // a matter of the kernel's
	if _, err := os.Lstat(trace); err == nil {
		t.Error("strict was tried for another level")
	}
	need(t, newLauncher(t, sandbox.LauncherOptions{Warm: -1}), sandbox.Strict)
	if err := l.Lacks(sandbox.Strict); err == nil {
		t.Error("strict is there with a monitor that is none")
	}
	if _, err := os.Lstat(trace); err != nil {
		t.Error("strict was not tried")
	}
}
