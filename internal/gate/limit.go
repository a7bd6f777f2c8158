package gate

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// Limit makes a listener of l that takes n connections at a time; the next one waits. A connection on
// which Known was not called gives way to it, the oldest first: others on this machine may reach a
// listener on the loopback, and must not keep out who is meant by holding all there are. A write that
// takes longer than idle fails; 0 is no bound. The server's ConnContext must be gate.ConnContext.
func Limit(l net.Listener, n int, idle time.Duration) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, n), idle: idle, over: make(chan struct{})}
}

type clientKey struct{}

// ConnContext is for a field of that name of an http.Server: it has Known find the connection.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// Known tells that the connection of a request, by its context, has presented its credential.
func Known(ctx context.Context) {
	if c, ok := ctx.Value(clientKey{}).(*counted); ok {
		c.known()
	}
}

type limited struct {
	net.Listener
	slots chan struct{}
	idle  time.Duration
	over  chan struct{}
	once  sync.Once

	mu        sync.Mutex
	strangers []*counted // the oldest first
}

func (l *limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case l.slots <- struct{}{}:
	default:
		if oldest := l.oldest(); oldest != nil {
			_ = oldest.Close()
		}
		select {
		case l.slots <- struct{}{}:
		case <-l.over:
			_ = conn.Close()
			return nil, net.ErrClosed
		}
	}
	c := &counted{Conn: conn, of: l}
	l.mu.Lock()
	l.strangers = append(l.strangers, c)
	l.mu.Unlock()
	return c, nil
}

// oldest is the stranger that came first; nil where there is none.
func (l *limited) oldest() *counted {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.strangers) == 0 {
		return nil
	}
	return l.strangers[0]
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.over) })
	return l.Listener.Close()
}

// counted is a connection that has a slot.
type counted struct {
	net.Conn
	of   *limited
	once sync.Once
}

// known tells that it has presented the credential.
func (c *counted) known() {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if i := slices.Index(c.of.strangers, c); i >= 0 {
		c.of.strangers = slices.Delete(c.of.strangers, i, i+1)
	}
}

func (c *counted) Write(p []byte) (int, error) {
	if c.of.idle > 0 {
		if err := c.SetWriteDeadline(time.Now().Add(c.of.idle)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}

// CloseWrite tells the other side that nothing more comes.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

func (c *counted) Close() error {
	c.once.Do(func() {
		c.known()
		<-c.of.slots
	})
	return c.Conn.Close()
}
