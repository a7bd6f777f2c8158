package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/otters-sh/otters/registry"
	"github.com/otters-sh/otters/spec"
)

// Policies of an upstream.
const (
	policyAlways  = "always"  // ask for a tag each time
	policyMissing = "missing" // ask where the cache has none
	policyNever   = "never"   // only what the cache has
)

// Bounds of one pull from an upstream.
const (
	maxPullBytes    = 16 << 30
	maxPullContents = 10_000
	maxRedirects    = 5
	// upstreamIdle is how long an upstream may send nothing.
	upstreamIdle = 30 * time.Second
)

// upstreamPrefix begins the repositories of the embedded registry that hold what was pulled.
const upstreamPrefix = "upstream/"

// upstream is a registry that images may be pulled from, through the embedded one as a cache.
type upstream struct {
	host, policy string
	plainHTTP    bool
	idle         time.Duration
}

// parseUpstream checks an entry of config.yaml.
func parseUpstream(host, policy string, plainHTTP bool) (*upstream, error) {
	ref, err := spec.ParseReference(host + "/name")
	if err != nil || ref.Host() != host {
		return nil, fmt.Errorf("upstreams: registry %q is not a host such as ghcr.io or localhost:5000", host)
	}
	if policy == "" {
		policy = policyMissing
	}
	if policy != policyAlways && policy != policyMissing && policy != policyNever {
		return nil, fmt.Errorf("upstreams: %s: policy %q is not always, missing or never", host, policy)
	}
	u := &upstream{host: host, policy: policy, plainHTTP: plainHTTP, idle: upstreamIdle}
	if addr, err := netip.ParseAddr(u.hostname()); plainHTTP && u.hostname() != "localhost" && (err != nil || !addr.IsLoopback()) {
		return nil, fmt.Errorf("upstreams: %s: plain-http is for registries on the loopback only", host)
	}
	return u, nil
}

func (u *upstream) hostname() string {
	if name, _, err := net.SplitHostPort(u.host); err == nil {
		return name
	}
	return u.host
}

// cached is the reference in the embedded registry of what ref names at the upstream. What is named
// by digest gets a tag of its own, so that it is not collected.
func (u *upstream) cached(ref spec.Reference) (repository, tag string) {
	repository = upstreamPrefix + strings.ReplaceAll(u.host, ":", "_") + "/" + ref.Repository()
	if ref.Digest == "" {
		return repository, ref.Identifier()
	}
	tag = "pinned." + strings.ReplaceAll(ref.Digest, ":", ".")
	return repository, tag[:min(len(tag), 128)]
}

// open gives ref from the cache, after pulling it where the policy asks for that.
func (u *upstream) open(ctx context.Context, store *registry.Store, ref spec.Reference) (oras.ReadOnlyTarget, string, error) {
	repository, tag := u.cached(ref)
	local := repository + ":" + tag
	desc, err := store.Resolve(ctx, local)
	switch {
	case err == nil && ref.Digest != "" && desc.Digest.String() == ref.Digest:
		return store, local, nil
	case err == nil && ref.Digest == "" && u.policy != policyAlways:
		return store, local, nil
	case err != nil && !errors.Is(err, errdef.ErrNotFound):
		return nil, "", err
	case u.policy == policyNever:
		return nil, "", fail(codes.NotFound, "pull it once with another policy of upstreams in config.yaml", "%s: not in the cache, and the policy of %s is never", ref, u.host)
	}
	if err := u.pull(ctx, store, ref, repository, tag); err != nil {
		return nil, "", fmt.Errorf("pull %s: %w", ref, err)
	}
	return store, local, nil
}

// pull copies ref with all it leads to into the cache. The store checks every digest and size while
// it reads; the tag is set when all is there.
func (u *upstream) pull(ctx context.Context, store *registry.Store, ref spec.Reference, repository, tag string) error {
	target, err := store.Repository(repository)
	if err != nil {
		return err
	}
	source, err := remote.NewRepository(u.host + "/" + ref.Repository())
	if err != nil {
		return err
	}
	transport := u.transport()
	defer transport.CloseIdleConnections()
	source.PlainHTTP = u.plainHTTP
	source.SkipReferrersGC = true
	source.Client = &auth.Client{
		Client: &http.Client{Transport: &idleTransport{next: transport, idle: u.idle}, CheckRedirect: u.checkRedirect},
		Cache:  auth.NewCache(),
	}
	var contents, bytes atomic.Int64
	opts := oras.CopyOptions{}
	opts.PreCopy = func(_ context.Context, d ocispec.Descriptor) error {
		if d.Size < 0 || d.Size > maxPullBytes || bytes.Add(d.Size) > maxPullBytes || contents.Add(1) > maxPullContents {
			return fmt.Errorf("has more than %d bytes or %d contents: %w", int64(maxPullBytes), maxPullContents, errdef.ErrSizeExceedsLimit)
		}
		return nil
	}
	desc, err := oras.Copy(ctx, source, ref.Identifier(), target, tag, opts)
	if err == nil && ref.Digest != "" && desc.Digest.String() != ref.Digest {
		err = fmt.Errorf("%s answered with %s", u.host, desc.Digest)
	}
	return err
}

// transport dials the upstream wherever it is, since the operator has named it, and what it points
// to, such as a host for blobs or tokens, only at public addresses.
func (u *upstream) transport() *http.Transport {
	free := &net.Dialer{Timeout: 10 * time.Second}
	public := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err == nil && !isPublic(ap.Addr()) {
			err = fmt.Errorf("%s leads to %s, which is no public address: refused", u.host, ap.Addr())
		}
		return err
	}}
	port := "443"
	if u.plainHTTP {
		port = "80"
	}
	own := u.host
	if u.hostname() == u.host {
		own = net.JoinHostPort(u.host, port)
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == own {
				return free.DialContext(ctx, network, address)
			}
			return public.DialContext(ctx, network, address)
		},
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: u.idle,
		MaxResponseHeaderBytes: maxHeaderBytes, ForceAttemptHTTP2: true,
	}
}

var sharedNet = netip.MustParsePrefix("100.64.0.0/10")

func isPublic(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedNet.Contains(a)
}

func (u *upstream) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("%s redirects more than %d times", u.host, maxRedirects)
	}
	if req.URL.Scheme != "https" && !u.plainHTTP {
		return fmt.Errorf("%s redirects to %s: not https", u.host, req.URL.Redacted())
	}
	return nil
}

// idleTransport ends an answer that brings nothing for a while.
type idleTransport struct {
	next http.RoundTripper
	idle time.Duration
}

func (t *idleTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	resp, err := t.next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	b := &idleBody{ReadCloser: resp.Body, ctx: ctx, idle: t.idle, cancel: cancel}
	b.timer = time.AfterFunc(t.idle, func() { cancel(fmt.Errorf("nothing came for %s", t.idle)) })
	resp.Body = b
	return resp, nil
}

type idleBody struct {
	io.ReadCloser

	ctx    context.Context
	idle   time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func (b *idleBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	if n > 0 {
		b.timer.Reset(b.idle)
	}
	return n, err
}

func (b *idleBody) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
