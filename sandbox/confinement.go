package sandbox

import (
	"fmt"
	"slices"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// Describe tells what a program at level is confined by and what it is not; ownUser, that it runs
// under a user id that nothing else uses. It is what a start at that level enforces or else refuses;
// Process.Confinement is what is in force for a program that runs.
func Describe(level Level, ownUser bool) Confinement {
	c := Confinement{Level: level, OwnUser: ownUser}
	if err := known(level); err != nil {
		c.Open = []string{"everything: " + err.Error()}
		return c
	}
	if ownUser {
		c.Enforced = append(c.Enforced, "it runs under a user id of its own, without further groups")
	}
	c.Enforced = append(c.Enforced,
		"nothing it starts gains privileges, by a set-user-id program for instance (no_new_privs)",
		"it gets the environment and the descriptors it was given and no others",
		"everything it has started is killed when it ends or is stopped",
		eachOfAll)
	switch level {
	case Strict:
		c.Enforced = append(c.Enforced,
			"files: it sees its own folders, its tools and its mounts, and nothing else of the host; read-only ones are mounted so (mount namespace)",
			"network: none, but the addresses it was given (network namespace)",
			"processes: it sees and reaches its own alone (process, IPC, user and host name namespaces)",
			"it has no Linux capability, and can gain none",
			"calls that change the host, look into processes or make namespaces are refused (seccomp)")
		c.Open = append(c.Open, limitsOpen)
	case Limited:
		c.Enforced = append(c.Enforced,
			"files: it opens, runs and changes its own folders, its tools and its mounts alone; read-only ones it can't change (Landlock)",
			"network: it connects by TCP to the ports it was given alone and listens on none; other kinds of sockets are refused (Landlock, seccomp)",
			"processes: it signals and inspects its own alone (Landlock, seccomp)",
			"calls that change the host, look into processes, make namespaces or change a file's mode, owner or times by its path are refused (seccomp)")
		c.say(judges())
		c.Open = append(c.Open,
			"files: it finds out the names, sizes and owners of files that it can't open, where its user may",
			"processes: it finds out which process ids are in use",
			limitsOpen)
	case Off:
		if ownUser {
			c.Open = append(c.Open, "files: it reads and writes whatever any user of the host may")
		} else {
			c.Open = append(c.Open,
				"files: it reads and writes whatever the user who runs the daemon may, keys included",
				"processes: it may signal and inspect that user's, its own monitor among those it may kill; what it has moved to a session of its own then lives on")
		}
		c.Open = append(c.Open,
			"network: it reaches whatever the host reaches",
			"processes: it sees those of the host",
			limitsOpen)
	}
	return c
}

// each tells of the limits that every process has, asked for or not.
func each(files, locked int64) string {
	return fmt.Sprintf("each of its processes has at most %d files open, locks at most %d KiB of memory, dumps no core and can't raise its priority", files, locked>>10)
}

// eachOfAll is said where nothing runs that could be asked.
var eachOfAll = each(wire.MaxEach.Files, wire.MaxEach.Locked)

const (
	// portsOpen is what Landlock leaves open, and judged what is said in its place where the monitor can
	// look into the program.
	portsOpen = "network: a port it was given is open to it on every address, not on this host alone; files: what it may open it may give another mode and time, where its user owns that (the monitor may not look into it)"
	judged    = "network: of all addresses it connects to and listens on 127.0.0.1 alone; files: what it may not write keeps its mode and times (its monitor makes these calls)"
)

// say tells of level limited whether the monitor judges what a filter can't.
func (c *Confinement) say(judges bool) {
	c.Open = slices.DeleteFunc(c.Open, func(line string) bool { return line == portsOpen })
	c.Enforced = slices.DeleteFunc(c.Enforced, func(line string) bool { return line == judged })
	if judges {
		c.Enforced = append(c.Enforced, judged)
	} else {
		c.Open = append(c.Open, portsOpen)
	}
}

const limitsOpen = "memory, processors, number of processes and disk are not limited"

// known tells whether level is one of the levels, on a system that can run a monitor.
func known(level Level) error {
	switch level {
	case Off, Limited, Strict:
		if !hasMonitor {
			return fmt.Errorf("level %s: %w: the monitor needs Linux", level, ErrUnsupported)
		}
		return nil
	default:
		return fmt.Errorf("level %q: %w: it is off, limited or strict", string(level), ErrUnsupported)
	}
}
