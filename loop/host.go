package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Approver decides about calls before they run. It is asked for one call of a turn after the other, from
// several goroutines at once when turns overlap; meanwhile the calls before run already.
type Approver interface {
	// Approve returns nil where the call may run. An error is told to the model as the call's result; an
	// *EndError, such as one of reason Denied, ends the turn too. When ctx ends Approve returns soon after.
	Approve(ctx context.Context, call Call) error
}

// Store keeps what a turn builds on.
type Store interface {
	// History is called once in a turn, after the prompt was recorded. An error ends the turn, as
	// Interrupted unless it is an *EndError. When ctx ends History returns soon after.
	History(ctx context.Context) ([]Message, error)
}

// Steerer hands over what the user says while a turn runs.
type Steerer interface {
	// Steer returns what was said since it was called last, mostly nothing. It is called from the turn's
	// goroutine before each request but the first, and when the model is done: what it returns then is
	// answered in the same turn, as far as its bounds allow. It returns at once: the turn, and what would
	// end it, wait for it. Each text becomes a message of the turn, and is recorded.
	Steer() []string
}

// Clock tells the time by which bounds and durations go. It is used by several goroutines at once.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f in a goroutine of its own after d, unless stop is called before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }

func (l *Loop) since(t time.Time) time.Duration { return l.cfg.Clock.Now().Sub(t) }

// within ends a context with cause after d. By the system's clock it has a deadline.
func (l *Loop) within(ctx context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	if _, ok := l.cfg.Clock.(systemClock); ok {
		return context.WithTimeoutCause(ctx, d, cause)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := l.cfg.Clock.AfterFunc(d, func() { cancel(cause) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// approve asks for a call, where there is someone to ask.
func (r *run) approve(ctx context.Context, c Call) error {
	if r.cfg.Approver == nil {
		return nil
	}
	r.emit(Event{Type: ApprovalRequest, Tool: c.Name, ToolID: c.ID, Content: string(c.Args)})
	started := r.cfg.Clock.Now()
	err := guarded("approver", func() error { return r.cfg.Approver.Approve(ctx, c) })
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	told := Event{Type: ApprovalResult, Tool: c.Name, ToolID: c.ID, Content: "approved", Failed: err != nil, Duration: r.since(started)}
	if err != nil {
		told.Content = strings.ToValidUTF8(err.Error(), "\uFFFD")
	}
	r.emit(told)
	if err != nil {
		return fmt.Errorf("not run: %w", err)
	}
	return nil
}

// steer takes what was said meanwhile into the turn, and tells whether that was anything.
func (r *run) steer(ctx context.Context) (bool, error) {
	if r.turn.Steerer == nil {
		return false, nil
	}
	var texts []string
	err := guarded("steerer", func() error {
		texts = r.turn.Steerer.Steer()
		return nil
	})
	if err != nil {
		return false, err
	}
	said := false
	for _, text := range texts {
		if text == "" {
			continue
		}
		said = true
		if err := r.add(ctx, UserMessage(strings.ToValidUTF8(text, "\uFFFD"))); err != nil {
			return false, err
		}
	}
	return said, nil
}

// load takes over the history where a store has it.
func (r *run) load(ctx context.Context) error {
	if r.turn.Store == nil {
		return nil
	}
	err := guarded("store", func() (err error) {
		r.turn.History, err = r.turn.Store.History(ctx)
		return err
	})
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !ends(err):
		return &EndError{Reason: Interrupted, Err: err}
	}
	return err
}

// asked streams an answer to take, and makes an error of a panic in the model.
func asked(ctx context.Context, m Model, req Request, take func(Delta) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &CallError{Message: fmt.Sprintf("model broke: %v", p)}
		}
	}()
	for d, err := range m.Stream(ctx, req) {
		if err == nil {
			err = take(d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// guarded makes an error of a panic in what the host brought, which ends the turn in order: its calls are
// waited for, and its end is told.
func guarded(who string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &EndError{Reason: Interrupted, Err: fmt.Errorf("%s broke: %v", who, p)}
		}
	}()
	return f()
}

// ends tells whether an error is one that ends the turn.
func ends(err error) bool {
	var end *EndError
	return errors.As(err, &end)
}
