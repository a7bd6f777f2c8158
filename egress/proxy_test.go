package egress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Invariant: an agent reaches what is named and nothing else, by CONNECT and by plain requests alike,
// and each attempt is reported once, before it is made. Worst inputs: a name that leads to an address
// inside, one that does so only when it is asked for again, and an address in another shape.
func TestAnAgentReachesWhatIsNamedAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		scheme := map[bool]string{false: "http", true: "https"}[secure]
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			_, port := hello(t, "127.0.0.1", secure)
			_, other := hello(t, "127.0.0.1", secure)
			p := start(t, nil, "127.0.0.1:"+port, "inside.test:"+port, "named.test", "*.wild.test:"+port,
				"mixed.test:"+port, "metadata.test:"+port, "mapped.test:"+port, "gone.test:"+port, "empty.test:"+port,
				"shared.test:"+port, "nat64.test:"+port, "ula.test:"+port, "linklocal.test:"+port, "loopback6.test:"+port, "zero.test:"+port)
			for name, addrs := range map[string][]string{
				"inside.test": {"127.0.0.1"}, "a.wild.test": {"127.0.0.1"}, "named.test": {"127.0.0.1"},
				"mixed.test": {"127.0.0.1", "10.0.0.1"}, "metadata.test": {"169.254.169.254"}, "mapped.test": {"::ffff:192.168.0.1"},
				"shared.test": {"100.64.0.1"}, "nat64.test": {"64:ff9b::10.0.0.1"}, "ula.test": {"fd00::1"}, "linklocal.test": {"fe80::1"},
				"loopback6.test": {"::1"}, "zero.test": {"0.0.0.0"}, "empty.test": {}, "unnamed.test": {"127.0.0.1"},
			} {
				p.names.of[name+"."] = [][]string{addrs}
			}
			for _, tt := range []struct{ host, want, reason string }{
				{"127.0.0.1:" + port, "hello 127.0.0.1:" + port, ""},
				{"[::ffff:127.0.0.1]:" + port, "hello [::ffff:127.0.0.1]:" + port, ""},
				{"inside.test:" + port, "hello inside.test:" + port, ""},
				{"INSIDE.test.:" + port, "hello", ""},
				{"a.wild.test:" + port, "hello a.wild.test:" + port, ""},

				{"127.0.0.1:" + other, "403", "port " + other + " of 127.0.0.1 is not among the destinations"},
				{"inside.test:" + other, "403", "port " + other + " of inside.test is not among"},
				{"named.test:" + port, "403", "port " + port + " of named.test is not among"},
				{"127.0.0.2:" + port, "403", "127.0.0.2 is not among the destinations"},
				{"localhost:" + port, "403", "localhost is not among"},
				{"[::1]:" + port, "403", "::1 is not among"},
				{"unnamed.test:" + port, "403", "unnamed.test is not among"},
				{"wild.test:" + port, "403", "wild.test is not among"},
				{"0.0.0.0:" + port, "403", "0.0.0.0 is not among"},
				{"2130706433:" + port, "400", "ends like an address"},
				{"0x7f.1:" + port, "400", "ends like an address"},
				{"127.1:" + port, "400", "ends like an address"},

				{"mixed.test:" + port, "403", "mixed.test leads to 10.0.0.1, an address that is private"},
				{"metadata.test:" + port, "403", "a cloud's metadata service"},
				{"mapped.test:" + port, "403", "leads to 192.168.0.1, an address that is private"},
				{"shared.test:" + port, "403", "shared by a provider's customers"},
				{"nat64.test:" + port, "403", "private"},
				{"ula.test:" + port, "403", "private"},
				{"linklocal.test:" + port, "403", "link-local"},
				{"loopback6.test:" + port, "403", "loopback"},
				{"zero.test:" + port, "403", "unspecified"},
				{"gone.test:" + port, "502", "gone.test: no such host"},
				{"empty.test:" + port, "502", "has no address"},
			} {
				if len(p.report.take()) != 0 {
					t.Error("something was reported that nobody asked for")
				}
				got := p.get(scheme + "://" + tt.host + "/")
				if !strings.HasPrefix(got, tt.want) || tt.reason != "" && !strings.Contains(got, tt.reason) {
					t.Errorf("%s: %q, want %q and %q", tt.host, got, tt.want, tt.reason)
				}
				reports := p.report.take()
				if len(reports) != 1 {
					t.Errorf("%s: reported %+v", tt.host, reports)
					continue
				}
				c := reports[0]
				method := map[bool]string{false: "GET", true: "CONNECT"}[secure]
				if c.Agent != "a" || c.Method != method || c.Allowed != (tt.reason == "") || !strings.Contains(c.Reason, tt.reason) || c.Host == "" || c.Port == 0 {
					t.Errorf("%s: reported %+v", tt.host, c)
				}
				if c.Allowed && (!slices.Equal(c.Addresses, []netip.Addr{netip.MustParseAddr("127.0.0.1")}) || c.Destination == (Destination{})) {
					t.Errorf("%s: reported %+v", tt.host, c)
				}
			}
			if p.names.asked["inside.test."] == 0 || p.names.asked["unnamed.test."]+p.names.asked["wild.test."] > 0 {
				t.Errorf("asked for %v: a name that is not among the destinations must not leave", p.names.asked)
			}
		})
	}
}

// The other server is there: what keeps the agent from it is the second answer's check.
func TestANameThatIsReboundIsCheckedAgainAndAskedForOnce(t *testing.T) {
	t.Parallel()
	s, port := hello(t, "127.0.0.1", false)
	l, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Skip("no second loopback address:", err)
	}
	inside := &http.Server{Handler: s.Config.Handler}
	go func() { _ = inside.Serve(l) }()
	t.Cleanup(func() { _ = inside.Close() })
	p := start(t, nil, "127.0.0.1:"+port, "rebound.test:"+port)
	p.names.of["rebound.test."] = [][]string{{"127.0.0.1"}, {"127.0.0.2"}, {"127.0.0.1"}}
	target := "http://rebound.test:" + port
	if got := p.get(target); got != "hello rebound.test:"+port {
		t.Error(got)
	}
	if n := p.names.asked["rebound.test."]; n != 1 {
		t.Errorf("asked %d times for one connection", n)
	}
	if got := p.get(target); !strings.Contains(got, "leads to 127.0.0.2, an address that is loopback") {
		t.Error(got)
	}
	if got := p.get(target); got != "hello rebound.test:"+port {
		t.Error(got)
	}
}

func TestIPv6AndLocalhost(t *testing.T) {
	t.Parallel()
	_, port := helloAtSix(t)
	p := start(t, nil, "[::1]:"+port, "six.test:"+port, "other.test:"+port)
	p.names.of["six.test."] = [][]string{{"::1"}}
	p.names.of["other.test."] = [][]string{{"fe80::1"}}
	for host, want := range map[string]string{
		"[::1]": "hello [::1]:" + port, "six.test": "hello six.test:" + port,
		"[::2]": "::2 is not among", "other.test": "link-local",
	} {
		if got := p.get("https://" + host + ":" + port); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	// localhost is both loopbacks, of which one answers here.
	local := start(t, nil, "localhost:"+port)
	if got := local.get("https://localhost:" + port); got != "hello localhost:"+port {
		t.Error(got)
	}
	if got := local.get("https://[::1]:" + port); !strings.Contains(got, "::1 is not among") {
		t.Error(got)
	}
}

func TestThisMachinesOwnPublicAddressesAreRefused(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	own := []netip.Addr{netip.MustParseAddr("8.8.8.8")}
	p := start(t, func(o *Options) {
		o.DialTimeout = time.Millisecond // nothing there is meant to answer
		o.own = func() ([]netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			return own, nil
		}
	}, "self.test:1")
	p.names.of["self.test."] = [][]string{{"8.8.8.8"}}
	if got := p.get("http://self.test:1"); !strings.Contains(got, "of the daemon's own machine") {
		t.Error(got)
	}
	mu.Lock()
	own = nil
	mu.Unlock()
	p.report.take()
	p.get("http://self.test:1")
	if c := p.report.take(); len(c) != 1 || !c[0].Allowed {
		t.Errorf("the same address of another machine: %+v", c)
	}
}

func TestEveryRequestPresentsTheCredential(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		_, port := hello(t, "127.0.0.1", secure)
		target := map[bool]string{false: "http", true: "https"}[secure] + "://127.0.0.1:" + port
		p := start(t, nil, "127.0.0.1:"+port)
		for name, user := range map[string]*url.Userinfo{
			"none": nil, "another's": url.UserPassword(User, "otr_other"), "no password": url.User(User),
			"its beginning": url.UserPassword(User, secret[:4]), "another user": url.UserPassword("root", secret),
		} {
			u := *p.url
			u.User = user
			resp, err := p.client(&u).Get(target)
			if err == nil {
				resp.Body.Close()
			}
			var failed *url.Error
			refused := secure && errors.As(err, &failed) && strings.HasPrefix(failed.Err.Error(), "407 ")
			if !refused && (err != nil || resp.StatusCode != 407 || resp.Header.Get("Proxy-Authenticate") == "") {
				t.Errorf("%s, secure %v: %v %v", name, secure, resp, err)
			}
			if c := p.report.take(); len(c) != 1 || c[0].Allowed || !strings.Contains(c[0].Reason, "credential") || c[0].Host != "" {
				t.Errorf("%s: reported %+v", name, c)
			}
		}
		if got := p.get(target); got != "hello 127.0.0.1:"+port {
			t.Error(got)
		}
	}
}

func TestWhatIsNoProxyRequestIsRefused(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "127.0.0.1:1")
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAUTH\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAUTH\r\n",
		"GET https://127.0.0.1:1/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAUTH\r\n",
		"GET ftp://127.0.0.1:1/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAUTH\r\n",
		"CONNECT 127.0.0.1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAUTH\r\n",
		"CONNECT 127.0.0.1:x HTTP/1.1\r\nHost: 127.0.0.1\r\nAUTH\r\n",
		"CONNECT 127.0.0.1:0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAUTH\r\n",
	} {
		_, resp := p.send(text)
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", text, resp.Status)
		}
		if n := len(p.report.take()); n > 1 {
			t.Errorf("%q: %d reports", text, n)
		}
	}
	if _, resp := p.send("GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAUTHX: " + strings.Repeat("x", 80<<10) + "\r\n\r\n"); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("headers over the bound: %s", resp.Status)
	}
	if _, resp := p.send("GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAUTH\r\n"); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("a request to where nobody listens: %s", resp.Status)
	}
}

// An agent's connection to the proxy serves one request after the other, to different servers.
func TestAConnectionToTheProxyServesManyRequests(t *testing.T) {
	t.Parallel()
	_, one := hello(t, "127.0.0.1", false)
	_, two := hello(t, "127.0.0.1", false)
	p := start(t, nil, "127.0.0.1:"+one, "127.0.0.1:"+two)
	conn, err := net.Dial("tcp", p.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(deadline))
	r := bufio.NewReader(conn)
	for _, port := range []string{one, two, one} {
		if _, err := io.WriteString(conn, "GET http://127.0.0.1:"+port+"/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic YWdlbnQ6b3RyX3NlY3JldA==\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != "hello 127.0.0.1:"+port || resp.Close {
			t.Errorf("%q, %v, closed %v", body, err, resp.Close)
		}
	}
}

// Nothing that is between the agent and the proxy goes on to the server, and nothing else is changed.
func TestAPlainRequestIsPassedOnAsItIs(t *testing.T) {
	t.Parallel()
	got := make(chan *http.Request, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		got <- r
		w.Header().Set("X-End", "1")
		w.WriteHeader(http.StatusTeapot)
	}))
	defer s.Close()
	host := s.Listener.Addr().String()
	p := start(t, nil, host)
	_, resp := p.send("POST http://" + host + "/a%2Fb?x=1;y HTTP/1.1\r\nHost: evil.test\r\nAUTHProxy-Connection: keep-alive\r\nConnection: X-Mine\r\nX-Mine: 1\r\n" +
		"Cookie: c=1\r\nX-Forwarded-For: 192.0.2.9\r\nContent-Length: 4\r\n\r\nbody")
	r := <-got
	body, _ := io.ReadAll(r.Body)
	if resp.StatusCode != http.StatusTeapot || resp.Header.Get("X-End") != "1" || resp.Header.Get("Via") != via {
		t.Errorf("answer %s %v", resp.Status, resp.Header)
	}
	if r.Method != http.MethodPost || r.RequestURI != "/a%2Fb?x=1;y" || r.Host != host || string(body) != "body" || r.Header.Get("Cookie") != "c=1" || r.Header.Get("Via") != via {
		t.Errorf("%s %s, host %s, %v, %q", r.Method, r.RequestURI, r.Host, r.Header, body)
	}
	for _, h := range []string{"Proxy-Authorization", "Proxy-Connection", "X-Mine", "X-Forwarded-For", "User-Agent", "Accept-Encoding"} {
		if v := r.Header.Values(h); len(v) > 0 {
			t.Errorf("%s: %q went on to the server", h, v)
		}
	}
}

// What is between the proxy and the server does not come to the agent, and a protocol that both agree
// on goes through.
func TestAnAnswerIsPassedOnAsItIs(t *testing.T) {
	t.Parallel()
	addr := rawServer(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if req.Header.Get("Upgrade") == "echo" {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(c, r)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nProxy-Authenticate: Basic\r\nKeep-Alive: 5\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 2\r\n\r\nok")
	})
	p := start(t, nil, addr)
	_, resp := p.send("GET http://" + addr + "/ HTTP/1.1\r\nHost: x\r\nAUTH\r\n")
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "ok" || len(resp.Header["Set-Cookie"]) != 2 || resp.Header.Get("Proxy-Authenticate")+resp.Header.Get("Keep-Alive") != "" {
		t.Errorf("%q %v %v", body, resp.Header, err)
	}
	conn, resp := p.send("GET http://" + addr + "/ HTTP/1.1\r\nHost: x\r\nAUTHConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp.Status)
	}
	if _, err := io.WriteString(conn, "there and back"); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, 14)
	if _, err := io.ReadFull(conn, back); err != nil || string(back) != "there and back" {
		t.Errorf("%q, %v", back, err)
	}
}
