package sandbox

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// SwitchLog has the program's log go on in another file, opened for appending, with a Spec.LogLimit of
// its own; the caller keeps its own descriptor. Once it has returned nothing is written to the one before, and no line is lost or
// cut. The error wraps ErrNotRunning where the program has ended.
func (p *Process) SwitchLog(ctx context.Context, log *os.File, limit int64) error {
	if limit < 0 {
		return fmt.Errorf("switch log: limit of %d bytes", limit)
	}
	if err := checkAppend(log); err != nil {
		return fmt.Errorf("switch log: %w", err)
	}
	fd, err := dup(log)
	if err != nil {
		return fmt.Errorf("switch log: %w", err)
	}
	defer unix.Close(fd)
	var m wire.Message
	m.Add(wire.Op, wire.OpLog)
	m.AddInt(wire.Limit, limit)
	if _, err := p.call(ctx, m, fd); err != nil {
		return fmt.Errorf("switch log: %w", err)
	}
	return nil
}
