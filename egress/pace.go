package egress

import (
	"context"
	"sync"
	"time"
)

// pace lets burst pass at once and then so many in a second.
type pace struct {
	every, burst time.Duration

	mu sync.Mutex
	// next is when the next one would have its turn without a burst.
	next time.Time
}

func newPace(perSecond, burst int) *pace {
	every := time.Second / time.Duration(perSecond)
	return &pace{every: every, burst: every * time.Duration(burst)}
}

// take is how long the caller has to wait for its turn.
func (p *pace) take() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(p.every)
	return p.next.Sub(now) - p.burst
}

// giveBack undoes take.
func (p *pace) giveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = p.next.Add(-p.every)
}

// now tells whether it is the caller's turn.
func (p *pace) now() bool {
	if p.take() <= 0 {
		return true
	}
	p.giveBack()
	return false
}

// wait returns when it is the caller's turn, or with ctx's error.
func (p *pace) wait(ctx context.Context) error {
	delay := p.take()
	if delay <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		p.giveBack()
		return ctx.Err()
	}
}
