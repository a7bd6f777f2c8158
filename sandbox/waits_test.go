//go:build linux

package sandbox_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

// Invariant: at limited whoever waits for a connection is in nobody else's way, and waits as without a
// monitor. Worst inputs: more callers than a monitor makes calls for at once, all waiting for a listener that
// takes no more; a socket that does not wait, and one that waits for a moment only.

// waiting is how many connections to a port find no room, in the network of a process.
func waiting(t *testing.T, pid, port int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		const remote, state, synSent = 2, 3, "02"
		if f := strings.Fields(line); len(f) > state && f[state] == synSent && strings.HasSuffix(f[remote], fmt.Sprintf(":%04X", port)) {
			n++
		}
	}
	return n
}

func awaitWaiting(t *testing.T, pid, port, want int) {
	t.Helper()
	for ctx := deadline(t); ; time.Sleep(time.Millisecond) {
		n := waiting(t, pid, port)
		if n >= want {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%d connections wait, want %d", n, want)
		}
	}
}

// listenFull listens on a port of 127.0.0.1, any for 0, with room for one connection, and takes none.
func listenFull(port int) (fd, at int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, 0, err
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}), unix.Listen(fd, 0))
	if err != nil {
		return -1, 0, errors.Join(err, unix.Close(fd))
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return -1, 0, errors.Join(err, unix.Close(fd))
	}
	return fd, sa.(*unix.SockaddrInet4).Port, nil
}

// crowded is how many callers wait at once, more than a monitor makes calls for.
const crowded = 40

// crowd is a role whose arguments are a port that takes no more, one that is open, and one to serve.
func crowd() int {
	var port [3]int
	for i := range port {
		port[i], _ = strconv.Atoi(os.Args[1+i])
	}
	connect := func(port, flags int, bound unix.Timeval) (said string, kept bool) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
		if err != nil {
			return err.Error(), false
		}
		defer unix.Close(fd)
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &bound)
		before, e := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
		if err = errors.Join(err, e); err != nil {
			return err.Error(), false
		}
		err = unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port})
		after, e := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
		kept = e == nil && *before == *after
		var errno unix.Errno
		if errors.As(err, &errno) {
			return unix.ErrnoName(errno), kept
		}
		return "connected", kept
	}
	tell := func(name string, port, flags int, bound unix.Timeval) {
		said, kept := connect(port, flags, bound)
		fmt.Println(name+":", said, kept)
	}
	tell("not to wait", port[0], unix.SOCK_NONBLOCK, unix.Timeval{})
	tell("to wait for a moment", port[0], 0, unix.Timeval{Usec: 100_000})
	tell("open", port[1], 0, unix.Timeval{})
	results := make(chan string)
	for range crowded {
		go func() {
			said, _ := connect(port[0], 0, unix.Timeval{})
			results <- said
		}()
	}
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return 1
	}
	tell("beside", port[1], 0, unix.Timeval{})
	ln, err := net.Listen("tcp", "127.0.0.1:"+os.Args[3])
	fmt.Println("served:", err)
	if err == nil {
		ln.Close()
	}
	for range crowded {
		fmt.Println("waited:", <-results)
	}
	return 0
}

func TestCallersThatWaitAreInNobodysWay(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Limited)
	w := newWorld(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	fd, port, err := listenFull(0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "full")
	ln, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	first, err := net.Dial("tcp", ln.Addr().String()) // it takes the room that there is
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	open, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	spec := w.spec(t, sandbox.Limited, "")
	spec.Path = copyProgram(t, self, filepath.Join(w.dir, "program"))
	spec.Binds = append(spec.Binds, sandbox.Bind{Source: spec.Path, ReadOnly: true})
	openPort := open.Addr().(*net.TCPAddr).Port
	// A port of the kernel's choice would be anybody's by then: 0 stands for one, and is refused.
	spec.Args = []string{fmt.Sprint(port), fmt.Sprint(openPort), "0"}
	spec.Ports, spec.Serve = []int{port, openPort}, []int{openPort}
	spec.Env = []string{roleVariable + "=crowd", "GORACE=atexit_sleep_ms=0"}
	gate, begin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer begin.Close()
	spec.Stdin = gate
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// The kernel asks a listener without room again after 1, 2, 4 seconds and so on.
	if err := r.SetReadDeadline(time.Now().Add(8 * patience)); err != nil {
		t.Fatal(err)
	}
	spec.Stdout = out
	p := start(t, l, spec)
	errs := errors.Join(gate.Close(), out.Close())
	lines := bufio.NewReader(r)
	for _, want := range []string{"not to wait: EINPROGRESS true", "to wait for a moment: EINPROGRESS true", "open: connected true"} {
		if got := line(t, lines); got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
	awaitWaiting(t, p.PID(), port, crowded)
	if _, err := begin.Write([]byte("x")); errors.Join(err, errs) != nil {
		t.Fatal(err, errs)
	}
	for _, want := range []string{"beside: connected true", "served: listen tcp 127.0.0.1:0: bind: permission denied"} {
		if got := line(t, lines); got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
	// Two are let in: the one that was there, and whoever comes into its place. More may find room, and lose
	// it again, before the listener is gone.
	for range 2 {
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	came := map[string]int{line(t, lines): 1}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	for range crowded - 1 {
		came[line(t, lines)]++
	}
	if came["waited: connected"] == 0 || came["waited: connected"]+came["waited: ECONNREFUSED"]+came["waited: ECONNRESET"] != crowded {
		t.Errorf("%v", came)
	}
	if e := wait(t, p); e.Code != 0 {
		t.Errorf("%+v", e)
	}
}
