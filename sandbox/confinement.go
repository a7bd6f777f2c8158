package sandbox

import "fmt"

// Strongest is the last level of Supported.
func Strongest() Level {
	levels := Supported()
	if len(levels) == 0 {
		return Off
	}
	return levels[len(levels)-1]
}

// Describe tells what a program at level is confined by and what it is not; ownUser, that it runs
// under a user id that nothing else uses. A level that is not supported enforces nothing.
func Describe(level Level, ownUser bool) Confinement {
	c := Confinement{Level: level, OwnUser: ownUser}
	if supported(level) != nil {
		c.Open = []string{"everything: " + string(level) + " is not supported here"}
		return c
	}
	if ownUser {
		c.Enforced = append(c.Enforced, "it runs under a user id of its own, without further groups")
	}
	c.Enforced = append(c.Enforced,
		"nothing it starts gains privileges, by a set-user-id program for instance (no_new_privs)",
		"it gets the environment and the descriptors it was given and no others",
		"everything it has started is killed when it ends or is stopped")
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
		"memory, processors, number of processes and disk are not limited")
	return c
}

// supported tells why a level can't be had; nil where it can.
func supported(level Level) error {
	for _, l := range Supported() {
		if l == level {
			return nil
		}
	}
	switch level {
	case Limited, Strict:
		return fmt.Errorf("level %s: %w: this version confines at level off only; ask for off by name", level, ErrUnsupported)
	case Off:
		return fmt.Errorf("level %s: %w: the monitor needs Linux", level, ErrUnsupported)
	default:
		return fmt.Errorf("level %q: %w: it is off, limited or strict", string(level), ErrUnsupported)
	}
}
