package system

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Invariant: a command answers every call at every time of its life; nothing that it started outlives it.
// The worst inputs: a signal before there is a process, one after it has gone, a grandchild that ignores
// what its parent heeds.

func command(args ...string) *osCmd {
	c := osSpawner{}.Command(args[0], args[1:]...)
	c.SetEnv([]string{"PATH=/usr/bin:/bin"})
	return c.(*osCmd)
}

func TestASignalBeforeStartAndAfterWaitIsAnErrorAndNoPanic(t *testing.T) {
	t.Parallel()
	c := command("/bin/sh", "-c", "read line <&3; exit 3")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Kill} {
		if err := c.Signal(sig); err == nil {
			t.Errorf("%v before Start", sig)
		}
	}
	if err := c.Wait(); err == nil {
		t.Error("Wait before Start")
	}
	c.SetFiles([]*os.File{r})
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err == nil {
		t.Error("it was started twice")
	}
	if err := c.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("a signal in between: %v", err)
	}
	if _, err := w.WriteString("go on\n"); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := c.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("Wait: %v", err)
	}
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Kill} {
		if err := c.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%v after Wait: %v", sig, err)
		}
	}
}

func TestACommandHasItsOwnEnvironmentFolderFilesAndWriters(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	own, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{dir: dir, "": own} { // An empty one keeps the parent's.
		var stdout, stderr bytes.Buffer
		c := command("/bin/sh", "-c", `pwd -P; echo "$HOME$ONLY" >&2; echo handed >&3`)
		c.SetEnv([]string{"ONLY=mine"})
		c.SetDir(at)
		c.SetFiles([]*os.File{w})
		c.SetStdout(&stdout)
		c.SetStderr(&stderr)
		if err := errors.Join(c.Start(), c.Wait()); err != nil {
			t.Fatal(err)
		}
		if stdout.String() != want+"\n" || stderr.String() != "mine\n" {
			t.Errorf("in %q: %q, %q", at, stdout.String(), stderr.String())
		}
		line := make([]byte, 7)
		if _, err := io.ReadFull(r, line); err != nil || string(line) != "handed\n" {
			t.Errorf("descriptor 3: %q, %v", line, err)
		}
	}
	w.Close()
}

func TestWhatACommandStartedEndsWithIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*osCmd) error{
		"by a kill":   func(c *osCmd) error { return c.Signal(os.Kill) },
		"by its exit": func(c *osCmd) error { return c.Signal(syscall.SIGTERM) },
	} {
		// The grandchild heeds nothing and holds the pipe; its end is the pipe's.
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		c := command("/bin/sh", "-c", `(trap "" TERM; exec 4>&1; echo up >&3; exec /bin/sleep 300) & wait`)
		c.SetFiles([]*os.File{w})
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		line := make([]byte, 3)
		if _, err := io.ReadFull(r, line); err != nil {
			t.Fatal(err)
		}
		if err := end(c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Wait(); err == nil {
			t.Errorf("%s: it ended well", name)
		}
		if n, err := r.Read(line); n != 0 || err == nil {
			t.Errorf("%s: the grandchild writes %q, %v", name, line[:n], err)
		}
		r.Close()
	}
}

// Worst inputs: a program that is free at the last moment, and one that stays busy for longer than its caller.
func TestAProgramThatIsBusyIsStartedOnceItIsFree(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "program")
	open, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.WriteString("#!/bin/sh\nexit 3\n"); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := exec.Command(name).Run(); errors.As(err, &exit) {
		t.Skip("this kernel starts programs that are written to")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fresh := func() (*exec.Cmd, error) { return exec.Command(name), nil }
	if _, err := startBusy(ctx, fresh); !errors.Is(err, syscall.ETXTBSY) {
		t.Errorf("its caller is gone: %v", err)
	}
	tries := 0
	cmd, err := startBusy(t.Context(), func() (*exec.Cmd, error) {
		if tries++; tries == 3 {
			open.Close()
		}
		return fresh()
	})
	if err != nil || tries < 3 {
		t.Fatalf("%d tries: %v", tries, err)
	}
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Error(err)
	}
}

func TestAProgramThatIsNotThereIsAnErrorOfStart(t *testing.T) {
	t.Parallel()
	if err := command("/none/such").Start(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}
