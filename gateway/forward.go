package gateway

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/otters-sh/otters/model"
)

// Errors of a provider's answer that the gateway does not pass on.
var (
	errRedirect = errors.New("it answered with a redirect, which is not followed; the operator's api-base must be the final address")
	errEncoded  = errors.New("it answered with a content encoding that was not asked for")
)

// outgoing is a call on its way to a provider.
type outgoing struct {
	ref     model.Ref
	speaks  dialect
	target  []string
	to      route
	body    []byte
	idle    time.Duration
	silence *time.Timer // cancels the call when the provider says nothing for too long
	control *http.ResponseController
	log     *slog.Logger
	cause   func() error
}

type outgoingKey struct{}

func outgoingOf(ctx context.Context) *outgoing {
	out, _ := ctx.Value(outgoingKey{}).(*outgoing)
	return out
}

// forward sends a checked call to its provider and streams the answer back.
func (d *door) forward(w http.ResponseWriter, r *http.Request, c *call, req request, to route, target []string) {
	opts := d.gateway.opts
	ctx := r.Context()
	out := &outgoing{
		ref: c.ref, speaks: dialectOf(c.ref.Provider), target: target, to: to, body: req.body, idle: opts.IdleTimeout,
		silence: time.AfterFunc(opts.HeaderTimeout, func() { c.cancel(errSilent) }),
		control: http.NewResponseController(w),
		log:     opts.Logger.With("agent", d.agent, "model", c.ref.String()),
		cause:   func() error { return context.Cause(ctx) },
	}
	defer out.silence.Stop()
	d.gateway.proxy.ServeHTTP(w, r.WithContext(context.WithValue(ctx, outgoingKey{}, out)))
	// The next request on this connection has deadlines of its own.
	_ = out.control.SetWriteDeadline(time.Time{})
}

// newTransport is made for few hosts and many calls. It never asks for compression, which would
// hold events back.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    maxCalls,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
	}
}

func newProxy(base http.RoundTripper, log *slog.Logger) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     provisioner{base},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BufferPool:    &bufferPool{},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			out := outgoingOf(r.Context())
			if why := out.cause(); why != nil {
				out.log.Warn("model call cut off", "cause", why)
				cutOff(why).write(w, out.speaks)
				return
			}
			out.log.Warn("model call failed", "error", err)
			refusal{http.StatusBadGateway, "api_error", "provider_unreachable",
				fmt.Sprintf("provider %s: %s; try again or ask the operator", out.ref.Provider, unreachable(err))}.write(w, out.speaks)
		},
	}
}

// rewrite makes the provider's request from nothing, so that no header of the agent passes that
// nobody has thought of.
func rewrite(pr *httputil.ProxyRequest) {
	out := outgoingOf(pr.In.Context())
	target := out.to.base.JoinPath(out.target...)
	pr.Out.URL, pr.Out.Host = target, target.Host
	pr.Out.Header = http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json, text/event-stream"},
		"User-Agent":   {"otters"},
	}
	out.speaks.prepare(pr.Out.Header, pr.In.Header, out.to.key)
	pr.Out.ContentLength = int64(len(out.body))
	pr.Out.TransferEncoding = nil
	pr.Out.Trailer = nil
	// With GetBody the transport may try again when a kept connection turns out to be dead before
	// anything was written to it.
	pr.Out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.body)), nil }
	pr.Out.Body, _ = pr.Out.GetBody()
}

// provisioner makes of a provider's answer what an agent may see.
type provisioner struct{ base http.RoundTripper }

func (p provisioner) RoundTrip(req *http.Request) (*http.Response, error) {
	out := outgoingOf(req.Context())
	res, err := p.base.RoundTrip(req.WithContext(untraced{req.Context()}))
	if err != nil {
		return nil, err
	}
	out.silence.Stop()
	if err := acceptable(res); err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	// A copy, since the transport writes trailers into the response that it made.
	clean := *res
	clean.Trailer = nil
	clean.Header = passedOn(res.Header, out.to.key)
	stream := strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
	if stream {
		clean.Header.Del("Content-Length") // what tells of a break comes on top
		clean.ContentLength = -1
	}
	clean.Body = &answerBody{
		out: out, stream: stream, whole: true, closer: res.Body,
		src: scrub(&watched{res.Body, out}, out.to.key),
	}
	return &clean, nil
}

func acceptable(res *http.Response) error {
	switch {
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return errRedirect
	case res.StatusCode < 200:
		return errors.New("it wants to leave HTTP")
	}
	if enc := res.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return errEncoded
	}
	return nil
}

// passedOn are the headers of an answer that help a client: its type and length, when to try again,
// what is left of a rate limit, and the number to name in a complaint. Cookies, locations and the
// account's name stay here.
func passedOn(from http.Header, key string) http.Header {
	to := http.Header{"Cache-Control": {"no-store"}}
	for name, values := range from {
		switch {
		case name == "Content-Type", name == "Content-Length", name == "Retry-After", name == "Retry-After-Ms", name == "X-Request-Id", name == "Request-Id":
		case strings.HasPrefix(name, "X-Ratelimit-"), strings.HasPrefix(name, "Anthropic-Ratelimit-"):
		default:
			continue
		}
		if key == "" || !strings.Contains(strings.Join(values, "\n"), key) {
			to[name] = values
		}
	}
	return to
}

// untraced hides the proxy's trace, through which headers of informational answers would reach the
// agent unchecked.
type untraced struct{ context.Context }

func (c untraced) Value(key any) any {
	v := c.Context.Value(key)
	if _, ok := v.(*httptrace.ClientTrace); ok {
		return nil
	}
	return v
}

// unreachable tells an agent why a provider gave no answer, without the address that was tried.
func unreachable(err error) string {
	var dns *net.DNSError
	var cert x509.UnknownAuthorityError
	var host x509.HostnameError
	switch {
	case errors.Is(err, errRedirect), errors.Is(err, errEncoded):
		return err.Error()
	case errors.As(err, &dns):
		return "its name cannot be resolved"
	case errors.As(err, &cert), errors.As(err, &host):
		return "its certificate is not trusted"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "it refused the connection"
	case errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return "it cannot be reached in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "it ended the connection without an answer"
	}
	return "it cannot be reached, or gave no answer that is HTTP"
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// bufferPool spares each call a buffer of its own.
type bufferPool struct{ pool sync.Pool }

const copyBuffer = 32 << 10

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, copyBuffer)
}

func (p *bufferPool) Put(b []byte) { p.pool.Put(&b) }
