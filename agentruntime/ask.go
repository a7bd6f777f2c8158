package agentruntime

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/loop"
)

// Question is a prompt for one turn without a server.
type Question struct {
	// Session is gone on with; one that is not there begins.
	Session string
	Text    string
	// Regenerate answers the session's newest prompt again; Text is then empty.
	Regenerate bool
	// Observe gets the turn's events, one at a time; may be nil.
	Observe func(loop.Event)
}

// Ask runs one turn of the agent below opts.Root, which no runtime serves, and stores it. The outcome
// says why a turn ended; an error is that of a turn that did not begin or that did not come to its end.
// It wraps ErrConfig and ErrInUse as Serve's and OpenSessions's do. When ctx ends the turn does.
func Ask(ctx context.Context, opts Options, q Question) (out loop.Outcome, err error) {
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	if q.Observe == nil {
		q.Observe = func(loop.Event) {}
	}
	p, err := checkPrompt(ctx, q.Session, q.Text, q.Regenerate, nil)
	if err != nil {
		return out, errors.New(status.Convert(err).Message())
	}
	// A turn that is told to end is stored, so the end of ctx is the end of the turn alone.
	stopped, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	svc, err := newService(&opts, stopped)
	if err != nil {
		return out, err
	}
	svc.store = startStore(ctx, opts.Root)
	defer func() { err = errors.Join(err, svc.store.close()) }()
	<-svc.store.done
	if svc.store.err != nil {
		return out, svc.store.err
	}
	svc.store.tell(opts.Log)
	out, started, err := svc.take(ctx, p, q.Observe)
	if err != nil && !started {
		err = errors.New(status.Convert(err).Message())
	}
	return out, err
}
