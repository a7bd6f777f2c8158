//go:build !linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// process is a process by its number, which this system may give to another once it has ended.
type process struct{ *os.Process }

func openProcess(pid int) (*process, error) {
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	return &process{p}, nil
}

func (p *process) close() { _ = p.Release() }

// wait returns when the process has ended. The daemon is nobody's child here, so it is asked for.
func (p *process) wait(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := p.Signal(syscall.Signal(0))
		switch {
		case errors.Is(err, os.ErrProcessDone), errors.Is(err, syscall.ESRCH):
			return nil
		case err != nil:
			return fmt.Errorf("wait for a process: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *process) kill() error {
	err := p.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
