package home

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Invariant: daemon and client, started with the same environment, name the same two paths, and
// neither is in a folder of another user by accident. Worst inputs: a relative variable, an
// XDG_RUNTIME_DIR that is somebody else's or not there, a path that does not fit a socket.

func clearEnv(t *testing.T) {
	t.Helper()
	for _, name := range []string{"OTTERS_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"} {
		t.Setenv(name, "")
	}
}

func TestHome(t *testing.T) {
	cases := map[string]struct {
		env  map[string]string
		user string
		root string
	}{
		"OTTERS_HOME wins":                    {env: map[string]string{"OTTERS_HOME": "/srv/o", "XDG_STATE_HOME": "/x"}, user: "/srv/o", root: "/srv/o"},
		"XDG_STATE_HOME is next":              {env: map[string]string{"XDG_STATE_HOME": "/x"}, user: "/x/otters", root: "/x/otters"},
		"a relative XDG_STATE_HOME is no-one": {env: map[string]string{"XDG_STATE_HOME": "x"}, user: "/home/ada/.local/state/otters", root: "/var/lib/otters"},
		"nothing set":                         {user: "/home/ada/.local/state/otters", root: "/var/lib/otters"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			clearEnv(t)
			t.Setenv("HOME", "/home/ada")
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			want := c.user
			if os.Geteuid() == 0 {
				want = c.root
			}
			got, err := Home()
			if err != nil || got != want {
				t.Fatalf("Home() = %q, %v; want %q", got, err, want)
			}
		})
	}
	t.Run("a relative OTTERS_HOME is made absolute", func(t *testing.T) {
		clearEnv(t)
		t.Chdir(t.TempDir())
		t.Setenv("OTTERS_HOME", "here")
		got, err := Home()
		if err != nil || !filepath.IsAbs(got) || filepath.Base(got) != "here" {
			t.Fatalf("Home() = %q, %v", got, err)
		}
	})
}

func TestSocket(t *testing.T) {
	clearEnv(t)
	t.Setenv("HOME", "/home/ada")
	runtime := t.TempDir()
	if len(runtime) > MaxSocket/2 {
		var err error
		if runtime, err = os.MkdirTemp("/tmp", "home"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(runtime) })
	}
	usual, err := Home()
	if err != nil {
		t.Fatal(err)
	}
	check := func(dir, want string) {
		t.Helper()
		if got, err := Socket(dir); err != nil || got != want {
			t.Errorf("Socket(%q) = %q, %v; want %q", dir, got, err, want)
		}
	}
	check(usual, usual+"/ottersd.sock")
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(runtime, "missing"))
	check(usual, usual+"/ottersd.sock")
	t.Setenv("XDG_RUNTIME_DIR", runtime)
	check(usual, runtime+"/otters/ottersd.sock")
	check("/srv/o", "/srv/o/ottersd.sock")
	t.Setenv("OTTERS_HOME", usual)
	check(usual, usual+"/ottersd.sock")
	if os.Geteuid() == 0 {
		t.Setenv("OTTERS_HOME", "")
		if err := os.Chown(runtime, 4242, -1); err != nil {
			t.Fatal(err)
		}
		check(usual, usual+"/ottersd.sock")
	}
}

func TestSocketLength(t *testing.T) {
	clearEnv(t)
	fits := "/" + strings.Repeat("a", MaxSocket-1-len("/ottersd.sock"))
	if got, err := Socket(fits); err != nil || len(got) != MaxSocket {
		t.Errorf("Socket of %d bytes: %q, %v", MaxSocket, got, err)
	}
	_, err := Socket(fits + "a")
	if err == nil || !strings.Contains(err.Error(), "108 bytes") || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("one byte more: %v", err)
	}
}
