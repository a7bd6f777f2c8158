//go:build !linux

package sandbox

import (
	"context"
	"os"
	"time"
)

const hasMonitor = false

// Launcher starts programs, each under a monitor of its own. This system has none.
type Launcher struct{}

// Process is a program under its monitor.
type Process struct{}

// Supported lists the levels that this host and version can give: none, the monitor needs Linux.
func Supported() []Level { return nil }

// NewLauncher returns ErrUnsupported.
func NewLauncher(LauncherOptions) (*Launcher, error) { return nil, known(Off) }

// Start returns ErrUnsupported.
func (l *Launcher) Start(context.Context, Spec) (*Process, error) { return nil, known(Off) }

// Expected is a start that was announced.
type Expected struct{}

// Expect does nothing.
func (l *Launcher) Expect(Level) *Expected { return &Expected{} }

// Start returns ErrUnsupported.
func (e *Expected) Start(context.Context, Spec) (*Process, error) { return nil, known(Off) }

// Close does nothing.
func (e *Expected) Close() {}

// Close does nothing.
func (l *Launcher) Close() error { return nil }

// Supported returns none.
func (l *Launcher) Supported() []Level { return nil }

// Strongest returns Off.
func (l *Launcher) Strongest() Level { return Off }

// Lacks returns ErrUnsupported.
func (l *Launcher) Lacks(level Level) error { return known(level) }

// LimitedBy returns ErrUnsupported where there are limits.
func (l *Launcher) LimitedBy(_ Level, limits Limits) ([]Limit, error) {
	if limits == (Limits{}) {
		return nil, nil
	}
	return nil, known(Off)
}

// Sweep does nothing.
func Sweep(string) error { return nil }

// Attach returns ErrUnsupported.
func Attach(context.Context, string) (*Process, error) { return nil, known(Off) }

// PID returns 0.
func (p *Process) PID() int { return 0 }

// MonitorPID returns 0.
func (p *Process) MonitorPID() int { return 0 }

// StartedAt returns the zero time.
func (p *Process) StartedAt() time.Time { return time.Time{} }

// Confinement is that of a level that is not supported.
func (p *Process) Confinement() Confinement { return Describe(Off, false) }

// Signal returns ErrUnsupported.
func (p *Process) Signal(context.Context, os.Signal) error { return known(Off) }

// Stop returns ErrUnsupported.
func (p *Process) Stop(context.Context, time.Duration) error { return known(Off) }

// Done returns nil.
func (p *Process) Done() <-chan struct{} { return nil }

// Exit returns the zero value.
func (p *Process) Exit() Exit { return Exit{} }

// SwitchLog returns ErrUnsupported.
func (p *Process) SwitchLog(context.Context, *os.File, int64) error { return known(Off) }

// Files returns ErrUnsupported.
func (p *Process) Files(context.Context) (map[string]*os.File, error) { return nil, known(Off) }

// Close does nothing.
func (p *Process) Close() error { return nil }

func (p processRecord) alive() bool { return false }

func lost() Exit { return Exit{Code: -1, At: time.Now().UTC(), Lost: true} }

func judges() bool { return false }
