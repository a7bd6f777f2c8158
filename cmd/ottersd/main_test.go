package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/otters-sh/otters/internal/testprograms"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: the program says when it is ready, ends with 0 when it is told to end, and with one
// line and another code when it can't serve. Worst inputs: a signal before it is ready, SIGKILL
// while agents run, a home that is in use.

var built = testprograms.Of("cmd/ottersd", "cmd/otters-sandbox", "cmd/otters-runtime", "cmd/otters-tools", "cmd/ottersd/testdata/caller")

func TestMain(m *testing.M) {
	code := m.Run()
	_ = built.Remove()
	os.Exit(code)
}

// patience is how long a test waits for what is to come, on however slow a machine.
const patience = 3 * time.Minute

func newHome(t *testing.T) string {
	t.Helper()
	// A socket's path is limited.
	in := os.TempDir()
	if len(in) > 64 {
		in = "/tmp"
	}
	dir, err := os.MkdirTemp(in, "otd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "h")
}

type process struct {
	*exec.Cmd
	stderr *bytes.Buffer
	ready  string
	api    daemonv1.DaemonServiceClient
}

// start runs ottersd on home until it is ready.
func start(t *testing.T, home string) *process {
	t.Helper()
	return startFrom(t, built.For(t), home, nil)
}

// startFrom is start with the programs of a folder, as a user; nil is that of the test.
func startFrom(t *testing.T, bin, home string, user *syscall.Credential) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(filepath.Join(bin, "ottersd"), "--home", home), stderr: new(bytes.Buffer)}
	p.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	if user != nil { // to whom the test's folder for what is temporary may be closed
		p.Env = append(os.Environ(), "TMPDIR="+filepath.Dir(home))
	}
	p.Stderr = p.stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = p.Wait()
		t.Fatalf("not ready: %v: %s", err, p.stderr)
	}
	p.ready = line
	conn, err := grpc.NewClient("unix://"+filepath.Join(home, "ottersd.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p.api = daemonv1.NewDaemonServiceClient(conn)
	return p
}

func (p *process) end(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("after %v: %v: %s", sig, err, p.stderr)
	}
}

func TestTheDaemonSaysWhenItIsReadyAndEndsOnASignal(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := start(t, home)
		if !strings.HasPrefix(p.ready, "ottersd ready: socket "+filepath.Join(home, "ottersd.sock")+", ") || !strings.HasSuffix(p.ready, ", pid "+strconv.Itoa(p.Process.Pid)+"\n") {
			t.Errorf("ready line %q", p.ready)
		}
		second := exec.Command(filepath.Join(built.For(t), "ottersd"), "--home", home)
		out, err := second.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "pid "+strconv.Itoa(p.Process.Pid)) {
			t.Errorf("second daemon: %v: %s", err, out)
		}
		p.end(t, sig)
		if _, err := os.Lstat(filepath.Join(home, "ottersd.sock")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	}
}

func build(t *testing.T, api daemonv1.DaemonServiceClient) {
	t.Helper()
	const text = "FROM scratch\nMODEL offline/otter\n"
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "Agentfile", Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	stream, err := api.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		stream.Send(&daemonv1.BuildRequest{Part: &daemonv1.BuildRequest_Options{Options: &daemonv1.BuildOptions{Tags: []string{"a"}}}}),
		stream.Send(&daemonv1.BuildRequest{Part: &daemonv1.BuildRequest_Archive{Archive: archive.Bytes()}}),
	)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	long := "/" + strings.Repeat("x", 200)
	for _, c := range []struct {
		args        []string
		code        int
		out, errOut string
	}{
		{[]string{"version"}, 0, "ottersd ", ""},
		{[]string{"--help"}, 0, "usage: ottersd", ""},
		{[]string{"--nosuch"}, 2, "", "nosuch"},
		{[]string{"nosuch"}, 2, "", `unknown command "nosuch"`},
		{[]string{"version", "more"}, 2, "", "unknown command"},
		{[]string{"--log-level", "loud"}, 2, "", "loud"},
		{[]string{"--home", "/dev/null/x"}, 1, "", "home: "},
		{[]string{"--home", ""}, 2, "", "--home is empty; give it a value, or leave it out"},
		{[]string{"--log-file="}, 2, "", "--log-file is empty"},
		{[]string{"registry", "gc", "--home", ""}, 1, "", "registry gc: --home is empty"},
		{[]string{"--home", filepath.Join(newHome(t), "h"), "--socket", long}, 1, "", "at most 107"},
	} {
		var out, errOut bytes.Buffer
		code := run(c.args, &out, &errOut)
		if code != c.code || !strings.Contains(out.String(), c.out) || !strings.Contains(errOut.String(), c.errOut) {
			t.Errorf("%q: code %d, out %q, err %q", c.args, code, out.String(), errOut.String())
		}
		if c.code != 0 && (strings.Count(errOut.String(), "\n") != 1 || !strings.HasPrefix(errOut.String(), "ottersd: ")) {
			t.Errorf("%q: %q is not one line", c.args, errOut.String())
		}
	}
}
