//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

func TestStopKeepsToTheGrace(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	for name, c := range map[string]struct {
		script string
		grace  time.Duration
		least  time.Duration
		want   sandbox.Exit
	}{
		"obeys":           {"trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done", long, 0, sandbox.Exit{Code: 3, Asked: true}},
		"does not listen": {"echo up; exec sleep 1000", long, 0, sandbox.Exit{Code: -1, Signal: "SIGTERM", Asked: true}},
		"ignores it":      {"trap '' TERM; echo up; while :; do sleep 0.01; done", 200 * time.Millisecond, 200 * time.Millisecond, sandbox.Exit{Code: -1, Signal: "SIGKILL", Asked: true}},
		"at once":         {"trap '' TERM; echo up; while :; do sleep 0.01; done", 0, 0, sandbox.Exit{Code: -1, Signal: "SIGKILL", Asked: true}},
		"stopped":         {"echo up; kill -STOP $$; sleep 1000", long, 0, sandbox.Exit{Code: -1, Signal: "SIGTERM", Asked: true}},
		"stopped, deaf":   {"trap '' TERM; echo up; while :; do kill -STOP $$; done", 200 * time.Millisecond, 200 * time.Millisecond, sandbox.Exit{Code: -1, Signal: "SIGKILL", Asked: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := shell(t, c.script)
			out := output(t, &spec)
			p := start(t, l, spec)
			line(t, out)
			begin := time.Now()
			if err := p.Stop(deadline(t), c.grace); err != nil { // the long grace is longer than that
				t.Fatal(err)
			}
			if took := time.Since(begin); took < c.least {
				t.Errorf("took %v", took)
			}
			got := p.Exit()
			if got.Code != c.want.Code || got.Signal != c.want.Signal || got.Asked != c.want.Asked {
				t.Errorf("%+v", got)
			}
			if err := p.Stop(deadline(t), c.grace); err != nil {
				t.Errorf("stop of what has stopped: %v", err)
			}
		})
	}
}

// K6, K10: a daemon with a session of its own, whose parents are gone, does not outlive the
// program, whether it is stopped, ends, or is killed.
func TestNothingOutlivesTheProgram(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	for name, finish := range map[string]func(*testing.T, *sandbox.Process, *os.File){
		"stop":        func(t *testing.T, p *sandbox.Process, _ *os.File) { _ = p.Stop(deadline(t), 10*time.Second) },
		"stop now":    func(t *testing.T, p *sandbox.Process, _ *os.File) { _ = p.Stop(deadline(t), 0) },
		"its own end": func(_ *testing.T, _ *sandbox.Process, gate *os.File) { gate.Close() },
		"SIGKILL":     func(t *testing.T, p *sandbox.Process, _ *os.File) { _ = p.Signal(deadline(t), syscall.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			what := "parent"
			if name == "its own end" {
				what = "parent-ends"
			}
			spec := role(t, what)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			// Held by the monitor it would never close; the program alone waits on it.
			spec.Files = []sandbox.File{{Name: "gate", File: r}}
			out := output(t, &spec)
			p := start(t, l, spec)
			r.Close()
			leaf := held(t, leafPID(t, out))
			if gone(t, leaf, 0) {
				t.Fatal("the leaf is not there")
			}
			finish(t, p, w)
			wait(t, p)
			if !gone(t, leaf, 0) {
				t.Error("the leaf outlived the program")
			}
		})
	}
}

// What forks faster than one can look is stopped as well (K7, in its harmless form: a few hundred at a
// time, in the program's group).
func TestForkingProgramIsStopped(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	// Those that last are few: where the host has no room for a process more, a shell ends by itself.
	spec := shell(t, "trap '' TERM; i=0; while [ $i -lt 200 ]; do (sleep 1000 &); i=$((i+1)); done; echo up; while :; do (: &) ; done")
	out := output(t, &spec)
	p := start(t, l, spec)
	line(t, out)
	if err := p.Stop(deadline(t), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if e := p.Exit(); e.Signal != "SIGKILL" {
		t.Errorf("%+v", e)
	}
}

// The stop is the monitor's once it is asked for: the caller may go.
func TestStopIsCarriedOutWithoutTheCaller(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	for grace := 300 * time.Millisecond; ; grace *= 2 {
		spec := shell(t, "trap '' TERM; echo up; while :; do sleep 0.01; done")
		out := output(t, &spec)
		p, err := l.Start(deadline(t), spec)
		if err != nil {
			t.Fatal(err)
		}
		line(t, out)
		q, err := sandbox.Attach(deadline(t), spec.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		defer end(t, q)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		stopped := p.Stop(ctx, grace)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if e := wait(t, q); e.Signal != "SIGKILL" || !e.Asked {
			t.Errorf("%+v", e)
		}
		if stopped == nil && grace < patience {
			continue // this process was held up for longer than the grace, and has seen the end
		}
		if !errors.Is(stopped, context.DeadlineExceeded) {
			t.Error(stopped)
		}
		return
	}
}

func TestSignalReachesTheProgram(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "trap 'exit 9' USR1; echo up; while :; do sleep 0.01; done")
	out := output(t, &spec)
	p := start(t, l, spec)
	line(t, out)
	if err := p.Signal(deadline(t), syscall.Signal(200)); err == nil {
		t.Error("signal 200 was sent")
	}
	if err := p.Signal(deadline(t), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p); e.Code != 9 || e.Asked {
		t.Errorf("%+v", e)
	}
	if err := p.Signal(deadline(t), syscall.SIGUSR1); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("after the end: %v", err)
	}
}

// The monitor's answer and its own end come close together: what was sent must not be told as lost.
func TestASignalThatEndsTheProgramIsAnswered(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: 2})
	var all sync.WaitGroup
	for range 20 {
		spec := shell(t, "exec sleep 1000")
		all.Go(func() {
			p, err := l.Start(deadline(t), spec)
			if err != nil {
				t.Error(err)
				return
			}
			if err := p.Signal(deadline(t), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			if e := wait(t, p); e.Signal != "SIGKILL" || e.Asked {
				t.Errorf("%+v", e)
			}
			_ = p.Close()
		})
	}
	all.Wait()
}

func TestMonitorTakesSIGTERMForAStopAndSIGHUPForNothing(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "trap 'exit 4' TERM; echo up; while :; do sleep 0.01; done")
	out := output(t, &spec)
	p := start(t, l, spec)
	line(t, out)
	monitor := held(t, p.MonitorPID())
	if err := unix.PidfdSendSignal(monitor, unix.SIGHUP, nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Files(deadline(t)); err != nil {
		t.Fatalf("after SIGHUP: %v", err)
	}
	if err := unix.PidfdSendSignal(monitor, unix.SIGTERM, nil, 0); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p); e.Code != 4 || !e.Asked {
		t.Errorf("%+v", e)
	}
}

func TestKilledMonitorTakesTheProgramAlong(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "sleep 1000 & echo leaf $!; wait")
	out := output(t, &spec)
	p := start(t, l, spec)
	program, child := held(t, p.PID()), held(t, leafPID(t, out))
	if _, err := p.Files(deadline(t)); err != nil { // it serves, so it has written its state
		t.Fatal(err)
	}
	if err := unix.PidfdSendSignal(held(t, p.MonitorPID()), unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p); !e.Lost || e.Code != -1 {
		t.Errorf("%+v", e)
	}
	// Both are killed; how long the kernel takes over that is its own.
	if !gone(t, program, patience) || !gone(t, child, patience) {
		t.Error("program or child is alive")
	}
	if e, ok, err := sandbox.ReadExit(spec.StateDir); err != nil || !ok || !e.Lost {
		t.Errorf("record: %+v %v %v", e, ok, err)
	}
	if _, err := sandbox.Attach(deadline(t), spec.StateDir); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("attach: %v", err)
	}
	again := start(t, l, spec)
	if _, ok, err := sandbox.ReadExit(spec.StateDir); ok || err != nil {
		t.Errorf("running again: %v %v", ok, err)
	}
	end(t, again)
}

// A monitor that is stopped by a signal, as a program with its user id may do, can't keep the
// program alive.
func TestStopOfAStoppedMonitor(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := role(t, "parent")
	out := output(t, &spec)
	p := start(t, l, spec)
	program, leaf := held(t, p.PID()), held(t, leafPID(t, out))
	freeze(t, p.MonitorPID())
	if err := p.Stop(deadline(t), 0); err != nil {
		t.Fatal(err)
	}
	if e := p.Exit(); !e.Lost {
		t.Errorf("%+v", e)
	}
	if !gone(t, program, patience) || !gone(t, leaf, patience) {
		t.Error("program or leaf is alive")
	}
}

// K7: a program whose output nobody takes is held up and no one else; its monitor stays small and
// still stops it.
func TestFloodSlowsItselfAlone(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	setAppend(t, w)
	spec := shell(t, "exec yes "+strings.Repeat("flood ", 200))
	spec.Log = w
	p := start(t, l, spec)
	quiet := shell(t, "while read x; do echo $x; done <&3")
	gateR, gateW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer gateW.Close()
	gateR.Fd() // makes it blocking, which a shell needs
	quiet.Files = []sandbox.File{{Name: "in", File: gateR}}
	out := output(t, &quiet)
	start(t, l, quiet)
	gateR.Close()
	buf := make([]byte, 1<<20)
	for total := 0; total < 64<<20; { // the flood is taken for a while, and then no more
		n, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	if _, err := gateW.WriteString("alive\n"); err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "alive" {
		t.Errorf("%q", got)
	}
	if kib := memory(t, p.MonitorPID(), "status", "VmHWM:"); kib > 16<<10 {
		t.Errorf("the monitor has taken %d KiB", kib)
	}
	if err := p.Stop(deadline(t), long); err != nil {
		t.Fatal(err)
	}
	if e := p.Exit(); e.Signal != "SIGTERM" {
		t.Errorf("%+v", e)
	}
}

func setAppend(t *testing.T, f *os.File) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) {
		_, err = unix.FcntlInt(fd, unix.F_SETFL, unix.O_APPEND|unix.O_NONBLOCK)
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
}

func TestTheShortestGraceStands(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "trap '' TERM; echo up; while :; do sleep 0.01; done")
	out := output(t, &spec)
	p := start(t, l, spec)
	line(t, out)
	first := make(chan error, 1)
	go func() { first <- p.Stop(deadline(t), long) }()
	for _, grace := range []time.Duration{2 * patience, 100 * time.Millisecond, long} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if err := p.Stop(ctx, grace); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if e := p.Exit(); e.Signal != "SIGKILL" {
		t.Errorf("%+v", e)
	}
}

// K8: what a program leaves behind is buried while it runs on, not only at its end.
func TestOrphansAreBuriedWhileTheProgramRuns(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "for i in 1 2 3 4 5 6 7 8 9 10; do (sh -c : &); done; echo up; exec sleep 1000")
	out := output(t, &spec)
	p := start(t, l, spec)
	line(t, out)
	children := func() string {
		lists, err := filepath.Glob("/proc/" + strconv.Itoa(p.MonitorPID()) + "/task/*/children")
		if err != nil || len(lists) == 0 {
			t.Skip("the kernel does not list children:", err)
		}
		var all []string
		for _, list := range lists {
			b, err := os.ReadFile(list)
			if err != nil {
				continue // a thread that has ended
			}
			all = append(all, strings.Fields(string(b))...)
		}
		return strings.Join(all, " ")
	}
	want := strconv.Itoa(p.PID())
	for end := time.Now().Add(patience); children() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("children %s, want %s", children(), want)
		}
	}
}
