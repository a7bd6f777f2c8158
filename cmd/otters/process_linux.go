package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// process is a process that can't be mistaken for another one with the same number.
type process struct{ fd int }

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	return &process{fd}, nil
}

func (p *process) close() { unix.Close(p.fd) }

// wait returns when the process has ended.
func (p *process) wait(ctx context.Context) error {
	for {
		// The kernel tells the end at once; the bound is for noticing ctx.
		ready := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, 50)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for a process: %w", err)
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

func (p *process) kill() error {
	err := unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
