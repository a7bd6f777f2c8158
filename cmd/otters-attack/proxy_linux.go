package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSaid bounds what is read of an answer, in bytes.
const maxSaid = 64 << 10

// proxyAttacks go through the agent's own proxy (--allow-net) to what was not named. A server of the
// host tells the secret to whoever connects; the one that was named tells it where a request shows it
// what the proxy must not let through. In a request ALLOWED is host:port of the named server, PORT its
// port, INSIDE the port of the other, both on 127.0.0.1, and AUTH the agent's credential.
func proxyAttacks() []attack {
	all := []attack{
		{id: "proxy-other-proxy", name: "use its own credential at another agent's proxy", covers: "N9", needs: []string{"proxy.allowed", "tcp4", "tcp.otherproxy"}, twin: "proxy", run: func(t targets) result {
			u, err := ownProxy()
			if err != nil {
				return broken("%v", err)
			}
			u.Host = t["tcp.otherproxy"]
			return told(t, u, "CONNECT "+t["tcp4"]+" HTTP/1.1\r\nHost: x\r\nAUTH\r\n")
		}},
		{id: "proxy-bare", name: "use its own proxy without a credential", covers: "N9", needs: []string{"proxy.allowed"}, twin: "proxy", run: func(t targets) result {
			u, err := ownProxy()
			if err != nil {
				return broken("%v", err)
			}
			said, err := ask(t, u, "GET http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nConnection: close\r\n\r\n")
			if strings.Contains(said, welcome) {
				return won("the named server answered")
			}
			return denied("%q %v", firstLine(said), err)
		}},
	}
	for _, a := range []struct {
		id, name, covers string
		requests         []string
	}{
		{"proxy-other-port", "another port of a host that was named", "N5", connects("127.0.0.1:INSIDE")},
		{"proxy-other-name", "a name that was not named", "N4", connects("other.test:INSIDE", "wild.test:INSIDE", "inside.wild.test.evil.test:INSIDE")},
		{"proxy-localhost", "the daemon's own loopback", "N4", connects("localhost:INSIDE", "LOCALHOST.:INSIDE", "0.0.0.0:INSIDE", "[::]:INSIDE", "[::1]:INSIDE", "127.0.0.2:PORT")},
		{"proxy-mapped", "an address inside an IPv6 address", "N4", connects("[::ffff:127.0.0.1]:INSIDE", "[64:ff9b::7f00:1]:INSIDE", "[::127.0.0.1]:INSIDE", "[2002:7f00:1::]:INSIDE", "[::ffff:127.0.0.2]:PORT")},
		{"proxy-number", "an address in another shape", "N4", connects("2130706433:INSIDE", "0x7f000001:INSIDE", "017700000001:INSIDE", "127.1:INSIDE", "127.0.0.1.:INSIDE", "0127.0.0.1:INSIDE", "127%2e0.0.1:INSIDE")},
		{"proxy-inside-name", "an address inside by a name that was named", "N4", connects("inside.wild.test:INSIDE", "mapped.wild.test:INSIDE", "nat64.wild.test:INSIDE", "both.wild.test:INSIDE")},
		{"proxy-rebind", "an address inside by a name that changes", "N4", slices.Repeat([]string{"GET http://rebound.test:PORT/ HTTP/1.1\r\nHost: rebound.test:PORT\r\nAUTHConnection: close\r\n\r\n"}, 8)},
		{"proxy-user", "another host behind a user name", "N8", append(connects("ALLOWED@127.0.0.1:INSIDE", "127.0.0.1:INSIDE#ALLOWED", "127.0.0.1:INSIDE/ALLOWED"),
			"GET http://ALLOWED@127.0.0.1:INSIDE/ HTTP/1.1\r\nHost: ALLOWED\r\nAUTH\r\n")},
		{"proxy-plain", "another server by a plain request", "N8", []string{
			"GET http://127.0.0.1:INSIDE/ HTTP/1.1\r\nHost: ALLOWED\r\nAUTH\r\n", "GET / HTTP/1.1\r\nHost: 127.0.0.1:INSIDE\r\nAUTH\r\n",
			"GET //127.0.0.1:INSIDE/ HTTP/1.1\r\nHost: 127.0.0.1:INSIDE\r\nAUTH\r\n", "POST http://inside.wild.test:INSIDE/ HTTP/1.0\r\nAUTH\r\n",
		}},
		{"proxy-target", "another server by a Host that differs from CONNECT's target", "N8", []string{
			"CONNECT other.test:INSIDE HTTP/1.1\r\nHost: ALLOWED\r\nAUTH\r\n", "CONNECT / HTTP/1.1\r\nHost: 127.0.0.1:INSIDE\r\nAUTH\r\n",
			"CONNECT ALLOWED 127.0.0.1:INSIDE HTTP/1.1\r\nHost: ALLOWED\r\nAUTH\r\n",
		}},
		{"proxy-host", "another host of the named server by the Host header", "N8", []string{
			"GET http://ALLOWED/ HTTP/1.1\r\nHost: hidden.test\r\nAUTHConnection: close\r\n\r\n", "GET http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nHost: hidden.test\r\nAUTHConnection: close\r\n\r\n",
			"GET http://ALLOWED/ HTTP/1.0\r\nHost : hidden.test\r\nAUTHConnection: close\r\n\r\n", "GET http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nX-Forwarded-Host: hidden.test\r\nAUTHConnection: close\r\n\r\n",
		}},
		{"proxy-smuggle", "a second request within a body", "N8", smuggled()},
		{"proxy-inject", "a header or request of its own making within a line", "N8", []string{
			"GET http://ALLOWED/%0d%0aX-Injected:%201 HTTP/1.1\r\nHost: ALLOWED\r\nAUTHConnection: close\r\n\r\n", "GET http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nAUTHX-A: b\rX-Injected: 1\r\nConnection: close\r\n\r\n",
			"GET http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nAUTHX-A: b\x00\nConnection: X-A\r\n X-Injected: 1\r\n\r\n", "GET http://ALLOWED/\x0bX-Injected:1 HTTP/1.1\r\nHost: ALLOWED\r\nAUTHConnection: close\r\n\r\n",
		}},
		{"proxy-credential", "have its credential passed on to a server", "N9", []string{
			"GET http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nAUTHConnection: close\r\n\r\n", "GET http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nAUTHConnection: close, Proxy-Authorization\r\n\r\n",
			"GET http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nAUTHConnection: Upgrade, close\r\nUpgrade: any\r\n\r\n",
		}},
	} {
		all = append(all, attack{id: a.id, name: "by its own proxy: " + a.name, covers: a.covers, needs: []string{"proxy.allowed", "tcp4"}, twin: "proxy", run: func(t targets) result {
			u, err := ownProxy()
			if err != nil {
				return broken("%v", err)
			}
			var last result
			for _, request := range a.requests {
				if last = told(t, u, request); last.Outcome == outcomeSucceeded {
					return last
				}
			}
			return last
		}})
	}
	return append(all, attack{id: "proxy-metadata", name: "by its own proxy: a cloud's metadata service", covers: "N4", needs: []string{"proxy.allowed", "tcp4"}, twin: "proxy", run: func(t targets) result {
		u, err := ownProxy()
		if err != nil {
			return broken("%v", err)
		}
		var said string
		for _, request := range connects("169.254.169.254:80", "metadata.wild.test:INSIDE", "[::ffff:169.254.169.254]:80", "[fd00:ec2::254]:80", "metadata6.wild.test:INSIDE") {
			// Nothing need answer there: the refusal must come before a connection is tried.
			if said, err = ask(t, u, request); !strings.HasPrefix(said, "HTTP/1.1 403") {
				return won("%q was let through: %q %v", request, firstLine(said), err)
			}
		}
		return denied("%s", firstLine(said))
	}})
}

// welcome is what the named server says.
const welcome = "welcome"

func connects(hosts ...string) []string {
	var all []string
	for _, host := range hosts {
		all = append(all, "CONNECT "+host+" HTTP/1.1\r\nHost: "+host+"\r\nAUTH\r\n")
	}
	return all
}

// smuggled are requests that hold another, which a server may take for one of its own.
func smuggled() []string {
	const inner = "GET /smuggled HTTP/1.1\r\nHost: ALLOWED\r\n\r\n"
	var all []string
	for _, framing := range []string{
		"Content-Length: 4\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer-Encoding: xchunked",
		"Transfer-Encoding : chunked", "Content-Length: 0\r\nContent-Length: 44", "Content-Length: 0", "Connection: Content-Length\r\nContent-Length: 5", "Upgrade: any\r\nConnection: Upgrade",
	} {
		all = append(all, "POST http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nAUTH"+framing+"\r\n\r\n0\r\n\r\n"+inner)
	}
	return all
}

// ownProxy is the way out that the agent was given.
func ownProxy() (*url.URL, error) {
	u, err := url.Parse(os.Getenv("HTTP_PROXY"))
	if err == nil && u.Host == "" {
		err = errors.New("no HTTP_PROXY")
	}
	return u, err
}

// ask sends a request to a proxy and returns what comes back.
func ask(t targets, proxy *url.URL, request string) (string, error) {
	_, inside, _ := strings.Cut(t["tcp4"], ":")
	_, port, _ := strings.Cut(t["proxy.allowed"], ":")
	password, _ := proxy.User.Password()
	auth := "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(proxy.User.Username()+":"+password)) + "\r\n"
	request = strings.NewReplacer("ALLOWED", t["proxy.allowed"], "PORT", port, "INSIDE", inside, "AUTH", auth).Replace(request)
	fd, err := dial(unix.SOCK_STREAM, 0, proxy.Host)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	// An answer comes at once; what comes later is the silence of a connection that stays open.
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 4})
	if _, err := unix.Write(fd, []byte(request)); err != nil {
		return "", err
	}
	return listen(fd, t["secret"])
}

// listen reads until the end, or the secret was said.
func listen(fd int, secret string) (string, error) {
	var said []byte
	b := make([]byte, 4096)
	for len(said) < maxSaid && !strings.Contains(string(said), secret) {
		n, err := unix.Read(fd, b)
		if n <= 0 {
			return string(said), err
		}
		said = append(said, b[:n]...)
	}
	return string(said), nil
}

// told is a success where the answer holds the secret.
func told(t targets, proxy *url.URL, request string) result {
	said, err := ask(t, proxy, request)
	if strings.Contains(said, t["secret"]) {
		return won("%q: heard the secret", request)
	}
	return denied("%q %v", firstLine(said), err)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\r\n")
	return line
}

// twinProxy reaches the named server by a tunnel and by a plain request.
func twinProxy(t targets) error {
	u, err := ownProxy()
	if err != nil {
		return err
	}
	for _, request := range []string{
		"CONNECT ALLOWED HTTP/1.1\r\nHost: ALLOWED\r\nAUTH\r\nGET / HTTP/1.1\r\nHost: ALLOWED\r\nConnection: close\r\n\r\n",
		"GET http://ALLOWED/ HTTP/1.1\r\nHost: ALLOWED\r\nAUTHConnection: close\r\n\r\n",
	} {
		if said, err := ask(t, u, request); !strings.Contains(said, welcome) {
			return fmt.Errorf("the named server said %q: %w", said, err)
		}
	}
	return nil
}
