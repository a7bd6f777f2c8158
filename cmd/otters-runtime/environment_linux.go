package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// hideEnvironment makes the process non-dumpable. The environment holds the agent's token. Tools run
// as the same user, and only this keeps them from reading it in /proc. Where /proc is out of reach, as
// it is at sandbox level limited, they can't, and it stays as it is: the monitor of an ordinary user may
// look into no other process, and has to, to connect for it.
func hideEnvironment() error {
	fd, err := unix.Open("/proc/self/environ", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		return nil
	}
	if err == nil {
		_ = unix.Close(fd)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the process non-dumpable: %w", err)
	}
	return nil
}
