package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Invariant: without a daemon the registry is served, collected and checked on its home, by one
// program at a time. Worst inputs: a home in use, an unknown command, a flag of another command.

func TestRegistryAlone(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	serve := exec.Command(filepath.Join(built.For(t), "ottersd"), "registry", "serve", "--home", home, "--anonymous-pull")
	out, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	serve.Stderr = &errs
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Kill()
		_ = serve.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("not ready: %v: %s", err, errs.String())
	}
	addr, file, ok := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "registry ready: "), ", token in ")
	if !ok {
		t.Fatalf("%q", line)
	}
	token, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, password string
		want                   int
	}{
		{"GET", "/v2/", "", 200}, {"GET", "/v2/a/tags/list", "", 404},
		{"POST", "/v2/a/blobs/uploads/", "", 401}, {"POST", "/v2/a/blobs/uploads/", strings.TrimSpace(string(token)), 202},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+addr+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.password != "" {
			req.SetBasicAuth("any", c.password)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, resp.StatusCode, c.want)
		}
	}
	var told bytes.Buffer
	if code := run([]string{"registry", "fsck", "--home", home}, io.Discard, &told); code != 1 || !strings.Contains(told.String(), "another daemon runs on this home") {
		t.Errorf("fsck of a home in use: code %d, %s", code, told.String())
	}
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v: %s", err, errs.String())
	}
	for _, args := range [][]string{{"gc"}, {"gc", "--grace", "0s"}, {"fsck"}, {"fsck", "--skip-files"}} {
		var out, errs bytes.Buffer
		if code := run(append([]string{"registry"}, append(args, "--home", home)...), &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "{") {
			t.Errorf("%q: code %d, %s%s", args, code, out.String(), errs.String())
		}
	}
}

func TestRegistryArguments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args        []string
		code        int
		out, errOut string
	}{
		{[]string{"--help"}, 0, "usage: ottersd registry serve", ""},
		{nil, 1, "", "want serve, gc or fsck"},
		{[]string{"nosuch"}, 1, "", `no command "nosuch"`},
		{[]string{"gc", "--skip-files"}, 1, "", "skip-files"},
		{[]string{"gc", "more"}, 1, "", `unexpected "more"`},
		{[]string{"serve", "--port", "70000"}, 1, "", "not from 1 to 65535"},
		{[]string{"gc", "--grace", "25h", "--home", filepath.Join(t.TempDir(), "h")}, 1, "", ""},
	} {
		var out, errOut bytes.Buffer
		code := run(append([]string{"registry"}, c.args...), &out, &errOut)
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errOut.String(), c.errOut) {
			t.Errorf("%q: code %d, out %q, err %q", c.args, code, out.String(), errOut.String())
		}
		if c.code != 0 && (strings.Count(errOut.String(), "\n") != 1 || !strings.HasPrefix(errOut.String(), "ottersd: ")) {
			t.Errorf("%q: %q is not one line", c.args, errOut.String())
		}
	}
}
