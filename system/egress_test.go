package system_test

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/util"
	"github.com/google/uuid"

	"github.com/otters-sh/otters/internal/gate"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// proxied keeps what is handed up for a proxy, and answers every connection with a word.
type proxied struct {
	grants chan system.Egress
	addrs  chan string
}

func newProxied() *proxied {
	return &proxied{make(chan system.Egress, 4), make(chan string, 4)}
}

func (p *proxied) accept(e system.Egress, ln net.Listener) {
	p.grants <- e
	p.addrs <- ln.Addr().String()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(c, "from the proxy")
			_ = c.Close()
		}
	}()
}

// Invariant: a runtime with destinations has one proxy, the one that whoever holds the listener
// serves, and shows there what that one expects; the next process serves it on. Worst inputs: a
// process that takes over without a proxy, a second start, an image that sets the same variable.
func TestAnAgentWithDestinationsHasAProxy(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level sandbox.Level) {
		dir, hostFiles, door := host(t), memfs.New(), newProxied()
		if err := util.WriteFile(hostFiles, "/etc/ssl/certs/ca-certificates.crt", []byte("authorities"), 0o644); err != nil {
			t.Fatal(err)
		}
		destinations := []string{"example.com", "[2001:db8::1]:443"}
		live := []system.AgentOption{system.WithEgress(door.accept)}
		p := provider(t, dir, plain, system.WithSandbox(level), system.WithHostFS(hostFiles))
		a := created(t, p, append(live, system.WithAllowNet(destinations)), role("serve"),
			spec.WithExtraEnvs(spec.Env{Key: "NO_PROXY", Value: "mine"}))
		check := func(a *system.Agent) (system.Egress, string) {
			t.Helper()
			e, addr := <-door.grants, <-door.addrs
			env := strings.Split(prompt(t, a, "env"), "\n")
			value := func(name string) string {
				t.Helper()
				var all []string
				for _, kv := range env {
					if v, ok := strings.CutPrefix(kv, name+"="); ok {
						all = append(all, v)
					}
				}
				if len(all) != 1 {
					t.Errorf("%s is there %d times: %q", name, len(all), all)
					return ""
				}
				return all[0]
			}
			u, err := url.Parse(value("HTTP_PROXY"))
			if err != nil || u.Host != addr || u.User == nil || u.User.Username() != "agent" {
				t.Fatalf("%v, %v, want the address %s", u, err, addr)
			}
			token, _ := u.User.Password()
			if !gate.TokenMatches(e.TokenHash, token) || !slices.Equal(e.Destinations, destinations) {
				t.Errorf("the proxy has another token, or %q", e.Destinations)
			}
			for _, name := range []string{"http_proxy", "HTTPS_PROXY", "https_proxy"} {
				if value(name) != u.String() {
					t.Errorf("%s is another proxy", name)
				}
			}
			if value("NO_PROXY") != "mine" || value("no_proxy") == "" {
				t.Error("the image's NO_PROXY does not win")
			}
			if got := prompt(t, a, "get:"+addr); got != "from the proxy" {
				t.Errorf("proxy at %s: %q", addr, got)
			}
			file := value("SSL_CERT_FILE")
			if file != filepath.Join(rootOf(dir, a, level), "etc/ssl/certs/ca-certificates.crt") || prompt(t, a, "read:"+file) != "authorities" {
				t.Errorf("authorities in %s", file)
			}
			return e, addr
		}
		running(t, a)
		first, addr := check(a)
		if level == sandbox.Strict && addr != "127.0.0.1:5529" {
			t.Errorf("proxy at %s", addr)
		}
		if err := a.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		running(t, a)
		second, addr := check(a)
		if second.TokenHash == first.TokenHash {
			t.Error("the second start has the token of the first")
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		// One without a proxy takes the agent over all the same, and leaves the listener to the next.
		for _, opts := range [][]system.AgentOption{nil, live} {
			q := provider(t, dir, plain, system.WithSandbox(level), system.WithHostFS(hostFiles))
			b := loaded(t, q, opts...)
			if ok, err := b.Attach(t.Context()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if got := b.Process().AllowNet; !slices.Equal(got, destinations) {
				t.Errorf("destinations %q", got)
			}
			if opts != nil {
				third := <-door.grants
				if again := <-door.addrs; third.TokenHash != second.TokenHash || again != addr {
					t.Errorf("taken over at %s, was %s", again, addr)
				}
				if got := prompt(t, b, "get:"+addr); got != "from the proxy" {
					t.Errorf("after the take-over: %q", got)
				}
				if err := b.Stop(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestDestinationsThatNobodyWouldOpenAreRefused(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	open := system.WithAllowNet([]string{"example.com"})
	for why, opts := range map[string][]system.AgentOption{
		"WithEgress": {open},
		"monitor":    {open, system.WithEgress(newProxied().accept), system.WithSpawner(noSpawner{})},
	} {
		if _, err := p.CreateWithOptions(t.Context(), uuid.New(), ref, opts); !errors.Is(err, system.ErrConfig) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
	created(t, p, []system.AgentOption{open, system.WithEgress(newProxied().accept)})
}

// noSpawner starts nothing.
type noSpawner struct{}

func (noSpawner) Command(string, ...string) system.Cmd { return nil }
