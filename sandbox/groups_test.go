//go:build linux

package sandbox_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/sandbox/internal/cgroup"
)

// Invariants of limits: what is over one is stopped by the kernel, beside the same program that is
// under it; what can't be enforced does not start; a group is gone with its program. The three worst
// inputs: many processes that are small each, a program that outlives its monitor in a session of its
// own, and a daemon that dies between making a group and using it.

var allLevels = []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict}

// grouped runs a test at every level of a host that has a control group for what.
func grouped(t *testing.T, what string, f func(t *testing.T, l *sandbox.Launcher, level sandbox.Level)) {
	t.Helper()
	for _, level := range allLevels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
			need(t, l, level)
			needGroup(t, what)
			f(t, l, level)
		})
	}
}

// needGroup skips where the host has no group for what, which is a failure where it was delegated.
func needGroup(t *testing.T, what string) {
	t.Helper()
	if err := cgroup.Find().Lacks(what); err != nil {
		if os.Getenv(delegatedVariable) != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// groupPaths are the folders of a program's control groups.
func groupPaths(t *testing.T, pid int) []string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	return ourGroups(string(b))
}

func ourGroups(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "/"+cgroup.Prefix) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// recorded are the folders of groups that the state folder tells of.
func recorded(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, part := range strings.Split(string(b), `"path":"`)[1:] {
		path, _, _ := strings.Cut(part, `"`)
		if _, err := os.Stat(path); err == nil {
			all = append(all, path)
		}
	}
	return all
}

// mechanismOf is how a limit of a running program is enforced, with its value.
func mechanismOf(p *sandbox.Process, name string) (string, int64) {
	for _, l := range p.Confinement().Limits {
		if l.Name == name {
			return l.Mechanism, l.Value
		}
	}
	return "", 0
}

// K7: memory over the limit is the end of the program, and is told as such.
func TestLimitsOfMemoryHold(t *testing.T) {
	t.Parallel()
	grouped(t, cgroup.Memory, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		for _, c := range []struct {
			limit  int64
			killed bool
		}{{48 << 20, true}, {1 << 30, false}} {
			w := newWorld(t)
			// It waits until its limit was looked at, since the group goes with it.
			goOn := filepath.Join(w.work, "go")
			if err := errors.Join(unix.Mkfifo(goOn, 0o666), os.Chmod(goOn, 0o666)); err != nil {
				t.Fatal(err)
			}
			spec := w.spec(t, level, "read y < go; x=0123456789abcdef; i=0; while [ $i -lt 22 ]; do x=$x$x; i=$((i+1)); done; echo ${#x}")
			spec.Limits.Memory = c.limit
			out := output(t, &spec)
			p := start(t, l, spec)
			if how, n := mechanismOf(p, sandbox.LimitMemory); !strings.HasPrefix(how, "cgroup v") || n != c.limit {
				t.Errorf("%d bytes by %q", n, how)
			}
			if err := os.WriteFile(goOn, []byte("now\n"), 0); err != nil {
				t.Fatal(err)
			}
			if !c.killed {
				if n := line(t, out); n != "67108864" {
					t.Errorf("within the limit: %q", n)
				}
			}
			if e := wait(t, p); e.OutOfMemory != c.killed || (e.Signal == "SIGKILL") != c.killed || (e.Code == 0) == c.killed {
				t.Errorf("limit of %d: %+v", c.limit, e)
			}
			if e, ok, err := sandbox.ReadExit(spec.StateDir); err != nil || !ok || e.OutOfMemory != c.killed {
				t.Errorf("record: %+v %v %v", e, ok, err)
			}
			if left := recorded(t, spec.StateDir); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		}
	})
}

// A kill that somebody asked for is none of the kernel's, however much memory was used.
func TestLimitsTellWhoKilled(t *testing.T) {
	t.Parallel()
	grouped(t, cgroup.Memory, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		spec := w.spec(t, level, "echo up; exec sleep 1000")
		spec.Limits.Memory = 64 << 20
		out := output(t, &spec)
		p := start(t, l, spec)
		line(t, out)
		if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if e := wait(t, p); e.Signal != "SIGKILL" || e.OutOfMemory {
			t.Errorf("%+v", e)
		}
	})
}

// K7: a program that forks comes to its limit, whatever it starts in sessions of its own.
func TestLimitsOfProcessesHold(t *testing.T) {
	t.Parallel()
	const wanted = 40
	script := "i=0; while [ $i -lt " + strconv.Itoa(wanted) + " ]; do (setsid sleep 1000 & exit 0) 2>/dev/null || break; i=$((i+1)); done; echo $i; sleep 1000"
	grouped(t, cgroup.PIDs, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		for _, c := range []struct {
			limit int64
			all   bool
		}{{20, false}, {200, true}} {
			w := newWorld(t)
			spec := w.spec(t, level, script)
			spec.Limits.PIDs = c.limit
			out := output(t, &spec)
			p := start(t, l, spec)
			if how, n := mechanismOf(p, sandbox.LimitPIDs); !strings.HasPrefix(how, "cgroup v") || n != c.limit {
				t.Errorf("%d processes by %q", n, how)
			}
			s, err := out.ReadString('\n') // a shell that can't fork may give up
			n, _ := strconv.Atoi(strings.TrimSpace(s))
			if got := err == nil && n == wanted; got != c.all || n > wanted {
				t.Errorf("limit of %d: %d ran, %v", c.limit, n, err)
			}
			end(t, p)
			if left := recorded(t, spec.StateDir); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		}
	})
}

// A share of the processors is given out and no more: a program that wants all of one is held up.
func TestLimitsOfProcessorsHold(t *testing.T) {
	t.Parallel()
	grouped(t, cgroup.CPU, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		for _, c := range []struct {
			limit int64
			held  bool
		}{{50, true}, {4000, false}} {
			w := newWorld(t)
			spec := w.spec(t, level, "while :; do :; done")
			spec.Limits.CPU = c.limit
			p := start(t, l, spec)
			if how, n := mechanismOf(p, sandbox.LimitCPU); !strings.HasPrefix(how, "cgroup v") || n != c.limit {
				t.Errorf("%d thousandths by %q", n, how)
			}
			for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
				periods, throttled := throttling(t, recorded(t, spec.StateDir))
				if c.held && throttled > 0 || !c.held && periods > 3 {
					if (throttled > 0) != c.held {
						t.Errorf("limit of %d: held up in %d of %d periods", c.limit, throttled, periods)
					}
					break
				}
				if time.Now().After(end) {
					t.Fatalf("limit of %d: held up in %d of %d periods", c.limit, throttled, periods)
				}
			}
			end(t, p)
		}
	})
}

func throttling(t *testing.T, paths []string) (periods, throttled int) {
	t.Helper()
	for _, path := range paths {
		b, err := os.ReadFile(filepath.Join(path, "cpu.stat"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			_, _ = fmt.Sscanf(line, "nr_periods %d", &periods)
			_, _ = fmt.Sscanf(line, "nr_throttled %d", &throttled)
		}
	}
	return periods, throttled
}

// Listeners that the monitor opens inside do not come in place of the files of the group.
func TestLimitsBesideListenersInside(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Strict)
	needGroup(t, cgroup.PIDs)
	spec := newWorld(t).spec(t, sandbox.Strict, "exec sleep 1000")
	spec.Limits = sandbox.Limits{PIDs: 64}
	spec.Listen = []sandbox.Listen{{Name: "a", Port: 5528}, {Name: "b", Port: 5529}, {Name: "c", Port: 5530}}
	p := start(t, l, spec)
	files, err := p.Files(deadline(t))
	for _, f := range files {
		defer f.Close()
	}
	if err != nil || len(files) != len(spec.Listen) || len(groupPaths(t, p.PID())) == 0 {
		t.Errorf("%d files, %v; groups %v", len(files), err, groupPaths(t, p.PID()))
	}
	end(t, p)
}

// The monitor is not what is limited, nor in what is killed.
func TestLimitsLeaveTheMonitorAlone(t *testing.T) {
	t.Parallel()
	grouped(t, cgroup.PIDs, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		spec := w.spec(t, level, "echo up; exec sleep 1000")
		spec.Limits = sandbox.Limits{PIDs: 50}
		out := output(t, &spec)
		p := start(t, l, spec)
		line(t, out)
		if in := groupPaths(t, p.PID()); len(in) == 0 {
			t.Error("the program is in no group")
		}
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/cgroup", p.MonitorPID()))
		if err != nil || len(tasks) == 0 {
			t.Fatal(tasks, err)
		}
		own := groupPaths(t, os.Getpid())
		for _, task := range tasks {
			b, err := os.ReadFile(task)
			if err == nil && !slices.Equal(ourGroups(string(b)), own) {
				t.Errorf("%s:\n%s", task, b)
			}
		}
	})
}

// Where there are no control groups, rlimits stand in at the levels that have them, and say so; what
// they can't do is refused.
func TestLimitsWithoutGroups(t *testing.T) {
	t.Parallel()
	root := os.Geteuid() == 0
	all := sandbox.Limits{Memory: 256 << 20, PIDs: 200, CPU: 500}
	for _, level := range allLevels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
			need(t, l, level)
			l.WithoutGroups()
			w := newWorld(t)
			for what, c := range map[string]struct {
				limits sandbox.Limits
				had    bool
			}{
				sandbox.LimitMemory: {sandbox.Limits{Memory: all.Memory}, level != sandbox.Off},
				sandbox.LimitPIDs:   {sandbox.Limits{PIDs: all.PIDs}, level == sandbox.Strict || level == sandbox.Limited && root},
				sandbox.LimitCPU:    {sandbox.Limits{CPU: all.CPU}, false},
			} {
				spec := w.spec(t, level, "exec sleep 1000")
				spec.Limits = c.limits
				would, planned := l.LimitedBy(level, c.limits)
				p, err := l.Start(deadline(t), spec)
				if !c.had {
					if !errors.Is(err, sandbox.ErrUnsupported) || !errors.Is(planned, sandbox.ErrUnsupported) {
						t.Errorf("%s: %v, planned %v", what, err, planned)
					}
					if err == nil {
						end(t, p)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				got := p.Confinement().Limits
				if len(got) != 1 || got[0].Name != what || got[0].Mechanism != "rlimit" || planned != nil || len(would) != 1 || would[0] != got[0] {
					t.Errorf("%s: %+v, planned %+v %v", what, got, would, planned)
				}
				end(t, p)
			}
		})
	}
}

// K7: a program can't lift its own limits, but at off where it is the user who set them.
func TestLimitsCanNotBeLifted(t *testing.T) {
	t.Parallel()
	grouped(t, cgroup.PIDs, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		spec := w.spec(t, level, `echo up; while ! [ -s go ]; do sleep 0.01; done; read p <go
			(echo 1000 >$p/pids.max) 2>/dev/null && echo lifted || echo denied; (echo $$ >${p%/*}/cgroup.procs || echo $$ >${p%/*}/otters-daemon/cgroup.procs) 2>/dev/null && echo left || echo denied; exec sleep 1000`)
		spec.Limits.PIDs = 100
		out := output(t, &spec)
		p := start(t, l, spec)
		line(t, out)
		var path string
		for _, r := range recorded(t, spec.StateDir) {
			if _, err := os.Stat(filepath.Join(r, "pids.max")); err == nil {
				path = r
			}
		}
		ready := filepath.Join(w.work, "ready")
		if err := errors.Join(os.WriteFile(ready, []byte(path+"\n"), 0o644), os.Rename(ready, filepath.Join(w.work, "go"))); err != nil {
			t.Fatal(err)
		}
		lifts := level == sandbox.Off && w.uid < 0
		if got := line(t, out); (got == "lifted") != lifts {
			t.Errorf("its limit was %s", got)
		}
		if got := line(t, out); (got == "left") != lifts {
			t.Errorf("its group was %s", got)
		}
		if _, n := mechanismOf(p, sandbox.LimitPIDs); (n == 100) == lifts {
			t.Errorf("limit of %d", n)
		}
		if says := strings.Contains(strings.Join(p.Confinement().Open, "\n"), "can lift them"); says != lifts {
			t.Errorf("%q", p.Confinement().Open)
		}
	})
}

// A group of version 2 takes the program alone, by whichever way it came into it: cloned, or forked
// while the monitor was in it.
func TestAGroupOfVersion2HoldsTheProgramAlone(t *testing.T) {
	t.Parallel()
	grouped(t, cgroup.Kill, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		spec := w.spec(t, level, "setsid sleep 1000 & echo up; exec sleep 1000")
		out := output(t, &spec)
		p, err := l.StartGrouped(deadline(t), spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(t, p) })
		line(t, out)
		paths := recorded(t, spec.StateDir)
		if len(paths) != 1 {
			t.Fatalf("groups %q", paths)
		}
		b, err := os.ReadFile(filepath.Join(paths[0], "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		if in := strings.Fields(string(b)); len(in) != 2 || !strings.Contains(" "+strings.Join(in, " ")+" ", fmt.Sprintf(" %d ", p.PID())) {
			t.Errorf("in the group: %q, the program is %d", in, p.PID())
		}
		if err := os.WriteFile(filepath.Join(paths[0], "cgroup.kill"), []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		if e := wait(t, p); e.Signal != "SIGKILL" || e.Lost || e.OutOfMemory {
			t.Errorf("%+v", e)
		}
		if left := recorded(t, spec.StateDir); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
}
