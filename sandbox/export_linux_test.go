package sandbox

import "github.com/otters-sh/otters/sandbox/internal/cgroup"

// WarmPIDs are the monitors that wait for a program.
func (l *Launcher) WarmPIDs() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []int
	for _, p := range l.kinds {
		for _, c := range p.warm {
			all = append(all, c.pid)
		}
	}
	return all
}

// WithoutGroups makes l one of a host without control groups.
func (l *Launcher) WithoutGroups() { l.groups = new(cgroup.Host) }
