package monitor

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// launchFD is the descriptor of the socket that a monitor is started with.
const launchFD = 3

// Exit codes of the monitor itself.
const (
	codeOK    = 0
	codeStart = 1 // the program was not started, which the launcher was told
	codeUsage = 2 // not started by a launcher
)

// Main runs the monitor and returns its exit code.
func Main() int {
	// The program dies with the thread that started it (PR_SET_PDEATHSIG), so that thread stays.
	runtime.LockOSThread()
	if len(os.Args) == 4 && os.Args[1] == confineArg {
		return confineSelf(os.Args[2], os.Args[3] != "")
	}
	unix.Umask(0o077)
	if kind, err := unix.GetsockoptInt(launchFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		_, _ = os.Stderr.WriteString("otters-sandbox: descriptor 3 is not a launcher's socket: it is started by otters, not by hand\n")
		return codeUsage
	}
	if err := closeInherited(); err != nil {
		return codeUsage
	}
	conn, err := wire.NewConn(launchFD, wire.MaxRequest, true)
	if err != nil {
		return codeUsage
	}
	m := &monitor{launch: conn, requests: make(chan request)}
	m.signals()
	msg, fds, err := conn.Recv()
	if err != nil {
		return codeOK // the launcher has no use for this monitor
	}
	m.hostPID = int(msg.Int(wire.HostPID))
	close(m.busy)
	if err := m.start(fds); err != nil {
		m.remove()
		_ = conn.Send(refusal(err))
		return codeStart
	}
	m.supervise()
	m.finish()
	return codeOK
}

// closeInherited closes what came without close-on-exec by way of the launcher's own parents; all
// that the Go runtime has opened carries the flag.
func closeInherited() error {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd < launchFD {
			continue
		}
		if fd == launchFD {
			unix.CloseOnExec(fd)
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// defaultSignals undoes what the launcher's own parents ignored, which a program would inherit.
func defaultSignals() {
	// struct sigaction of the kernel for 64-bit systems; the zero value is SIG_DFL.
	type sigaction struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	const ignore, last = 1, 64
	set := func(n int, act, old *sigaction) bool {
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(act.mask), 0, 0)
		return errno == 0
	}
	for n := 1; n <= last; n++ {
		var old, none sigaction
		if set(n, nil, &old) && old.handler == ignore {
			set(n, &none, nil)
		}
	}
}

// signals routes signals to channels. A handler, unlike SIG_IGN, is reset in the program.
func (m *monitor) signals() {
	defaultSignals()
	m.child = make(chan os.Signal, 1)
	signal.Notify(m.child, syscall.SIGCHLD)
	m.term = make(chan os.Signal, 1)
	signal.Notify(m.term, syscall.SIGTERM, syscall.SIGINT)
	// Whatever else comes, from the program's user for instance, does nothing. The Go runtime would
	// crash at some.
	signal.Notify(make(chan os.Signal, 1))
	m.busy = make(chan struct{})
	go func() {
		select {
		case <-m.busy:
		case <-m.term: // nothing runs yet, and nothing shall
			os.Exit(codeOK)
		}
	}()
}

// startError tells what stood in the way of a start.
type startError struct {
	what string
	err  error
}

func (e *startError) Error() string { return e.what + ": " + e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

func refusal(err error) wire.Message {
	var m wire.Message
	m.Add(wire.Error, err.Error())
	var errno syscall.Errno
	if errors.As(err, &errno) {
		m.AddInt(wire.Errno, int64(errno))
	}
	return m
}
