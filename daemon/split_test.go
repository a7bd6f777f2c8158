package daemon

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Invariant: each connection reaches exactly one side with every byte it sent, or is closed. Worst
// inputs: one that says nothing, one byte at a time, a prefix that is neither.

func testSplitter(t *testing.T, timeout time.Duration) (*splitter, string) {
	t.Helper()
	path := filepath.Join(filepath.Dir(emptyHome(t)), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return runSplitter(t, l, timeout), path
}

func runSplitter(t *testing.T, l net.Listener, timeout time.Duration) *splitter {
	t.Helper()
	s := newSplitter(l, operator)
	s.timeout = timeout
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.run(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		_ = s.close()
		running.Wait()
	})
	return s
}

// timeless is a listener whose connection of that number, from 1, has no deadlines: it is never too late, however
// slow the machine.
type timeless struct {
	net.Listener
	number, accepted int
}

func (l *timeless) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if l.accepted++; err == nil && l.accepted == l.number {
		return noDeadline{c}, nil
	}
	return c, err
}

type noDeadline struct{ net.Conn }

func (noDeadline) SetReadDeadline(time.Time) error { return nil }

func dialTest(t *testing.T, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestConnectionsAreToldApartByTheirFirstBytes(t *testing.T) {
	t.Parallel()
	s, path := testSplitter(t, time.Minute)
	for _, c := range []struct {
		name, send string
		side       *queue
	}{
		{"http/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", s.http2},
		{"post", "POST / HTTP/1.1\r\n", s.http1},
		{"put", "PUT / HTTP/1.1\r\n", s.http1},
		{"get", "GET / HTTP/1.1\r\n", s.http1},
		{"PRIX", "PRIX / HTTP/1.1\r\n", s.http1},
		{"one byte", "G", s.http1},
		{"lower case", "pri * HTTP/2.0\r\n", s.http1},
	} {
		conn := dialTest(t, path)
		// One byte at a time, as a network may deliver them.
		go func() {
			for i := range c.send {
				if _, err := conn.Write([]byte(c.send[i : i+1])); err != nil {
					return
				}
			}
		}()
		got, err := c.side.Accept()
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(c.send))
		if _, err := io.ReadFull(got, b); err != nil || string(b) != c.send {
			t.Errorf("%s: got %q, %v", c.name, b, err)
		}
		if p := got.(*apiConn).principal; p != operator {
			t.Errorf("%s: principal %v", c.name, p)
		}
		_ = got.Close()
	}
}

func TestASilentConnectionIsClosedAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	path := filepath.Join(filepath.Dir(emptyHome(t)), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := runSplitter(t, &timeless{Listener: l, number: 3}, 50*time.Millisecond)
	silent := dialTest(t, path)
	half := dialTest(t, path)
	_, _ = half.Write([]byte("PR")) // unless it is closed already
	speaking := dialTest(t, path)
	if _, err := speaking.Write([]byte("GET ")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.http1.Accept(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{silent, half} {
		// The other end was closed, with what it had not read.
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got %v, want the connection closed", err)
		}
	}
}

func TestClosingTheSplitterDropsWhatIsUndecided(t *testing.T) {
	t.Parallel()
	s, path := testSplitter(t, time.Hour)
	silent := dialTest(t, path)
	speaking := dialTest(t, path)
	if _, err := speaking.Write([]byte("GET ")); err != nil {
		t.Fatal(err)
	}
	// Connections are accepted in order, so the silent one is in hand by now.
	if _, err := s.http1.Accept(); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("the silent connection is still open")
	}
	if _, err := s.http2.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}
