package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/system"
)

// maxProbePause bounds the pause between two questions to a runtime that is not ready: how late its
// readiness may be noticed.
const maxProbePause = 10 * time.Millisecond

// run is one life of the runtime, from the start to the exit.
type run struct {
	// cancel asks for the end.
	cancel context.CancelFunc
	// done is closed when it is over; err and detached are set before.
	done     chan struct{}
	err      error
	detached bool

	// turn is the place among the starts; nil where nothing had to be started.
	turn *startTurn

	// Guarded by supervised.mu.
	ended bool
	// begun tells that it waits no more for its turn.
	begun bool
	// halted tells that it is to end, so that its end is no reason for another start.
	halted bool
	// readyAt is when the runtime first answered; zero where it has not.
	readyAt time.Time
	// late is why it was given up before its end: the readiness timeout.
	late string
	// dated tells that supervised.started is this run's, exact that it is what its monitor tells, by which a
	// later daemon takes it over.
	dated, exact bool
	// calls counts prompts in flight.
	calls int
}

// start begins a run that somebody asked for, and returns when it is under way: a later state has
// been told.
func (s *supervised) start(ctx context.Context) error { return s.launch(ctx, nil) }

// launch begins a run: one asked for, which begins a new row of attempts, or the restart due, unless
// that was called off.
func (s *supervised) launch(ctx context.Context, due *retry) error {
	s.mu.Lock()
	if due != nil && due != s.retry {
		s.mu.Unlock()
		return nil
	}
	if err := s.mayStart(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.callOff()
	if due == nil {
		s.restarts.attempts = 0
	}
	// The context is not the caller's and not the daemon's: only a stop and the provider's Close end
	// a run.
	runCtx, end := context.WithCancel(context.Background())
	r := &run{cancel: end, done: make(chan struct{}), turn: s.sup.starts.join()}
	s.run = r
	before := s.version
	s.mu.Unlock()

	changed, cancel := s.watch()
	defer cancel()
	s.sup.work.Go(func() { s.end(r, s.take(runCtx, r)) })
	for {
		s.mu.Lock()
		// What is told late of the run before is no sign of this one.
		moved := s.version != before && s.told.status != executor.StatusStopped && s.told.status != executor.StatusFailed
		s.mu.Unlock()
		if moved {
			return nil
		}
		select {
		case <-changed:
		case <-r.done:
			if r.detached {
				return errClosed
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take waits for the agent's turn to start, and then starts it and waits for its end.
func (s *supervised) take(ctx context.Context, r *run) error {
	waits := r.turn.place() > 0
	if waits {
		// That it waits is told as what will come.
		status := executor.StatusStarting
		if s.unit.Runtime() == nil {
			status = executor.StatusPulling
		}
		s.unit.StatusTracker().Set(status)
		s.publish()
	}
	closing := context.AfterFunc(s.sup.over, r.cancel)
	err := r.turn.wait(ctx)
	closing()
	if s.sup.over.Err() != nil {
		return system.ErrDetached
	}
	if err != nil {
		s.unit.StatusTracker().SetUnless(executor.StatusStopped, executor.StatusFailed)
		return nil
	}
	s.mu.Lock()
	r.begun = true
	s.mu.Unlock()
	if waits {
		s.publish()
	}
	s.endOffline()
	s.sup.work.Go(func() {
		defer r.turn.leave()
		s.awaitReady(r)
	})
	return s.unit.Start(ctx)
}

// mayStart is called with mu held. Under that lock a daemon that stops its agents finds either the
// run or none that will be.
func (s *supervised) mayStart() error {
	switch {
	case s.sup.isDraining():
		return fail(codes.Unavailable, "", "start agent %s: %w", s.name, errClosed)
	case s.removing:
		return fail(codes.FailedPrecondition, "", "agent %s is being removed", s.name)
	case s.unit == nil:
		return fail(codes.FailedPrecondition, "remove it with `otters rm "+s.name+"`", "agent %s can't be started: %s", s.name, s.told.message)
	case s.run != nil && !s.run.ended:
		return fail(codes.FailedPrecondition, "", "agent %s is running already: it is %s", s.name, s.unit.Status())
	}
	return nil
}

// end records how a run ended, tells, and has the policy say how it goes on.
func (s *supervised) end(r *run, err error) {
	r.err, r.detached = err, errors.Is(err, system.ErrDetached)
	r.cancel()
	if r.turn != nil {
		r.turn.leave()
	}
	s.mu.Lock()
	r.ended = true
	if !r.detached {
		s.plan(r)
	}
	s.mu.Unlock()
	if !r.detached {
		s.publish()
		if told, _ := s.state(); told.status == executor.StatusFailed {
			s.sup.logger.Warn("agent failed", "agent", s.id, "name", s.name, "reason", string(told.reason), "error", told.message, "attempts", told.attempts)
		}
	}
	close(r.done)
}

// takeOver makes the runtime that an earlier daemon started this one's. answered tells that it was
// ready before.
func (s *supervised) takeOver(answered bool) {
	r := &run{cancel: func() {}, done: make(chan struct{}), dated: true, begun: true}
	since := s.process().StartedAt
	if answered {
		r.readyAt = since
	}
	s.mu.Lock()
	s.run = r
	s.restarts.nextMs = 0
	if !since.IsZero() {
		s.started = since
	}
	s.mu.Unlock()
	s.sup.work.Go(func() {
		statuses, cancel := s.unit.SubscribeStatus()
		defer cancel()
		for {
			select {
			case st, ok := <-statuses:
				if !ok || terminal(st) {
					// The status comes first; Stop returns when the executor has let go too.
					err := s.unit.Stop(context.Background())
					s.end(r, err)
					return
				}
			case <-s.sup.over.Done():
				s.end(r, system.ErrDetached)
				return
			}
		}
	})
	s.sup.work.Go(func() { s.awaitReady(r) })
}

// awaitReady waits for the start and then for the runtime's first answer. The dial blocks until the
// runtime accepts, so nothing is polled; only a runtime that answers "not ready" is asked again.
func (s *supervised) awaitReady(r *run) {
	statuses, cancel := s.unit.SubscribeStatus()
	defer cancel()
	for {
		select {
		case st, ok := <-statuses:
			if !ok {
				return
			}
			if st == executor.StatusStarting {
				s.probe(r)
				return
			}
		case <-r.done:
			return
		case <-s.sup.over.Done():
			return
		}
	}
}

func (s *supervised) probe(r *run) {
	ctx, cancel := context.WithTimeout(context.Background(), s.sup.settings.readyTimeout)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	s.sup.work.Go(func() {
		select {
		case <-r.done:
		case <-s.sup.over.Done():
		case <-stop:
		}
		cancel()
	})
	pause := time.Millisecond
	var last error
	for {
		err := s.unit.Probe(ctx)
		if err == nil {
			s.mu.Lock()
			if r.readyAt.IsZero() {
				r.readyAt = time.Now()
			}
			s.mu.Unlock()
			s.unit.StatusTracker().SetUnless(executor.StatusReady, allBut(executor.StatusStarting)...)
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxProbePause)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				s.giveUp(r, last)
			}
			return
		}
	}
}

// giveUp fails a runtime that did not get ready, and stops it. last is what it said, nil where it said
// nothing.
func (s *supervised) giveUp(r *run, last error) {
	err := fmt.Errorf("the runtime did not get ready within %s (ready-timeout)", s.sup.settings.readyTimeout)
	if last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	s.mu.Lock()
	r.late = s.explain(err)
	s.mu.Unlock()
	if !s.unit.StatusTracker().SetFailure(executor.FailureReadinessTimeout) {
		return
	}
	if err := s.unit.Stop(context.Background()); err != nil {
		s.sup.logger.Error("runtime that did not get ready not stopped", "agent", s.id, "error", err)
	}
}

var allStatuses = [...]executor.Status{
	executor.StatusPulling, executor.StatusStarting, executor.StatusReady, executor.StatusWorking,
	executor.StatusStopped, executor.StatusFailed, executor.StatusRemoving, executor.StatusRemoved,
}

// allBut is the guard of a transition that is right from one status only.
func allBut(from executor.Status) []executor.Status {
	out := make([]executor.Status, 0, len(allStatuses)-1)
	for _, st := range allStatuses {
		if st != from {
			out = append(out, st)
		}
	}
	return out
}

var notWorking = allBut(executor.StatusWorking)

// begin counts a prompt in; the agent is working until the last one was counted out with finish.
func (s *supervised) begin() (*run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.run
	if r == nil || r.ended || s.unit == nil || s.removing {
		return nil, s.notReady()
	}
	if st := s.unit.Status(); st != executor.StatusReady && st != executor.StatusWorking {
		return nil, s.notReady()
	}
	if !s.unit.StatusTracker().Set(executor.StatusWorking) {
		return nil, s.notReady()
	}
	r.calls++
	return r, nil
}

func (s *supervised) finish(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.calls--; r.calls == 0 && s.run == r {
		s.unit.StatusTracker().SetUnless(executor.StatusReady, notWorking...)
	}
}

// notReady is called with mu held.
func (s *supervised) notReady() error {
	st := s.told
	if s.unit != nil && !terminal(st.status) {
		st.status = s.unit.Status()
	}
	hint := ""
	switch st.status {
	case executor.StatusPulling, executor.StatusStarting:
		hint = "wait until `otters ps` shows it ready"
	case executor.StatusStopped:
		hint = "start it with `otters start " + s.name + "`"
	case executor.StatusFailed:
		hint = "see `otters logs " + s.name + "`, then `otters start " + s.name + "`"
	}
	why := ""
	if st.reason != "" {
		why = fmt.Sprintf(" (%s): %s", st.reason, st.message)
	}
	return fail(codes.FailedPrecondition, hint, "agent %s is not ready: it is %s%s", s.name, st.status, why)
}

// stop ends the run because the operator wants it ended, and returns when that has been told.
func (s *supervised) stop(ctx context.Context) error {
	if s.unit == nil {
		return nil
	}
	return s.unwanted(ctx, s.unit.Stop)
}

// unwanted ends the run, by a way to end the runtime, because the operator does not want it any more.
// A full disk keeps nobody from ending what may have filled it.
func (s *supervised) unwanted(ctx context.Context, end func(context.Context) error) error {
	stored := s.sup.db.setWanted(ctx, s.id, false)
	if stored != nil && !diskFull(stored) {
		return stored
	}
	if err := s.haltBy(ctx, end); err != nil || stored == nil {
		return err
	}
	return fail(codes.ResourceExhausted, freeSpace+", and stop it again", "agent %s is stopped, but the next daemon may start it again, for that could not be stored: %w", s.name, stored)
}

// halt ends the run, a restart that is due, and what the operator runs in the agent, without a word
// of what the operator wants.
func (s *supervised) halt(ctx context.Context) error {
	if s.unit == nil {
		return nil
	}
	return s.haltBy(ctx, s.unit.Stop)
}

// haltBy is halt with a way to end the runtime.
func (s *supervised) haltBy(ctx context.Context, end func(context.Context) error) error {
	defer s.endExecs()
	s.mu.Lock()
	r := s.run
	if r != nil {
		r.halted = true
	}
	if s.retry != nil {
		s.callOff()
		s.tell(s.told)
	}
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	// A start that has not reached the executor yet ends by its context, any other by Stop.
	r.cancel()
	if err := end(ctx); err != nil {
		return fmt.Errorf("stop agent %s: %w", s.name, err)
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop agent %s: %w", s.name, ctx.Err())
	}
}
