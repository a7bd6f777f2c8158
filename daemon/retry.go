package daemon

import (
	"context"
	"time"

	"github.com/otters-sh/otters/executor"
)

// drainPause is how long a restart that is due waits before it asks again whether the daemon, which
// is ending, starts agents after all.
const drainPause = time.Second

// retry is a restart that is due; calledOff is closed when it is not any more.
type retry struct{ calledOff chan struct{} }

// callOff is called with mu held.
func (s *supervised) callOff() {
	if s.retry == nil {
		return
	}
	close(s.retry.calledOff)
	s.retry = nil
	s.restarts.nextMs = 0
}

// plan has the policy say whether and when an agent is started again whose run has ended. It is
// called with mu held.
func (s *supervised) plan(r *run) {
	status, reason := s.unit.StatusTracker().Snapshot()
	if status != executor.StatusFailed {
		return
	}
	s.restarts.last = string(reason) + ": " + s.cause(r)
	if r.halted || s.removing {
		return
	}
	e := runEnd{final: !recoverable(reason, r.err), clean: s.exitedCleanly(reason)}
	if !r.readyAt.IsZero() {
		e.stable = time.Since(r.readyAt)
	}
	s.replan(e)
}

// exitedCleanly tells whether a runtime ended with exit code 0 of its own accord.
func (s *supervised) exitedCleanly(reason executor.FailureReason) bool {
	exit := s.process().LastExit
	return reason == executor.FailureCrashed && exit != nil && !exit.Lost && exit.Signal == "" && exit.Code == 0
}

// replan is called with mu held.
func (s *supervised) replan(e runEnd) {
	n, again := s.policy.after(e, s.restarts.attempts)
	if !again {
		return
	}
	s.restarts.attempts = n
	s.startAt(time.Now().Add(s.sup.backoff.pause(n)))
}

// startAt starts the agent at a time that may have passed. It is called with mu held.
func (s *supervised) startAt(at time.Time) {
	due := &retry{calledOff: make(chan struct{})}
	s.retry = due
	s.restarts.nextMs = at.UnixMilli()
	s.sup.work.Go(func() {
		for wait := time.Until(at); ; wait = drainPause {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-due.calledOff:
				timer.Stop()
				return
			case <-s.sup.over.Done():
				timer.Stop()
				return
			}
			// An ending daemon leaves what is due to the next one.
			if !s.sup.isDraining() {
				break
			}
		}
		if err := s.launch(context.Background(), due); err != nil {
			s.sup.logger.Warn("restart not begun", "agent", s.id, "name", s.name, "error", err)
		}
	})
}

// resume has the policy say how an agent goes on that does not run when the daemon comes up: what
// was due is due still, what ended meanwhile counts as ended now, and what was stopped is started
// where the policy says so. was is what the last daemon knew of it.
func (s *supervised) resume(ctx context.Context, was record) {
	told, _ := s.state()
	start := s.policy.atLoad(was.wantRunning) && (told.status == executor.StatusStopped || !was.wantRunning)
	if start && !was.wantRunning {
		if err := s.sup.db.setWanted(ctx, s.id, true); err != nil {
			s.sup.logger.Error("agent not started", "agent", s.id, "error", err)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restarts.nextMs = 0
	switch {
	case start:
		s.startAt(time.Now())
	case !was.wantRunning:
	case was.state.status == executor.StatusFailed && was.state.nextMs > 0:
		s.startAt(time.UnixMilli(was.state.nextMs))
	case !terminal(was.state.status) && told.status == executor.StatusFailed:
		s.restarts.last = string(told.reason) + ": " + told.message
		e := runEnd{clean: s.exitedCleanly(told.reason), final: !recoverable(told.reason, nil)}
		if exit := s.process().LastExit; exit != nil && was.state.status != executor.StatusStarting && was.state.status != executor.StatusPulling {
			e.stable = exit.At.Sub(was.started)
		}
		s.replan(e)
	}
}

// restartsNow is how far the restarts have come, as it is told: a row of attempts is over once the
// agent has been ready for a minute.
func (s *supervised) restartsNow() restarts {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.told.restarts
	if r := s.run; r != nil && !r.ended && !r.readyAt.IsZero() && time.Since(r.readyAt) >= stableTime {
		out.attempts = 0
	}
	return out
}
