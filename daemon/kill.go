package daemon

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/system"
)

// maxSignal is the highest number of a signal.
const maxSignal = 64

// parseSignal reads a name with or without SIG, or a number; empty is SIGKILL.
func parseSignal(s string) (syscall.Signal, error) {
	if s == "" {
		return syscall.SIGKILL, nil
	}
	if n, err := strconv.Atoi(s); err == nil && n >= 1 && n <= maxSignal {
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, fail(codes.InvalidArgument, "", "signal %q: not one of this system; give a name such as HUP, or a number from 1 to %d", clip(s), maxSignal)
}

// RestartAgent stops an agent, where it runs, and starts it anew.
func (s *service) RestartAgent(ctx context.Context, req *daemonv1.RestartAgentRequest) (*daemonv1.RestartAgentResponse, error) {
	if s.sup.isDraining() {
		return nil, fail(codes.Unavailable, "", "restart agent: %w", errClosed)
	}
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return nil, err
	}
	if err := s.sup.db.setWanted(ctx, a.id, true); err != nil {
		return nil, err
	}
	if err := a.halt(ctx); err != nil {
		return nil, err
	}
	if err := a.start(ctx); err != nil {
		return nil, err
	}
	return &daemonv1.RestartAgentResponse{Agent: a.summary()}, nil
}

// KillAgent ends an agent without a grace, or sends its runtime another signal.
func (s *service) KillAgent(ctx context.Context, req *daemonv1.KillAgentRequest) (*daemonv1.KillAgentResponse, error) {
	sig, err := parseSignal(req.GetSignal())
	if err != nil {
		return nil, err
	}
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return nil, err
	}
	if err := a.signal(ctx, sig); err != nil {
		return nil, err
	}
	return &daemonv1.KillAgentResponse{Agent: a.summary()}, nil
}

func (a *supervised) signal(ctx context.Context, sig syscall.Signal) error {
	unit, ok := a.unit.(interface {
		Kill(context.Context) error
		Signal(context.Context, os.Signal) error
	})
	notRunning := func() error {
		told, _ := a.state()
		return fail(codes.FailedPrecondition, "", "agent %s is not running: it is %s", a.name, told.status)
	}
	if !ok || !a.running() {
		return notRunning()
	}
	if sig != syscall.SIGKILL {
		err := unit.Signal(ctx, sig)
		if errors.Is(err, system.ErrNotRunning) {
			return notRunning()
		}
		return err
	}
	return a.unwanted(ctx, unit.Kill)
}

// stopTimeout is the agent's grace; 0 where its executor tells none.
func (a *supervised) stopTimeout() time.Duration {
	if u, ok := a.unit.(interface{ StopGrace() time.Duration }); ok {
		return u.StopGrace()
	}
	return 0
}
