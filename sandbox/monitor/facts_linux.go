package monitor

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// readFacts reads from the kernel what a process is confined by. It is asked before the process
// can have been reaped.
func (m *monitor) readFacts(pid int) (wire.Facts, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return wire.Facts{}, err
	}
	var f wire.Facts
	bits := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 16, 64)
		if err != nil {
			return ^uint64(0)
		}
		return n
	}
	for _, line := range strings.Split(string(b), "\n") {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "NoNewPrivs":
			f.NoNewPrivs, _ = strconv.Atoi(value)
		case "Seccomp":
			f.Seccomp, _ = strconv.Atoi(value)
		case "CapInh", "CapPrm", "CapEff", "CapAmb":
			f.Caps |= bits(value)
		case "CapBnd":
			f.Bounding = bits(value)
		}
	}
	if m.spec.Memory == 0 && m.spec.PIDs == 0 {
		return f, nil
	}
	for _, l := range []struct {
		what     string
		resource int
		asked    int64
		to       *int64
	}{{"memory limit", unix.RLIMIT_DATA, m.spec.Memory, &f.MemoryLimit}, {"limit of processes", unix.RLIMIT_NPROC, m.spec.PIDs, &f.PIDLimit}} {
		if l.asked == 0 {
			continue
		}
		if *l.to, err = readLimit(pid, l.resource); err != nil {
			return wire.Facts{}, &startError{l.what, err}
		}
	}
	return f, nil
}

// rlimitNames are the resources in proc_pid_limits(5).
var rlimitNames = map[int]string{unix.RLIMIT_DATA: "Max data size", unix.RLIMIT_NPROC: "Max processes"}

// readLimit reads the hard limit of a process, which it can't raise; 0 where there is none.
func readLimit(pid, resource int) (int64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		values, ok := strings.CutPrefix(line, rlimitNames[resource])
		if f := strings.Fields(values); ok && len(f) >= 2 {
			if f[1] == "unlimited" {
				return 0, nil
			}
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, unix.ENODATA
}
