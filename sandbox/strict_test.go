//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

// Invariants of the levels' tests: whatever is denied stands beside what is allowed next to it, so
// that a program that can do nothing at all does not pass.

// K1, K2: what lies outside can be neither read nor written, nor what is read-only changed.
func TestFilesOutsideAreOutOfReach(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		etc, mount, frozen := w.at(level, "etc"), w.at(level, "mount"), w.at(level, "frozen")
		for name, c := range map[string]struct{ script, want string }{
			"read own":           {"cat file", "work"},
			"read outside":       {"cat " + w.secret + " 2>/dev/null || echo denied", "denied"},
			"write own":          {"echo x > new && cat new", "x"},
			"write outside":      {"(echo x > " + w.secret + ") 2>/dev/null || echo denied", "denied"},
			"new file outside":   {"(echo x > " + w.dir + "/new) 2>/dev/null || echo denied", "denied"},
			"read etc":           {"cat " + etc + "/file", "etc"},
			"write etc":          {"(echo x > " + etc + "/file) 2>/dev/null || echo denied", "denied"},
			"new in etc":         {"(echo x > " + etc + "/new) 2>/dev/null || echo denied", "denied"},
			"remove in etc":      {"rm -f " + etc + "/file 2>/dev/null || echo denied", "denied"},
			"truncate in etc":    {"truncate -s 0 " + etc + "/file 2>/dev/null || echo denied", "denied"},
			"new in usr":         {"(echo x > /usr/new) 2>/dev/null || echo denied", "denied"},
			"read mount":         {"cat " + mount + "/file", "mount"},
			"write mount":        {"echo x > " + mount + "/new && cat " + mount + "/new", "x"},
			"read ro mount":      {"cat " + frozen + "/file", "frozen"},
			"write ro mount":     {"(echo x > " + frozen + "/file) 2>/dev/null || echo denied", "denied"},
			"link out of ro":     {"ln " + frozen + "/file stolen 2>/dev/null || echo denied", "denied"},
			"link within own":    {"ln file linked && cat linked", "work"},
			"move out of ro":     {"mv " + frozen + "/file stolen 2>/dev/null; cat " + frozen + "/file", "frozen"},
			"through a symlink":  {"ln -sf " + w.secret + " s; cat s 2>/dev/null || echo denied", "denied"},
			"through /proc root": {"cat /proc/1/root" + w.secret + " 2>/dev/null || echo denied", "denied"},
			"shadow":             {"cat /etc/shadow 2>/dev/null || echo denied", "denied"},
			"device":             {"echo x > /dev/null && head -c 1 /dev/zero | od -An -tx1", "00"},
			"other device":       {"test -r /dev/kmsg && cat /dev/mem /dev/kmsg 2>/dev/null | head -c 1; echo denied", "denied"},
		} {
			t.Run(name, func(t *testing.T) {
				if got := said(t, l, w.spec(t, level, c.script)); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
			})
		}
		if b, err := os.ReadFile(w.secret); err != nil || string(b) != "secret\n" {
			t.Errorf("outside: %q %v", b, err)
		}
	})
}

// K5: no process outside can be signalled or looked into.
func TestProcessesOutsideAreOutOfReach(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		// Of the same user, so that only the level protects it.
		victim := exec.Command("/bin/sleep", "1000")
		victim.Env = []string{"SECRET=x"}
		if w.uid >= 0 {
			victim.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(w.uid), Gid: uint32(w.uid)}}
		}
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = victim.Process.Kill(); _ = victim.Wait() }()
		pid := strconv.Itoa(victim.Process.Pid)
		for name, c := range map[string]struct{ script, want string }{
			"own child":      {"sleep 1000 & kill -KILL $! && wait $!; echo $?", "137"},
			"foreign":        {"kill -KILL " + pid + " 2>/dev/null || echo denied", "denied"},
			"all":            {"sleep 1000 & kill -KILL -1 2>/dev/null; echo", ""},
			"foreign memory": {"cat /proc/" + pid + "/mem 2>/dev/null || echo denied", "denied"},
			"foreign env":    {"grep -c SECRET /proc/" + pid + "/environ 2>/dev/null || echo denied", "denied"},
		} {
			t.Run(name, func(t *testing.T) {
				spec := w.spec(t, level, c.script)
				if name == "all" {
					wait(t, start(t, l, spec))
				} else if got := said(t, l, spec); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
			})
		}
		if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
			t.Error("it was killed:", err)
		}
		if s, err := os.ReadFile("/proc/" + pid + "/stat"); err != nil || strings.Contains(string(s), ") Z ") {
			t.Errorf("it was killed: %s %v", s, err)
		}
	})
}

// K3, K4: inside there are the given descriptors and variables and no others.
func TestNothingLeaksIn(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Strict)
	w := newWorld(t)
	leak, err := unix.Open("/", unix.O_RDONLY, 0) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	spec := w.spec(t, sandbox.Strict, "ls /proc/$$/fd; tr '\\0' '\\n' </proc/$$/environ | sort; cat <&3; cat")
	spec.Env = []string{"A=1", "PATH=/usr/bin:/bin"}
	spec.Files = []sandbox.File{{Name: "f", File: content(t, "given\n")}}
	spec.Held = []sandbox.File{{Name: "held", File: content(t, "x")}}
	spec.Stdin = content(t, "input\n")
	want := "0 1 2 3 A=1 LISTEN_FDNAMES=f LISTEN_FDS=1 PATH=/usr/bin:/bin given input"
	if got := strings.Join(strings.Fields(said(t, l, spec)), " "); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The root at strict holds what was given and no name more, and its processes are its own.
func TestStrictSeesNothingElse(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Strict)
	w := newWorld(t)
	for name, c := range map[string]struct{ script, want string }{
		"root":          {"ls / | grep -v -e usr -e bin -e lib", "dev etc own proc"},
		"write root":    {"(echo > /new) 2>/dev/null || echo denied", "denied"},
		"dev":           {"ls /dev", "fd full null random stderr stdin stdout urandom zero"},
		"write dev":     {"(echo > /dev/new) 2>/dev/null || echo denied", "denied"},
		"processes":     {"set -- /proc/[0-9]*; echo $#", "2"}, // its monitor and itself
		"init":          {"kill -KILL 1; echo alive", "alive"},
		"init's memory": {"cat /proc/1/environ 2>/dev/null || echo denied", "denied"},
		"user":          {"id -u", "0"},
		"capabilities":  {"grep -h -e CapEff -e CapBnd -e CapAmb /proc/self/status | cut -f2 | sort -u", "0000000000000000"},
		"sysctl":        {"(echo 1 > /proc/sys/net/ipv4/ip_forward) 2>/dev/null || echo denied", "denied"},
		"host name":     {"uname -n", "agent"},
		// Some kernels give every network the other end of each kind of tunnel that they know, which is down.
		"interfaces": {"while read -r name rest; do case $name in tunl*|gre*|erspan*|ip_vti*|ip6*|sit*) ;; *:) echo $name ;; esac; done </proc/net/dev", "lo:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := strings.Join(strings.Fields(said(t, l, w.spec(t, sandbox.Strict, c.script))), " "); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// A program's user on the host is the one of the spec, never root, and what it makes belongs to it.
func TestFilesBelongToTheProgramsUser(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		said(t, l, w.spec(t, level, ": >made; : >"+w.at(level, "mount")+"/made"))
		uid := w.uid
		if uid < 0 {
			uid = os.Geteuid()
		}
		for _, name := range []string{filepath.Join(w.work, "made"), filepath.Join(w.mount, "made")} {
			var st unix.Stat_t
			if err := unix.Stat(name, &st); err != nil || int(st.Uid) != uid || st.Uid == 0 {
				t.Errorf("%s is user %d's: %v", name, st.Uid, err)
			}
		}
	})
}

// P13, P15: a folder that the program turns into a link between two runs does not lead a mount
// elsewhere.
func TestMountDoesNotFollowALink(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Strict)
	w := newWorld(t)
	said(t, l, w.spec(t, sandbox.Strict, "cat mount/file"))
	if err := errors.Join(os.Remove(filepath.Join(w.work, "mount")), os.Symlink("/etc", filepath.Join(w.work, "mount"))); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Start(deadline(t), w.spec(t, sandbox.Strict, "true")); !errors.Is(err, sandbox.ErrStart) || !strings.Contains(err.Error(), "mount") {
		t.Errorf("%v", err)
	}
}

// K6, K10: nothing survives, whatever it did to be forgotten.
func TestNothingInsideSurvives(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		mark := strconv.Itoa(1e8 + rand.IntN(1e8))
		spec := w.spec(t, level, "setsid sh -c 'trap \"\" TERM; setsid sleep "+mark+" & echo up; wait' & wait")
		out := output(t, &spec)
		p := start(t, l, spec)
		line(t, out)
		if len(running(t, mark)) == 0 {
			t.Error("nothing runs")
		}
		if err := p.Stop(deadline(t), 0); err != nil {
			t.Fatal(err)
		}
		if left := running(t, mark); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		if e := p.Exit(); e.Signal != "SIGKILL" || !e.Asked || e.Lost {
			t.Errorf("%+v", e)
		}
	})
}

// What is in force is told as read back, and a monitor that is killed takes all with it.
func TestConfinementIsReadBack(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		spec := w.spec(t, level, "exec sleep 1000")
		spec.Limits.Memory = 256 << 20
		p := start(t, l, spec)
		c := p.Confinement()
		if c.Level != level || c.OwnUser != (w.uid >= 0) || !slices.ContainsFunc(c.Enforced, func(s string) bool { return strings.Contains(s, "268435456") }) {
			t.Errorf("%+v", c)
		}
		q, err := sandbox.Attach(deadline(t), spec.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		if got := q.Confinement(); !slices.Equal(got.Enforced, c.Enforced) || !slices.Equal(got.Open, c.Open) {
			t.Errorf("%+v, attached %+v", c, got)
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
		if err != nil || !strings.Contains(string(b), "Seccomp:\t2") {
			t.Errorf("%s %v", b, err)
		}
		program := held(t, p.PID())
		if err := syscall.Kill(p.MonitorPID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if e := wait(t, p); !e.Lost {
			t.Errorf("%+v", e)
		}
		if !gone(t, program, patience) {
			t.Error("the program lives on")
		}
		if e, ok, err := sandbox.ReadExit(spec.StateDir); err != nil || !ok || !e.Lost {
			t.Errorf("%+v %v %v", e, ok, err)
		}
	})
}

func TestWhatALevelCantGiveIsRefused(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	w := newWorld(t)
	for name, c := range map[string]struct {
		level  sandbox.Level
		change func(*sandbox.Spec)
		want   string
	}{
		"a listener inside at limited": {sandbox.Limited, func(s *sandbox.Spec) { s.Listen = []sandbox.Listen{{Name: "x", Port: 1}} }, "no network of its own"},
		"a tiny memory limit":          {sandbox.Strict, func(s *sandbox.Spec) { s.Limits.Memory = 5 }, "at least"},
		"a huge memory limit":          {sandbox.Strict, func(s *sandbox.Spec) { s.Limits.Memory = 1 << 60 }, "at most"},
		"a negative memory limit":      {sandbox.Strict, func(s *sandbox.Spec) { s.Limits.Memory = -1 }, "negative"},
		"few processes":                {sandbox.Strict, func(s *sandbox.Spec) { s.Limits.PIDs = 15 }, "at least"},
		"too many processes":           {sandbox.Strict, func(s *sandbox.Spec) { s.Limits.PIDs = 1 << 30 }, "at most"},
		"a trace of a processor":       {sandbox.Strict, func(s *sandbox.Spec) { s.Limits.CPU = 9 }, "at least"},
		"too many processors":          {sandbox.Strict, func(s *sandbox.Spec) { s.Limits.CPU = 1 << 40 }, "at most"},
		"the root as a target":         {sandbox.Strict, func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Source: "/", Target: "/"}} }, "below the root"},
		"a missing source":             {sandbox.Strict, func(s *sandbox.Spec) { s.Binds = []sandbox.Bind{{Source: "/nowhere", Target: "/x"}} }, "/nowhere"},
		"a missing program":            {sandbox.Strict, func(s *sandbox.Spec) { s.Path = "/nowhere" }, "/nowhere"},
		"a program out of reach":       {sandbox.Limited, func(s *sandbox.Spec) { s.Binds = s.Binds[len(s.Binds)-3:] }, "/bin/sh"},
	} {
		t.Run(name, func(t *testing.T) {
			need(t, l, c.level)
			spec := w.spec(t, c.level, "true")
			c.change(&spec)
			if p, err := l.Start(deadline(t), spec); err == nil {
				end(t, p)
				t.Error("it started")
			} else if !errors.Is(err, sandbox.ErrStart) || !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}
	if os.Geteuid() == 0 {
		for _, level := range confined {
			spec := w.spec(t, level, "true")
			spec.UID, spec.GID = -1, -1
			if _, err := l.Start(deadline(t), spec); err == nil || !strings.Contains(err.Error(), "as root") {
				t.Errorf("%s as root: %v", level, err)
			}
		}
	}
}

// Limits hold for all inside together where the kernel counts so.
func TestProcessLimit(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Strict)
	w := newWorld(t)
	script := "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do sleep 1000 & done 2>/dev/null; ls -d /proc/[0-9]* | wc -l"
	for limit, enough := range map[int64]bool{0: true, 20: false} {
		spec := w.spec(t, sandbox.Strict, script)
		spec.Limits.PIDs = limit
		out := output(t, &spec)
		p := start(t, l, spec)
		if enough {
			if n, err := strconv.Atoi(line(t, out)); err != nil || n < 30 {
				t.Errorf("without a limit: %d processes %v", n, err)
			}
			continue
		}
		wait(t, p) // a shell that can't fork any more gives up
		if e := p.Exit(); e.Code == 0 {
			t.Errorf("limit of %d: %+v", limit, e)
		}
	}
}

// A monitor that waits sees what was mounted after it was started.
func TestMountsMadeLaterAreSeen(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	l := newLauncher(t, sandbox.LauncherOptions{Level: sandbox.Strict})
	need(t, l, sandbox.Strict)
	w := newWorld(t)
	said(t, l, w.spec(t, sandbox.Strict, "true"))
	for len(l.WarmPIDs()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := unix.Mount("tmpfs", w.mount, "tmpfs", 0, "mode=0777"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(w.mount, unix.MNT_DETACH) })
	later := filepath.Join(w.mount, "later")
	if err := errors.Join(os.WriteFile(later, []byte("later\n"), 0o644), os.Chmod(later, 0o644)); err != nil {
		t.Fatal(err)
	}
	if got := said(t, l, w.spec(t, sandbox.Strict, "cat mount/later")); got != "later" {
		t.Errorf("%q", got)
	}
}

// The levels are the same for an ordinary user: under root their tests run once more as one.
func TestAsAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("this is an ordinary user")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "otters-user-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const user = 60700
	tmp := filepath.Join(dir, "tmp")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, user, user)); err != nil {
		t.Fatal(err)
	}
	program := copyProgram(t, self, filepath.Join(dir, "tests"))
	ctx, cancel := context.WithTimeout(t.Context(), suiteTime)
	defer cancel()
	c := exec.CommandContext(ctx, program, "-test.run",
		"^Test(FilesOutside|ProcessesOutside|CallsAreFiltered|NothingLeaksIn|StrictSees|FilesBelong|MountDoesNot|ListenerInside|PortsAt|NothingInside|ConfinementIs|WhatALevel|ProcessLimit)", "-test.v")
	c.Dir = dir
	c.Env = []string{
		"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, "GORACE=atexit_sleep_ms=0",
		"OTTERS_TEST_MONITOR=" + copyProgram(t, monitorPath, filepath.Join(dir, "otters-sandbox")),
	}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "--- PASS"); n < 50 {
		t.Errorf("%d tests passed:\n%s", n, out)
	}
}
