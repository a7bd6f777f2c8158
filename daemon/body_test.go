package daemon

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/otters-sh/otters/internal/gate"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: a request that sends less than it says ends, and no stream does for that. Worst inputs: a
// Content-Length that lies, a chunk that never comes, a body for a method that there is not.

// held is a stream that sends when it is let go.
type held struct {
	flood
	begun, let chan struct{}
}

func (h *held) WatchAgent(_ *daemonv1.WatchAgentRequest, out watchStream) error {
	close(h.begun)
	select {
	case <-h.let:
		return out.Send(&daemonv1.WatchAgentResponse{Agent: &daemonv1.AgentSummary{Name: "guide"}})
	case <-out.Context().Done():
		return out.Context().Err()
	}
}

// watchOverHTTP is what came of watching an agent over HTTP/1.1.
func watchOverHTTP(t *testing.T, socket string) answer {
	message := `{"agent":"guide"}`
	body := fmt.Sprintf("\x00%c%c%c%c%s", 0, 0, 0, len(message), message)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+daemonv1.DaemonService_WatchAgent_FullMethodName, strings.NewReader(body))
	if err != nil {
		return answer{body: err.Error()}
	}
	req.Header.Set("Content-Type", "application/connect+json")
	resp, err := testHTTP(t, socket).Do(req)
	return answered(resp, err)
}

// ask sends a request as it is written, and no more of it.
func ask(t *testing.T, socket, method, body string) answer {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s", method, body); err != nil {
		t.Fatal(err)
	}
	return answered(http.ReadResponse(bufio.NewReader(c), nil))
}

func answered(resp *http.Response, err error) answer {
	if err != nil {
		return answer{body: err.Error()}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, fmt.Sprint(string(b), err)}
}

// bounded is a connection that knows until when it waits for what is sent; zero is for ever.
type bounded struct {
	net.Conn
	mu    sync.Mutex
	until time.Time
}

func (b *bounded) SetReadDeadline(at time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = at
	return b.Conn.SetReadDeadline(at)
}

// boundedListener keeps the last connection that it accepted.
type boundedListener struct {
	net.Listener
	mu   sync.Mutex
	last *bounded
}

func (l *boundedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = &bounded{Conn: c}
	return l.last, nil
}

// waitsUntil is the bound of the last connection.
func (l *boundedListener) waitsUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last.mu.Lock()
	defer l.last.mu.Unlock()
	return l.last.until
}

// patientAPI serves impl over HTTP/1.1 to clients that are waited for as long as timeout.
func patientAPI(t *testing.T, impl daemonv1.DaemonServiceServer, timeout time.Duration) *boundedListener {
	t.Helper()
	unix, err := gate.ListenUnix(filepath.Join(emptyHome(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	l := &boundedListener{Listener: unix}
	hosts := gate.LoopbackHosts(l.Addr())
	s := newHTTP(impl, hosts, slog.New(slog.DiscardHandler))
	s.Handler = patient(gated(impl, hosts), timeout)
	split := newSplitter(l, operator)
	var running sync.WaitGroup
	running.Go(func() { _ = split.run() })
	running.Go(func() { _ = s.Serve(split.http1) })
	t.Cleanup(func() {
		_ = split.close()
		_ = s.Close()
		running.Wait()
	})
	return l
}

func TestARequestThatSendsLessThanItSaysEnds(t *testing.T) {
	t.Parallel()
	impl := &held{begun: make(chan struct{}), let: make(chan struct{})}
	// What comes whole is bounded too until it has come, however slow the machine.
	soon, late := patientAPI(t, impl, 50*time.Millisecond), patientAPI(t, impl, bodyTimeout)
	info := daemonv1.DaemonService_Info_FullMethodName
	for body, want := range map[string]answer{
		"Content-Length: 2\r\n\r\n{}":                            {http.StatusOK, `"version":"test"`},
		"Content-Length: 100\r\n\r\n{}":                          {http.StatusGatewayTimeout, "nothing came for 50ms; send all that Content-Length says"},
		"Content-Length: 100\r\n\r\n":                            {http.StatusGatewayTimeout, "nothing came for 50ms"},
		"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n":          {http.StatusGatewayTimeout, "nothing came for 50ms"},
		"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n": {http.StatusOK, `"version":"test"`},
	} {
		to := soon
		if want.code == http.StatusOK {
			to = late
		}
		if got := ask(t, to.Addr().String(), info, body); got.code != want.code || !strings.Contains(got.body, want.body) {
			t.Errorf("%q: %+v, want %+v", body, got, want)
		}
	}
	if got := ask(t, soon.Addr().String(), "/no.such/Method", "Content-Length: 100\r\n\r\n{}"); got.code != http.StatusNotFound {
		t.Errorf("a method that there is not: %+v", got)
	}

	stream := make(chan answer, 1)
	go func() { stream <- watchOverHTTP(t, late.Addr().String()) }()
	<-impl.begun
	if until := late.waitsUntil(); !until.IsZero() {
		t.Errorf("a stream whose request has come whole is waited for until %s", until)
	}
	close(impl.let)
	if got := <-stream; got.code != http.StatusOK || !strings.Contains(got.body, `"name":"guide"`) || !strings.HasSuffix(got.body, "<nil>") {
		t.Errorf("the stream: %+v", got)
	}
}
