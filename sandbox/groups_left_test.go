//go:build linux

package sandbox_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/sandbox/internal/cgroup"
)

// K6, K16: what a program has moved to a session of its own does not outlive the monitor, whether
// somebody watches or the next process clears up.
func TestNothingOutlivesTheMonitorInAGroup(t *testing.T) {
	t.Parallel()
	for _, watched := range []bool{true, false} {
		t.Run(fmt.Sprintf("watched %v", watched), func(t *testing.T) {
			t.Parallel()
			needGroup(t, cgroup.Kill)
			l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
			spec := role(t, "parent")
			out := output(t, &spec)
			p, err := l.Start(deadline(t), spec)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.Close() })
			leaf := held(t, leafPID(t, out))
			if len(recorded(t, spec.StateDir)) == 0 {
				t.Error("no group")
			}
			if !watched {
				p.Close()
			}
			monitor := held(t, p.MonitorPID())
			if err := syscall.Kill(p.MonitorPID(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if watched {
				wait(t, p)
			} else {
				if gone(t, leaf, 0) {
					t.Error("the leaf is gone by itself: nothing is shown")
				}
				if !gone(t, monitor, patience) {
					t.Fatal("the monitor lives on")
				}
				if err := sandbox.Sweep(spec.StateDir); err != nil {
					t.Error(err)
				}
			}
			if !gone(t, leaf, patience) {
				t.Error("the leaf lives on")
			}
			if left := recorded(t, spec.StateDir); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// A sweep of what runs does nothing, and whoever takes a program over has its limits.
func TestTakeOverKeepsLimits(t *testing.T) {
	t.Parallel()
	needGroup(t, cgroup.Memory)
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	spec := shell(t, "exec sleep 1000")
	spec.Limits = sandbox.Limits{Memory: 64 << 20}
	p := start(t, l, spec)
	if err := sandbox.Sweep(spec.StateDir); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Start(deadline(t), spec); err == nil || !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a second program with the folder: %v", err)
	}
	q, err := sandbox.Attach(deadline(t), spec.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for _, p := range []*sandbox.Process{p, q} {
		if how, n := mechanismOf(p, sandbox.LimitMemory); how == "" || n != 64<<20 {
			t.Errorf("%d by %q", n, how)
		}
	}
	// What is told is what is in force now.
	for _, path := range recorded(t, spec.StateDir) {
		for _, name := range []string{"memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max"} {
			file := filepath.Join(path, name)
			if _, err := os.Stat(file); err == nil {
				if err := os.WriteFile(file, []byte("128M"), 0); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if _, n := mechanismOf(q, sandbox.LimitMemory); n != 128<<20 {
		t.Errorf("after the limit was raised: %d", n)
	}
}

// A group that was recorded and never used is no more than a name.
func TestLeftoverGroupsAreClearedUp(t *testing.T) {
	t.Parallel()
	needGroup(t, cgroup.Kill)
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	g, err := cgroup.Find().Plan(nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Make(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.KillAll() })
	spec := shell(t, "exec sleep 1000")
	record := filepath.Join(spec.StateDir, "cgroup.json")
	if err := os.WriteFile(record, []byte(`{"version":1,"group":{"parts":[{"v2":true,"path":"`+g.Parts[0].Path+`"}]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, l, spec)
	if _, err := os.Stat(g.Parts[0].Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", g.Parts[0].Path, err)
	}
	// A record leads nowhere but to groups of ours.
	for _, path := range []string{"/", "/sys/fs/cgroup", t.TempDir(), filepath.Join(t.TempDir(), cgroup.Prefix+"x")} {
		_ = os.Mkdir(path, 0o700)
		dir := stateDir(t)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.json"), []byte(`{"version":1,"group":{"parts":[{"path":"`+path+`"}]}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := sandbox.Sweep(dir); err == nil {
			t.Errorf("%s was swept", path)
		}
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		if err := os.Remove(filepath.Join(dir, "cgroup.json")); err != nil {
			t.Fatal(err)
		}
	}
}
