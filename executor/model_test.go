package executor

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// The model of the status machine against random sequences. A run prints its seed; the variable
// OTTERS_SEED runs that one again.

func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("OTTERS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("OTTERS_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// machine is what a tracker should be, by the diagram alone.
type machine struct {
	status  Status
	reason  FailureReason
	refused [][2]Status
}

// move is the outcome of a call that asks for to with reason, unless the status is in guard.
func (m *machine) move(to Status, reason FailureReason, guard []Status) bool {
	if slices.Contains(guard, m.status) {
		return false
	}
	if m.status == to {
		return to != StatusFailed
	}
	if (to == StatusFailed) != (reason != FailureNone) || !allows(m.status, to) {
		m.refused = append(m.refused, [2]Status{m.status, to})
		return false
	}
	m.status, m.reason = to, reason
	return true
}

func TestTheTrackerIsItsModelOnRandomSequences(t *testing.T) {
	t.Parallel()
	rng := seeded(t)
	reasons := []FailureReason{FailureNone, FailurePull, FailureInit, FailureConfig, FailureModel, FailureReadinessTimeout, FailureCrashed}
	ways := make(map[[2]Status]bool) // the transitions that were taken
	for range 3000 {
		var tr StatusTracker
		var refused [][2]Status
		tr.Refused = func(from, to Status) { refused = append(refused, [2]Status{from, to}) }
		var m machine
		ch, cancel := tr.Subscribe()
		changed := true // since the subscriber looked
		for range 30 {
			before := m.status
			to := Status(rng.IntN(int(StatusRemoved)+3) - 1) // one below and one above the statuses too
			reason := reasons[rng.IntN(len(reasons))]
			var got, want bool
			switch rng.IntN(3) {
			case 0:
				got, want = tr.Set(to), m.move(to, FailureNone, nil)
			case 1:
				to = StatusFailed
				got, want = tr.SetFailure(reason), m.move(to, reason, nil)
			case 2:
				guard := []Status{Status(rng.IntN(8)), Status(rng.IntN(8))}[:rng.IntN(3)]
				got, want = tr.SetUnless(to, guard...), m.move(to, FailureNone, guard)
			}
			if s, r := tr.Snapshot(); got != want || s != m.status || r != m.reason || tr.Get() != s || tr.Failure() != r {
				t.Fatalf("%v to %v: answered %v and is %v %q, want %v and %v %q", before, to, got, s, r, want, m.status, m.reason)
			}
			if before != m.status {
				ways[[2]Status{before, m.status}] = true
				changed = true
			}
			// A reader that looks now and then finds the latest, once, where there was a change.
			if rng.IntN(3) > 0 {
				continue
			}
			select {
			case s, ok := <-ch:
				if ended := !ok && m.status == StatusRemoved && !changed; !ended && (!ok || !changed || s != m.status) {
					t.Fatalf("a subscriber finds %v (%v), the agent is %v, changed %v", s, ok, m.status, changed)
				}
				changed = false
			default:
				if changed || m.status == StatusRemoved {
					t.Fatalf("a subscriber does not find %v", m.status)
				}
			}
		}
		if !slices.Equal(refused, m.refused) {
			t.Fatalf("refused were %v, want %v", refused, m.refused)
		}
		cancel()
	}
	for from, all := range legal {
		for to := StatusPulling; to <= StatusRemoved; to++ {
			if to != from && allows(from, to) && !ways[[2]Status{from, to}] {
				t.Errorf("%v to %v never came up, of %s", from, to, all)
			}
		}
	}
}

// randomly moves the trackers until they are removed, from several goroutines at once.
func randomly(tr *StatusTracker, rng *rand.Rand) *sync.WaitGroup {
	var wg sync.WaitGroup
	for range 3 {
		own := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
		wg.Go(func() {
			for range 200 {
				if to := Status(own.IntN(int(StatusRemoving))); to == StatusFailed {
					tr.SetFailure(FailureCrashed)
				} else {
					tr.Set(to)
				}
			}
		})
	}
	return &wg
}

func TestASubscriberOfRandomMovesAlwaysComesToTheLatest(t *testing.T) {
	t.Parallel()
	rng := seeded(t)
	for range 50 {
		var tr StatusTracker
		moves := randomly(&tr, rng)
		var readers sync.WaitGroup
		settled := make(chan Status)
		for range 4 {
			ch, cancel := tr.Subscribe()
			readers.Go(func() {
				defer cancel()
				last := StatusPulling
				for {
					select {
					case s := <-ch:
						last = s
					case want := <-settled:
						select {
						case last = <-ch:
						default:
						}
						if last != want {
							t.Errorf("the last status seen is %v, the latest is %v", last, want)
						}
						return
					}
				}
			})
		}
		moves.Wait()
		for range 4 {
			settled <- tr.Get()
		}
		readers.Wait()
	}
}

func TestWaitForStatusMissesNoStatusThatStays(t *testing.T) {
	t.Parallel()
	rng := seeded(t)
	for range 200 {
		var tr StatusTracker
		target := []Status{StatusReady, StatusWorking, StatusStopped, StatusFailed, StatusRemoved}[rng.IntN(5)]
		moves := randomly(&tr, rng)
		var waiters sync.WaitGroup
		for range 3 {
			waiters.Go(func() {
				if s, err := WaitForStatus(t.Context(), observed{&tr}, target); err != nil || s != target {
					t.Errorf("waiting for %v came to %v, %v", target, s, err)
				}
			})
		}
		moves.Wait()
		settle(&tr, target)
		waiters.Wait()
		// Who comes late finds it at once.
		ctx, cancel := context.WithCancel(t.Context())
		if s, err := WaitForStatus(ctx, observed{&tr}, target); err != nil || s != target {
			t.Errorf("waiting for %v came to %v, %v", target, s, err)
		}
		cancel()
		// Its twin: a status that can't come any more is told, and does not hang.
		for _, s := range []Status{StatusStopped, StatusRemoving, StatusRemoved} {
			tr.Set(s)
		}
		settle(&tr, StatusRemoved)
		if _, err := WaitForStatus(t.Context(), observed{&tr}, StatusReady); !errors.Is(err, ErrStatusClosed) {
			t.Errorf("waiting for a removed agent: %v", err)
		}
	}
}

// settle leads the tracker to target, from wherever it is, by the ways of the diagram.
func settle(tr *StatusTracker, target Status) {
	type way []Status
	seen := map[Status]bool{tr.Get(): true}
	for todo := []way{{tr.Get()}}; len(todo) > 0; todo = todo[1:] {
		w := todo[0]
		if last := w[len(w)-1]; last != target {
			for to := StatusPulling; to <= StatusRemoved; to++ {
				if !seen[to] && allows(last, to) {
					seen[to] = true
					todo = append(todo, append(w[:len(w):len(w)], to))
				}
			}
			continue
		}
		for _, s := range w[1:] {
			if s == StatusFailed {
				tr.SetFailure(FailureCrashed)
			} else {
				tr.Set(s)
			}
		}
		return
	}
}
