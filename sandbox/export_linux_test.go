package sandbox

import (
	"context"

	"github.com/otters-sh/otters/sandbox/internal/cgroup"
)

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

// StartGrouped starts spec in a group of its own that has no limits, at strict too.
func (l *Launcher) StartGrouped(ctx context.Context, spec Spec) (*Process, error) {
	var by plan
	var err error
	if by.group, err = l.groups.Plan(nil, true); err != nil {
		return nil, err
	}
	undo, err := by.makeGroup(spec.StateDir)
	if err != nil {
		return nil, err
	}
	p, err := l.start(ctx, spec, by, func() (*child, error) { return l.take(kindOf(spec.Level), func() {}) })
	if err != nil {
		undo()
	}
	return p, err
}

// Monitors is how many monitors of l run.
func (l *Launcher) Monitors() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.alive)
}

// Undo undoes the start of the program under the monitor with this id, as where a start is cancelled once the
// program runs.
func (l *Launcher) Undo(monitor int) {
	l.mu.Lock()
	var found *child
	for c := range l.alive {
		if c.pid == monitor {
			found = c
		}
	}
	l.mu.Unlock()
	found.undo()
}
