package breakout

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/otters-sh/otters/egress"
	"github.com/otters-sh/otters/system"
)

// proxy lets the agent that is attacked out to a server that says the secret.
func (h *host) proxy() []system.AgentOption {
	h.proxyAt = make(chan string, 1)
	return h.letOut(egress.New(egress.Options{}), "victim", func(l net.Listener) { h.proxyAt <- l.Addr().String() }, h.targets["tcp4"])
}

// attackersProxy lets the attacker out to the named server alone. Names that lead elsewhere are among
// its destinations, all for ports of this host.
func (h *host) attackersProxy() []system.AgentOption {
	_, port, _ := net.SplitHostPort(h.targets["proxy.allowed"])
	_, inside, _ := net.SplitHostPort(h.targets["tcp4"])
	return h.letOut(egress.New(egress.Options{Resolver: &names{}}), "attacker", func(net.Listener) {},
		"allowed.test:"+port, "127.0.0.1:"+port, "rebound.test:"+port, "*.wild.test:"+inside)
}

func (h *host) letOut(p *egress.Proxy, agent string, started func(net.Listener), destinations ...string) []system.AgentOption {
	h.closers = append(h.closers, func() error { p.Close(); return nil })
	accept := func(e system.Egress, l net.Listener) {
		started(l)
		allowed, err := egress.ParseDestinations(e.Destinations)
		if err != nil {
			_ = l.Close()
			return
		}
		go func() { _ = p.Serve(egress.Grant{Agent: agent, Destinations: allowed, TokenHash: e.TokenHash}, l) }()
	}
	return []system.AgentOption{system.WithAllowNet(destinations), system.WithEgress(accept)}
}

// names is a name server that is the attacker's own.
type names struct {
	mu    sync.Mutex
	asked int
}

// LookupNetIP answers for rebound.test with another address each time.
func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	all := map[string][]string{
		"allowed.test.": {"127.0.0.1"}, "other.test.": {"127.0.0.1"}, "wild.test.": {"127.0.0.1"}, "inside.wild.test.": {"127.0.0.1"},
		"inside.wild.test.evil.test.": {"127.0.0.1"}, "mapped.wild.test.": {"::ffff:127.0.0.1"}, "nat64.wild.test.": {"64:ff9b::127.0.0.1"},
		"both.wild.test.": {"::1", "127.0.0.1"}, "metadata.wild.test.": {"169.254.169.254"}, "metadata6.wild.test.": {"fd00:ec2::254"},
		"hidden.test.": {"127.0.0.1"},
	}[host]
	if host == "rebound.test." {
		n.mu.Lock()
		n.asked++
		all = []string{[]string{"127.0.0.1", "127.0.0.2"}[n.asked%2]}
		n.mu.Unlock()
	}
	if len(all) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var addrs []netip.Addr
	for _, a := range all {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs, nil
}

// openNamed starts the server that the attacker may reach. It says the secret where a request shows it
// what no proxy of ours lets through. A server on the same port of 127.0.0.2 always does.
func (h *host) openNamed() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if second, err := net.Listen("tcp", "127.0.0.2:"+port); err == nil {
		h.serve(second)
	}
	h.targets["proxy.allowed"] = "allowed.test:" + port
	known := []string{"allowed.test:" + port, "rebound.test:" + port, "127.0.0.1:" + port}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told := r.URL.Path != "/" && strings.Contains(r.URL.Path, "smuggled") || !slices.Contains(known, r.Host)
		for _, name := range []string{"X-Injected", "X-Forwarded-Host", "Proxy-Authorization"} {
			told = told || r.Header.Get(name) != ""
		}
		text := "welcome"
		if told {
			text = h.secret
		}
		_, _ = io.WriteString(w, text)
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	h.closers = append(h.closers, func() error { err := s.Close(); wg.Wait(); return err })
	return nil
}
