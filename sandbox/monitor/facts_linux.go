package monitor

import (
	"os"
	"strconv"
	"strings"

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
	var data, processes int64
	if err := readLimits(pid, map[string]*int64{
		"Max data size": &data, "Max processes": &processes, "Max open files": &f.Each.Files, "Max locked memory": &f.Each.Locked,
		"Max core file size": &f.Each.Core, "Max nice priority": &f.Each.Nice, "Max realtime priority": &f.Each.RealTime,
	}); err != nil {
		return wire.Facts{}, &startError{"limits", err}
	}
	if m.spec.Memory > 0 {
		f.MemoryLimit = max(data, 0)
	}
	if m.spec.PIDs > 0 {
		f.PIDLimit = max(processes, 0)
	}
	return f, nil
}
