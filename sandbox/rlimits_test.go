//go:build linux

package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/otters-sh/otters/sandbox"
)

// Invariant: whatever starts a program, and at whatever level, each of its processes has the limits
// that docs/security.md names, can't raise them, and Confinement tells them as the kernel does. The
// three worst inputs: a starter with more, one with less, whose limits stand, and a program that
// tries to raise its own.
func TestEachProcessIsBounded(t *testing.T) {
	t.Parallel()
	own := limitsOf(t, os.Getpid())
	files, locked := atMost(t, own["Max open files"], 8192), atMost(t, own["Max locked memory"], 65536)
	want := []string{files, files, kib(t, locked), kib(t, locked), "0", "0", "0", "0", "64"}
	const script = `for r in n l c r; do ulimit -H$r 9000 2>&-; ulimit -S$r 9000 2>&-; ulimit -S$r; ulimit -H$r; done; (ulimit -n 64; ulimit -Hn); exec sleep 1000`
	for _, level := range []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
			need(t, l, level)
			spec := newWorld(t).spec(t, level, script)
			out := output(t, &spec)
			p := start(t, l, spec)
			var got []string
			for range 9 {
				got = append(got, line(t, out))
			}
			if !slices.Equal(got, want) {
				t.Errorf("files, KiB of locked memory, core, real-time priority, soft and hard, and fewer files: %v, want %v", got, want)
			}
			if kernel := limitsOf(t, p.PID()); kernel["Max nice priority"] != "0" || kernel["Max realtime priority"] != "0" || kernel["Max locked memory"] != locked {
				t.Errorf("the kernel's: %v", kernel)
			}
			told(t, p, "each of its processes has at most "+files+" files open, locks at most "+kib(t, locked)+" KiB of memory, dumps no core and can't raise its priority")
			end(t, p)
		})
	}
}

// A starter that has less than a program would get passes that on.
func TestALowerLimitOfTheStarterStands(t *testing.T) {
	t.Parallel()
	own := limitsOf(t, os.Getpid())
	files, locked := atMost(t, own["Max open files"], 300), kib(t, atMost(t, own["Max locked memory"], 16<<10))
	wrapped := writeProgram(t, filepath.Join(t.TempDir(), "monitor"),
		fmt.Appendf(nil, "#!/bin/sh\nulimit -n %s; ulimit -l %s; exec '%s'\n", files, locked, monitorPath))
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1, Monitor: wrapped})
	spec := shell(t, `ulimit -Hn; ulimit -Hl; exec sleep 1000`)
	out := output(t, &spec)
	p := start(t, l, spec)
	if f, l := line(t, out), line(t, out); f != files || l != locked {
		t.Errorf("%s files, %s KiB, want %s and %s", f, l, files, locked)
	}
	told(t, p, "each of its processes has at most "+files+" files open, locks at most "+locked+" KiB of memory, dumps no core and can't raise its priority")
	end(t, p)
}

// told wants a sentence in what is enforced, once.
func told(t *testing.T, p *sandbox.Process, want string) {
	t.Helper()
	c := p.Confinement()
	about := slices.DeleteFunc(slices.Clone(c.Enforced), func(s string) bool { return !strings.HasPrefix(s, "each of its processes") })
	if !slices.Equal(about, []string{want}) {
		t.Errorf("told %q, want %q", about, want)
	}
}

// atMost is n, or a limit of this process that is lower: it stands.
func atMost(t *testing.T, own string, n int) string {
	t.Helper()
	if own != "unlimited" {
		m, err := strconv.Atoi(own)
		if err != nil {
			t.Fatal(err)
		}
		n = min(n, m)
	}
	return strconv.Itoa(n)
}

// kib is a number of bytes in KiB.
func kib(t *testing.T, bytes string) string {
	t.Helper()
	n, err := strconv.Atoi(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(n >> 10)
}

// limitsOf are the hard limits of a process by their names in proc_pid_limits(5).
func limitsOf(t *testing.T, pid int) map[string]string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l[25:]); len(f) > 1 {
			all[strings.TrimSpace(l[:25])] = f[1]
		}
	}
	return all
}
