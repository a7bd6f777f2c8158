package daemon

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
)

const (
	// persistDelay lets statuses that come and go, such as working, share a write.
	persistDelay = 100 * time.Millisecond
	// persistPause is how long what could not be stored, for a disk is full, waits for the next try.
	persistPause = time.Second
	// maxStatusMessage bounds the line about a failure.
	maxStatusMessage = 2000
)

// grpcPrefix is what gRPC puts before the text of a status.
var grpcPrefix = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// supervised is one agent under the daemon's care. What is told and stored of its status is what
// the executor's tracker says; the supervisor itself sets ready, working and readiness_timeout.
type supervised struct {
	sup     *supervisor
	id      uuid.UUID
	name    string
	image   string
	digest  string
	model   string
	created time.Time
	policy  restartPolicy
	door    *door
	// unit is nil for an agent that could not be restored.
	unit executor.Agent

	// dirty asks the observer to store what is told.
	dirty chan struct{}
	// observed is closed when the observer has ended; nil where there is none.
	observed chan struct{}

	mu       sync.Mutex
	told     state
	version  uint64
	started  time.Time
	run      *run
	removing bool
	// restarts is part of what is told; retry is the restart that is due, nil where none is.
	restarts restarts
	retry    *retry
	watchers map[chan struct{}]struct{}
	// execs are the BINs that run for the operator.
	execs map[*execution]struct{}
	// offlineSlot has room for the one call that works on the sessions of a stopped agent.
	offlineSlot chan struct{}

	// logMu is held for writing by a rotation of the log, which rotations counts, and for reading by
	// whoever opens its files.
	logMu     sync.RWMutex
	rotations int
	rotating  atomic.Bool
}

func newSupervised(sup *supervisor, r record) *supervised {
	s := &supervised{
		sup: sup, id: r.id, name: r.name, image: r.image, digest: r.digest, model: r.model,
		created: r.created, started: r.started, told: r.state, policy: r.policy, restarts: r.state.restarts,
		dirty: make(chan struct{}, 1), watchers: make(map[chan struct{}]struct{}), execs: make(map[*execution]struct{}), offlineSlot: make(chan struct{}, 1),
	}
	s.door = &door{agent: s}
	return s
}

// state is what is told, with the time of the last start.
func (s *supervised) state() (state, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told, s.started
}

// running tells whether a run is under way.
func (s *supervised) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run != nil && !s.run.ended
}

// place is the agent's place among the starts that wait, 1 for the next; 0 where it waits for none.
func (s *supervised) place() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil || s.run.turn == nil || s.run.ended {
		return 0
	}
	return s.run.turn.place()
}

// watch returns a channel that gets a value after changes, and a function that ends that.
func (s *supervised) watch() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	s.mu.Lock()
	s.watchers[ch] = struct{}{}
	s.mu.Unlock()
	return ch, func() {
		s.mu.Lock()
		delete(s.watchers, ch)
		s.mu.Unlock()
	}
}

// publish tells the tracker's status of this moment. A failure is told when the run has ended: its
// cause is known then, and nothing of it runs any more.
func (s *supervised) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, reason := s.unit.StatusTracker().Snapshot()
	now := state{status: status, reason: reason}
	if status == executor.StatusFailed {
		switch r := s.run; {
		case r == nil:
			now.message = s.told.message
		case !r.ended:
			return
		default:
			now.message = s.cause(r)
		}
	}
	if r := s.run; status == executor.StatusStarting && r != nil && r.begun && !r.dated {
		r.dated = true
		s.started = time.Now()
	}
	if r := s.run; status == executor.StatusReady && r != nil && !r.exact {
		// What the next daemon will know it by.
		r.exact = true
		if since := s.process().StartedAt; !since.IsZero() {
			s.started = since
		}
	}
	s.tell(now)
}

// tell is called with mu held.
func (s *supervised) tell(now state) {
	now.restarts = s.restarts
	s.told = now
	s.version++
	for ch := range s.watchers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// cause is one line about why r, which has ended, failed. It is called with mu held.
func (s *supervised) cause(r *run) string {
	if r.late != "" {
		return r.late
	}
	return s.explain(r.err)
}

// explain is one line about the end of a run.
func (s *supervised) explain(err error) string {
	if err == nil {
		err = errors.New(s.exitLine())
	}
	// What a runtime answered is for a person; how it came here is not.
	msg := grpcPrefix.ReplaceAllString(flatten(err.Error()), "")
	// The line is told beside the agent it is about.
	for _, operation := range []string{"run", "prepare", "probe"} {
		msg = strings.ReplaceAll(msg, operation+" agent "+s.id.String()+": ", "")
	}
	if len(msg) > maxStatusMessage {
		msg = strings.ToValidUTF8(msg[:maxStatusMessage], "") + "…"
	}
	return msg
}

// exitLine is what is known of an exit that nobody waited for.
func (s *supervised) exitLine() string {
	exit := s.process().LastExit
	if exit == nil {
		return "the runtime ended, and nothing tells how"
	}
	how := fmt.Sprintf("exit code %d", exit.Code)
	if exit.Signal != "" {
		how = exit.Signal
	}
	if n := len(exit.Stderr); n > 0 {
		how += ": " + exit.Stderr[n-1]
	}
	return "runtime ended: " + how
}

// observe follows the tracker until the agent is removed or the daemon closes, and stores what is
// told: an end at once, anything else after a short while.
func (s *supervised) observe() {
	defer close(s.observed)
	statuses, cancel := s.unit.StatusTracker().Subscribe()
	defer cancel()
	var due <-chan time.Time
	stored := state{status: -1}
	store := func() {
		var ok bool
		due = nil
		if stored, ok = s.persist(stored); !ok {
			due = time.After(persistPause)
		}
	}
	for {
		select {
		case _, ok := <-statuses:
			s.publish()
			if !ok {
				return
			}
		case <-s.dirty:
			if now, _ := s.state(); terminal(now.status) {
				store()
			} else if due == nil {
				due = time.After(persistDelay)
			}
		case <-due:
			store()
		case <-s.sup.over.Done():
			s.persist(stored)
			return
		}
	}
}

func terminal(st executor.Status) bool {
	return st == executor.StatusStopped || st == executor.StatusFailed
}

// persist stores what is told now, where that is not stored already, and tells whether it is.
func (s *supervised) persist(stored state) (state, bool) {
	now, started := s.state()
	if now == stored || now.status == executor.StatusRemoved || now.status == executor.StatusRemoving {
		return now, true
	}
	if err := s.sup.db.setState(context.Background(), s.id, now, started); err != nil {
		s.sup.logger.Error("status not stored", "agent", s.id, "status", now.status, "error", err)
		return stored, false
	}
	return now, true
}
