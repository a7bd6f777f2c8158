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

func TestARequestThatSendsLessThanItSaysEnds(t *testing.T) {
	t.Parallel()
	impl := &held{begun: make(chan struct{}), let: make(chan struct{})}
	l, err := gate.ListenUnix(filepath.Join(t.TempDir(), "api", "s"))
	if err != nil {
		t.Fatal(err)
	}
	hosts := gate.LoopbackHosts(l.Addr())
	s := newHTTP(impl, hosts, slog.New(slog.DiscardHandler))
	s.Handler = patient(gated(impl, hosts), 200*time.Millisecond)
	split := newSplitter(l, operator)
	var running sync.WaitGroup
	running.Go(func() { _ = split.run() })
	running.Go(func() { _ = s.Serve(split.http1) })
	t.Cleanup(func() {
		_ = split.close()
		_ = s.Close()
		running.Wait()
	})
	socket := l.Addr().String()

	// It is silent for longer than all the others below.
	stream := make(chan answer, 1)
	go func() { stream <- watchOverHTTP(t, socket) }()
	<-impl.begun
	info := daemonv1.DaemonService_Info_FullMethodName
	for body, want := range map[string]answer{
		"Content-Length: 2\r\n\r\n{}":                            {http.StatusOK, `"version":"test"`},
		"Content-Length: 100\r\n\r\n{}":                          {http.StatusGatewayTimeout, "nothing came for 200ms; send all that Content-Length says"},
		"Content-Length: 100\r\n\r\n":                            {http.StatusGatewayTimeout, "nothing came for 200ms"},
		"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n":          {http.StatusGatewayTimeout, "nothing came for 200ms"},
		"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n": {http.StatusOK, `"version":"test"`},
	} {
		if got := ask(t, socket, info, body); got.code != want.code || !strings.Contains(got.body, want.body) {
			t.Errorf("%q: %+v, want %+v", body, got, want)
		}
	}
	if got := ask(t, socket, "/no.such/Method", "Content-Length: 100\r\n\r\n{}"); got.code != http.StatusNotFound {
		t.Errorf("a method that there is not: %+v", got)
	}
	close(impl.let)
	if got := <-stream; got.code != http.StatusOK || !strings.Contains(got.body, `"name":"guide"`) || !strings.HasSuffix(got.body, "<nil>") {
		t.Errorf("the stream: %+v", got)
	}
}
