package egress

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// tunnel answers CONNECT: what one side sends the other gets, each end of a direction by itself.
func (d *door) tunnel(w http.ResponseWriter, r *http.Request) {
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		d.reject(r.Context(), w, &refusal{http.StatusBadRequest, "http_request_error", "CONNECT wants host:port"})
		return
	}
	server, err := d.dial(r.Context(), r.Method, host, port)
	if err != nil {
		answer(w, asRefusal(err))
		return
	}
	defer server.Close()
	client, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		answer(w, asRefusal(err))
		return
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	over := context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})
	defer over()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	// From now on, so that whoever is told of a tunnel had one, however slow this machine is.
	out := newWatched(server, d.proxy.opts.IdleTimeout, cancel)
	defer out.Close()
	// What the client has sent already is with the server's reader.
	early, _ := buf.Reader.Peek(buf.Reader.Buffered())
	if len(early) > 0 {
		if _, err := out.Write(early); err != nil {
			return
		}
	}
	var both sync.WaitGroup
	one := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil {
			cancel()
			return
		}
		if closeWrite(to) != nil {
			cancel()
		}
	}
	both.Go(func() { one(out, client) })
	both.Go(func() { one(client, out) })
	both.Wait()
}

// watched ends a connection on which nothing moves.
type watched struct {
	net.Conn
	idle time.Duration

	mu     sync.Mutex
	timer  *time.Timer
	closed bool
}

// newWatched calls end, beside closing conn, when nothing was read or written for idle.
func newWatched(conn net.Conn, idle time.Duration, end func()) *watched {
	return &watched{Conn: conn, idle: idle, timer: time.AfterFunc(idle, func() {
		_ = conn.Close()
		end()
	})}
}

func (w *watched) moved(n int, err error) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A timer that has run must not be set again, nor that of a connection that is closed.
	if n > 0 && !w.closed && w.timer.Stop() {
		w.timer.Reset(w.idle)
	}
	return n, err
}

func (w *watched) Read(p []byte) (int, error)  { return w.moved(w.Conn.Read(p)) }
func (w *watched) Write(p []byte) (int, error) { return w.moved(w.Conn.Write(p)) }

// CloseWrite tells the other side that nothing more comes.
func (w *watched) CloseWrite() error { return closeWrite(w.Conn) }

// Close stops the watch too.
func (w *watched) Close() error {
	w.mu.Lock()
	w.closed = true
	w.timer.Stop()
	w.mu.Unlock()
	return w.Conn.Close()
}

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
