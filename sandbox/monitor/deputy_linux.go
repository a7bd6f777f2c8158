package monitor

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// deputy makes calls in place of a program at limited that no filter can judge, because what they are
// about lies in memory or behind a descriptor: connect(2) and bind(2), of whose addresses Landlock
// looks at the port alone, listen(2), before which the kernel binds what is not bound, and where the
// user id is not the program's own the change of a file's mode or times by a descriptor. The kernel
// holds the caller until it has an answer. What is judged is the deputy's own copy, and what is done
// is done by the deputy, so nothing can be exchanged in between.
type deputy struct {
	file *os.File
	// connects and serves are the ports of 127.0.0.1 that may be connected to and bound.
	connects, serves []int
	// writable are the files and folders whose modes and times may be changed.
	writable []string
	// slots holds the calls that are made, waits those among them that wait for a connection.
	slots, waits chan struct{}
}

const (
	// maxCalls bounds the calls that a deputy makes at the same time; more wait.
	maxCalls = 32
	// maxWaits bounds the calls beside that wait for a connection; more are not waited for.
	maxWaits = 256
	// maxAddress is the size of struct sockaddr_storage, the most that the kernel takes.
	maxAddress = 128
)

// loopback is the only address that a program at limited may connect to or bind.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// notification and response are struct seccomp_notif and seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

// canJudge tells whether this process may look into the program's: as its parent and of the same
// user, or with the right to.
func canJudge(pid int) bool {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(p)
	fd, err := unix.PidfdGetfd(p, 0, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// newDeputy serves the calls that come by listener, which it owns.
func newDeputy(listener int, spec *wire.Spec) *deputy {
	_ = unix.SetNonblock(listener, true)
	d := &deputy{
		file: os.NewFile(uintptr(listener), "calls"), connects: spec.Ports, serves: spec.Serve,
		slots: make(chan struct{}, maxCalls), waits: make(chan struct{}, maxWaits),
	}
	for _, b := range spec.Binds {
		if b.ReadOnly {
			continue
		}
		fd, err := unix.Open(b.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if path := pathOf(fd); path != "" {
			d.writable = append(d.writable, path)
		}
		_ = unix.Close(fd)
	}
	return d
}

// serve returns when nothing is left that could make a call, nil; with an error the kernel refuses all
// further ones.
func (d *deputy) serve() error {
	defer d.file.Close()
	rc, err := d.file.SyscallConn()
	if err != nil {
		return err
	}
	for {
		d.slots <- struct{}{}
		n, err := next(rc)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			c := call{n: &n, rc: rc, slot: d.slots}
			defer func() { <-c.slot }()
			r := response{id: n.id}
			var errno syscall.Errno
			if err := d.carryOut(&c); errors.As(err, &errno) {
				r.error = -int32(errno)
			} else if err != nil {
				r.error = -int32(unix.EACCES)
			}
			_ = control(rc, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)) // the caller may be gone
		}()
	}
}

// call is one that a deputy makes.
type call struct {
	n  *notification
	rc syscall.RawConn
	// slot is what bounds it: the deputy's slots, or waits.
	slot chan struct{}
}

// valid tells whether the caller still waits.
func (c *call) valid() bool {
	return control(c.rc, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&c.n.id)) == nil
}

// moveTo has other slots bound the call, false where these are taken.
func (c *call) moveTo(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		<-c.slot
		c.slot = slots
		return true
	default:
		return false
	}
}

// control makes an ioctl. The kernel gives up its wait for the lock of the listener for any signal, of which
// the Go runtime sends itself some; an answer that was not given holds the caller for ever.
func control(rc syscall.RawConn, request uintptr, arg unsafe.Pointer) error {
	var errno syscall.Errno
	err := rc.Control(func(fd uintptr) {
		for {
			if _, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg)); errno != unix.EINTR {
				return
			}
		}
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}

// next waits for a call; io.EOF where nothing is left that could make one.
func next(rc syscall.RawConn) (n notification, err error) {
	if e := rc.Read(func(fd uintptr) bool {
		for {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, err = unix.Poll(p, 0)
			switch got := p[0].Revents; {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil:
				return true
			case got&unix.POLLIN != 0:
			case got&unix.POLLHUP != 0:
				err = io.EOF
				return true
			case got&unix.POLLNVAL != 0:
				err = unix.EBADF
				return true
			case got&unix.POLLERR != 0: // a signal came while the kernel waited for the listener's lock
				continue
			default:
				return false
			}
			n = notification{}
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
			if errno == unix.EINTR || errno == unix.ENOENT { // the caller was killed
				continue
			}
			if err = nil; errno != 0 {
				err = errno
			}
			return true
		}
	}); e != nil {
		return n, e
	}
	return n, err
}

// carryOut makes a call with the caller's descriptor.
func (d *deputy) carryOut(c *call) error {
	n := c.n
	const pidfdThread = unix.O_EXCL
	p, err := unix.PidfdOpen(int(n.pid), pidfdThread)
	if err != nil {
		return unix.EACCES
	}
	defer unix.Close(p)
	fd, err := unix.PidfdGetfd(p, int(int32(n.args[0])), 0)
	if errors.Is(err, unix.EBADF) {
		return unix.EBADF
	}
	if err != nil {
		return unix.EACCES
	}
	defer unix.Close(fd)
	// Read before it is known to be the caller's memory still, and its descriptor.
	memory, err := n.memory()
	if err != nil {
		return err
	}
	if !c.valid() {
		return unix.EACCES
	}
	return d.make(c, fd, memory)
}

// memory is a copy of what the arguments of a call point to.
func (n *notification) memory() (b []byte, err error) {
	switch n.nr {
	case unix.SYS_CONNECT, unix.SYS_BIND:
		size := int(int32(n.args[2]))
		if size < 0 || size > maxAddress {
			return nil, unix.EINVAL
		}
		b, err = read(int(n.pid), n.args[1], size)
	case unix.SYS_UTIMENSAT:
		if n.args[2] != 0 {
			b, err = read(int(n.pid), n.args[2], int(unsafe.Sizeof([2]unix.Timespec{})))
		}
	}
	if err != nil {
		return nil, unix.EFAULT
	}
	return b, nil
}

// make makes a call, where it may be made, with copies of the caller's descriptor and memory.
func (d *deputy) make(c *call, fd int, memory []byte) error {
	n := c.n
	switch n.nr {
	case unix.SYS_CONNECT:
		return d.with(memory, d.connects, func(sa unix.Sockaddr) error { return d.connect(c, fd, sa) })
	case unix.SYS_BIND:
		return d.with(memory, d.serves, func(sa unix.Sockaddr) error { return unix.Bind(fd, sa) })
	case unix.SYS_LISTEN:
		sa, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		// A socket whose connection failed still tells the port that it had, and is bound no more.
		if !permitted(addrPort(sa), d.serves) {
			return unix.EACCES
		}
		return unix.Listen(fd, int(int32(n.args[1])))
	case unix.SYS_FCHMOD:
		if !d.mayChange(fd) {
			return unix.EPERM
		}
		return unix.Fchmod(fd, uint32(n.args[1])&0o7777)
	case unix.SYS_UTIMENSAT:
		if !d.mayChange(fd) {
			return unix.EPERM
		}
		var times unsafe.Pointer
		if len(memory) > 0 {
			times = unsafe.Pointer(&memory[0])
		}
		if _, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(times), uintptr(n.args[3]), 0, 0); errno != 0 {
			return errno
		}
		return nil
	}
	return unix.EPERM
}

// read copies memory of another process.
func read(pid int, address uint64, size int) ([]byte, error) {
	b := make([]byte, size)
	if size == 0 {
		return b, nil
	}
	n, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: uint64(size)}}, []unix.RemoteIovec{{Base: uintptr(address), Len: size}}, 0)
	if err == nil && n != size {
		err = unix.EFAULT
	}
	return b, err
}

// with makes a call with an address, where that is the loopback and one of ports.
func (d *deputy) with(address []byte, ports []int, call func(unix.Sockaddr) error) error {
	if len(address) < 2 {
		return unix.EINVAL
	}
	family := binary.NativeEndian.Uint16(address)
	var to netip.Addr
	switch {
	case family == unix.AF_INET && len(address) >= unix.SizeofSockaddrInet4:
		to = netip.AddrFrom4([4]byte(address[4:8]))
	case family == unix.AF_INET6 && len(address) >= unix.SizeofSockaddrInet6:
		to = netip.AddrFrom16([16]byte(address[8:24]))
	default:
		return unix.EACCES
	}
	port := binary.BigEndian.Uint16(address[2:4])
	if !permitted(netip.AddrPortFrom(to, port), ports) {
		return unix.EACCES
	}
	if to.Is4() {
		return call(&unix.SockaddrInet4{Addr: loopback.As4(), Port: int(port)})
	}
	return call(&unix.SockaddrInet6{Addr: loopback.As16(), Port: int(port)})
}

// permitted tells whether an address is the loopback and one of ports.
func permitted(at netip.AddrPort, ports []int) bool {
	return at.Addr().Unmap() == loopback && slices.Contains(ports, int(at.Port()))
}

// addrPort is the address of a socket; invalid where it is of another kind.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// mayChange tells whether a file lies where the program may write. It can't bring one there that it
// may not write.
func (d *deputy) mayChange(fd int) bool {
	path := pathOf(fd)
	return slices.ContainsFunc(d.writable, func(w string) bool { return path == w || strings.HasPrefix(path, w+"/") })
}

func pathOf(fd int) string {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return ""
	}
	return path
}
