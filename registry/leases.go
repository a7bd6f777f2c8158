package registry

import (
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// leases remember what a push in flight may count on though nothing leads to it yet: what was
// pushed, mounted or found present by somebody about to push. They are in memory; what a store has
// of fresh content when it is opened is told by its creation time.
type leases struct {
	now func() time.Time

	mu    sync.Mutex
	taken map[digest.Digest]int64 // last time, in seconds since 1970
	next  int                     // the size at which old ones are dropped
	files map[string]bool         // placed below blobs/, the row not committed yet
}

// leaseTime is how long a lease is remembered, and so the longest grace of a collection.
const leaseTime = 24 * time.Hour

func newLeases(now func() time.Time) *leases {
	return &leases{now: now, taken: make(map[digest.Digest]int64), next: 4096, files: make(map[string]bool)}
}

func (l *leases) take(d digest.Digest) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[d] = now.Unix()
	if len(l.taken) < l.next {
		return
	}
	for d, at := range l.taken {
		if at < now.Add(-leaseTime).Unix() {
			delete(l.taken, d)
		}
	}
	l.next = 2*len(l.taken) + 4096
}

// since lists what was leased at or after the time.
func (l *leases) since(at int64) []digest.Digest {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []digest.Digest
	for d, taken := range l.taken {
		if taken >= at {
			list = append(list, d)
		}
	}
	return list
}

func (l *leases) held(d digest.Digest, at int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken, ok := l.taken[d]
	return ok && taken >= at
}

func (l *leases) placing(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.files[name] = true
}

func (l *leases) placed(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.files, name)
}

func (l *leases) isPlacing(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.files[name]
}
