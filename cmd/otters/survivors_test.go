package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// Invariant: only what belongs to the home is found and killed. Worst inputs: a process whose home
// has a longer name, a parent that is gone, a number that was given to another process.

func sleeper(t *testing.T, home, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Env, cmd.Dir = []string{"OTTERS_HOME=" + home}, dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestOnlyProcessesOfTheHomeAreKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	home := filepath.Join(dir, "link", "home")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "real", "home"), 0o700), os.Symlink("real", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	inHome := sleeper(t, home, "/")
	below := sleeper(t, "", home)
	other := sleeper(t, home+"2", "/")
	found, err := related(home, 1<<30, nil)
	if err != nil {
		t.Fatal(err)
	}
	for cmd, want := range map[*exec.Cmd]bool{inHome: true, below: true, other: false} {
		is := slices.ContainsFunc(found, func(p seen) bool { return p.pid == cmd.Process.Pid })
		if is != want {
			t.Errorf("process of %v in %s is found: %v", cmd.Env, cmd.Dir, is)
		}
	}
	killed, err := outlive(t.Context(), found, 10*time.Millisecond)
	if err != nil || killed != 2 {
		t.Fatalf("killed %d, %v", killed, err)
	}
	if _, running := lookAt(other.Process.Pid); !running {
		t.Error("the other process was killed as well")
	}
	if again, err := outlive(t.Context(), found, 0); err != nil || again != 0 {
		t.Errorf("killed %d that had ended, %v", again, err)
	}
}

func TestANumberGivenToAnotherProcessIsNotKilled(t *testing.T) {
	t.Parallel()
	other := sleeper(t, "", "/")
	p, ok := lookAt(other.Process.Pid)
	if !ok {
		t.Fatal("process not seen")
	}
	p.started = "1"
	if killed, err := outlive(t.Context(), []seen{p}, 0); err != nil || killed != 0 {
		t.Errorf("killed %d, %v", killed, err)
	}
	if _, running := lookAt(other.Process.Pid); !running {
		t.Error("it was killed")
	}
}

func TestFoldersThatForbidWritingAreRemoved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "home")
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "a", "b", "f"), "x")
	for _, path := range []string{filepath.Join(dir, "a", "b"), filepath.Join(dir, "a")} {
		if err := os.Chmod(path, 0o100); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}
