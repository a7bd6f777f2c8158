package daemon

import (
	"context"
	"slices"
	"sync"
)

// startQueue lets so many agents start at the same time and has the others wait in the order in which
// they came. An agent holds its slot from there until it is ready or has ended.
type startQueue struct {
	mu      sync.Mutex
	free    int
	waiting []*startTurn
}

// startTurn is a place in the queue, and then a slot.
type startTurn struct {
	queue *startQueue
	// granted is closed when there is a slot.
	granted chan struct{}

	// done is guarded by the queue's mu.
	done bool
}

func newStartQueue(slots int) *startQueue { return &startQueue{free: slots} }

// join takes a slot or the last place. The caller leaves.
func (q *startQueue) join() *startTurn {
	t := &startTurn{queue: q, granted: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, t)
	q.grant()
	return t
}

// grant is called with mu held.
func (q *startQueue) grant() {
	for q.free > 0 && len(q.waiting) > 0 {
		t := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		q.free--
		close(t.granted)
	}
}

// leave gives the slot or the place back. It may be called more than once.
func (t *startTurn) leave() {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.done {
		return
	}
	t.done = true
	// Who does not wait has a slot.
	if i := slices.Index(q.waiting, t); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	} else {
		q.free++
	}
	q.grant()
}

// place is 1 for the turn that comes next, 0 for one that waits no more.
func (t *startTurn) place() int {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Index(q.waiting, t) + 1
}

// wait returns nil when there is a slot.
func (t *startTurn) wait(ctx context.Context) error {
	select {
	case <-t.granted:
		return nil
	default:
	}
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
