package agentruntime

import (
	"math"

	"golang.org/x/sys/unix"
)

// closeOnExecFrom keeps every descriptor from first on from the programs that are started.
func closeOnExecFrom(first uint) error {
	return unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}

// awaitExit returns once the child has ended, and leaves it to be waited for.
func awaitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
