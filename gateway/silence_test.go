package gateway

// Invariant: a provider is given up once it was silent for too long, and not for being slow in all; and a
// close waits for no connection on which nothing is said. Here time is no more than what is waited for, so
// none of it depends on the machine.

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/model"
)

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	over  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func (p *pipes) Close() error {
	close(p.over)
	return nil
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

// bubble is a gateway between an agent and a vendor, all of it in memory.
type bubble struct {
	*Gateway
	t     *testing.T
	agent *pipes
	token string
}

func newBubble(t *testing.T, opts Options, answer http.HandlerFunc) *bubble {
	t.Helper()
	file := filepath.Join(t.TempDir(), "providers.yaml")
	if err := os.WriteFile(file, []byte("providers:\n  - {name: acme, api-base: 'http://vendor.test/v1'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if opts.Providers, err = LoadProviders(file); err != nil {
		t.Fatal(err)
	}
	b := &bubble{Gateway: New(opts), t: t, agent: newPipes()}
	at := newPipes()
	vendor := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // before, nobody sees that the caller goes away
		answer(w, r)
	})}
	b.transport.Proxy, b.transport.DialContext = nil, at.dial
	id, served := uuid.New(), make(chan error, 2)
	go func() { served <- vendor.Serve(at) }()
	go func() { served <- b.Serve(id, b.agent) }()
	if b.token, _, err = b.Grant(id, model.Ref{Provider: "acme", Name: "m"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.Close(context.Background()), vendor.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		for range 2 {
			if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
				t.Errorf("serve: %v", err)
			}
		}
	})
	return b
}

// stream asks for a stream and reads it whole.
func (b *bubble) stream() (status int, text string) {
	b.t.Helper()
	transport := &http.Transport{DialContext: b.agent.dial}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequest(http.MethodPost, "http://localhost"+BasePath+"/chat/completions", strings.NewReader(`{"model":"m","stream":true,"messages":[]}`))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+b.token)
	r.Header.Set("Content-Type", "application/json")
	res, err := transport.RoundTrip(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatalf("after %q: %v", all, err)
	}
	return res.StatusCode, string(all)
}

func TestL9ASilentProviderIsGivenUp(t *testing.T) {
	t.Parallel()
	const event = "data: {}\n\n"
	for name, c := range map[string]struct {
		events int // one after every 90 seconds
		silent bool
		took   time.Duration
		status int
		want   string
	}{
		"before its answer":          {0, true, 10 * time.Minute, http.StatusGatewayTimeout, `"code":"provider_silent"`},
		"between two events":         {3, true, 3*90*time.Second + 2*time.Minute, http.StatusOK, event + event + event + "data: {\"error\":"},
		"slow, but it keeps talking": {10, false, 10 * 90 * time.Second, http.StatusOK, strings.Repeat(event, 10)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "text/event-stream")
					for range c.events {
						time.Sleep(90 * time.Second)
						_, _ = io.WriteString(w, event)
						w.(http.Flusher).Flush()
					}
					if c.silent {
						<-r.Context().Done()
					}
				})
				began := time.Now()
				status, text := b.stream()
				if took := time.Since(began); took != c.took {
					t.Errorf("it took %s, want %s", took, c.took)
				}
				if status != c.status || !strings.Contains(text, c.want) || strings.Contains(text, "silent") != c.silent {
					t.Errorf("%d %s", status, text)
				}
			})
		})
	}
}

func TestCloseDoesNotWaitForASilentConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		})
		conn, err := b.agent.dial(context.Background(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if status, text := b.stream(); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		began := time.Now()
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("close waited for %s", took)
		}
	})
}
