//go:build linux

package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
			if want := strings.Fields("8192 8192 64 64 0 0 0 0 64"); !slices.Equal(got, want) {
				t.Errorf("files, KiB of locked memory, core, real-time priority, soft and hard, and fewer files: %v, want %v", got, want)
			}
			if kernel := limitsOf(t, p.PID()); kernel["Max nice priority"] != "0" || kernel["Max realtime priority"] != "0" || kernel["Max locked memory"] != "65536" {
				t.Errorf("the kernel's: %v", kernel)
			}
			told(t, p, "each of its processes has at most 8192 files open, locks at most 64 KiB of memory, dumps no core and can't raise its priority")
			end(t, p)
		})
	}
}

// A starter that has less than a program would get passes that on.
func TestALowerLimitOfTheStarterStands(t *testing.T) {
	t.Parallel()
	wrapped := filepath.Join(t.TempDir(), "monitor")
	if err := os.WriteFile(wrapped, fmt.Appendf(nil, "#!/bin/sh\nulimit -n 300; ulimit -l 16; exec %q\n", monitorPath), 0o755); err != nil {
		t.Fatal(err)
	}
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1, Monitor: wrapped})
	spec := shell(t, `ulimit -Hn; ulimit -Hl; exec sleep 1000`)
	out := output(t, &spec)
	p := start(t, l, spec)
	if files, locked := line(t, out), line(t, out); files != "300" || locked != "16" {
		t.Errorf("%s files, %s KiB", files, locked)
	}
	told(t, p, "each of its processes has at most 300 files open, locks at most 16 KiB of memory, dumps no core and can't raise its priority")
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
