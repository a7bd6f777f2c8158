package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
	remoteretry "oras.land/oras-go/v2/registry/remote/retry"
)

const (
	// stallTimeout is how long another registry may send or take nothing.
	stallTimeout = 60 * time.Second
	maxRedirects = 5
)

var (
	// errStalled is the cause of a transfer that was given up since it stood still.
	errStalled = errors.New("nothing moved")
	// errRefused is a request that a registry asked for and that is not made.
	errRefused = errors.New("refused")
)

// upstreamClient speaks to one registry and to whom it points: over https but to this machine, to
// public addresses but for those of the registry's hosts, and never longer than stall without a byte
// moving. Proxies and certificates are those of the environment, as Go programs have them:
// HTTP_PROXY, HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR.
type upstreamClient struct {
	*upstream
	stall     time.Duration
	transport *http.Transport

	mu      sync.Mutex
	proxies map[string]bool // addresses of the proxies of the environment
}

func newUpstreamClient(u *upstream, stall time.Duration) *upstreamClient {
	c := &upstreamClient{upstream: u, stall: stall, proxies: map[string]bool{}}
	c.transport = &http.Transport{
		Proxy: c.proxy, DialContext: c.dial, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: u.authorities, MinVersion: tls.VersionTLS12},
		// The transfers of one image, and as many questions.
		MaxIdleConnsPerHost: 2 * transfersAtOnce, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 15 * time.Second, ResponseHeaderTimeout: stall, MaxResponseHeaderBytes: maxHeaderBytes,
	}
	return c
}

func (c *upstreamClient) close() { c.transport.CloseIdleConnections() }

// proxy finds the proxy of a request and remembers its address, which may be anywhere.
func (c *upstreamClient) proxy(req *http.Request) (*url.URL, error) {
	p, err := http.ProxyFromEnvironment(req)
	if err != nil || p == nil {
		return p, err
	}
	port := p.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[p.Scheme]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proxies[net.JoinHostPort(p.Hostname(), port)] = true
	return p, nil
}

func (c *upstreamClient) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	c.mu.Lock()
	free := c.proxies[address] || c.hosts[strings.ToLower(address)]
	c.mu.Unlock()
	if !free {
		d.Control = func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return c.mayReach(ap.Addr())
		}
	}
	return d.DialContext(ctx, network, address)
}

func (c *upstreamClient) mayReach(a netip.Addr) error {
	if isPublic(a) {
		return nil
	}
	return fmt.Errorf("%s points to %s, which is no public address: %w; name it under hosts of this registry in upstreams of config.yaml", c.host, a.Unmap(), errRefused)
}

// client logs in with a credential, at the registry and at no other that it redirects to.
func (c *upstreamClient) client(credential auth.CredentialFunc) *auth.Client {
	return &auth.Client{
		Client:     &http.Client{Transport: remoteretry.NewTransport(c), CheckRedirect: c.checkRedirect},
		Cache:      auth.NewCache(),
		Credential: credential,
	}
}

// check refuses a request before anybody is asked, a proxy for instance.
func (c *upstreamClient) check(u *url.URL) error {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	address := net.JoinHostPort(strings.ToLower(u.Hostname()), port)
	if u.Scheme != "https" && !(u.Scheme == "http" && c.plainHTTP && c.hosts[address] && isLoopback(address)) {
		return fmt.Errorf("%s points to %s, which is not https: %w", c.host, u.Redacted(), errRefused)
	}
	if c.hosts[address] {
		return nil
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		return c.mayReach(a)
	}
	return nil
}

func (c *upstreamClient) checkRedirect(_ *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("%s redirects more than %d times: %w", c.host, maxRedirects, errRefused)
	}
	return nil
}

// RoundTrip sends a request and gives up when nothing moves: neither what is sent nor what comes.
func (c *upstreamClient) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := c.check(req.URL); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watched{ctx: ctx, stall: c.stall, cancel: cancel}
	w.timer = time.AfterFunc(c.stall, func() { cancel(fmt.Errorf("%w for %s", errStalled, c.stall)) })
	req = req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = watchedBody{req.Body, w, false}
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		w.end()
		return nil, w.cause(err)
	}
	w.moved()
	resp.Body = watchedBody{resp.Body, w, true}
	return resp, nil
}

// watched is a request whose bytes are watched.
type watched struct {
	ctx    context.Context // of the request
	stall  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func (w *watched) moved() { w.timer.Reset(w.stall) }

func (w *watched) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// cause tells why a request ended where it was given up.
func (w *watched) cause(err error) error {
	if cause := context.Cause(w.ctx); errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

type watchedBody struct {
	io.ReadCloser
	w *watched
	// last is set for the answer, after which there is nothing to watch.
	last bool
}

func (b watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.w.moved()
	}
	if err != nil && err != io.EOF {
		err = b.w.cause(err)
	}
	return n, err
}

func (b watchedBody) Close() error {
	err := b.ReadCloser.Close()
	if b.last {
		b.w.end()
	}
	return err
}
