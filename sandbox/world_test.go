//go:build linux

package sandbox_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/otters-sh/otters/sandbox"
)

// agentUser is whom tests under root run programs as.
const agentUser = 60600

// world is a tree like an agent's, with something outside of it to reach for.
type world struct {
	dir, work, etc, mount, frozen, secret string
	uid                                   int
}

// newWorld makes folders that the program's user may pass into.
func newWorld(t *testing.T) world {
	t.Helper()
	dir, err := os.MkdirTemp("", "otters-world-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := world{dir: dir, uid: -1}
	if os.Geteuid() == 0 {
		w.uid = agentUser
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]*string{"work": &w.work, "etc": &w.etc, "mount": &w.mount, "frozen": &w.frozen} {
		*to = filepath.Join(dir, name)
		if err := os.Mkdir(*to, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*to, "file"), []byte(name+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		// All of it is the program's by its mode: only the level stands in its way.
		if err := errors.Join(os.Chmod(*to, 0o777), os.Chmod(filepath.Join(*to, "file"), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	w.secret = filepath.Join(dir, "secret")
	if err := errors.Join(os.WriteFile(w.secret, []byte("secret\n"), 0o666), os.Chmod(w.secret, 0o666)); err != nil {
		t.Fatal(err)
	}
	return w
}

// hostPrograms are what dynamically linked programs of the host need.
func hostPrograms() []sandbox.Bind {
	var all []sandbox.Bind
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64"} {
		if _, err := os.Stat(dir); err == nil {
			all = append(all, sandbox.Bind{Source: dir, Target: dir, ReadOnly: true})
		}
	}
	return all
}

// spec runs a script in w at level. Inside, the folders have their names below the root at strict,
// and those of the host at limited.
func (w world) spec(t *testing.T, level sandbox.Level, script string) sandbox.Spec {
	t.Helper()
	s := shell(t, script)
	s.Level, s.UID, s.GID = level, w.uid, w.uid
	s.Dir = w.at(level, "work")
	s.Binds = append(hostPrograms(),
		sandbox.Bind{Source: w.etc, Target: "/etc", ReadOnly: true},
		sandbox.Bind{Source: w.work, Target: "/own"},
		sandbox.Bind{Source: w.mount, Target: "/own/mount"},
		sandbox.Bind{Source: w.frozen, Target: "/own/frozen", ReadOnly: true})
	return s
}

// at is where the program sees a folder of the world.
func (w world) at(level sandbox.Level, name string) string {
	if level != sandbox.Strict {
		return filepath.Join(w.dir, name)
	}
	switch name {
	case "work":
		return "/own"
	case "etc":
		return "/etc"
	case "mount", "frozen":
		return "/own/" + name
	}
	return filepath.Join(w.dir, name)
}

func need(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
	t.Helper()
	if err := l.Lacks(level); err != nil {
		t.Skip(err)
	}
}

// said runs spec to its end and returns what it wrote to standard output.
func said(t *testing.T, l *sandbox.Launcher, spec sandbox.Spec) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	spec.Stdout = w
	p := start(t, l, spec)
	w.Close()
	out := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r)
		out <- string(b)
	}()
	if e := wait(t, p); e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
	return strings.TrimSpace(<-out)
}

var confined = []sandbox.Level{sandbox.Limited, sandbox.Strict}

// each runs a test at every level that confines.
func each(t *testing.T, f func(t *testing.T, l *sandbox.Launcher, level sandbox.Level)) {
	t.Helper()
	for _, level := range confined {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
			need(t, l, level)
			f(t, l, level)
		})
	}
}

func copyProgram(t *testing.T, from, to string) string {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	return writeProgram(t, to, b)
}

// writeProgram writes a program. No process is forked meanwhile, which would have it open for writing
// until its own program runs, and so keep this one from being run.
func writeProgram(t *testing.T, path string, b []byte) string {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := errors.Join(os.WriteFile(path, b, 0o755), os.Chmod(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// running lists the command lines of the host's processes that hold mark.
func running(t *testing.T, mark string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), mark) {
			all = append(all, string(b))
		}
	}
	return all
}
