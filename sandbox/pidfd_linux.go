package sandbox

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// pidfd is a process held by its descriptor, which stays its own when the id is used again.
type pidfd struct {
	f   *os.File
	raw syscall.RawConn
}

// newPidfd takes fd over.
func newPidfd(fd int) (*pidfd, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &pidfd{f: os.NewFile(uintptr(fd), "pidfd")}
	var err error
	if p.raw, err = p.f.SyscallConn(); err != nil {
		_ = p.f.Close()
		return nil, err
	}
	return p, nil
}

// openPidfd holds the process pid if it has the given start time; 0 takes any.
func openPidfd(pid int, start uint64) (*pidfd, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	if start != 0 {
		if s, err := wire.ReadStat(pid); err != nil || s.Start != start {
			_ = unix.Close(fd)
			return nil, os.ErrProcessDone
		}
	}
	return newPidfd(fd)
}

// wait returns nil when the process has ended, reaped or not, and an error when the time is up
// (the zero time leaves it as it is) or p is closed.
func (p *pidfd) wait(until time.Time) error {
	if !until.IsZero() {
		if err := p.f.SetReadDeadline(until); err != nil {
			return err
		}
	}
	return p.raw.Read(readable)
}

// ended tells whether the process has ended, reaped or not.
func (p *pidfd) ended() bool {
	var yes bool
	err := p.raw.Control(func(fd uintptr) { yes = readable(fd) })
	return err != nil || yes
}

func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
}

func (p *pidfd) kill() {
	_ = p.raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

// reap collects an ended child of the caller.
func (p *pidfd) reap() {
	_ = p.raw.Control(func(fd uintptr) {
		for errors.Is(unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil), unix.EINTR) {
		}
	})
}

func (p *pidfd) dup() (*pidfd, error) {
	var fd int
	var err error
	if e := p.raw.Control(func(old uintptr) {
		fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	}); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return newPidfd(fd)
}

func (p *pidfd) close() { _ = p.f.Close() }

// hostID is the id of a process held by a descriptor; -1 where it has ended.
func hostID(fd int) int {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return -1
	}
	for _, line := range strings.Split(string(b), "\n") {
		if value, ok := strings.CutPrefix(line, "Pid:"); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil && n > 0 {
				return n
			}
		}
	}
	return -1
}
