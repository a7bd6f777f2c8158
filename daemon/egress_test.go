package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/sandbox"
)

// Invariant: an agent gets out to the destinations it was created with and to no others, through the
// daemon that is there, with its own credential; each connection is in the daemon's log, no credential
// is. Worst inputs: a name that leads inside, another agent's credential, a daemon that is replaced.

var traveller = map[string]string{"Agentfile": `FROM scratch
MODEL offline/otter
NAME traveller
BIN fetch otters/tools/fetch
BIN sh otters/tools/sh
`}

// testNames answers for a resolver.
type testNames map[string]string

func (n testNames) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if a, ok := n[strings.TrimSuffix(host, ".")]; ok {
		return []netip.Addr{netip.MustParseAddr(a)}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// logBuffer keeps a daemon's log.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// lines are those that have every one of the texts.
func (l *logBuffer) lines(texts ...string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
next:
	for line := range strings.Lines(l.buf.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		n++
	}
	return n
}

// destinationsForTest are a plain and a TLS server; authority is a folder with the certificate of the
// latter, which agents' users may read.
func destinationsForTest(t *testing.T) (plain, secure, authority string) {
	t.Helper()
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "page of "+r.URL.Path) })
	p, s := httptest.NewServer(pages), httptest.NewUnstartedServer(pages)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(p.Close)
	t.Cleanup(s.Close)
	authority = filepath.Dir(newHome(t))
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	path := filepath.Join(authority, "ca.pem")
	if err := errors.Join(os.WriteFile(path, cert, 0o644), os.Chmod(path, 0o644)); err != nil { // whatever the umask
		t.Fatal(err)
	}
	return p.Listener.Addr().String(), s.Listener.Addr().String(), authority
}

func portIn(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// tool is what a tool of the agent's answers to its model.
func (d *testDaemon) tool(agent, command string) string {
	d.t.Helper()
	return strings.Join(d.ask(agent, "", "Use `"+command+"`").results, "\n")
}

// registryIsNotForAgents wants nothing of the registry in reach of agents; at level off, where its port is, the
// token keeps them out, and of a daemon of root's the token's file does.
func (d *testDaemon) registryIsNotForAgents(t *testing.T, level sandbox.Level, home string) {
	t.Helper()
	for _, agent := range []string{"in", "out"} {
		got := d.tool(agent, "sh -c 'HTTP_PROXY= HTTPS_PROXY= fetch --max-time 120 http://"+d.Registry()+"/v2/'")
		if strings.Contains(got, "the server answered 401") != (level == sandbox.Off) {
			t.Errorf("agent %s asks the registry: %q", agent, got)
		}
		if level == sandbox.Off && os.Geteuid() != 0 {
			continue // it is of the daemon's user
		}
		got = d.tool(agent, "sh -c 'read token < "+filepath.Join(home, "registry.token")+"; echo \"token=$token.\"'")
		if !strings.Contains(got, "token=.") {
			t.Errorf("agent %s reads the registry's token: %q", agent, got)
		}
	}
	if got := d.tool("out", "fetch http://"+d.Registry()+"/v2/"); !strings.Contains(got, "refused by the proxy") {
		t.Errorf("through the proxy: %q", got)
	}
}

func TestAnAgentGetsOutToItsDestinationsAlone(t *testing.T) {
	t.Parallel()
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: filepath.Join(built.For(t), monitorProgram), Warm: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, level := range l.Supported() {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			plain, secure, authority := destinationsForTest(t)
			closed, _, _ := destinationsForTest(t)
			names := testNames{"example.com": "127.0.0.1", "inside.test": "10.0.0.1", "metadata.test": "169.254.169.254"}
			log := &logBuffer{}
			change := func(c *Config) {
				c.resolver = names
				c.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(newTestLog(t), log), nil))
			}
			home := newHome(t)
			d := boot(t, home, change)
			d.image("traveller", traveller)
			port := portIn(t, secure)
			d.create(&daemonv1.CreateAgentRequest{
				Image: "traveller", Name: "out", Sandbox: string(level),
				AllowNet: []string{plain, "127.0.0.1:" + port, "EXAMPLE.com:" + port, "inside.test:" + port, "metadata.test"},
				Mounts:   []*daemonv1.Mount{{Host: authority, Target: "workspace/ca"}},
				Envs:     []*daemonv1.EnvVar{{Key: "SSL_CERT_FILE", Value: "ca/ca.pem"}},
			})
			d.create(&daemonv1.CreateAgentRequest{Image: "traveller", Name: "in", Sandbox: string(level)})
			d.await("out", "ready")
			d.await("in", "ready")
			check := func(d *testDaemon) {
				t.Helper()
				for _, tt := range []struct{ url, want, logged string }{
					{"http://" + plain + "/a", "page of /a", "connection allowed"},
					{"https://example.com:" + port + "/b", "page of /b", "connection allowed"},
					{"http://" + closed, "refused by the proxy: port " + portIn(t, closed) + " of 127.0.0.1 is not among", "connection refused"},
					{"https://localhost:" + port, "refused by the proxy: localhost is not among", "connection refused"},
					{"https://inside.test:" + port, "10.0.0.1, an address that is private", "connection refused"},
					{"http://metadata.test/latest", "a cloud's metadata service", "connection refused"},
				} {
					u, err := url.Parse(tt.url)
					if err != nil {
						t.Fatal(err)
					}
					before := log.lines(tt.logged, "host="+u.Hostname())
					if got := d.tool("out", "fetch "+tt.url); !strings.Contains(got, tt.want) {
						t.Errorf("%s: %q, want %q", tt.url, got, tt.want)
					}
					if n := log.lines(tt.logged, "host="+u.Hostname()) - before; n != 1 {
						t.Errorf("%s: %d lines in the log, want one that says %s", tt.url, n, tt.logged)
					}
				}
			}
			check(d)
			a := d.get("out")
			if got := strings.Join(a.GetAllowNet(), " "); got != plain+" 127.0.0.1:"+port+" example.com:"+port+" inside.test:"+port+" metadata.test" {
				t.Errorf("inspect shows %s", got)
			}
			told := a.GetConfinement().GetEnforced()
			if level == sandbox.Off {
				told = a.GetConfinement().GetOpen()
			}
			if !strings.Contains(strings.Join(told, "\n"), "a proxy") || !strings.Contains(strings.Join(told, "\n"), "example.com:"+port) {
				t.Errorf("confinement says %q", told)
			}
			doc, err := os.ReadFile(filepath.Join(a.GetRoot(), "etc/context/WORKSPACE.md"))
			if err != nil || !strings.Contains(string(doc), "## Network\n") || !strings.Contains(string(doc), "- `example.com:"+port+"`") {
				t.Errorf("WORKSPACE.md: %v\n%s", err, doc)
			}
			around := d.tool("out", "sh -c 'HTTP_PROXY= HTTPS_PROXY= fetch http://"+plain+"/around'")
			if strings.Contains(around, "page of") != (level == sandbox.Off) {
				t.Errorf("around the proxy: %q", around)
			}
			if got := d.tool("in", "fetch http://"+plain+"/x"); strings.Contains(got, "page of") != (level == sandbox.Off) {
				t.Errorf("an agent without destinations: %q", got)
			}
			if got := d.tool("in", `sh -c 'echo "proxy=$HTTP_PROXY$https_proxy$NO_PROXY."'`); !strings.Contains(got, "proxy=.") {
				t.Errorf("an agent without destinations has %q", got)
			}
			d.registryIsNotForAgents(t, level, home)
			if level == sandbox.Strict {
				if got := d.tool("in", "fetch http://127.0.0.1:5529/"); !strings.Contains(got, "connection refused") {
					t.Errorf("an agent without destinations has a proxy: %q", got)
				}
				if got := d.tool("out", "fetch --max-time 120 http://127.0.0.1:5529/"); !strings.Contains(got, "not among") {
					t.Errorf("the proxy leads to itself: %q", got)
				}
			}
			d.execHasNoProxy(t, level, plain)

			// The next daemon serves the same runtime, without a word to it.
			if err := d.end(); err != nil {
				t.Fatal(err)
			}
			next := boot(t, home, change)
			next.await("out", "ready")
			if pid := next.get("out").GetPid(); pid != a.GetPid() {
				t.Errorf("process %d became %d", a.GetPid(), pid)
			}
			check(next)
			// Another start has another credential, and the same destinations.
			next.halt("out")
			next.begin("out")
			check(next)
			handle, err := os.ReadFile(filepath.Join(filepath.Dir(a.GetRoot()), "handle.json"))
			if err != nil || !bytes.Contains(handle, []byte(`"allow_net":["`+plain)) || bytes.Contains(handle, []byte("otr_")) {
				t.Errorf("%v, %s", err, handle)
			}
			if n := log.lines("otr_"); n > 0 {
				t.Errorf("%d lines of the log have a credential", n)
			}
		})
	}
}

// A BIN that the operator runs has a sandbox of its own, and no credential: it has no network but
// where nothing confines it.
func (d *testDaemon) execHasNoProxy(t *testing.T, level sandbox.Level, plain string) {
	t.Helper()
	ran, err := collect(d.exec(t.Context(), "out", "sh", "-c", `echo "proxy=$HTTP_PROXY$http_proxy$HTTPS_PROXY$https_proxy."`))
	if err != nil || ran.out != "proxy=.\n" {
		t.Errorf("exec has %+v, %v", ran, err)
	}
	ran, err = collect(d.exec(t.Context(), "out", "fetch", "--max-time", "120", "http://"+plain+"/x"))
	if err != nil || (ran.code == 0) != (level == sandbox.Off) {
		t.Errorf("exec of fetch: %+v, %v", ran, err)
	}
}

// listening is the inode of the socket that listens on an IPv4 address, empty where none does.
func listening(t *testing.T, addr string) string {
	t.Helper()
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	ip := ap.Addr().As4()
	local := fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), ap.Port())
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		const listens, inode = "0A", 9
		if f := strings.Fields(line); len(f) > inode && f[1] == local && f[3] == listens {
			return f[inode]
		}
	}
	return ""
}

// At off the proxy's address is one of the host's: the credential alone tells agents, and others, apart.
func TestOnlyItsAgentUsesAProxy(t *testing.T) {
	t.Parallel()
	plain, _, _ := destinationsForTest(t)
	d := boot(t, newHome(t))
	d.image("traveller", traveller)
	proxies := map[string]*url.URL{}
	for _, name := range []string{"one", "two"} {
		d.create(&daemonv1.CreateAgentRequest{Image: "traveller", Name: name, Sandbox: "off", AllowNet: []string{plain}})
		d.await(name, "ready")
		_, text, _ := strings.Cut(d.tool(name, `sh -c 'echo "proxy=$HTTP_PROXY"'`), "proxy=")
		text, _, _ = strings.Cut(text, "\n")
		u, err := url.Parse(text)
		if err != nil || u.User == nil {
			t.Fatalf("%q, %v", text, err)
		}
		proxies[name] = u
	}
	get := func(through url.URL, as *url.Userinfo) int {
		through.User = as
		tr := &http.Transport{Proxy: http.ProxyURL(&through), DisableKeepAlives: true}
		// A loopback address needs no proxy to Go's own choice, but to this one.
		resp, err := (&http.Client{Transport: tr}).Get("http://" + plain)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	one, two := *proxies["one"], *proxies["two"]
	if got := get(one, one.User); got != http.StatusOK {
		t.Errorf("its own credential: %d", got)
	}
	for name, as := range map[string]*url.Userinfo{"none": nil, "another agent's": two.User} {
		if got := get(one, as); got != http.StatusProxyAuthRequired {
			t.Errorf("%s: %d", name, got)
		}
	}
	// The table changes while it is read, and may lack a line then.
	was := ""
	for end := time.Now().Add(patience); was == ""; was = listening(t, one.Host) {
		if time.Now().After(end) {
			t.Fatalf("nobody listens on %s", one.Host)
		}
	}
	d.halt("one")
	// Somebody else may listen there by now.
	if is := listening(t, one.Host); is == was {
		t.Error("the proxy of a stopped agent still listens")
	}
	if got := get(two, two.User); got != http.StatusOK {
		t.Errorf("the other agent's: %d", got)
	}
}

func TestDestinationsAreCheckedAtCreate(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("traveller", traveller)
	for text, why := range map[string]string{
		"https://example.com": `destination "https://example.com": a host is opened, not a URL`,
		"*":                   "no way to open them all",
		"example.com:0":       "1 to 65535",
		"127.1":               "ends like an address",
	} {
		_, err := d.api.CreateAgent(t.Context(), &daemonv1.CreateAgentRequest{Image: "traveller", AllowNet: []string{"example.com", text}})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if list, err := d.api.ListAgents(t.Context(), &daemonv1.ListAgentsRequest{}); err != nil || len(list.GetAgents()) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}
