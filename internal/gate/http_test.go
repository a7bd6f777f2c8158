package gate_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/otters-sh/otters/internal/gate"
)

// Invariant: no web page can make a request that reaches next unless its origin is listed, and none
// reaches it under a name that is not listed. The worst three: a rebound name (A1), a form posted by
// a page of another port of this machine (A2), a WebSocket opened without an Origin.

// serve starts a listener with a gate and returns its address.
func serve(t *testing.T, opts gate.HTTPOptions, next http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	addr := srv.Listener.Addr()
	if opts.Hosts == nil {
		opts.Hosts = gate.LoopbackHosts(addr)
	}
	srv.Config.Handler = gate.HTTP(next, opts)
	srv.Start()
	t.Cleanup(srv.Close)
	return addr.String()
}

// send writes a request as it stands, with HOST and PORT filled in.
func send(t *testing.T, addr, text string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, port, _ := net.SplitHostPort(addr)
	text = strings.NewReplacer("HOST", addr, "PORT", port, "\n", "\r\n").Replace(text)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestHTTPLetsProgramsInAndWebPagesOut(t *testing.T) {
	t.Parallel()
	addr := serve(t, gate.HTTPOptions{Origins: []string{"http://ui.test:80", "https://ui.test"}, RefuseSimpleTypes: true},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	const ok = http.StatusNoContent
	for _, tc := range []struct {
		name, request string
		status        int
		code          string
	}{
		{"A1 the address itself passes", "GET / HTTP/1.1\nHost: HOST\n\n", ok, ""},
		{"A1 localhost passes", "GET / HTTP/1.1\nHost: LocalHost:PORT\n\n", ok, ""},
		{"A1 the IPv6 loopback passes", "GET / HTTP/1.1\nHost: [::1]:PORT\n\n", ok, ""},
		{"A1 a rebound name is refused", "GET / HTTP/1.1\nHost: evil.test:PORT\n\n", 421, "host_not_allowed"},
		{"A1 a name with ours in front is refused", "GET / HTTP/1.1\nHost: localhost.evil.test:PORT\n\n", 421, "host_not_allowed"},
		{"A1 another port is refused", "GET / HTTP/1.1\nHost: localhost:1\n\n", 421, "host_not_allowed"},
		{"A1 no port is refused", "GET / HTTP/1.1\nHost: localhost\n\n", 421, "host_not_allowed"},
		{"A1 the name with a dot behind is refused", "GET / HTTP/1.1\nHost: localhost.:PORT\n\n", 421, "host_not_allowed"},
		{"A1 no host is refused", "GET / HTTP/1.0\n\n", 421, "host_not_allowed"},
		{"A1 an absolute target counts, not the header", "GET http://evil.test/ HTTP/1.1\nHost: HOST\n\n", 421, "host_not_allowed"},
		{"A2 a listed origin passes", "GET / HTTP/1.1\nHost: HOST\nOrigin: https://ui.test\n\n", ok, ""},
		{"A2 another origin is refused", "GET / HTTP/1.1\nHost: HOST\nOrigin: https://evil.test\n\n", 403, "origin_not_allowed"},
		{"A2 our own address as origin is refused unless listed", "GET / HTTP/1.1\nHost: HOST\nOrigin: http://HOST\n\n", 403, "origin_not_allowed"},
		{"A2 the null origin is refused", "GET / HTTP/1.1\nHost: HOST\nOrigin: null\n\n", 403, "origin_not_allowed"},
		{"A2 an empty origin is refused", "GET / HTTP/1.1\nHost: HOST\nOrigin:\n\n", 403, "origin_not_allowed"},
		{"A2 two origins are refused", "GET / HTTP/1.1\nHost: HOST\nOrigin: https://ui.test\nOrigin: https://ui.test\n\n", 403, "origin_not_allowed"},
		{"A2 a listed host with another scheme is refused", "GET / HTTP/1.1\nHost: HOST\nOrigin: http://ui.test\n\n", 403, "origin_not_allowed"},
		{"A2 a preflight of another origin is refused", "OPTIONS / HTTP/1.1\nHost: HOST\nOrigin: https://evil.test\nAccess-Control-Request-Method: POST\n\n", 403, "origin_not_allowed"},
		{"A2 an address typed by the user passes", "GET / HTTP/1.1\nHost: HOST\nSec-Fetch-Site: none\n\n", ok, ""},
		{"A2 same-origin passes", "GET / HTTP/1.1\nHost: HOST\nSec-Fetch-Site: same-origin\n\n", ok, ""},
		{"A2 cross-site from a listed origin passes", "GET / HTTP/1.1\nHost: HOST\nSec-Fetch-Site: cross-site\nOrigin: https://ui.test\n\n", ok, ""},
		{"A2 no-cors from another site is refused", "GET / HTTP/1.1\nHost: HOST\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: no-cors\n\n", 403, "cross_site"},
		{"A2 another port of this machine is refused", "GET / HTTP/1.1\nHost: HOST\nSec-Fetch-Site: same-site\n\n", 403, "cross_site"},
		{"A2 a bad value behind a good one is refused", "GET / HTTP/1.1\nHost: HOST\nSec-Fetch-Site: none\nSec-Fetch-Site: cross-site\n\n", 403, "cross_site"},
		{"A2 a referer of a listed origin passes", "GET / HTTP/1.1\nHost: HOST\nReferer: https://ui.test/page?x=1\n\n", ok, ""},
		{"A2 a referer of another is refused", "GET / HTTP/1.1\nHost: HOST\nReferer: https://evil.test/https://ui.test\n\n", 403, "referer_not_allowed"},
		{"A2 a referer that hides its host is refused", "GET / HTTP/1.1\nHost: HOST\nReferer: https://ui.test@evil.test/\n\n", 403, "referer_not_allowed"},
		{"A2 a websocket of a listed origin passes", "GET / HTTP/1.1\nHost: HOST\nConnection: Upgrade\nUpgrade: websocket\nOrigin: https://ui.test\n\n", ok, ""},
		{"A2 a websocket without origin is refused", "GET / HTTP/1.1\nHost: HOST\nConnection: Upgrade\nUpgrade: websocket\n\n", 403, "origin_missing"},
		{"A2 a websocket of another origin is refused", "GET / HTTP/1.1\nHost: HOST\nConnection: Upgrade\nUpgrade: websocket\nOrigin: https://evil.test\n\n", 403, "origin_not_allowed"},
		{"A2 a JSON post passes", "POST / HTTP/1.1\nHost: HOST\nContent-Type: application/json; charset=utf-8\nContent-Length: 2\n\n{}", ok, ""},
		{"A2 a text post is refused", "POST / HTTP/1.1\nHost: HOST\nContent-Type: text/plain;application/json\nContent-Length: 2\n\n{}", 415, "content_type_not_allowed"},
		{"A2 a form post is refused", "POST / HTTP/1.1\nHost: HOST\nContent-Type: application/x-www-form-urlencoded\nContent-Length: 2\n\n{}", 415, "content_type_not_allowed"},
		{"A2 a file post is refused", "POST / HTTP/1.1\nHost: HOST\nContent-Type: Multipart/Form-Data; boundary=x\nContent-Length: 2\n\n{}", 415, "content_type_not_allowed"},
		{"A2 a post without type is refused", "POST / HTTP/1.1\nHost: HOST\nContent-Length: 2\n\n{}", 415, "content_type_not_allowed"},
		{"A2 a post with two types is refused", "POST / HTTP/1.1\nHost: HOST\nContent-Type: application/json\nContent-Type: text/plain\nContent-Length: 2\n\n{}", 415, "content_type_not_allowed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			res := send(t, addr, tc.request)
			if res.StatusCode != tc.status {
				t.Fatalf("status %d, want %d", res.StatusCode, tc.status)
			}
			if got := res.Header.Get("X-Content-Type-Options"); got != "nosniff" {
				t.Errorf("X-Content-Type-Options %q", got)
			}
			if got := res.Header.Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") {
				t.Errorf("Content-Security-Policy %q", got)
			}
			if tc.status == ok {
				return
			}
			var body struct {
				Error struct{ Message, Code string }
			}
			if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
				t.Fatal(err)
			}
			if body.Error.Code != tc.code || !strings.Contains(body.Error.Message, ": ") || !strings.Contains(body.Error.Message, "; ") {
				t.Errorf("error %+v, want code %q and what: why; what to do", body.Error, tc.code)
			}
		})
	}
}

func TestHTTPWithoutHostsRefusesAll(t *testing.T) {
	t.Parallel()
	next := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	closed := serve(t, gate.HTTPOptions{Hosts: []string{}}, next)
	if res := send(t, closed, "GET / HTTP/1.1\nHost: HOST\n\n"); res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("status %d, want 421", res.StatusCode)
	}
	byFunc := serve(t, gate.HTTPOptions{Hosts: []string{}, HostAllowed: func(h string) bool { return h == "otters.test" }}, next)
	if res := send(t, byFunc, "GET / HTTP/1.1\nHost: otters.test\n\n"); res.StatusCode != http.StatusNoContent {
		t.Errorf("status %d, want 204", res.StatusCode)
	}
	if res := send(t, byFunc, "GET / HTTP/1.1\nHost: HOST\n\n"); res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("status %d, want 421", res.StatusCode)
	}
}

func TestHTTPTakesTheCORSWildcardOutAndLeavesOneOrigin(t *testing.T) {
	t.Parallel()
	addr := serve(t, gate.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.URL.Query().Get("o"))
		fmt.Fprint(w, "x")
	})
	for origin, want := range map[string]string{"*": "", "https://ui.test": "https://ui.test"} {
		if got := send(t, addr, "GET /?o="+origin+" HTTP/1.1\nHost: HOST\n\n").Header.Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("handler said %q, client got %q, want %q", origin, got, want)
		}
	}
}

func TestHTTPLetsAHandlerFlushAndHijack(t *testing.T) {
	t.Parallel()
	addr := serve(t, gate.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/flush" {
			fmt.Fprint(w, "first")
			w.(http.Flusher).Flush()
			<-r.Context().Done() // only a client that got the first part hangs up
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprint(conn, "HTTP/1.1 299 Taken\r\nContent-Length: 0\r\n\r\n")
		_ = conn.Close()
	})
	res := send(t, addr, "GET /flush HTTP/1.1\nHost: HOST\n\n")
	part := make([]byte, 5)
	if _, err := io.ReadFull(res.Body, part); err != nil || string(part) != "first" {
		t.Errorf("got %q, %v", part, err)
	}
	if res := send(t, addr, "GET /hijack HTTP/1.1\nHost: HOST\n\n"); res.StatusCode != 299 {
		t.Errorf("status %d, want 299", res.StatusCode)
	}
}

func TestCheckAuthority(t *testing.T) {
	t.Parallel()
	hosts := []string{"localhost", "127.0.0.1:80"}
	for _, tc := range []struct {
		values []string
		ok     bool
	}{
		{[]string{"localhost"}, true},
		{[]string{"LOCALHOST"}, true},
		{[]string{"127.0.0.1:80"}, true},
		{[]string{"127.0.0.1:81"}, false},
		{[]string{"evil.test"}, false},
		{[]string{""}, false},
		{nil, false},
		{[]string{"localhost", "evil.test"}, false},
	} {
		err := gate.CheckAuthority(tc.values, hosts)
		if (err == nil) != tc.ok {
			t.Errorf("%q: %v", tc.values, err)
		}
		if err != nil && !isA(err, gate.ErrHost) {
			t.Errorf("%q: %v does not wrap ErrHost", tc.values, err)
		}
	}
	if gate.CheckAuthority([]string{"localhost"}, nil) == nil {
		t.Error("no hosts allowed a request")
	}
}
