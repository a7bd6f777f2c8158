package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
)

// logSwitcher is a process whose log can go on in another file.
type logSwitcher interface {
	SwitchLog(ctx context.Context, log *os.File, limit int64) error
}

// LogPath is where the agent's runtime writes to, in the folder of WithLogDir; empty without one.
// LogPath+".1" is the file before it, and so on. Ours.
func (a *Agent) LogPath() string {
	if a.provider == nil || a.provider.logDir == "" {
		return ""
	}
	return filepath.Join(a.provider.logDir, a.id.String()+".log")
}

// RotateLog has a running agent's log go on in a new file and keeps the keep newest files before it, at
// least one. When it has returned nothing is written any more to the files before; no line is lost or
// is in two files. A log that somebody has removed begins anew. Calls must not overlap. The error wraps ErrNotRunning where no runtime runs, and
// executor.ErrNotImplemented where it has no monitor. Ours.
func (a *Agent) RotateLog(ctx context.Context, keep int) error {
	path := a.LogPath()
	proc := a.proc()
	to, ok := proc.(logSwitcher)
	switch {
	case proc == nil:
		return fmt.Errorf("rotate log of agent %s: %w", a.id, ErrNotRunning)
	case !ok || path == "":
		return fmt.Errorf("rotate log of agent %s: %w", a.id, executor.ErrNotImplemented)
	}
	if err := a.provider.rotate(ctx, to, path, max(keep, 1)); err != nil {
		return fmt.Errorf("rotate log of agent %s: %w", a.id, err)
	}
	return nil
}

func (p *Provider) rotate(ctx context.Context, to logSwitcher, path string, keep int) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return p.switchTo(ctx, to, path)
	}
	name := func(i int) string { return path + "." + strconv.Itoa(i) }
	for i := keep; i > 1; i-- {
		if err := os.Rename(name(i-1), name(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(path, name(1)); err != nil {
		return err
	}
	err := p.switchTo(ctx, to, path)
	if err == nil || errors.Is(err, sandbox.ErrNotRunning) {
		// What does not run writes nothing, and what is started next writes to the new file.
		return nil
	}
	// The monitor writes on where it did.
	return errors.Join(err, os.Rename(name(1), path))
}

// switchTo has the log go on in path, which is made where it is missing.
func (p *Provider) switchTo(ctx context.Context, to logSwitcher, path string) error {
	f, err := openLog(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return to.SwitchLog(ctx, f, p.logLimit)
}

// openLog opens a log for a monitor, which looks at its end, and makes it where it is missing. The folder
// is out of the agents' reach: what is there in place of a file was put there by hand.
func openLog(path string) (*os.File, error) {
	switch info, err := os.Lstat(path); {
	case err == nil && info.Mode()&fs.ModeSymlink != 0:
		return nil, fmt.Errorf("%s: a symbolic link, which a log does not follow; remove it, or put the file in its place", path)
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: no regular file; remove it, and the log begins anew", path)
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
}

// resumeLog ends a rotation that was cut short with an earlier process: the runtime's log is always the
// newest file.
func (a *Agent) resumeLog(ctx context.Context, proc logSwitcher) {
	path := a.LogPath()
	if path == "" {
		return
	}
	if err := a.provider.switchTo(ctx, proc, path); err != nil && !errors.Is(err, sandbox.ErrNotRunning) {
		a.provider.logger.Warn("log goes on in the file it had", "agent", a.id, "error", err)
	}
}
