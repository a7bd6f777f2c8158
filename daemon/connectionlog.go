package daemon

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/otters-sh/otters/egress"
)

const (
	// samePause is how far apart lines about the same place are, for each agent.
	samePause = 10 * time.Second
	// linesAtOnce is how many lines an agent's connections may have at once, and linePause how long
	// it then takes for one more.
	linesAtOnce = 100
	linePause   = time.Second
	// maxAddresses is how many addresses a line names.
	maxAddresses = 4
)

// connectionLog writes to the daemon's log where agents connect to. It keeps what it writes of one agent
// within bounds, and counts the connections that have no line of their own.
type connectionLog struct {
	logger *slog.Logger
	// now is time.Now but in tests.
	now func() time.Time

	mu     sync.Mutex
	agents map[string]*connectionLines
}

var _ egress.Reporter = (*connectionLog)(nil)

func newConnectionLog(logger *slog.Logger) *connectionLog {
	return &connectionLog{logger: logger, now: time.Now, agents: make(map[string]*connectionLines)}
}

// place is what connections have in common that share a line.
type place struct {
	method, host string
	port         uint16
	allowed      bool
	// reason is kept of those alone that name no host.
	reason string
}

// connectionLines is what was written about one agent.
type connectionLines struct {
	// told are the places of the last lines.
	told map[place]time.Time
	// next is when the next line would have its turn without a burst.
	next time.Time
	// without counts connections since the last line that have none.
	without int
}

// turn tells whether p has a line of its own now, and how many connections before it had none.
func (a *connectionLines) turn(p place, now time.Time) (without int, ok bool) {
	if at, known := a.told[p]; known && now.Sub(at) < samePause {
		a.without++
		return 0, false
	}
	if a.next.Before(now) {
		a.next = now
	}
	if a.next.Sub(now) > (linesAtOnce-1)*linePause {
		a.without++
		return 0, false
	}
	a.next = a.next.Add(linePause)
	if len(a.told) > linesAtOnce {
		maps.DeleteFunc(a.told, func(_ place, at time.Time) bool { return now.Sub(at) >= samePause })
	}
	a.told[p] = now
	without, a.without = a.without, 0
	return without, true
}

// Report writes one line, or counts the connection.
func (l *connectionLog) Report(ctx context.Context, c egress.Connection) error {
	p := place{method: c.Method, host: c.Host, port: c.Port, allowed: c.Allowed}
	if c.Host == "" {
		p.reason = c.Reason
	}
	l.mu.Lock()
	a := l.agents[c.Agent]
	if a == nil {
		a = &connectionLines{told: make(map[place]time.Time)}
		l.agents[c.Agent] = a
	}
	without, ok := a.turn(p, l.now())
	l.mu.Unlock()
	if ok {
		l.line(ctx, c, without)
	}
	return nil
}

func (l *connectionLog) line(ctx context.Context, c egress.Connection, without int) {
	attrs := []slog.Attr{slog.String("agent", c.Agent)}
	if c.Host != "" {
		attrs = append(attrs, slog.String("method", c.Method), slog.String("host", c.Host), slog.Int("port", int(c.Port)))
	}
	if n := len(c.Addresses); n > 0 {
		attrs = append(attrs, slog.Any("addresses", c.Addresses[:min(n, maxAddresses)]))
		if n > maxAddresses {
			attrs = append(attrs, slog.Int("more_addresses", n-maxAddresses))
		}
	}
	if without > 0 {
		attrs = append(attrs, slog.Int("connections_without_a_line", without))
	}
	if c.Allowed {
		l.logger.LogAttrs(ctx, slog.LevelInfo, "connection allowed", append(attrs, slog.String("destination", c.Destination.String()))...)
		return
	}
	l.logger.LogAttrs(ctx, slog.LevelWarn, "connection refused", append(attrs, slog.String("reason", c.Reason))...)
}

// forget ends what is known of an agent whose proxy has ended, and tells what was counted.
func (l *connectionLog) forget(agent string) {
	l.mu.Lock()
	a := l.agents[agent]
	delete(l.agents, agent)
	l.mu.Unlock()
	if a != nil && a.without > 0 {
		l.logger.Info("connections without a line", "agent", agent, "connections_without_a_line", a.without)
	}
}
