package executor

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Status is where an agent is in its life; docs/runtime.md has the diagram.
type Status int

// The statuses. A new agent is pulling.
const (
	// StatusPulling: its image, runtime or tools are being fetched.
	StatusPulling Status = iota
	// StatusStarting: its runtime was started and has not answered yet, or a start is queued.
	StatusStarting
	// StatusReady: its runtime answers.
	StatusReady
	// StatusWorking: at least one call is in flight.
	StatusWorking
	// StatusStopped: its runtime exited because that was asked for.
	StatusStopped
	// StatusFailed: it ended otherwise; FailureReason tells why.
	StatusFailed
	// StatusRemoving: its workspace is being deleted.
	StatusRemoving
	// StatusRemoved: nothing of it is left. This is final.
	StatusRemoved
)

var statusNames = [...]string{"pulling", "starting", "ready", "working", "stopped", "failed", "removing", "removed"}

// String is the status in lower case.
func (s Status) String() string {
	if s < 0 || int(s) >= len(statusNames) {
		return fmt.Sprintf("status(%d)", int(s))
	}
	return statusNames[s]
}

// ParseStatus is the inverse of String; any other text is an error.
func ParseStatus(s string) (Status, error) {
	if i := slices.Index(statusNames[:], s); i >= 0 {
		return Status(i), nil
	}
	return 0, fmt.Errorf("unknown status %q", s)
}

// FailureReason is why an agent is StatusFailed.
type FailureReason string

// The reasons.
const (
	// FailureNone is the reason in every status but StatusFailed.
	FailureNone FailureReason = ""
	// FailurePull: an image could not be fetched.
	FailurePull FailureReason = "pull"
	// FailureInit: the workspace could not be built or the runtime not started.
	FailureInit FailureReason = "init"
	// FailureConfig: a setting is missing or wrong.
	FailureConfig FailureReason = "config"
	// FailureModel: the model is unknown or not allowed.
	FailureModel FailureReason = "model"
	// FailureReadinessTimeout: the runtime did not answer in time.
	FailureReadinessTimeout FailureReason = "readiness_timeout"
	// FailureCrashed: the runtime exited though nobody asked.
	FailureCrashed FailureReason = "crashed"
)

// next[s] are the statuses that may follow s.
var next = [...][]Status{
	StatusPulling:  {StatusStarting, StatusStopped, StatusFailed, StatusRemoving},
	StatusStarting: {StatusReady, StatusStopped, StatusFailed},
	StatusReady:    {StatusWorking, StatusStopped, StatusFailed},
	StatusWorking:  {StatusReady, StatusStopped, StatusFailed},
	StatusStopped:  {StatusPulling, StatusStarting, StatusRemoving},
	StatusFailed:   {StatusPulling, StatusStarting, StatusRemoving},
	StatusRemoving: {StatusRemoved, StatusFailed},
	StatusRemoved:  {},
}

// StatusTracker holds an agent's status, lets only the transitions of the diagram happen, and tells
// subscribers. The zero value is an agent that is pulling. It is safe for concurrent use and must
// not be copied.
type StatusTracker struct {
	// Refused, if set before the first use, is called with every transition that was refused, for a
	// log. It is called without a lock held, by whoever asked for the transition, so that it may be
	// called by several goroutines at once.
	Refused func(from, to Status)

	mu      sync.Mutex
	status  Status
	failure FailureReason
	subs    map[*subscription]struct{}
}

// subscription holds at most one status, the latest.
type subscription struct {
	ch chan Status
}

// Get is the status.
func (t *StatusTracker) Get() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status
}

// Failure is why the agent failed, FailureNone in every other status.
func (t *StatusTracker) Failure() FailureReason {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failure
}

// Snapshot is status and reason of one moment, which Get and Failure one after the other are not.
func (t *StatusTracker) Snapshot() (Status, FailureReason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status, t.failure
}

// Set moves to s and reports whether the diagram allows that. Setting the status it has is allowed
// and tells nobody. StatusFailed needs a reason and is refused here: use SetFailure.
func (t *StatusTracker) Set(s Status) bool { return t.move(s, FailureNone) }

// SetFailure moves to StatusFailed with a reason, which must not be FailureNone. On an agent that
// has failed already the first reason stays, and SetFailure answers false.
func (t *StatusTracker) SetFailure(reason FailureReason) bool { return t.move(StatusFailed, reason) }

// SetUnless is Set unless the status is one of guard, in one step. A guarded status is kept without a
// word to Refused, and SetUnless answers false.
func (t *StatusTracker) SetUnless(s Status, guard ...Status) bool {
	return t.move(s, FailureNone, guard...)
}

func (t *StatusTracker) move(to Status, reason FailureReason, guard ...Status) bool {
	t.mu.Lock()
	from := t.status
	if slices.Contains(guard, from) {
		t.mu.Unlock()
		return false
	}
	if from == to {
		t.mu.Unlock()
		return to != StatusFailed
	}
	if to < 0 || to > StatusRemoved || (to == StatusFailed) != (reason != FailureNone) || !slices.Contains(next[from], to) {
		t.mu.Unlock()
		if t.Refused != nil {
			t.Refused(from, to)
		}
		return false
	}
	t.status, t.failure = to, reason
	for s := range t.subs {
		s.put(to)
		if to == StatusRemoved {
			close(s.ch)
			delete(t.subs, s)
		}
	}
	t.mu.Unlock()
	return true
}

// put replaces whatever the reader has not taken. Only the tracker sends, under its lock, so after
// the drain there is room.
func (s *subscription) put(st Status) {
	select {
	case <-s.ch:
	default:
	}
	s.ch <- st
}

// Subscribe returns a channel that yields the status now and after each change, and a function
// that ends the subscription, which must be called and may be called twice. A slow reader finds the
// latest status; it may miss one in between, and it holds nobody up. The channel is closed by the function
// and after StatusRemoved.
func (t *StatusTracker) Subscribe() (<-chan Status, func()) {
	s := &subscription{ch: make(chan Status, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.put(t.status)
	if t.status == StatusRemoved {
		close(s.ch)
		return s.ch, func() {}
	}
	if t.subs == nil {
		t.subs = make(map[*subscription]struct{})
	}
	t.subs[s] = struct{}{}
	return s.ch, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if _, ok := t.subs[s]; ok {
			delete(t.subs, s)
			close(s.ch)
		}
	}
}

// WaitForStatus blocks until the observer's status is one of targets and returns it. It returns
// ctx's error when ctx is done first, and an error that wraps ErrStatusClosed when the subscription
// ended before, as it does when the agent is removed; the status is then the one of that moment. A
// status that came and went while nobody looked may be missed; the latest never is. Its subscription
// ends with it.
func WaitForStatus(ctx context.Context, o StatusObserver, targets ...Status) (Status, error) {
	ch, cancel := o.SubscribeStatus()
	defer cancel()
	for {
		select {
		case s, ok := <-ch:
			if !ok {
				return o.Status(), fmt.Errorf("wait for %v: %w", targets, ErrStatusClosed)
			}
			if slices.Contains(targets, s) {
				return s, nil
			}
		case <-ctx.Done():
			return o.Status(), fmt.Errorf("wait for %v: %w", targets, ctx.Err())
		}
	}
}
