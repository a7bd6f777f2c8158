package sandbox

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Names of limits, in Limit.Name.
const (
	LimitMemory = "memory" // bytes
	LimitCPU    = "cpus"   // thousandths of a processor
	LimitPIDs   = "pids"   // processes and threads
)

// Bounds of Limits, in their units.
const (
	MinMemory = 32 << 20
	MaxMemory = 1 << 50
	MinCPU    = 10
	MaxCPU    = 1024 * 1000
	MinPIDs   = 16
	MaxPIDs   = 4 << 20
)

// Limits bound a program and all that it starts together; zero is no bound. A control group enforces
// them where this host has one for it (v1 or v2, see docs/security.md), else an rlimit where one does
// so at the level; a limit that nothing would enforce is refused.
type Limits struct {
	// Memory is in bytes, from MinMemory to MaxMemory: what is swapped out, and files in memory, are
	// part of it. As an rlimit it bounds the data of each process alone.
	Memory int64
	// PIDs is how many processes and threads run at once, from MinPIDs to MaxPIDs. As an rlimit it
	// counts those of its user, at strict those inside alone.
	PIDs int64
	// CPU is in thousandths of a processor, from MinCPU to MaxCPU. There is no rlimit for it.
	CPU int64
}

// Limit is a limit in force.
type Limit struct {
	// Name is one of LimitMemory, LimitCPU and LimitPIDs, which tell the unit of Value.
	Name  string `json:"name"`
	Value int64  `json:"value"`
	// Mechanism is "cgroup v2", "cgroup v1" or "rlimit".
	Mechanism string `json:"mechanism"`
}

const byRlimit = "rlimit"

// Check refuses values out of bounds.
func (l Limits) Check() error {
	switch {
	case l.Memory < 0 || l.PIDs < 0 || l.CPU < 0:
		return errors.New("a limit is negative")
	case l.Memory != 0 && l.Memory < MinMemory:
		return fmt.Errorf("memory limit of %d bytes: at least 32m (%d), which starting takes", l.Memory, MinMemory)
	case l.Memory > MaxMemory:
		return fmt.Errorf("memory limit of %d bytes: at most 1024t (%d)", l.Memory, int64(MaxMemory))
	case l.PIDs != 0 && l.PIDs < MinPIDs:
		return fmt.Errorf("limit of %d processes: at least %d, which starting takes", l.PIDs, MinPIDs)
	case l.PIDs > MaxPIDs:
		return fmt.Errorf("limit of %d processes: at most %d", l.PIDs, MaxPIDs)
	case l.CPU != 0 && l.CPU < MinCPU:
		return fmt.Errorf("limit of %g processors: at least %g", float64(l.CPU)/1000, MinCPU/1000.0)
	case l.CPU > MaxCPU:
		return fmt.Errorf("limit of %g processors: at most %g", float64(l.CPU)/1000, MaxCPU/1000.0)
	}
	return nil
}

// String tells a limit to a person.
func (l Limit) String() string {
	switch l.Name {
	case LimitMemory:
		if l.Mechanism == byRlimit {
			return fmt.Sprintf("data of each process: %d bytes", l.Value)
		}
		return fmt.Sprintf("memory: %d bytes", l.Value)
	case LimitCPU:
		return "processors: " + strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(float64(l.Value)/1000, 'f', 3, 64), "0"), ".")
	default:
		return fmt.Sprintf("processes and threads: %d", l.Value)
	}
}

// WithLimits is what c is with limits: it tells them, and what is still without.
func (c Confinement) WithLimits(limits []Limit) Confinement {
	if len(limits) == 0 {
		return c
	}
	c.Limits = limits
	open := map[string]string{LimitMemory: "memory", LimitCPU: "processors", LimitPIDs: "number of processes"}
	each := false
	var said []string
	for _, l := range limits {
		delete(open, l.Name)
		each = each || l.Name == LimitMemory && l.Mechanism == byRlimit
		said = append(said, fmt.Sprintf("%s (%s)", l, l.Mechanism))
	}
	var left []string
	for _, name := range []string{LimitMemory, LimitCPU, LimitPIDs} {
		if what, ok := open[name]; ok {
			left = append(left, what)
		}
	}
	line := "disk is not limited"
	if len(left) > 0 {
		line = strings.Join(left, ", ") + " and disk are not limited"
	}
	if each {
		line += ", nor is the memory of all its processes together"
	}
	c.Enforced = append(c.Enforced[:len(c.Enforced):len(c.Enforced)], "limits: "+strings.Join(said, ", "))
	var kept []string
	for _, o := range c.Open {
		if o != limitsOpen {
			kept = append(kept, o)
		}
	}
	c.Open = append(kept, line)
	if c.Level == Off && !c.OwnUser {
		c.Open = append(c.Open, "limits: a program of this user can lift them")
	}
	return c
}
