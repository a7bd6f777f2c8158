package executor

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// The invariant: a tracker is only ever where the diagram leads, failed exactly with a reason, and
// a subscriber who reads late finds the latest status.

// legal is the diagram of docs/runtime.md, written down a second time.
var legal = map[Status]string{
	StatusPulling:  "starting stopped failed removing",
	StatusStarting: "ready stopped failed",
	StatusReady:    "working stopped failed",
	StatusWorking:  "ready stopped failed",
	StatusStopped:  "pulling starting removing",
	StatusFailed:   "pulling starting removing",
	StatusRemoving: "removed failed",
	StatusRemoved:  "",
}

func allows(from, to Status) bool {
	if from == to {
		return to != StatusFailed
	}
	rest := legal[from]
	for rest != "" {
		var word string
		word, rest = cut(rest)
		if word == to.String() {
			return true
		}
	}
	return false
}

func cut(s string) (string, string) {
	for i := range s {
		if s[i] == ' ' {
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

func TestFailedNeedsAReasonAndKeepsTheFirst(t *testing.T) {
	t.Parallel()
	var tr StatusTracker
	if tr.Set(StatusFailed) || tr.SetFailure(FailureNone) {
		t.Fatal("failed without a reason")
	}
	if !tr.SetFailure(FailurePull) || tr.SetFailure(FailureCrashed) || tr.Failure() != FailurePull {
		t.Fatalf("reason is %q, want the first", tr.Failure())
	}
	if !tr.Set(StatusPulling) || tr.Failure() != FailureNone {
		t.Fatalf("reason %q outlived the failure", tr.Failure())
	}
}

func TestSetUnlessStaysWhereItIsGuarded(t *testing.T) {
	t.Parallel()
	var tr StatusTracker
	tr.SetFailure(FailureModel)
	if tr.SetUnless(StatusStarting, StatusFailed) || tr.Get() != StatusFailed {
		t.Fatal("a guarded status was left")
	}
	if !tr.SetUnless(StatusStarting, StatusRemoved) || tr.Get() != StatusStarting {
		t.Fatal("an unguarded status was kept")
	}
}

func TestASlowSubscriberFindsTheLatestStatus(t *testing.T) {
	t.Parallel()
	var tr StatusTracker
	ch, cancel := tr.Subscribe()
	defer cancel()
	for _, s := range []Status{StatusStarting, StatusReady, StatusWorking, StatusReady, StatusStopped} {
		tr.Set(s)
	}
	if got := <-ch; got != StatusStopped {
		t.Fatalf("got %v, want the latest", got)
	}
	select {
	case s := <-ch:
		t.Fatalf("an older status came after the latest: %v", s)
	default:
	}
}

func TestConcurrentSubscribersAllSeeTheEnd(t *testing.T) {
	t.Parallel()
	var tr StatusTracker
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			ch, cancel := tr.Subscribe()
			defer cancel()
			last := StatusPulling
			for s := range ch {
				last = s
			}
			if last != StatusRemoved {
				t.Errorf("last status seen is %v", last)
			}
		})
	}
	for range 100 {
		tr.Set(StatusStarting)
		tr.Set(StatusReady)
		tr.Set(StatusStopped)
	}
	tr.Set(StatusRemoving)
	tr.Set(StatusRemoved)
	wg.Wait()
}

func TestASubscriptionEndsOnceAndOnlyOnce(t *testing.T) {
	t.Parallel()
	var tr StatusTracker
	ch, cancel := tr.Subscribe()
	cancel()
	cancel()
	<-ch
	if _, ok := <-ch; ok {
		t.Fatal("the channel is open after cancel")
	}
	if !tr.Set(StatusStarting) {
		t.Fatal("a cancelled subscription stopped the tracker")
	}
}

// observed is the least observer there is.
type observed struct{ *StatusTracker }

func (o observed) Status() Status                           { return o.Get() }
func (o observed) FailureReason() FailureReason             { return o.Failure() }
func (o observed) SubscribeStatus() (<-chan Status, func()) { return o.Subscribe() }

func TestWaitForStatus(t *testing.T) {
	t.Parallel()
	t.Run("answers at once when the status is there", func(t *testing.T) {
		t.Parallel()
		var tr StatusTracker
		if s, err := WaitForStatus(t.Context(), observed{&tr}, StatusPulling); s != StatusPulling || err != nil {
			t.Fatal(s, err)
		}
	})
	t.Run("answers when the status comes", func(t *testing.T) {
		t.Parallel()
		var tr StatusTracker
		go func() {
			tr.Set(StatusStarting)
			tr.SetFailure(FailureCrashed)
		}()
		if s, err := WaitForStatus(t.Context(), observed{&tr}, StatusReady, StatusFailed); s != StatusFailed || err != nil {
			t.Fatal(s, err)
		}
	})
	t.Run("ends with its context", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var tr StatusTracker
		if _, err := WaitForStatus(ctx, observed{&tr}, StatusReady); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
	t.Run("tells that the agent was removed", func(t *testing.T) {
		t.Parallel()
		var tr StatusTracker
		tr.Set(StatusRemoving)
		tr.Set(StatusRemoved)
		if _, err := WaitForStatus(t.Context(), observed{&tr}, StatusReady); !errors.Is(err, ErrStatusClosed) {
			t.Fatal(err)
		}
	})
}

func TestEveryStatusHasANameThatReadsBack(t *testing.T) {
	t.Parallel()
	for s := StatusPulling; s <= StatusRemoved; s++ {
		if got, err := ParseStatus(s.String()); err != nil || got != s {
			t.Errorf("%v reads back as %v, %v", s, got, err)
		}
	}
	if _, err := ParseStatus("READY"); err == nil {
		t.Error("an upper-case status was read")
	}
}
