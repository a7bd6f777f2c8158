//go:build linux

package sandbox_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

// Invariant: a monitor holds little for a program that takes nothing, and a start that is undone leaves
// nothing behind. Worst inputs: many connections from outside, a monitor that does not run.

// full is a role that listens on a port, takes nothing, and ends with its standard input.
func full() int {
	port, _ := strconv.Atoi(os.Args[1])
	if _, _, err := listenFull(port); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("listening")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// What is passed on to a program that takes nothing holds no thread of the monitor each.
func TestConnectionsThatWaitInsideHoldNoThreads(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Strict)
	w := newWorld(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	outside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	f, err := outside.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const inside, many = 5529, 64
	spec := w.spec(t, sandbox.Strict, "")
	program := copyProgram(t, self, filepath.Join(w.dir, "program"))
	spec.Binds = append(spec.Binds, sandbox.Bind{Source: program, Target: "/program", ReadOnly: true})
	spec.Path, spec.Args = "/program", []string{strconv.Itoa(inside)}
	spec.Env = []string{roleVariable + "=full", "GORACE=atexit_sleep_ms=0"}
	spec.Held = []sandbox.File{{Name: "runtime", File: f}}
	spec.Relay = []sandbox.Listen{{Name: "runtime", Port: inside}}
	gate, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	defer end.Close()
	spec.Stdin = gate
	lines := output(t, &spec)
	p := start(t, l, spec)
	if got := line(t, lines); got != "listening" {
		t.Fatal(got)
	}
	for range many + 1 {
		c, err := net.Dial("tcp", outside.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	awaitWaiting(t, p.PID(), inside, many)
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.MonitorPID()))
	if err != nil || len(threads) >= many {
		t.Errorf("%d threads for %d connections, %v", len(threads), many, err)
	}
}

// A start that is undone kills what the program has started also where its monitor does not run.
func TestAnUndoneStartLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	setsid, err := exec.LookPath("setsid")
	if err != nil {
		t.Skip(err)
	}
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	l.WithoutGroups()
	spec := shell(t, setsid+" "+sleep+" 3600 & echo $!; wait")
	lines := output(t, &spec)
	p := start(t, l, spec)
	pid, err := strconv.Atoi(line(t, lines))
	if err != nil {
		t.Fatal(err)
	}
	left, program, monitor := held(t, pid), held(t, p.PID()), held(t, p.MonitorPID())
	if err := unix.Kill(p.MonitorPID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	l.Undo(p.MonitorPID())
	for name, fd := range map[string]int{"monitor": monitor, "program": program, "what it started": left} {
		if !gone(t, fd, patience) {
			t.Errorf("%s runs", name)
		}
	}
}
