package egress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestATunnelEndsEachWayByItself(t *testing.T) {
	t.Parallel()
	addr := rawServer(t, func(c net.Conn) {
		text, _ := io.ReadAll(c) // until the agent has said all
		_, _ = c.Write(append([]byte("all: "), text...))
	})
	p := start(t, nil, addr)
	raw, err := net.Dial("tcp", p.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(deadline))
	// The first bytes come with the request, as those of an impatient client do.
	if _, err := io.WriteString(raw, "CONNECT "+addr+" HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic YWdlbnQ6b3RyX3NlY3JldA==\r\n\r\nearly "); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(raw)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	if _, err := io.WriteString(raw, "late"); err != nil {
		t.Fatal(err)
	}
	if err := raw.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "all: early late" {
		t.Errorf("%q, %v", text, err)
	}
}

// Invariant: a peer that is silent, or takes nothing, costs the daemon a connection for a bounded time.
func TestSilenceIsBounded(t *testing.T) {
	t.Parallel()
	// Long enough for an answer that is on its way.
	const short = 500 * time.Millisecond
	addr := rawServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }) // never answers
	p := start(t, func(o *Options) { o.IdleTimeout = short; o.ResolveTimeout = short }, addr, "silent.test")
	tunnel, resp := p.send("CONNECT " + addr + " HTTP/1.1\r\nHost: x\r\nAUTH\r\n")
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	if n, err := tunnel.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a silent tunnel: %d %v", n, err)
	}
	if got := p.get("http://" + addr); !strings.HasPrefix(got, "504") {
		t.Errorf("a server that does not answer: %q", got)
	}
	// A body that never comes keeps neither the server nor the proxy.
	if _, resp := p.send("POST http://" + addr + "/ HTTP/1.1\r\nHost: x\r\nAUTHContent-Length: 10\r\n\r\nx"); resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("a body that does not come: %s", resp.Status)
	}
	if got := p.get("http://silent.test"); !strings.HasPrefix(got, "504") || !strings.Contains(got, "no answer for the name") {
		t.Errorf("a resolver that does not answer: %q", got)
	}
	// A server that sends without end, to an agent that does not read.
	cut := make(chan struct{})
	flood := rawServer(t, func(c net.Conn) {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				close(cut)
				return
			}
		}
	})
	flooded := start(t, func(o *Options) { o.IdleTimeout = short }, flood)
	_, resp = flooded.send("CONNECT " + flood + " HTTP/1.1\r\nHost: x\r\nAUTH\r\n")
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	select {
	case <-cut:
	case <-time.After(deadline):
		t.Error("an agent that does not read keeps its connection")
	}
}

func TestAnAgentsConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	addr := rawServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	p := start(t, nil, addr)
	request := "CONNECT " + addr + " HTTP/1.1\r\nHost: x\r\nAUTH\r\n"
	var conns []net.Conn
	for i := range maxConnections {
		conn, resp := p.send(request)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("connection %d: %s", i, resp.Status)
		}
		conns = append(conns, conn)
	}
	p.report.take()
	if _, resp := p.send(request); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more: %s", resp.Status)
	}
	if c := p.report.take(); len(c) != 1 || c[0].Allowed || !strings.Contains(c[0].Reason, "128 connections") {
		t.Errorf("reported %+v", c)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	for t.Context().Err() == nil { // until the proxy has noticed
		conn, resp := p.send(request)
		_ = conn.Close()
		if resp.StatusCode == http.StatusOK {
			break
		}
	}
}

// Others on the machine may reach the listener: those who present no credential hold up neither a new
// connection of the agent's nor one that it has.
func TestStrangersDoNotKeepTheAgentOut(t *testing.T) {
	t.Parallel()
	_, port := hello(t, "127.0.0.1", false)
	p := start(t, func(o *Options) { o.headerWait = time.Hour }, "127.0.0.1:"+port)
	request := "GET http://127.0.0.1:" + port + "/ HTTP/1.1\r\nHost: x\r\nAUTH\r\n"
	held, resp := p.send(request)
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	for range maxClients + 50 {
		c, err := net.Dial("tcp", p.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, "GET http://x/ HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.get("http://127.0.0.1:" + port); got != "hello 127.0.0.1:"+port {
		t.Errorf("a new connection: %q", got)
	}
	if _, err := io.WriteString(held, strings.ReplaceAll(request, "AUTH", "Proxy-Authorization: Basic YWdlbnQ6b3RyX3NlY3JldA==\r\n")); err != nil {
		t.Fatal(err)
	}
	again, err := http.ReadResponse(bufio.NewReader(held), nil)
	if err != nil || again.StatusCode != http.StatusOK {
		t.Errorf("the one from before: %v %v", again, err)
	}
}

// Headers that come slowly end with their time, however many bytes come in between.
func TestSlowHeadersAreBounded(t *testing.T) {
	t.Parallel()
	p := start(t, func(o *Options) { o.headerWait = 100 * time.Millisecond }, "127.0.0.1:1")
	c, err := net.Dial("tcp", p.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(deadline))
	text := "GET http://127.0.0.1:1/ HTTP/1.1\r\nX: "
	for err == nil {
		_, err = io.WriteString(c, text)
		text = "x"
		time.Sleep(time.Millisecond) // slowly is what is tested; 64 KiB would take a minute
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("they were read on")
	}
}

func TestNoConnectionIsMadeThatCouldNotBeRecorded(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer s.Close()
	p := start(t, nil, s.Listener.Addr().String())
	p.report.fail = errors.New("disk full")
	if got := p.get(s.URL); !strings.Contains(got, "could not be recorded") || reached.Load() != 0 {
		t.Errorf("%q, %d calls", got, reached.Load())
	}
	p.report.mu.Lock()
	p.report.fail = nil
	p.report.mu.Unlock()
	if got := p.get(s.URL); got != "" || reached.Load() != 1 {
		t.Errorf("%q, %d calls", got, reached.Load())
	}
}

// The end of the agent's listener, and of the proxy, cuts what is open; Serve returns after that.
func TestTheEndCutsWhatIsOpen(t *testing.T) {
	t.Parallel()
	addr := rawServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	for name, end := range map[string]func(*testProxy){
		"the listener": func(p *testProxy) { _ = p.l.Close() },
		"the proxy":    func(p *testProxy) { p.Close() },
	} {
		p := start(t, nil, addr)
		tunnel, resp := p.send("CONNECT " + addr + " HTTP/1.1\r\nHost: x\r\nAUTH\r\n")
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
		plain := make(chan string, 1)
		go func() { plain <- p.get("http://" + addr) }()
		for n := 0; n < 2; time.Sleep(time.Millisecond) {
			n += len(p.report.take())
		}
		end(p)
		err := <-p.served
		p.served <- err
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n, err := tunnel.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the tunnel is open: %v", name, err)
		}
		<-plain
		if err := p.Serve(Grant{}, p.l); name == "the proxy" && !errors.Is(err, ErrClosed) {
			t.Errorf("serve after the end: %v", err)
		}
	}
}
