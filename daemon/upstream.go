package daemon

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/otters-sh/otters/spec"
)

// Policies of an upstream.
const (
	policyAlways  = "always"  // ask for a tag each time
	policyMissing = "missing" // ask where the embedded registry has none
	policyNever   = "never"   // only what the embedded registry has
)

const (
	// maxUpstreamHosts bounds the hosts that an upstream may point to.
	maxUpstreamHosts = 100
	// maxCAFile bounds a file of certificates, in bytes.
	maxCAFile = 16 << 20
)

// upstream says how another registry is spoken to, and when.
type upstream struct {
	host, policy string
	plainHTTP    bool
	// hosts are the addresses, host:port, that it may point to although they are not public: its
	// own, and what config.yaml names for its blobs and tokens.
	hosts map[string]bool
	// authorities of its certificate; nil means those of the system.
	authorities *x509.CertPool
}

// upstreamConfig is an entry of config.yaml.
type upstreamConfig struct {
	Registry  string   `yaml:"registry"`
	Policy    string   `yaml:"policy"`
	PlainHTTP bool     `yaml:"plain-http"`
	CAFile    string   `yaml:"ca-file"`
	Hosts     []string `yaml:"hosts"`
}

// otherRegistry is one that config.yaml says nothing of.
func otherRegistry(host string) *upstream {
	u := &upstream{host: host, policy: policyMissing, plainHTTP: isLoopback(host)}
	u.hosts = map[string]bool{u.address(host): true}
	return u
}

// parseUpstream checks an entry of config.yaml, and reads the file that it names.
func parseUpstream(c upstreamConfig) (*upstream, error) {
	if !isHost(c.Registry) {
		return nil, fmt.Errorf("upstreams: registry %q is not a host such as ghcr.io or localhost:5000", c.Registry)
	}
	if c.Policy == "" {
		c.Policy = policyMissing
	}
	if c.Policy != policyAlways && c.Policy != policyMissing && c.Policy != policyNever {
		return nil, fmt.Errorf("upstreams: %s: policy %q is not always, missing or never", c.Registry, c.Policy)
	}
	if c.PlainHTTP && !isLoopback(c.Registry) {
		return nil, fmt.Errorf("upstreams: %s: plain-http is for registries on the loopback only", c.Registry)
	}
	u := &upstream{host: c.Registry, policy: c.Policy, plainHTTP: c.PlainHTTP}
	u.hosts = map[string]bool{u.address(c.Registry): true}
	if n := len(c.Hosts); n > maxUpstreamHosts {
		return nil, fmt.Errorf("upstreams: %s: %d hosts, more than %d", c.Registry, n, maxUpstreamHosts)
	}
	for _, h := range c.Hosts {
		if !isHost(h) {
			return nil, fmt.Errorf("upstreams: %s: hosts: %q is not a host such as auth.example or 10.0.0.7:9000", c.Registry, h)
		}
		u.hosts[u.address(h)] = true
	}
	if c.CAFile != "" {
		var err error
		if u.authorities, err = readAuthorities(c.CAFile); err != nil {
			return nil, fmt.Errorf("upstreams: %s: ca-file: %w", c.Registry, err)
		}
	}
	return u, nil
}

// isHost tells whether a reference may start with h.
func isHost(h string) bool {
	ref, err := spec.ParseReference(h + "/name")
	return err == nil && ref.Host() == h
}

// readAuthorities adds the certificates of a PEM file to those of the system.
func readAuthorities(path string) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	b, err := readOperators(path, maxCAFile)
	switch {
	case err != nil:
		return nil, err
	case !pool.AppendCertsFromPEM(b):
		return nil, fmt.Errorf("%s: has no certificate in PEM form", path)
	}
	return pool, nil
}

// address is a host with its port.
func (u *upstream) address(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return strings.ToLower(host)
	}
	port := "443"
	if u.plainHTTP {
		port = "80"
	}
	return net.JoinHostPort(strings.ToLower(strings.Trim(host, "[]")), port)
}

func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

var sharedNet = netip.MustParsePrefix("100.64.0.0/10")

func isPublic(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedNet.Contains(a)
}
