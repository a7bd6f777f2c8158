package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// Invariant: gc and fsck do the same with and without a daemon, and a login is added to what a
// configuration has. Worst inputs: a configuration that is broken, or has logins of others.

func TestRegistryCommands(t *testing.T) {
	t.Parallel()
	m := newHome(t)
	m.must("daemon", "start")
	m.must("build", "-t", "guide:1", guide(t))
	collected := regexp.MustCompile(`^removed 0 manifests and 0 blobs \(0 B\); [1-9][0-9]* stay\n$`)
	checked := regexp.MustCompile(`^[1-9][0-9]* contents, [^\n]+\n$`)
	both := func() {
		t.Helper()
		if got := m.must("registry", "gc"); !collected.MatchString(got.out) {
			t.Errorf("gc: %+v", got)
		}
		if got := m.must("registry", "fsck"); !checked.MatchString(got.out) {
			t.Errorf("fsck: %+v", got)
		}
	}
	both()
	if got := m.must("registry", "login"); !strings.Contains(got.out, "otreg_") || !strings.Contains(got.out, "127.0.0.1:") {
		t.Errorf("login: %+v", got)
	}
	m.must("daemon", "stop")
	both()
	if got := m.otters("registry", "login"); got.code != 1 || !strings.Contains(got.err, "otters daemon start") {
		t.Errorf("login without a daemon: %+v", got)
	}
	m.nothingRuns()
}

func TestRegistryWrongUse(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"not from 0s to 24h":         {"registry", "gc", "--grace", "25h"},
		"unexpected argument \"x\"":  {"registry", "fsck", "x"},
		"unknown command \"nosuch\"": {"registry", "nosuch"},
	} {
		if got := otters(t.Context(), filepath.Join(tempDir(t), "s"), "", args...); got.code != exitUsage || !strings.Contains(got.err, says) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestStoreLoginKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "docker", "config.json")
	if err := storeLogin(path, "127.0.0.1:5527", "otters", "secret"); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, `{"credsStore":"x","auths":{"other.example":{"auth":"a"},"127.0.0.1:5527":{"auth":"old"}}}`)
	if err := storeLogin(path, "127.0.0.1:5527", "otters", "secret"); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		CredsStore string
		Auths      map[string]struct{ Auth string }
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	want := base64.StdEncoding.EncodeToString([]byte("otters:secret"))
	if got.CredsStore != "x" || got.Auths["other.example"].Auth != "a" || got.Auths["127.0.0.1:5527"].Auth != want {
		t.Errorf("%s", b)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for _, broken := range []string{"{", `{"auths":[]}`, strings.Repeat(" ", maxDockerConfig) + "{}"} {
		writeFile(t, path, broken)
		if err := storeLogin(path, "a", "b", "c"); err == nil {
			t.Errorf("%.20s: no error", broken)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != broken {
			t.Errorf("a broken file was changed: %.20s, %v", b, err)
		}
	}
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := storeLogin(path, "a", "b", "c"); err == nil || !strings.Contains(err.Error(), "it is not a regular file; mend it") {
		t.Errorf("a named pipe: %v", err)
	}
}
