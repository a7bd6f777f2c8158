package gate_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/otters-sh/otters/internal/gate"
)

// Invariant: whoever has presented a credential keeps the connection, and whoever comes next with one
// gets in, as long as not all connections are of such. Worst inputs: as many silent connections as
// there may be, again and again; known ones that stay; and the end while one waits.
func TestConnectionsThatAreKnownAreNotKeptOut(t *testing.T) {
	t.Parallel()
	const most = 3
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ConnContext: gate.ConnContext, ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Credential") != "" {
			gate.Known(r.Context())
		}
	})}
	served := make(chan error, 1)
	go func() { served <- s.Serve(gate.Limit(l, most, time.Minute)) }()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
	ask := func(c net.Conn) {
		t.Helper()
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nCredential: 1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v %v", resp, err)
		}
	}
	var known []net.Conn
	for range most - 1 {
		var first net.Conn
		for i := range 4 * most {
			c := dial()
			if i == 0 {
				first = c
			}
		}
		c := dial()
		ask(c)
		known = append(known, c)
		if n, err := first.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Error("the first stranger is there still")
		}
	}
	for _, c := range known {
		ask(c)
	}
	// With all of them known the next one waits for an end.
	last := dial()
	ask(last)
	waiting := dial()
	if _, err := io.WriteString(waiting, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(known, last) {
		ask(c)
	}
	_ = last.Close()
	if resp, err := http.ReadResponse(bufio.NewReader(waiting), nil); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%v %v", resp, err)
	}
	// One more waits while the listener ends.
	ask(waiting)
	dial()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != http.ErrServerClosed {
		t.Error(err)
	}
}
