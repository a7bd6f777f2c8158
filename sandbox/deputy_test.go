//go:build linux

package sandbox_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

// judgedAttempts is a role: it prints what came of calls that the monitor judges at limited. Its
// arguments are a port that it may connect to, one that it may listen on, and two files, of which it
// may write the first.
func judgedAttempts() int {
	var connect, serve int
	if _, err := fmt.Sscan(os.Args[1]+" "+os.Args[2], &connect, &serve); err != nil {
		return 1
	}
	socket := func(family int, do func(fd int) error) error {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return do(fd)
	}
	four := func(last byte, port int) unix.Sockaddr {
		return &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, last}, Port: port}
	}
	mapped := func(last byte, port int) unix.Sockaddr {
		return &unix.SockaddrInet6{Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: last}, Port: port}
	}
	dial := func(family int, sa unix.Sockaddr) error {
		return socket(family, func(fd int) error { return unix.Connect(fd, sa) })
	}
	listen := func(sa unix.Sockaddr) error {
		return socket(unix.AF_INET, func(fd int) error {
			// Beside whoever keeps the port free.
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, sa), unix.Listen(fd, 1))
		})
	}
	change := func(path string, do func(fd int) error) error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return do(fd)
	}
	mode := func(fd int) error { return unix.Fchmod(fd, 0o606) }
	times := func(fd int) error {
		at := [2]unix.Timespec{{Sec: 1}, {Sec: 2}}
		if _, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&at)), 0, 0, 0); e != 0 {
			return e
		}
		return nil
	}
	// With as much room as an address may take.
	roomy := func(port int) error {
		var raw [128]byte
		binary.NativeEndian.PutUint16(raw[:], unix.AF_INET)
		binary.BigEndian.PutUint16(raw[2:], uint16(port))
		copy(raw[4:], []byte{127, 0, 0, 1})
		return socket(unix.AF_INET, func(fd int) error {
			if _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&raw)), unsafe.Sizeof(raw)); e != 0 {
				return e
			}
			return nil
		})
	}
	// A socket whose connection was refused has a port still, and listens on every address.
	refused := func(fd int) error {
		if err := unix.Connect(fd, four(1, serve)); !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("a connection to a closed port: %w", err)
		}
		return unix.Listen(fd, 1)
	}
	own, other := os.Args[3], os.Args[4]
	all := map[string]error{
		"connect":              dial(unix.AF_INET, four(1, connect)),
		"connect mapped":       dial(unix.AF_INET6, mapped(1, connect)),
		"connect, roomy":       roomy(connect),
		"another address":      dial(unix.AF_INET, four(2, connect)),
		"another mapped":       dial(unix.AF_INET6, mapped(2, connect)),
		"another port":         dial(unix.AF_INET, four(1, connect-1)),
		"no socket":            unix.Connect(0, four(1, connect)),
		"no descriptor":        unix.Connect(9999, four(1, connect)),
		"listen":               listen(four(1, serve)),
		"listen after refusal": socket(unix.AF_INET, refused),
		"listen elsewhere":     listen(four(2, serve)),
		"listen everywhere":    listen(&unix.SockaddrInet4{Port: serve}),
		"listen at any":        listen(four(1, 0)),
		"listen unbound":       socket(unix.AF_INET, func(fd int) error { return unix.Listen(fd, 1) }),
		"mode":                 change(own, mode),
		"times":                change(own, times),
		"mode of another's":    change(other, mode),
		"times of another's":   change(other, times),
		"owner of another's":   change(other, func(fd int) error { return unix.Fchown(fd, -1, os.Getgid()) }),
		"attribute":            change(other, func(fd int) error { return unix.Fsetxattr(fd, "user.x", []byte("x"), 0) }),
		"flags":                change(other, func(fd int) error { return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0) }),
		"mode of no file":      unix.Fchmod(9999, 0o600),
		"address of no place":  socket(unix.AF_INET, func(fd int) error { _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), 1, 16); return e }),
	}
	said := make(map[string]string)
	for name, err := range all {
		said[name] = "allowed"
		var e unix.Errno
		if errors.As(err, &e) {
			said[name] = unix.ErrnoName(e)
		}
	}
	if json.NewEncoder(os.Stdout).Encode(said) != nil {
		return 1
	}
	return 0
}

// freePort is a port on which nobody listens, on any address. The kernel gives it to nobody until the test
// ends; a socket with SO_REUSEADDR may bind it nevertheless.
func freePort(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, &unix.SockaddrInet4{}))
	at, e := unix.Getsockname(fd)
	if err := errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	return at.(*unix.SockaddrInet4).Port
}

// Invariant: at limited a program reaches 127.0.0.1 at the ports it was given, and changes what it may
// write, and nothing else. The three worst inputs: the right port on another address, a descriptor
// that only reads a file of the same user, and memory and descriptors that are not there.
func TestTheMonitorJudgesWhatAFilterCant(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Limited)
	w := newWorld(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	if second, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", port)); err == nil { // it would be reached
		defer second.Close()
	}
	serve := freePort(t)
	own, other := filepath.Join(w.work, "file"), filepath.Join(w.frozen, "file")
	if w.uid >= 0 {
		if err := errors.Join(os.Chown(own, w.uid, w.uid), os.Chown(other, w.uid, w.uid)); err != nil {
			t.Fatal(err)
		}
	}
	spec := w.spec(t, sandbox.Limited, "")
	spec.Path = copyProgram(t, self, filepath.Join(w.dir, "program"))
	spec.Binds = append(spec.Binds, sandbox.Bind{Source: spec.Path, ReadOnly: true})
	spec.Args = []string{fmt.Sprint(port), fmt.Sprint(serve), own, other}
	spec.Env = []string{roleVariable + "=judged", "GORACE=atexit_sleep_ms=0"}
	spec.Ports, spec.Serve = []int{port, serve}, []int{serve}
	got := make(map[string]string)
	if err := json.Unmarshal([]byte(said(t, l, spec)), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"connect": "allowed", "connect, roomy": "allowed", "connect mapped": "allowed", "listen": "allowed", "mode": "allowed", "times": "allowed",
		"no socket": "ENOTSOCK", "no descriptor": "EBADF", "mode of no file": "EBADF", "address of no place": "EFAULT",
	}
	if w.uid < 0 {
		for _, name := range []string{"mode of another's", "times of another's", "owner of another's", "attribute", "flags"} {
			want[name] = "EPERM"
		}
	}
	for name, g := range got {
		file := strings.Contains(name, "another's") || name == "attribute" || name == "flags"
		if file && w.uid >= 0 {
			continue // a user id of its own owns nothing else
		}
		if expected, ok := want[name]; ok && g != expected || !ok && g != "EACCES" {
			t.Errorf("%s: %s", name, g)
		}
	}
	if len(got) != 23 {
		t.Errorf("%d attempts", len(got))
	}
}

// A monitor that may not look into the program judges nothing: that is told, and the program works.
func TestAMonitorThatIsBlindIsTold(t *testing.T) {
	t.Parallel()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("taking the right from a monitor needs root and setpriv")
	}
	blind := writeProgram(t, filepath.Join(t.TempDir(), "monitor"),
		fmt.Appendf(nil, "#!/bin/sh\nexec '%s' --bounding-set=-sys_ptrace '%s'\n", setpriv, monitorPath))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for monitor, reached := range map[string]bool{monitorPath: false, blind: true} {
		l := newLauncher(t, sandbox.LauncherOptions{Warm: -1, Monitor: monitor})
		need(t, l, sandbox.Limited)
		ln, err := net.Listen("tcp", "127.0.0.2:0")
		if err != nil {
			t.Skip("no second loopback address:", err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
				c.Close()
			}
		}()
		w := newWorld(t)
		spec := w.spec(t, sandbox.Limited, "")
		spec.Path = copyProgram(t, self, filepath.Join(w.dir, "program"))
		spec.Binds = append(spec.Binds, sandbox.Bind{Source: spec.Path, ReadOnly: true})
		spec.Args, spec.Ports = []string{ln.Addr().String()}, []int{ln.Addr().(*net.TCPAddr).Port}
		spec.Env = []string{roleVariable + "=dial", "GORACE=atexit_sleep_ms=0"}
		p := start(t, l, spec)
		said := slices.ContainsFunc(p.Confinement().Open, func(s string) bool { return strings.Contains(s, "every address") })
		if e := wait(t, p); (e.Code == 0) != reached || said != reached {
			t.Errorf("%s: reached %+v, told of %v", monitor, e, said)
		}
		ln.Close()
		<-served
	}
}
