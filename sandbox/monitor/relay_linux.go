package monitor

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxRelayed bounds the connections of one relay; further ones wait in the listener's queue.
const maxRelayed = 256

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
		var fd int
		var err error
		if listener.Read(func(l uintptr) bool {
			fd, _, err = unix.Accept4(int(l), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return !errors.Is(err, unix.EAGAIN)
		}) != nil {
			return
		}
		if err != nil {
			<-slots
			continue // the peer is gone already, or a passing lack of descriptors
		}
		go func() {
			defer func() { <-slots }()
			pass(fd, port)
		}()
	}
}

// pass joins a connection with one to the port inside. It is closed where nobody listens there yet.
func pass(outside, port int) {
	out := os.NewFile(uintptr(outside), "outside")
	defer out.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	// The loopback connects or refuses at once.
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	in := os.NewFile(uintptr(fd), "inside")
	defer in.Close()
	if err != nil {
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
