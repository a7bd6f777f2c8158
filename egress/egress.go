// Package egress lets agents out to named destinations: an HTTP proxy for each agent, which resolves
// names itself, checks every address, dials what it checked, and reports each connection.
//
// Invariant: no byte leaves for an address that was not checked, by name or by itself, against the
// destinations of the very agent that asks; an address that is not public must be among them itself,
// whatever name leads to it; and no connection is made that was not reported before. The daemon
// serves a Proxy on a listener of each agent's own; since at weaker sandbox levels others reach that
// too, every request must present the agent's credential.
package egress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// ErrClosed tells that the proxy was closed before.
var ErrClosed = errors.New("proxy closed")

// User is the name in the credential of every agent; the password is its token.
const User = "agent"

// Connection is one attempt of an agent to reach a destination.
type Connection struct {
	Agent string
	// Method is CONNECT for a tunnel, for a plain request its own. It is empty, as are Host and Port,
	// where a request was refused before it was looked at.
	Method string
	// Host is as it was asked for, in canonical form where it has one, and at most 255 bytes.
	Host string
	Port uint16
	// Addresses are what the name leads to, in the order in which they are dialled.
	Addresses []netip.Addr
	// Allowed tells whether it is dialled. Destination is the one that names it, Reason why it was
	// refused.
	Allowed     bool
	Destination Destination
	Reason      string
}

// Reporter hears of every connection once, before it is made. It may be called at the same time for
// several.
type Reporter interface {
	// Report records c. With an error an allowed connection is not made.
	Report(ctx context.Context, c Connection) error
}

// Resolver finds the addresses of a name, as *net.Resolver does. A name with a dot in it is asked for
// with a dot at its end, so that no search list applies.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options of a Proxy; the zero value works and reports to nobody.
type Options struct {
	// Resolver finds addresses; nil is the system's.
	Resolver Resolver
	// Reporter hears of every connection; nil means nobody does.
	Reporter Reporter
	// Logger hears, at level debug, of what servers of HTTP complain about; nil means nobody does.
	Logger *slog.Logger
	// ResolveTimeout bounds the question for a name; 0 means 10 seconds.
	ResolveTimeout time.Duration
	// DialTimeout bounds connecting, to all addresses of a name together; 0 means 30 seconds.
	DialTimeout time.Duration
	// IdleTimeout bounds how long nothing may come from either side; 0 means 5 minutes.
	IdleTimeout time.Duration

	// own are the addresses of this machine; nil asks the kernel.
	own func() ([]netip.Addr, error)
	// headerWait bounds the wait for a request's headers; 0 means the constant of that name.
	headerWait time.Duration
}

// Grant is what one agent may reach.
type Grant struct {
	// Agent names it to the Reporter.
	Agent string
	// Destinations are all that it may reach.
	Destinations []Destination
	// TokenHash is gate.TokenHash of the token that it presents.
	TokenHash [32]byte
}

// Proxy serves agents. Its methods may be called at the same time.
type Proxy struct {
	opts   Options
	dialer net.Dialer

	mu      sync.Mutex
	closing bool
	doors   map[*door]struct{}
	serving sync.WaitGroup
}

// New makes a proxy. It starts nothing until Serve; Close ends it.
func New(opts Options) *Proxy {
	if opts.Resolver == nil {
		opts.Resolver = net.DefaultResolver
	}
	if opts.Reporter == nil {
		opts.Reporter = nobody{}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	for _, t := range []struct {
		value *time.Duration
		usual time.Duration
	}{{&opts.ResolveTimeout, 10 * time.Second}, {&opts.DialTimeout, 30 * time.Second}, {&opts.IdleTimeout, 5 * time.Minute}, {&opts.headerWait, headerWait}} {
		if *t.value <= 0 {
			*t.value = t.usual
		}
	}
	if opts.own == nil {
		opts.own = ownAddresses
	}
	return &Proxy{opts: opts, doors: make(map[*door]struct{})}
}

type nobody struct{}

func (nobody) Report(context.Context, Connection) error { return nil }

// Serve answers one agent on l, which it owns from now on, until l is closed or the proxy is. It
// returns when nothing that came through l runs any more: the agent's connections are cut. It is nil
// in both cases, and ErrClosed when the proxy was closed before.
func (p *Proxy) Serve(g Grant, l net.Listener) error {
	d := newDoor(p, g)
	p.mu.Lock()
	if p.closing {
		p.mu.Unlock()
		return errors.Join(ErrClosed, l.Close())
	}
	p.doors[d] = struct{}{}
	p.serving.Add(1)
	p.mu.Unlock()
	defer p.serving.Done()
	err := d.serve(l)
	p.mu.Lock()
	delete(p.doors, d)
	p.mu.Unlock()
	return err
}

// Close ends every Serve with all connections, and waits for that. It may be called more than once.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closing = true
	for d := range p.doors {
		d.end()
	}
	p.mu.Unlock()
	p.serving.Wait()
}
