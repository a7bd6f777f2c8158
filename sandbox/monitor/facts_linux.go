package monitor

import (
	"os"
	"strconv"
	"strings"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// readFacts reads from the kernel what a process is confined by. It is asked before the process
// can have been reaped.
func readFacts(pid int) (wire.Facts, error) {
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
	return f, nil
}
