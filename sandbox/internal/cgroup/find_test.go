//go:build linux

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Invariants: a group is looked for only where this process is, and only of hierarchies whose part
// with this process is mounted. The three worst inputs: a container that sees a part of a hierarchy, a
// mount point with a space, and a group that is outside of what is mounted.
//
// The files here are plain ones in a temporary folder, so this is the logic of paths alone; what the
// kernel makes of them is tested by package sandbox, where the host has it.

func TestHierarchiesAreFoundWhereThisProcessIs(t *testing.T) {
	t.Parallel()
	const v1 = "33 25 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
	const v2 = "35 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	for name, c := range map[string]struct {
		mounts, own string
		want        []string // "v1 or v2, mount, home, controllers"
	}{
		"version 2":                 {v2, "0::/user.slice/a.service\n", []string{"v2 /sys/fs/cgroup /sys/fs/cgroup/user.slice/a.service "}},
		"version 2, at the top":     {v2, "0::/\n", []string{"v2 /sys/fs/cgroup /sys/fs/cgroup "}},
		"version 1 comes first":     {v2 + v1, "4:memory:/a\n0::/b\n", []string{"v1 /sys/fs/cgroup/memory /sys/fs/cgroup/memory/a memory", "v2 /sys/fs/cgroup /sys/fs/cgroup/b "}},
		"two controllers in one":    {"33 25 0:29 / /c rw - cgroup cgroup rw,cpu,cpuacct\n", "4:cpu,cpuacct:/a\n", []string{"v1 /c /c/a cpu"}},
		"a controller of no use":    {"33 25 0:29 / /c rw - cgroup cgroup rw,freezer\n", "4:freezer:/a\n", nil},
		"a named hierarchy":         {"33 25 0:29 / /c rw - cgroup cgroup rw,name=systemd\n", "4:name=systemd:/a\n", nil},
		"a container":               {"33 25 0:29 /docker/1 /c rw - cgroup cgroup rw,pids\n", "4:pids:/docker/1\n", []string{"v1 /c /c pids"}},
		"below a container":         {"33 25 0:29 /docker/1 /c rw - cgroup cgroup rw,pids\n", "4:pids:/docker/1/x\n", []string{"v1 /c /c/x pids"}},
		"beside a container":        {"33 25 0:29 /docker/1 /c rw - cgroup cgroup rw,pids\n", "4:pids:/docker/12\n", nil},
		"outside of the namespace":  {v2, "0::/../..\n", nil},
		"a space in the mount":      {"33 25 0:29 / /c\\040d rw - cgroup2 cgroup2 rw\n", "0::/a\n", []string{"v2 /c d /c d/a "}},
		"another file system":       {"33 25 0:29 / /c rw - tmpfs cgroup rw,memory\n", "4:memory:/a\n", nil},
		"nothing that can be read":  {"cgroup2\n - \n1 2 3 - cgroup2\n", "x\n::\n", nil},
		"mounted, and not entered":  {v1, "0::/\n", nil},
		"no line of the version":    {v2, "4:memory:/a\n", nil},
		"an empty answer":           {"", "", nil},
		"a controller with a colon": {v2, "0::/a:b\n", []string{"v2 /sys/fs/cgroup /sys/fs/cgroup/a:b "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, h := range hierarchies("", c.mounts, c.own) {
				v := "v1"
				if h.v2 {
					v = "v2"
				}
				got = append(got, v+" "+h.mount+" "+h.home+" "+strings.Join(h.controllers, ","))
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// fake is a group of version 2 as a folder.
func fake(t *testing.T, dir, procs, controllers string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.procs": procs, "cgroup.controllers": controllers, "cgroup.subtree_control": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func content(t *testing.T, elem ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestOnlyAProcessThatIsAloneMoves(t *testing.T) {
	t.Parallel()
	self := strconv.Itoa(os.Getpid())
	for name, c := range map[string]struct {
		procs, controllers string
		moves              bool
	}{
		"alone":          {self + "\n", "cpu io memory pids\n", true},
		"with another":   {"1\n" + self + "\n", "cpu io memory pids\n", false},
		"not there":      {"1\n", "cpu io memory pids\n", false},
		"no controllers": {self + "\n", "\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			fake(t, home, c.procs, c.controllers)
			fake(t, filepath.Join(home, leaf), "", "")
			m := hierarchy{v2: true, mount: filepath.Dir(home), home: home}
			err := divide(&m, []string{Memory, PIDs, CPU})
			if (err == nil) != c.moves {
				t.Fatal(err)
			}
			procs, control := content(t, home, leaf, "cgroup.procs"), content(t, home, "cgroup.subtree_control")
			if c.moves && (procs != self || control != "+memory +pids +cpu" || m.home != filepath.Join(home, leaf)) ||
				!c.moves && (procs != "" || control != "" || m.home != home) {
				t.Errorf("processes %q, control %q, home %s", procs, control, m.home)
			}
		})
	}
}

func TestOnlyControllersThatAreThereAreEnabled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fake(t, dir, "", "memory io\n")
	if err := enable(dir, []string{Memory, PIDs, CPU}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, dir, "cgroup.subtree_control"); got != "+memory" {
		t.Errorf("%q", got)
	}
	if err := enable(dir, []string{PIDs}); err == nil {
		t.Error("a controller that is not there")
	}
	if delegated(dir, 0) {
		t.Error("nobody has delegated it")
	}
}

// What can't be had is told with the group it was looked for in. The three worst inputs: a group that is
// nobody's to divide, one that others are in, and a kernel that has some of the controllers.
func TestWhatLacksIsToldWithItsReason(t *testing.T) {
	t.Parallel()
	const mounts = "35 25 0:30 / /cg rw - cgroup2 cgroup2 rw\n"
	for name, c := range map[string]struct {
		own, procs, controllers string
		uid                     int
		memory, pids            string
	}{
		"not delegated":   {"/a.scope", "", "memory pids", 60703, "/cg/a.scope: it is not delegated to this user", "/cg/a.scope: it is not delegated to this user"},
		"others in it":    {"/", "1\n2\n", "memory pids", 60703, "/cg: other processes are in the group", "/cg: other processes are in the group"},
		"no controllers":  {"/a.scope", "", "", 0, "/cg: it has no controller", "/cg: it has no controller"},
		"no memory there": {"/a.scope", "", "pids", 0, "/cg/otters: it has no memory", "/cg/otters: it has no pids"}, // files of it a folder does not get
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := t.TempDir()
			fake(t, filepath.Join(at, "cg"), c.procs, c.controllers)
			fake(t, filepath.Join(at, "cg", c.own), c.procs, c.controllers)
			fake(t, filepath.Join(at, "cg", "otters"), "", c.controllers)
			h := find(at, mounts, "0::"+c.own+"\n", c.uid)
			for what, want := range map[string]string{Memory: c.memory, PIDs: c.pids} {
				if err := h.Lacks(what); err == nil || !strings.HasSuffix(err.Error(), want) {
					t.Errorf("%s: %v, want %s", what, err, want)
				}
			}
		})
	}
}

// A group is a user's to divide where it was given to that user; one that lies below another of the
// user's is whoever's manages that one.
func TestAGroupThatAUserWasGivenIsDelegated(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder away")
	}
	const user = 60702
	given := filepath.Join(t.TempDir(), "given")
	below := filepath.Join(given, "below")
	if err := errors.Join(os.MkdirAll(below, 0o755), os.Chown(given, user, user), os.Chown(below, user, user)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir  string
		uid  int
		want bool
	}{{given, user, true}, {below, user, false}, {given, user + 1, false}, {given, 0, false}, {filepath.Dir(given), 0, false}, {filepath.Join(given, "missing"), user, false}} {
		if got := delegated(c.dir, c.uid); got != c.want {
			t.Errorf("%s to %d: %v", c.dir, c.uid, got)
		}
	}
}

// The files of version 2, written and read back as plain ones.
func TestLimitsOfVersion2(t *testing.T) {
	t.Parallel()
	p := part{V2: true, Path: t.TempDir(), Limits: Limits{Memory: 1 << 29, PIDs: 64, CPU: 1500}}
	for _, name := range []string{"memory.max", "memory.swap.max", "pids.max", "cpu.max"} {
		if err := os.WriteFile(filepath.Join(p.Path, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for what, n := range p.Limits {
		if err := p.limit(what, n); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"memory.max": "536870912", "memory.swap.max": "0", "pids.max": "64", "cpu.max": "150000 100000"} {
		if got := content(t, p.Path, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	g := Group{Parts: []part{p}}
	read, err := g.Read()
	if err != nil || read[Memory] != 1<<29 || read[PIDs] != 64 || read[CPU] != 1500 || !g.Swap() || g.Version(CPU) != 2 {
		t.Errorf("%v %v", read, err)
	}
	for name, text := range map[string]string{"memory.max": "max\n", "pids.max": "max\n", "cpu.max": "max 100000\n"} {
		if err := os.WriteFile(filepath.Join(p.Path, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read, err := g.Read(); err != nil || read[Memory] != -1 || read[PIDs] != -1 || read[CPU] != -1 {
		t.Errorf("lifted: %v %v", read, err)
	}
}
