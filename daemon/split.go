package daemon

import (
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// http2Preface starts every HTTP/2 connection and no HTTP/1.1 request: PRI is reserved.
	http2Preface = "PRI "
	// firstBytesTimeout is how long a new connection may take to say what it speaks.
	firstBytesTimeout = 5 * time.Second
	// maxUndecided bounds connections that have not said so yet; further ones wait in the backlog.
	maxUndecided = 64
	// maxConnections bounds all connections of the API.
	maxConnections = 1024
)

// splitter deals the connections of one listener out to two: HTTP/2 and everything else. A
// connection that says nothing in time is closed, and one that stays silent delays no other.
type splitter struct {
	inner     net.Listener
	principal principal
	timeout   time.Duration

	http2, http1 *queue
	undecided    chan struct{}
	open         chan struct{}
	peeks        sync.WaitGroup

	mu      sync.Mutex
	silent  map[net.Conn]struct{} // what is undecided
	closing bool
}

func newSplitter(l net.Listener, p principal) *splitter {
	return &splitter{
		inner: l, principal: p, timeout: firstBytesTimeout,
		http2: newQueue(l.Addr()), http1: newQueue(l.Addr()),
		undecided: make(chan struct{}, maxUndecided), open: make(chan struct{}, maxConnections),
		silent: make(map[net.Conn]struct{}),
	}
}

// run accepts until the listener is closed, and returns once no connection is undecided any more.
func (s *splitter) run() error {
	defer s.peeks.Wait()
	defer s.http2.Close()
	defer s.http1.Close()
	for delay := time.Duration(0); ; {
		s.undecided <- struct{}{}
		c, err := s.inner.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			// Out of descriptors, for instance: others are closed meanwhile.
			<-s.undecided
			if delay = min(max(2*delay, time.Millisecond), 100*time.Millisecond); !s.http1.sleep(delay) {
				return err
			}
			continue
		}
		delay = 0
		select {
		case s.open <- struct{}{}:
		default:
			<-s.undecided
			_ = c.Close()
			continue
		}
		s.peeks.Go(func() {
			defer func() { <-s.undecided }()
			s.deal(&countedConn{Conn: c, release: func() { <-s.open }})
		})
	}
}

// deal reads as many bytes as tell the two apart, at least one and at most four.
func (s *splitter) deal(c net.Conn) {
	first := make([]byte, 0, len(http2Preface))
	if err := c.SetReadDeadline(time.Now().Add(s.timeout)); err != nil || !s.track(c) {
		_ = c.Close()
		return
	}
	defer s.untrack(c)
	to := s.http2
	for len(first) < len(http2Preface) {
		n, err := c.Read(first[len(first):cap(first)])
		if err != nil {
			_ = c.Close()
			return
		}
		first = first[:len(first)+n]
		if string(first) != http2Preface[:len(first)] {
			to = s.http1
			break
		}
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		_ = c.Close()
		return
	}
	to.put(&apiConn{Conn: c, first: first, principal: s.principal})
}

// track remembers an undecided connection, and reports false once the splitter is closing.
func (s *splitter) track(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.silent[c] = struct{}{}
	}
	return !s.closing
}

func (s *splitter) untrack(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.silent, c)
}

// close ends accepting and drops what is undecided; run then returns.
func (s *splitter) close() error {
	err := s.inner.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for c := range s.silent {
		_ = c.Close()
	}
	return err
}

// countedConn gives its place back when it is closed.
type countedConn struct {
	net.Conn
	once    sync.Once
	release func()
}

func (c *countedConn) Close() error {
	defer c.once.Do(c.release)
	return c.Conn.Close()
}

// queue is a listener that is fed with connections.
type queue struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newQueue(addr net.Addr) *queue {
	return &queue{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (q *queue) put(c net.Conn) {
	select {
	case q.conns <- c:
	case <-q.closed:
		_ = c.Close()
	}
}

// sleep reports whether d passed before the queue was closed.
func (q *queue) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-q.closed:
		return false
	}
}

// Accept waits for the next connection.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and refuses further connections.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// Addr is the address of the listener behind.
func (q *queue) Addr() net.Addr { return q.addr }
