//go:build darwin || freebsd || netbsd || openbsd

package agentruntime

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// closeOnExecFrom keeps every descriptor from first on from the programs that are started.
func closeOnExecFrom(first uint) error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return fmt.Errorf("limit of descriptors: %w", err)
	}
	for fd := int(first); fd < int(min(uint64(lim.Cur), 1<<16)); fd++ {
		unix.CloseOnExec(fd)
	}
	return nil
}

// awaitExit returns once the child has ended, and leaves it to be waited for.
func awaitExit(pid int) {
	queue, err := unix.Kqueue()
	if err != nil {
		return // the group is killed early rather than never
	}
	defer unix.Close(queue)
	var change [1]unix.Kevent_t
	unix.SetKevent(&change[0], pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change[0].Fflags = unix.NOTE_EXIT
	changes := change[:]
	for {
		var got [1]unix.Kevent_t
		_, err := unix.Kevent(queue, changes, got[:], nil)
		if err != unix.EINTR {
			return // ended, or ended before it was asked about (ESRCH)
		}
	}
}
