package sandbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"
)

// refillPause lets the program that was just started have the machine to itself: a monitor with
// namespaces of its own costs the kernel more than the program's own start.
const refillPause = 50 * time.Millisecond

// kind is what namespaces a monitor is started in.
type kind int

const (
	plain    kind = iota // the host's
	enclosed             // its own
	kinds
)

func kindOf(level Level) kind {
	if level == Strict {
		return enclosed
	}
	return plain
}

// pool is the monitors of a kind that are started ahead, from the kind's first use on.
type pool struct {
	warm []*child
	// expected counts the starts that were announced and have no monitor yet, coming the monitors that
	// are being started, and waiting the starts that wait for one of these.
	expected, coming, waiting int
	// timer runs while the next refill waits for its time.
	timer *time.Timer
}

// refill starts monitors ahead until there are enough. l.mu is held.
func (l *Launcher) refill(k kind) {
	p := &l.kinds[k]
	l.ahead(k, l.want+p.expected-len(p.warm)-p.coming)
}

// ahead starts n monitors ahead. l.mu is held.
func (l *Launcher) ahead(k kind, n int) {
	if l.closed {
		return
	}
	p := &l.kinds[k]
	for range n {
		p.coming++
		l.wg.Add(1)
		go func() {
			defer l.wg.Done()
			c, err := l.spawn(k)
			l.mu.Lock()
			defer l.mu.Unlock()
			defer l.come.Broadcast()
			p.coming--
			switch {
			case err == nil && l.closed:
				_ = c.conn.Close()
			case err == nil:
				p.warm = append(p.warm, c)
				l.trim(k)
			case !errors.Is(err, errClosed):
				l.logger.Warn("monitor not started ahead", "error", err)
			}
		}()
	}
}

// trim ends monitors that came for starts that did not. l.mu is held.
func (l *Launcher) trim(k kind) {
	p := &l.kinds[k]
	for len(p.warm) > l.want+p.expected+p.waiting {
		_ = p.warm[0].conn.Close()
		p.warm = append(p.warm[:0], p.warm[1:]...)
	}
}

// refillSoon starts monitors ahead after refillPause, which begins anew with each call. l.mu is
// held.
func (l *Launcher) refillSoon(k kind) {
	p := &l.kinds[k]
	if l.closed {
		return
	}
	if p.timer == nil || !p.timer.Stop() {
		l.wg.Add(1) // in place of an earlier one it has that one's count
	}
	p.timer = time.AfterFunc(refillPause, func() {
		defer l.wg.Done()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.refill(k)
	})
}

// take returns a monitor started ahead, or one that is about to be, or starts one. It calls taken,
// with l.mu held, where it takes one or starts one itself.
func (l *Launcher) take(k kind, taken func()) (*child, error) {
	var mounts [sha256.Size]byte
	if k == enclosed {
		mounts = hostMounts()
	}
	l.mu.Lock()
	p := &l.kinds[k]
	for {
		for len(p.warm) > 0 {
			c := p.warm[0]
			p.warm = append(p.warm[:0], p.warm[1:]...)
			if c.mounts != mounts {
				_ = c.conn.Close() // it would not see what was mounted since
				continue
			}
			taken()
			l.trim(k)
			l.mu.Unlock()
			return c, nil
		}
		if l.closed || p.coming <= p.waiting {
			break
		}
		p.waiting++
		l.come.Wait()
		p.waiting--
	}
	taken()
	l.mu.Unlock()
	return l.spawn(k)
}

// Expected is a start that was announced, for which a monitor is being started where none waits.
type Expected struct {
	l    *Launcher
	kind kind
	// over tells that the start has its monitor, or will not come.
	over bool
}

// Expect announces a start at level, so that its monitor is started while the caller still prepares it.
// The caller calls Close.
func (l *Launcher) Expect(level Level) *Expected {
	e := &Expected{l: l, kind: kindOf(level)}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.kinds[e.kind]
	p.expected++
	l.ahead(e.kind, p.expected-len(p.warm)-p.coming)
	return e
}

// Start is Launcher.Start for the start that was announced. It is called once at most.
func (e *Expected) Start(ctx context.Context, spec Spec) (*Process, error) {
	return e.l.startWith(ctx, spec, func() (*child, error) { return e.l.take(kindOf(spec.Level), e.met) })
}

// met is called with l.mu held.
func (e *Expected) met() {
	if !e.over {
		e.over = true
		e.l.kinds[e.kind].expected--
	}
}

// Close takes the announcement back where no start came of it.
func (e *Expected) Close() {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.over {
		return
	}
	e.met()
	l.trim(e.kind)
}
