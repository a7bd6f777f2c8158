//go:build linux

package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/internal/leak"
	"github.com/otters-sh/otters/internal/testprograms"
	"github.com/otters-sh/otters/sandbox"
)

// Invariants of the package's tests: whatever ends a program, nothing it started is alive
// afterwards, its exit is told as it was, and the program never had more than the spec names. The
// three worst inputs: a program that daemonises and ignores SIGTERM, one whose output nobody
// takes, and a monitor that is killed or stopped by a signal.

const roleVariable = "OTTERS_SANDBOX_TEST"

// patience bounds every wait of a test; it is no measure of anything. suiteTime is that of a test which
// runs others in a process of their own, and long a time that no test lasts.
const (
	patience  = 2 * time.Minute
	suiteTime = 8 * time.Minute
	long      = time.Hour
)

// monitorPath is the built otters-sandbox.
var monitorPath string

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	programs := testprograms.Of("cmd/otters-sandbox")
	if monitorPath = os.Getenv("OTTERS_TEST_MONITOR"); monitorPath == "" {
		dir, err := programs.Dir()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		monitorPath = filepath.Join(dir, "otters-sandbox")
	}
	code := leak.Code(m.Run())
	_ = programs.Remove()
	os.Exit(code)
}

// play is what this program does where a test starts it as another.
func play(role string) int {
	self, err := os.Executable()
	if err != nil {
		return 1
	}
	child := func(role string) *exec.Cmd {
		c := exec.Command(self)
		c.Env = []string{roleVariable + "=" + role, "GORACE=atexit_sleep_ms=0"}
		c.Stdout = os.Stdout
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return c
	}
	switch role {
	case "leaf": // a daemon: session of its own, deaf to SIGTERM
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		fmt.Println("leaf", os.Getpid())
		time.Sleep(time.Hour)
	case "middle": // leaves the leaf behind
		if err := child("leaf").Start(); err != nil {
			return 1
		}
	case "parent", "parent-ends":
		if err := child("middle").Run(); err != nil {
			return 1
		}
		if role == "parent" {
			time.Sleep(time.Hour)
		}
		fmt.Scanln() // standard input is at its end
		r := os.NewFile(3, "gate")
		_, _ = r.Read(make([]byte, 1)) // ends when the test says so
	case "attempts":
		return attemptAll()
	case "judged":
		return judgedAttempts()
	case "dial":
		return dial()
	case "crowd":
		return crowd()
	case "full":
		return full()
	case "delegate":
		return becomeDelegate()
	case "launcher":
		return launch()
	}
	return 0
}

// launch starts a program as another process than the test would.
func launch() int {
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: os.Args[1]})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		return 1
	}
	log, err := os.OpenFile(filepath.Join(os.Args[2], "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	up, out, err := os.Pipe()
	if err != nil {
		return 1
	}
	p, err := l.Start(context.Background(), sandbox.Spec{
		Level: sandbox.Off, Path: "/bin/sh", Args: []string{"-c", os.Args[3]}, Dir: "/", UID: -1, GID: -1,
		StateDir: os.Args[2], Log: log, Stdout: out, Held: []sandbox.File{{Name: "gateway", File: f}},
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if _, err := up.Read(make([]byte, 3)); err != nil {
		return 1
	}
	// Not by what they do of themselves, which whoever started the tests may have them ignore.
	over := make(chan os.Signal, 1)
	signal.Notify(over, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	fmt.Println(p.PID(), p.MonitorPID(), ln.Addr())
	<-over
	return 0
}

func newLauncher(t *testing.T, opts sandbox.LauncherOptions) *sandbox.Launcher {
	t.Helper()
	if opts.Monitor == "" {
		opts.Monitor = monitorPath
	}
	l, err := sandbox.NewLauncher(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// stateDir is a folder as the monitor wants it.
func stateDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sandbox.Sweep(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// shell is a spec that runs a script.
func shell(t *testing.T, script string) sandbox.Spec {
	t.Helper()
	return sandbox.Spec{
		Level: sandbox.Off, Path: "/bin/sh", Args: []string{"-c", script}, Dir: "/",
		Env: []string{"PATH=" + os.Getenv("PATH")}, UID: -1, GID: -1, StateDir: stateDir(t),
	}
}

// role is a spec that runs this program.
func role(t *testing.T, name string) sandbox.Spec {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := shell(t, "")
	s.Path, s.Args = self, nil
	s.Env = []string{roleVariable + "=" + name, "GORACE=atexit_sleep_ms=0"}
	return s
}

func start(t *testing.T, l *sandbox.Launcher, spec sandbox.Spec) *sandbox.Process {
	t.Helper()
	p, err := l.Start(deadline(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, p) })
	return p
}

func end(t *testing.T, p *sandbox.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.Stop(ctx, 0); err != nil && !errors.Is(err, sandbox.ErrNotRunning) {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func wait(t *testing.T, p *sandbox.Process) sandbox.Exit {
	t.Helper()
	select {
	case <-p.Done():
		return p.Exit()
	case <-time.After(patience):
		t.Fatal("the program does not end")
		return sandbox.Exit{}
	}
}

// output makes the program's standard output readable.
func output(t *testing.T, spec *sandbox.Spec) *bufio.Reader {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	spec.Stdout = w
	return bufio.NewReader(r)
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(s, "\n")
}

// held is a process that can't be mistaken for a later one with its id.
func held(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// gone tells whether a held process has ended. One that a reaper has not come to yet counts.
func gone(t *testing.T, fd int, within time.Duration) bool {
	t.Helper()
	for end := time.Now().Add(within); ; {
		left := max(time.Until(end), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
}

// freeze stops a process by a signal, and returns when none of its threads runs any more.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := unix.PidfdSendSignal(held(t, pid), unix.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	for ctx := deadline(t); ; time.Sleep(time.Millisecond) {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(tasks) == 0 || ctx.Err() != nil {
			t.Fatal("it is not stopped:", tasks, err)
		}
		if !slices.ContainsFunc(tasks, func(path string) bool {
			b, err := os.ReadFile(path) // a thread may end meanwhile
			return err == nil && !strings.HasPrefix(string(b[bytes.LastIndexByte(b, ')')+1:]), " T ")
		}) {
			return
		}
	}
}

// reaped tells whether a held process that has ended is a zombie no more.
func reaped(fd int) bool { return errors.Is(unix.PidfdSendSignal(fd, 0, nil, 0), unix.ESRCH) }

func leafPID(t *testing.T, r *bufio.Reader) int {
	t.Helper()
	name, pid, _ := strings.Cut(line(t, r), " ")
	n, err := strconv.Atoi(pid)
	if name != "leaf" || err != nil {
		t.Fatalf("leaf said %q %q", name, pid)
	}
	return n
}

type logLine struct {
	T      time.Time `json:"t"`
	Stream string    `json:"stream"`
	Line   string    `json:"line"`
	More   bool      `json:"more"`
}

// logFile gives spec a log.
func logFile(t *testing.T, spec *sandbox.Spec) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	spec.Log = f
	return path
}

func readLog(t *testing.T, path string) []logLine {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []logLine
	for d := json.NewDecoder(f); d.More(); {
		var l logLine
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
