package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/otters-sh/otters/internal/gate"
	"github.com/otters-sh/otters/internal/leak"
)

func TestMain(m *testing.M) {
	os.Exit(leak.Code(m.Run()))
}

// deadline is for what must happen; nothing waits for it.
const deadline = 2 * time.Minute

// names answers for a resolver, and counts what it was asked.
type names struct {
	mu    sync.Mutex
	of    map[string][][]string
	asked map[string]int
}

// LookupNetIP gives the answers of a name one after the other, and the last one again and again.
func (n *names) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	if host == "silent.test." {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	answers := n.of[host]
	if len(answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	at := min(n.asked[host], len(answers)-1)
	n.asked[host]++
	var out []netip.Addr
	for _, a := range answers[at] {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

// record keeps what is reported.
type record struct {
	mu   sync.Mutex
	all  []Connection
	fail error
}

func (r *record) Report(_ context.Context, c Connection) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, c)
	return r.fail
}

// take returns what was reported since the last time.
func (r *record) take() []Connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.all
	r.all = nil
	return out
}

// testProxy is a proxy that serves one agent.
type testProxy struct {
	*Proxy
	t      *testing.T
	url    *url.URL
	report *record
	names  *names
	l      net.Listener
	served chan error
}

const secret = "otr_secret"

func start(t *testing.T, change func(*Options), destinations ...string) *testProxy {
	t.Helper()
	allowed, err := ParseDestinations(destinations)
	if err != nil {
		t.Fatal(err)
	}
	p := &testProxy{t: t, report: &record{}, names: &names{of: map[string][][]string{}, asked: map[string]int{}}, served: make(chan error, 1)}
	opts := Options{Resolver: p.names, Reporter: p.report, headerWait: deadline}
	if change != nil {
		change(&opts)
	}
	p.Proxy = New(opts)
	if p.l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	p.url = &url.URL{Scheme: "http", Host: p.l.Addr().String(), User: url.UserPassword(User, secret)}
	go func() {
		p.served <- p.Serve(Grant{Agent: "a", Destinations: allowed, TokenHash: gate.TokenHash(secret)}, p.l)
	}()
	t.Cleanup(func() {
		p.Close()
		if err := <-p.served; err != nil {
			t.Errorf("served: %v", err)
		}
	})
	return p
}

// client goes through the proxy at u; a refused CONNECT is an error with what Proxy-Status says.
func (p *testProxy) client(u *url.URL) *http.Client {
	tr := &http.Transport{
		Proxy: http.ProxyURL(u), TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, r *http.Response) error {
			if r.StatusCode != http.StatusOK {
				return fmt.Errorf("%d %s", r.StatusCode, r.Header.Get("Proxy-Status"))
			}
			return nil
		},
	}
	p.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: deadline}
}

// get is the answer's text, for a refused plain request its status and text.
func (p *testProxy) get(target string) string {
	p.t.Helper()
	resp, err := p.client(p.url).Get(target)
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err.Error()
	}
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Sprint(resp.StatusCode, " ", string(body))
	}
	return string(body)
}

// hello is a real server, with TLS or without, on an address; it skips where there is no such one.
func hello(t *testing.T, address string, secure bool) (*httptest.Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Skip("this machine has no", address)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello "+r.Host)
	}))
	s.Listener.Close()
	s.Listener = l
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return s, port
}

// helloAtSix is a server with TLS on ::1, on a port that nobody serves on 127.0.0.1 until the test ends.
func helloAtSix(t *testing.T) (*httptest.Server, string) {
	t.Helper()
	for {
		s, port := hello(t, "::1", true)
		n, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Close(fd) })
		// Bound, and never listening: a connection is refused.
		if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
			return s, port
		} else if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// send speaks to the proxy byte by byte, and returns the answer with the connection.
func (p *testProxy) send(text string) (net.Conn, *http.Response) {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.l.Addr().String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(deadline))
	// One that is refused may be answered, and no more read, before all of it is sent.
	_, sent := io.WriteString(conn, strings.ReplaceAll(text, "AUTH", "Proxy-Authorization: Basic YWdlbnQ6b3RyX3NlY3JldA==\r\n"))
	r := bufio.NewReader(conn)
	req := &http.Request{Method: text[:strings.IndexByte(text, ' ')]}
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		p.t.Fatal(err, sent)
	}
	p.t.Cleanup(func() { _ = resp.Body.Close() })
	return bufferedConn{conn, r}, resp
}

type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// rawServer takes one connection at a time and hands it to f.
func rawServer(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}
