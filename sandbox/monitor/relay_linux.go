package monitor

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxRelayed bounds the connections of one relay; further ones wait in the listener's queue.
	maxRelayed = 256
	// connectTime bounds the wait for a program inside that takes no connection.
	connectTime = 10 * time.Second
	// acceptPause is how long what could not be accepted is left waiting.
	acceptPause = 10 * time.Millisecond
)

// relayAll serves what is held for a program that can only bind an address of its own: it passes
// connections from outside on to a port of the loopback inside.
func (m *monitor) relayAll() error {
	for i, name := range m.spec.RelayNames {
		at := -1
		for j, held := range m.spec.Held {
			if held == name {
				at = m.held[j]
			}
		}
		fd, err := unix.FcntlInt(uintptr(at), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			err = unix.SetNonblock(fd, true)
		}
		if err != nil {
			return &startError{"relay " + name, err}
		}
		raw, err := os.NewFile(uintptr(fd), "relay").SyscallConn()
		if err != nil {
			return &startError{"relay " + name, err}
		}
		go relay(raw, m.spec.RelayPorts[i])
	}
	return nil
}

// relay passes connections on until the process ends.
func relay(listener syscall.RawConn, port int) {
	slots := make(chan struct{}, maxRelayed)
	for {
		slots <- struct{}{}
		fd, err := acceptFrom(listener)
		if err != nil {
			return
		}
		go func() {
			defer func() { <-slots }()
			pass(fd, port)
		}()
	}
}

// acceptFrom waits for a connection, until the listener is closed. The lack of descriptors and of memory
// passes, and what waits then still does: it is not asked for without a pause.
func acceptFrom(listener syscall.RawConn) (int, error) {
	for {
		var fd int
		var err error
		if e := listener.Read(func(l uintptr) bool {
			fd, _, err = unix.Accept4(int(l), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(err, unix.EAGAIN)
		}); e != nil {
			return -1, e
		}
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.EINTR) {
			time.Sleep(acceptPause)
		}
	}
}

// pass joins a connection with one to the port inside. It is closed where nobody listens there yet, or takes
// no more within connectTime.
func pass(outside, port int) {
	out := os.NewFile(uintptr(outside), "outside")
	defer out.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return
	}
	in := os.NewFile(uintptr(fd), "inside")
	defer in.Close()
	if connectInside(in, fd, port) != nil {
		return
	}
	for _, c := range []int{outside, fd} {
		_ = unix.SetsockoptInt(c, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	done := make(chan struct{})
	go func() {
		oneWay(in, out)
		close(done)
	}()
	oneWay(out, in)
	<-done
}

// connectInside connects in, whose descriptor is fd. The loopback connects or refuses at once, but where the
// queue of the program that listens is full; what waits then holds no thread.
func connectInside(in *os.File, fd, port int) error {
	sa := &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	err := unix.Connect(fd, sa)
	if !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.EINTR) {
		return err
	}
	raw, err := in.SyscallConn()
	if err != nil {
		return err
	}
	if err := in.SetWriteDeadline(time.Now().Add(connectTime)); err != nil {
		return err
	}
	var failed int
	var unknown error
	if err := raw.Write(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(p, 0); err != nil || n == 0 {
			return false
		}
		failed, unknown = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		return true
	}); err != nil {
		return err
	}
	if failed != 0 {
		return syscall.Errno(failed)
	}
	return errors.Join(unknown, in.SetWriteDeadline(time.Time{}))
}

// oneWay copies until the end of from and passes that on.
func oneWay(to, from *os.File) {
	_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
	raw, e := to.SyscallConn()
	if e != nil {
		return
	}
	how := unix.SHUT_WR
	if err != nil {
		how = unix.SHUT_RDWR
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), how) })
	if err != nil {
		if raw, e := from.SyscallConn(); e == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
		}
	}
}
