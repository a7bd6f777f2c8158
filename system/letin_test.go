package system_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/system"
)

// Invariant: an agent starts under its own user whatever the umask of the daemon that made its folders.
// Worst inputs: the folder of an agent that nobody passes through, a tree of which only some folders are
// closed, and a folder made ahead by such a daemon.
func TestWhatATightUmaskClosedIsOpenedAgain(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only agents of a root daemon have users of their own")
	}
	dir := host(t)
	first := provider(t, dir, plain, system.WithSandbox(sandbox.Off))
	a := created(t, first, nil, role("serve"))
	running(t, a)
	if err := a.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	ahead := madeAhead(t, dir)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, a.UUID().String())
	for _, name := range []string{"", "root/etc", "root/etc/context", "root/usr", "root/var"} {
		if err := os.Chmod(filepath.Join(home, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range ahead {
		if err := errors.Join(os.Chmod(name, 0o700), os.Chmod(filepath.Join(name, "root.new", "etc"), 0o700)); err != nil {
			t.Fatal(err)
		}
	}

	second := provider(t, dir, plain, system.WithSandbox(sandbox.Off))
	all, err := second.Load(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%d agents, %v", len(all), err)
	}
	running(t, all[0].(*system.Agent))
	next := created(t, second, nil, role("serve"))
	running(t, next)
	for _, name := range []string{home, filepath.Join(dir, next.UUID().String())} {
		for sub, want := range map[string]os.FileMode{"": 0o711, "state": 0o700, "root": 0o750, "root/etc": 0o755, "root/usr": 0o755} {
			if info, err := os.Stat(filepath.Join(name, sub)); err != nil {
				t.Error(err)
			} else if info.Mode().Perm() != want {
				t.Errorf("%s/%s: %v, want %v", name, sub, info.Mode(), want)
			}
		}
	}
	if s := next.Status(); s != executor.StatusReady {
		t.Errorf("made of a folder made ahead it is %v", s)
	}
}

// madeAhead waits for as many folders as a provider keeps ahead: the next one then makes no other.
func madeAhead(t *testing.T, dir string) []string {
	t.Helper()
	for ctx := t.Context(); ; time.Sleep(time.Millisecond) {
		whole, err := filepath.Glob(filepath.Join(dir, ".store", "blanks", "*", "state"))
		if err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
		if len(whole) < 2 {
			continue
		}
		for i := range whole {
			whole[i] = filepath.Dir(whole[i])
		}
		return whole
	}
}
