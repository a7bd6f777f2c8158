package endpoint

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// endless answers with a status and a body that has no end.
type endless int

func (e endless) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(e), Body: io.NopCloser(e)}, nil
}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Invariant: no answer is read without an end. Worst inputs: an error page without one, a stream
// without one.
func TestAnswersWithoutAnEndAreCut(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]struct {
		size int64
		says string
	}{
		http.StatusInternalServerError: {maxError, ""},
		http.StatusOK:                  {maxAnswer, "longer than its limit of 134217728 bytes"},
	} {
		e := Endpoint{BaseURL: "http://x", Model: "m", Transport: endless(status)}
		if err := e.Check(); err != nil {
			t.Fatal(err)
		}
		res, err := e.Client().Get(e.BaseURL)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, make([]byte, 1<<20))
		if n != want.size || (err == nil) != (want.says == "") || err != nil && !strings.Contains(err.Error(), want.says) {
			t.Errorf("status %d: %d bytes, %v", status, n, err)
		}
	}
}

// Invariant: the connection of an answer that is over serves the next one, and nobody waits for an
// answer that only seems to be. Worst inputs: a rest without an end, one that never comes.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rest  func(http.ResponseWriter, *http.Request)
		wait  time.Duration
		again bool // one connection serves several answers
	}{
		"an answer whose end is left unread": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "\n\n") }, time.Minute, true},
		"a rest that never comes":            {func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, time.Millisecond, false},
		"a rest without an end": {func(w http.ResponseWriter, _ *http.Request) {
			for chunk := make([]byte, 64<<10); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var dials atomic.Int32
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "data: [DONE]\n\n")
				w.(http.Flusher).Flush()
				c.rest(w, r)
			}))
			s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					dials.Add(1)
				}
			}
			s.Start()
			defer s.Close()
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: bounded{transport, c.wait}}
			const answers = 8
			for range answers {
				res, err := client.Get(s.URL)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(res.Body, make([]byte, len("data: [DONE]\n\n"))); err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
			}
			// A transport opens another one too where its own goroutines come late.
			if got := dials.Load(); c.again && got > answers/2 || !c.again && got != answers {
				t.Errorf("%d connections for %d answers", got, answers)
			}
		})
	}
}
