package monitor

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// rlimits bounds each process of the program, and, for it takes no more, the monitor.
func (m *monitor) rlimits() error {
	const unasked = -1
	asked := func(n int64) int64 {
		if n == 0 {
			return unasked
		}
		return n
	}
	for _, l := range []struct {
		what     string
		resource int
		n        int64
	}{
		{"memory limit", unix.RLIMIT_DATA, asked(m.spec.Memory)}, {"limit of processes", unix.RLIMIT_NPROC, asked(m.spec.PIDs)},
		{"limit of open files", unix.RLIMIT_NOFILE, wire.MaxEach.Files}, {"limit of locked memory", unix.RLIMIT_MEMLOCK, wire.MaxEach.Locked},
		{"core limit", unix.RLIMIT_CORE, wire.MaxEach.Core}, {"limit of priority", unix.RLIMIT_NICE, wire.MaxEach.Nice},
		{"limit of real-time priority", unix.RLIMIT_RTPRIO, wire.MaxEach.RealTime},
	} {
		if l.n == unasked {
			continue
		}
		if err := lower(l.resource, uint64(l.n)); err != nil {
			return &startError{l.what, err}
		}
	}
	return nil
}

// lower sets both the soft and the hard limit of this process, which its children inherit; a hard
// limit that is lower stays.
func lower(resource int, n uint64) error {
	var now unix.Rlimit
	if err := unix.Prlimit(0, resource, nil, &now); err != nil {
		return err
	}
	n = min(n, now.Max)
	// This call, and no bare one, or the runtime of Go would set back what it had raised.
	return unix.Prlimit(0, resource, &unix.Rlimit{Cur: n, Max: n}, nil)
}

// readLimits reads hard limits of a process, which it can't raise, by their names in
// proc_pid_limits(5); -1 for none.
func readLimits(pid int, to map[string]*int64) error {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return err
	}
	const width = 25 // of a name, with what is left empty
	found := 0
	for line := range strings.Lines(string(b)) {
		if len(line) <= width || to[strings.TrimSpace(line[:width])] == nil {
			continue
		}
		values := strings.Fields(line[width:])
		if len(values) < 2 {
			continue
		}
		n, err := strconv.ParseInt(values[1], 10, 64)
		if err != nil { // "unlimited", or so much that it is none
			n = -1
		}
		*to[strings.TrimSpace(line[:width])] = n
		found++
	}
	if found < len(to) {
		return unix.ENODATA
	}
	return nil
}
