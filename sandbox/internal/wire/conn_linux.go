package wire

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSlow tells that the peer does not read.
var ErrSlow = errors.New("peer does not read")

// Conn is one end of a packet socket. Methods may be called concurrently; Recv by one caller.
type Conn struct {
	f   *os.File
	raw syscall.RawConn
	buf []byte
	oob []byte
}

// NewConn takes over fd, a connected SOCK_SEQPACKET socket. limit is the largest message in bytes
// that Recv takes, descriptors whether it takes any; a message with more ends the connection.
func NewConn(fd, limit int, descriptors bool) (*Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	c := &Conn{f: os.NewFile(uintptr(fd), "control"), buf: make([]byte, limit)}
	if descriptors {
		c.oob = make([]byte, unix.CmsgSpace(4*(MaxFiles+2*MaxGroups+12)))
	}
	var err error
	if c.raw, err = c.f.SyscallConn(); err != nil {
		_ = c.f.Close()
		return nil, err
	}
	return c, nil
}

// Pair returns one end as a Conn for the caller, the other as a descriptor to hand on.
func Pair() (*Conn, int, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	c, err := NewConn(p[0], MaxMessage, true)
	if err != nil {
		_ = unix.Close(p[1])
		return nil, -1, err
	}
	return c, p[1], nil
}

// Send sends m without waiting for room: a peer that leaves so much unread gets ErrSlow.
func (c *Conn) Send(m Message, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	b := m.Marshal()
	if len(b) > MaxMessage {
		return errMalformed
	}
	var err error
	if e := c.raw.Control(func(fd uintptr) {
		err = retry(func() error {
			return unix.Sendmsg(int(fd), b, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		})
	}); e != nil {
		return e
	}
	if errors.Is(err, unix.EAGAIN) {
		return ErrSlow
	}
	return os.NewSyscallError("sendmsg", err)
}

// Recv waits for a message; io.EOF where the peer has closed its end. The caller owns the
// descriptors.
func (c *Conn) Recv() (Message, []int, error) {
	var n, oobn, flags int
	var err error
	if e := c.raw.Read(func(fd uintptr) bool {
		err = retry(func() error {
			var e error
			n, oobn, flags, _, e = unix.Recvmsg(int(fd), c.buf, c.oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			return e
		})
		return !errors.Is(err, unix.EAGAIN)
	}); e != nil {
		return Message{}, nil, e
	}
	if errors.Is(err, unix.ECONNRESET) || (err == nil && n == 0) {
		return Message{}, nil, io.EOF
	}
	if err != nil {
		return Message{}, nil, os.NewSyscallError("recvmsg", err)
	}
	fds, err := descriptors(c.oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errMalformed
	}
	var m Message
	if err == nil {
		m, err = Parse(c.buf[:n])
	}
	if err != nil {
		CloseAll(fds)
		return Message{}, nil, err
	}
	return m, fds, nil
}

// SetReadDeadline bounds Recv; the zero time lifts it.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.f.SetReadDeadline(t) }

// Peer returns the user and process id of whoever made the other end.
func (c *Conn) Peer() (uid, pid int, err error) {
	var cred *unix.Ucred
	if e := c.raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return -1, -1, e
	}
	if err != nil {
		return -1, -1, os.NewSyscallError("getsockopt", err)
	}
	return int(cred.Uid), int(cred.Pid), nil
}

// Close ends the connection and a Recv that waits.
func (c *Conn) Close() error { return c.f.Close() }

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func descriptors(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		all = append(all, fds...)
	}
	return all, nil
}

func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
