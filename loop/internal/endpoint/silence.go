package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/otters-sh/otters/loop"
)

// Silence ends a request whose provider says nothing for too long.
type Silence struct {
	limit  time.Duration
	err    error
	timer  *time.Timer
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Watch begins the first silence. The context it returns ends with it; Stop must be called.
func (e *Endpoint) Watch(ctx context.Context) (context.Context, *Silence) {
	s := &Silence{
		limit: e.IdleTimeout,
		err:   &loop.CallError{Message: fmt.Sprintf("model %s: silent for longer than its limit of %s", e.Model, e.IdleTimeout)},
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.timer = time.AfterFunc(s.limit, func() { s.cancel(s.err) })
	return s.ctx, s
}

// Heard begins the next silence.
func (s *Silence) Heard() { s.timer.Reset(s.limit) }

// Stop ends the watch and the context.
func (s *Silence) Stop() {
	s.timer.Stop()
	s.cancel(nil)
}

// Err is err, or what ended the request where that was the silence.
func (s *Silence) Err(err error) error {
	if errors.Is(context.Cause(s.ctx), s.err) {
		return s.err
	}
	return err
}
