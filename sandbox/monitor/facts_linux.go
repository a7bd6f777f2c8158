package monitor

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

const (
	// execTime bounds the wait for an exec to change the capabilities of who called it.
	execTime  = 2 * time.Second
	execPause = 200 * time.Microsecond
)

// readFacts reads from the kernel what a process is confined by. It is asked before the process
// can have been reaped.
func (m *monitor) readFacts(pid int) (wire.Facts, error) {
	var within time.Duration
	if m.spec.Level == levelStrict {
		within = execTime
	}
	f, err := settled(func() (wire.Facts, error) { return readStatus(pid) }, within)
	if err == nil {
		err = m.limits(pid, &f)
	}
	return f, err
}

// settled reads until there are no capabilities left, or for as long as within. An exec closes
// descriptors, by which the one who forked learns of it, before it changes capabilities: where that
// one runs first, on a host with one processor most of all, the process still has those that it took
// its user id on by.
func settled(read func() (wire.Facts, error), within time.Duration) (wire.Facts, error) {
	for end := time.Now().Add(within); ; time.Sleep(execPause) {
		f, err := read()
		if err != nil || f.Caps == 0 || !time.Now().Before(end) {
			return f, err
		}
	}
}

// readStatus reads what proc_pid_status(5) tells.
func readStatus(pid int) (wire.Facts, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return wire.Facts{}, err
	}
	var f wire.Facts
	for _, line := range strings.Split(string(b), "\n") {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "NoNewPrivs":
			f.NoNewPrivs, _ = strconv.Atoi(value)
		case "Seccomp":
			f.Seccomp, _ = strconv.Atoi(value)
		case "CapInh", "CapPrm", "CapEff", "CapAmb":
			f.Caps |= wire.Hex(value)
		case "CapBnd":
			f.Bounding = wire.Hex(value)
		}
	}
	return f, nil
}

// limits adds those that are in force for the process.
func (m *monitor) limits(pid int, f *wire.Facts) error {
	var data, processes int64
	if err := readLimits(pid, map[string]*int64{
		"Max data size": &data, "Max processes": &processes, "Max open files": &f.Each.Files, "Max locked memory": &f.Each.Locked,
		"Max core file size": &f.Each.Core, "Max nice priority": &f.Each.Nice, "Max realtime priority": &f.Each.RealTime,
	}); err != nil {
		return &startError{"limits", err}
	}
	if m.spec.Memory > 0 {
		f.MemoryLimit = max(data, 0)
	}
	if m.spec.PIDs > 0 {
		f.PIDLimit = max(processes, 0)
	}
	return nil
}
