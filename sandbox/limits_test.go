//go:build linux

package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

// Not parallel: it counts what this process has open.
func TestNothingIsLeftOpen(t *testing.T) {
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	round := func() {
		spec := shell(t, "exec sleep 1000")
		f := content(t, "")
		spec.Files = []sandbox.File{{Name: "f", File: f}}
		p, err := l.Start(deadline(t), spec)
		if err != nil {
			t.Fatal(err)
		}
		q, err := sandbox.Attach(deadline(t), spec.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		files, err := q.Files(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		files["f"].Close()
		monitor := held(t, p.MonitorPID())
		end(t, p)
		wait(t, q)
		q.Close()
		if !gone(t, monitor, patience) {
			t.Fatal("the monitor is left")
		}
		spec.Path = "/nowhere"
		if _, err := l.Start(deadline(t), spec); err == nil {
			t.Fatal("it started")
		}
		f.Close()
	}
	open := func() int {
		t.Helper()
		for ctx := deadline(t); l.Monitors() > 0; time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatal("monitors are left")
			}
		}
		return len(names(t, "/proc/self/fd"))
	}
	round()
	before := open()
	const rounds = 10
	for range rounds {
		round()
	}
	// held keeps one descriptor a round until the test ends.
	if after := open() - rounds; after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// A disk that fills up while the program runs swallows neither the exit nor the fact that lines
// of the log are missing.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	disk := t.TempDir()
	size := 32 * os.Getpagesize()
	if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		t.Skip("no small disk:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, `trap '{ printf "%9000s\n" x; echo done; } >&2' USR1; echo up >&2; while :; do sleep 0.01; done`)
	spec.StateDir = disk
	log, err := os.OpenFile(filepath.Join(disk, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	spec.Log = log
	out := output(t, &spec)
	spec.Stderr, spec.Stdout = spec.Stdout, nil
	p := start(t, l, spec)
	line(t, out)
	if _, err := p.Files(deadline(t)); err != nil { // it serves, so it has taken its precautions
		t.Fatal(err)
	}
	said := func() {
		if err := p.Signal(deadline(t), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		for line(t, out) != "done" { // it comes after it was logged, or was not
		}
	}
	fill := filepath.Join(disk, "fill")
	fillUp(t, fill)
	said()
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	said()
	fillUp(t, fill)
	if err := p.Stop(deadline(t), 0); err != nil {
		t.Fatal(err)
	}
	if e, ok, err := sandbox.ReadExit(disk); err != nil || !ok || e.Signal != "SIGKILL" || e.Lost {
		t.Errorf("%+v %v %v", e, ok, err)
	}
	var note, long bool
	for _, l := range readLog(t, log.Name()) {
		note = note || l.Stream == "monitor" && strings.Contains(l.Line, "lost")
		long = long || len(l.Line) == 9000
	}
	if !note || !long {
		t.Errorf("note of lost lines %v, line written later %v", note, long)
	}
}

// fillUp takes what is left of a disk.
func fillUp(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}
