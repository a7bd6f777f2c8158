package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// hideEnvironment makes the process non-dumpable. The environment holds the agent's token. Tools run
// as the same user, and only this keeps them from reading it in /proc.
func hideEnvironment() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the process non-dumpable: %w", err)
	}
	return nil
}
