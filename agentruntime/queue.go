package agentruntime

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxWaiting bounds how many callers wait for one session.
const maxWaiting = 64

// queue lets one caller at a time into a session. The zero value is ready for use.
type queue struct {
	mu       sync.Mutex
	sessions map[string]*place
}

type place struct {
	slot  chan struct{}
	users int // callers inside and waiting; guarded by queue.mu
}

// enter waits for the session and returns what leaves it again. A caller that does not wait is refused
// where others are inside or wait.
func (q *queue) enter(ctx context.Context, session string, wait bool) (leave func(), err error) {
	q.mu.Lock()
	if q.sessions == nil {
		q.sessions = make(map[string]*place)
	}
	p := q.sessions[session]
	if p == nil {
		p = &place{slot: make(chan struct{}, 1)}
		q.sessions[session] = p
	}
	if p.users > 0 && !wait {
		q.mu.Unlock()
		return nil, status.Errorf(codes.FailedPrecondition, "session %s: it is busy with another turn", session)
	}
	if p.users > maxWaiting {
		q.mu.Unlock()
		return nil, status.Error(codes.ResourceExhausted, fmt.Sprintf("session %s: %d callers wait already; try again later", session, maxWaiting))
	}
	p.users++
	q.mu.Unlock()

	gone := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if p.users--; p.users == 0 {
			delete(q.sessions, session)
		}
	}
	select {
	case p.slot <- struct{}{}:
		if ctx.Err() == nil {
			return func() { <-p.slot; gone() }, nil
		}
		<-p.slot
	case <-ctx.Done():
	}
	gone()
	return nil, status.FromContextError(ctx.Err()).Err()
}
