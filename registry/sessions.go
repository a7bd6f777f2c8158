package registry

import (
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"
)

// sessions are the uploads open over HTTP. They live as long as the store: an upload that a
// restart cut off begins anew.
type sessions struct {
	limit int
	idle  time.Duration

	mu     sync.Mutex
	byID   map[string]*session
	closed bool
}

// session is one upload. Its id is random and names it in its own repository only. Whoever holds
// busy is its only user.
type session struct {
	id         string
	repository string
	blob       *ingest

	// The rest is guarded by sessions.mu.
	busy  bool
	timer *time.Timer
}

func newSessions(limit int, idle time.Duration) *sessions {
	return &sessions{limit: limit, idle: idle, byID: make(map[string]*session)}
}

// start opens a session and leaves it with the caller.
func (s *sessions) start(store *Store, repository string, algorithm digest.Algorithm) (*session, error) {
	u := &session{id: uuid.NewString(), repository: repository, blob: store.newIngest(algorithm), busy: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if len(s.byID) >= s.limit {
		return nil, errTooManyUploads
	}
	u.timer = time.AfterFunc(s.idle, func() { s.expire(u) })
	s.byID[u.id] = u
	return u, nil
}

// acquire takes a session for one request.
func (s *sessions) acquire(repository, id string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.byID[id]
	if u == nil || u.repository != repository {
		return nil, errNoUpload
	}
	if u.busy {
		return nil, errUploadBusy
	}
	u.busy = true
	return u, nil
}

// release gives a session back and starts its rest anew.
func (s *sessions) release(u *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[u.id] == nil {
		u.blob.discard()
		return
	}
	u.busy = false
	u.timer.Reset(s.idle)
}

// end forgets a session that the caller holds; its content is the caller's.
func (s *sessions) end(u *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u.timer.Stop()
	delete(s.byID, u.id)
}

// expire removes a session that rested. One in use is bounded by its request and rests after it.
func (s *sessions) expire(u *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.busy || s.byID[u.id] == nil {
		return
	}
	delete(s.byID, u.id)
	u.blob.discard()
}

// close removes all sessions; one in use is removed by its user.
func (s *sessions) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for id, u := range s.byID {
		u.timer.Stop()
		delete(s.byID, id)
		if !u.busy {
			u.blob.discard()
		}
	}
}
