package system

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
)

// unstoppable is a process that does not end.
type unstoppable struct{ closed int }

var errStuck = errors.New("stuck")

func (u *unstoppable) Done() <-chan struct{}                   { return nil }
func (u *unstoppable) Exit() sandbox.Exit                      { return sandbox.Exit{} }
func (u *unstoppable) Signal(context.Context, os.Signal) error { return nil }
func (u *unstoppable) Stop(context.Context, time.Duration) error {
	return errStuck
}
func (u *unstoppable) Close() error {
	u.closed++
	return nil
}

// A run whose runtime could not be stopped lets go of it, with its descriptors and what reads them.
func TestAProcessThatDoesNotEndIsLetGo(t *testing.T) {
	t.Parallel()
	a, p := newAgent(uuid.New()), new(unstoppable)
	a.tracker.Set(executor.StatusStarting)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := a.watch(t.Context(), ctx, &activeRun{proc: p, letGo: make(chan struct{})})
	if !errors.Is(err, errStuck) || p.closed != 1 || a.Status() != executor.StatusFailed {
		t.Errorf("%v, closed %d times, %v", err, p.closed, a.Status())
	}
}
