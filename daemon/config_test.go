package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Invariant: config.yaml does what it says or is refused with the place. Worst inputs: an unknown
// key, a key twice, a value out of range.

func TestConfigIsReadStrictly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text, want string
		ready            time.Duration
		port             int
	}{
		{name: "empty", text: "", ready: 30 * time.Second},
		{name: "both keys", text: "ready-timeout: 2s\nregistry-port: 6000\n", ready: 2 * time.Second, port: 6000},
		{name: "unknown key", text: "ready-timeout: 2s\nreadytimeout: 3s\n", want: `line 2: unknown field "readytimeout"; there are ready-timeout, registry-port, `},
		{name: "unknown key below", text: "upstreams:\n  - regstry: a.test\n", want: `line 2: unknown field "regstry"; there are registry, policy, plain-http, ca-file, hosts`},
		{name: "key twice", text: "ready-timeout: 2s\nready-timeout: 3s\n", want: "line 2"},
		{name: "not a duration", text: "\nready-timeout: 30\n", want: `line 2: "30" is not a duration`},
		{name: "too short", text: "ready-timeout: 1ns\n", want: "not from 10ms to 1h"},
		{name: "port 0", text: "registry-port: 0\n", want: "not from 1 to 65535"},
		{name: "port too large", text: "registry-port: 65536\n", want: "not from 1 to 65535"},
		{name: "log sizes", text: "log-max-size: 64KiB\nlog-files: 2\n", ready: 30 * time.Second},
		{name: "no size", text: "log-max-size: big\n", want: `line 1: "big" is not a size such as 10MiB`},
		{name: "size of too much", text: "log-max-size: 9999999999GiB\n", want: "is not a size"},
		{name: "log too small", text: "log-max-size: 1KiB\n", want: "log-max-size: 1024 bytes are not from 64KiB"},
		{name: "one log file", text: "log-files: 1\n", want: "log-files: 1 is not from 2 to 100"},
		{name: "starts", text: "max-starts: 1\n", ready: 30 * time.Second},
		{name: "no starts", text: "max-starts: 0\n", want: "max-starts: 0 is not from 1 to 10000"},
		{name: "two documents", text: "ready-timeout: 2s\n---\nready-timeout: 3s\n", want: "more than one document"},
		{name: "a level", text: "sandbox: limited\n", ready: 30 * time.Second},
		{name: "no level", text: "sandbox: lax\n", want: `sandbox: "lax" is not off, limited or strict`},
		{name: "a list", text: "- a\n", want: "line 1: found a list; want a setting"},
		{name: "no list", text: "upstreams: 3\n", want: `line 1: found "3"; want a list of registries`},
		{name: "no truth value", text: "upstreams:\n  - plain-http: maybe\n", want: `line 2: found "maybe"; want true or false`},
		{name: "no number", text: "log-files: [1]\n", want: "line 1: found a list; want a whole number"},
		{name: "a key of two lines", text: "\"a\\nb\": 1\n", want: `unknown field "a\nb"; there are `},
		{name: "too large", text: strings.Repeat("#\n", maxConfigBytes), want: "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := readSettings(path)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("got %q, want one line with %q", err, c.want)
				}
				return
			}
			if err != nil || got.readyTimeout != c.ready || got.registryPort != c.port {
				t.Fatalf("got %+v, %v", got, err)
			}
		})
	}
}

// Nobody writes into a named pipe, so what waits for it waits for ever.
func TestAPipeInPlaceOfAnOperatorsFileIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	_, config := readSettings(path)
	_, authorities := readAuthorities(path)
	for what, err := range map[string]error{"configuration": config, "authorities": authorities} {
		if err == nil || !strings.Contains(err.Error(), path+": a named pipe and no file; put a file in its place") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAMissingConfigIsTheDefaults(t *testing.T) {
	t.Parallel()
	if got, err := readSettings(filepath.Join(t.TempDir(), "none.yaml")); err != nil || got.readyTimeout != 30*time.Second {
		t.Fatalf("got %+v, %v", got, err)
	}
}

// Invariant: one daemon per home, and nothing in it open to others. Worst inputs: a second daemon, a
// file in the place of a folder, loose modes.

// testHome is a new home that agents' users can reach.
func testHome(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "home")
}

func TestK17ASecondDaemonIsRefusedWithThePidOfTheFirst(t *testing.T) {
	t.Parallel()
	dir := testHome(t)
	first, err := openHome(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = openHome(dir)
	if !errors.Is(err, ErrHomeInUse) || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
		t.Fatalf("got %v, want ErrHomeInUse with the pid", err)
	}
	if err := first.release(); err != nil {
		t.Fatal(err)
	}
	again, err := openHome(dir)
	if err != nil {
		t.Fatalf("after the first has gone: %v", err)
	}
	_ = again.release()
}

func TestK15ModesOfTheHome(t *testing.T) {
	t.Parallel()
	dir := testHome(t)
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	h, err := openHome(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer h.release()
	for name, want := range map[string]fs.FileMode{".": homeMode(), "agents": homeMode(), "logs": 0o700, "registry": 0o700, "builds": 0o700, "lock": 0o600} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %v", name, info.Mode().Perm(), err, want)
		}
	}
}

func TestAHomeThatCanNotServeIsRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openHome(file); err == nil {
		t.Error("a file was taken for a home")
	}
	if _, err := openHome("relative"); err == nil {
		t.Error("a relative path was taken")
	}
	closed := testHome(t)
	if err := os.MkdirAll(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := openHome(filepath.Join(closed, "in")); (err == nil) == (os.Geteuid() == 0) {
		t.Errorf("below a folder of mode 0700: %v; only root's agents need to pass it", err)
	}
	occupied := testHome(t)
	if err := os.Mkdir(occupied, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(occupied, "agents")); err != nil {
		t.Fatal(err)
	}
	if _, err := openHome(occupied); err == nil || !strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("agents as a symlink: %v", err)
	}
}
