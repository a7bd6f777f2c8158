//go:build linux

package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// elsewhere starts a program from another process and returns that with the listener's address.
func elsewhere(t *testing.T, dir, script string) (launcher *exec.Cmd, pid, monitor int, addr string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, monitorPath, dir, script)
	c.Env = append(os.Environ(), roleVariable+"=launcher", "GORACE=atexit_sleep_ms=0")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(said, &pid, &monitor, &addr); err != nil {
		t.Fatalf("launcher said %q: %v", said, err)
	}
	return c, pid, monitor, addr
}

// K16: the launcher is killed, by every way it may be; the program runs on, and the next process
// has the same program, its listener with whoever came meanwhile, its log and its exit.
func TestNextProcessTakesOver(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir := stateDir(t)
			begin := time.Now()
			c, pid, monitor, addr := elsewhere(t, dir, "trap 'echo late; echo bye >&2; exit 5' USR1; echo up; while :; do sleep 0.01; done")
			if err := syscall.Kill(-c.Process.Pid, sig); err != nil { // its whole group, as a terminal does
				t.Fatal(err)
			}
			_ = c.Wait()
			meanwhile, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatalf("the listener is gone: %v", err)
			}
			defer meanwhile.Close()
			if _, ok, err := sandbox.ReadExit(dir); ok || err != nil {
				t.Errorf("record of a running program: %v %v", ok, err)
			}
			p, err := sandbox.Attach(deadline(t), dir)
			if err != nil {
				t.Fatal(err)
			}
			defer end(t, p)
			if p.PID() != pid || p.MonitorPID() != monitor || p.StartedAt().Before(begin) || p.Confinement().Level != sandbox.Off {
				t.Errorf("another program: %d %d %v", p.PID(), p.MonitorPID(), p.StartedAt())
			}
			answerOn(t, p, meanwhile)
			if err := p.Signal(deadline(t), syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			e := wait(t, p)
			if e.Code != 5 || len(e.Stderr) != 1 || e.Stderr[0] != "bye" {
				t.Errorf("%+v", e)
			}
			if r, ok, err := sandbox.ReadExit(dir); err != nil || !ok || r.Code != 5 {
				t.Errorf("record: %+v %v %v", r, ok, err)
			}
			var said []string // "late" though the reader of the output is gone
			for _, l := range readLog(t, filepath.Join(dir, "log")) {
				said = append(said, l.Line)
			}
			slices.Sort(said)
			if !slices.Equal(said, []string{"bye", "late", "up"}) {
				t.Errorf("log: %q", said)
			}
		})
	}
}

// answerOn accepts on the held listener and answers who waits there.
func answerOn(t *testing.T, p *sandbox.Process, client net.Conn) {
	t.Helper()
	files, err := p.Files(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	f := files["gateway"]
	if len(files) != 1 || f == nil {
		t.Fatalf("files: %v", files)
	}
	ln, err := net.FileListener(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "hello")
	conn.Close()
	if b, err := io.ReadAll(client); err != nil || string(b) != "hello" {
		t.Errorf("%q %v", b, err)
	}
}

func TestExitWhileNobodyWatchesIsRecorded(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	goOn := filepath.Join(t.TempDir(), "go")
	if err := unix.Mkfifo(goOn, 0o600); err != nil {
		t.Fatal(err)
	}
	c, pid, monitor, _ := elsewhere(t, dir, "echo up; read x <'"+goOn+"'; echo why >&2; exit 6")
	program, m := held(t, pid), held(t, monitor)
	_ = c.Process.Kill()
	_ = c.Wait()
	if err := os.WriteFile(goOn, []byte("now\n"), 0); err != nil {
		t.Fatal(err)
	}
	if !gone(t, program, patience) || !gone(t, m, patience) {
		t.Fatal("still there")
	}
	if _, err := sandbox.Attach(deadline(t), dir); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("attach: %v", err)
	}
	e, ok, err := sandbox.ReadExit(dir)
	if err != nil || !ok || e.Code != 6 || e.Lost || strings.Join(e.Stderr, "") != "why" {
		t.Errorf("%+v %v %v", e, ok, err)
	}
}

func TestAttachWhereNothingRuns(t *testing.T) {
	t.Parallel()
	empty := stateDir(t)
	stale := stateDir(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, control(t, stale)); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	for _, dir := range []string{empty, stale} {
		if _, err := sandbox.Attach(deadline(t), dir); !errors.Is(err, sandbox.ErrNotRunning) {
			t.Errorf("%v", err)
		}
	}
	if _, err := sandbox.Attach(deadline(t), "/nowhere"); err == nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	spec := shell(t, "exit 8")
	spec.StateDir = stale
	if e := wait(t, start(t, newLauncher(t, sandbox.LauncherOptions{}), spec)); e.Code != 8 {
		t.Errorf("start over a stale socket: %+v", e)
	}
}

func TestSeveralControllersAreToldOfTheExit(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "exec sleep 1000")
	p := start(t, l, spec)
	var all []*sandbox.Process
	for range 8 {
		q, err := sandbox.Attach(deadline(t), spec.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		all = append(all, q)
	}
	if err := p.Stop(deadline(t), long); err != nil {
		t.Fatal(err)
	}
	for _, q := range all {
		if e := wait(t, q); e.Signal != "SIGTERM" || !e.Asked || e.Lost {
			t.Errorf("%+v", e)
		}
	}
}

// control is the control socket of a state folder, by a path that fits an address whatever the folder's is.
func control(t *testing.T, dir string) *unix.SockaddrUnix {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/control.sock", f.Fd())}
}

// raw connects to a control socket as wire speaks it.
func raw(t *testing.T, dir string) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Connect(fd, control(t, dir)); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestControllersThatMisbehaveHoldNobodyUp(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "exec sleep 1000")
	p := start(t, l, spec)
	var files wire.Message
	files.Add(wire.Op, wire.OpFiles)
	never := raw(t, spec.StateDir)
	for range 100_000 { // until the monitor drops it
		if err := unix.Sendmsg(never, files.Marshal(), nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	for _, nonsense := range [][]byte{{0}, {9, 1, 2}, {wire.Version, 255}, {wire.Version, 1, 'a', 255, 255, 255, 255}, make([]byte, 60<<10)} {
		fd := raw(t, spec.StateDir)
		if err := unix.Sendmsg(fd, nonsense, nil, nil, unix.MSG_NOSIGNAL); err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Read(fd, make([]byte, 10)); n != 0 && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%v: answered %d %v", nonsense[:1], n, err)
		}
	}
	for range 200 { // more than are served at once; they are closed, not queued for ever
		raw(t, spec.StateDir)
	}
	if _, err := p.Files(deadline(t)); err != nil {
		t.Errorf("a controller of old: %v", err)
	}
	if err := p.Stop(deadline(t), long); err != nil || p.Exit().Signal != "SIGTERM" {
		t.Errorf("%v %+v", err, p.Exit())
	}
}

func TestUnknownRequestIsRefused(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "exec sleep 1000")
	start(t, l, spec)
	fd := raw(t, spec.StateDir)
	for op, fine := range map[string]bool{"dance": false, wire.OpStatus: true} {
		var m wire.Message
		m.Add(wire.Op, op)
		m.Add("a field of a later version", "x")
		if err := unix.Sendmsg(fd, m.Marshal(), nil, nil, unix.MSG_NOSIGNAL); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, wire.MaxMessage)
		n, err := unix.Read(fd, b)
		if err != nil {
			t.Fatal(err)
		}
		a, err := wire.Parse(b[:n])
		if err != nil || (a.Get(wire.Error) == "") != fine {
			t.Errorf("%s: %v %v", op, a, err)
		}
	}
}

// Another user gets no answer even where the folder's mode would let it in; root and the own user
// do.
func TestOnlyTheOwnUserControls(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("connecting as another user needs root")
	}
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "exec sleep 1000")
	start(t, l, spec)
	socket := filepath.Join(spec.StateDir, "control.sock")
	if err := errors.Join(os.Chmod(spec.StateDir, 0o711), os.Chmod(socket, 0o666)); err != nil {
		t.Fatal(err)
	}
	to := control(t, spec.StateDir)
	for uid, answered := range map[int]bool{64003: false, 0: true} {
		got := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with its identity
			got <- askAs(uid, to)
		}()
		if err := <-got; (err == nil) != answered {
			t.Errorf("user %d: %v", uid, err)
		}
	}
}

// askAs asks for the status as another user, whose identity the calling thread keeps.
func askAs(uid int, to unix.Sockaddr) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return errno
	}
	if err := unix.Connect(fd, to); err != nil {
		return nil // not the monitor's refusal, and so no success for this test
	}
	var m wire.Message
	m.Add(wire.Op, wire.OpStatus)
	if err := unix.Sendmsg(fd, m.Marshal(), nil, nil, unix.MSG_NOSIGNAL); err != nil {
		return err
	}
	n, err := unix.Read(fd, make([]byte, wire.MaxMessage))
	if err == nil && n == 0 {
		return io.EOF
	}
	return err
}

func TestAttachObeysItsContext(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "exec sleep 1000")
	p := start(t, l, spec)
	monitor := held(t, p.MonitorPID())
	freeze(t, p.MonitorPID())
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := sandbox.Attach(ctx, spec.StateDir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := unix.PidfdSendSignal(monitor, unix.SIGCONT, nil, 0); err != nil {
		t.Fatal(err)
	}
	q, err := sandbox.Attach(deadline(t), spec.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	q.Close()
}

// The launcher goes in order: its program runs on, its waiting monitors are gone, and it has no
// zombies.
func TestClosedLauncherLeavesItsProgramAlone(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: 3})
	ended := start(t, l, shell(t, "exec sleep 1000"))
	monitors := []int{held(t, ended.MonitorPID())}
	if err := ended.Stop(deadline(t), 0); err != nil {
		t.Fatal(err)
	}
	spec := shell(t, "exec sleep 1000")
	p, err := l.Start(deadline(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	program := held(t, p.PID())
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range l.WarmPIDs() {
		monitors = append(monitors, held(t, pid))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Start(deadline(t), spec); err == nil {
		t.Error("a closed launcher starts")
	}
	for i, fd := range monitors {
		if !reaped(fd) {
			t.Errorf("monitor %d is left", i)
		}
	}
	if gone(t, program, 0) {
		t.Fatal("the program ended with the launcher")
	}
	q, err := sandbox.Attach(deadline(t), spec.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	monitor := held(t, q.MonitorPID())
	end(t, q)
	if !reaped(monitor) {
		t.Error("the monitor is left")
	}
	if e, ok, err := sandbox.ReadExit(spec.StateDir); err != nil || !ok || e.Signal != "SIGKILL" {
		t.Errorf("%+v %v %v", e, ok, err)
	}
}
