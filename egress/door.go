package egress

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/otters-sh/otters/internal/gate"
)

// What one agent may take of the daemon.
const (
	maxClients     = 256      // connections to the proxy; for more, those without the credential are ended, or they wait
	maxConnections = 128      // connections out at the same time; more are refused
	maxHeader      = 64 << 10 // bytes of a request's headers
	maxAnswer      = 1 << 20  // bytes of the headers of a server's answer
)

const (
	headerWait = 10 * time.Second // for a request's headers
	bodyWait   = 5 * time.Second  // for what is left of a body that nobody wants any more
	idleWait   = 2 * time.Minute  // for the next request
)

// So many requests in a second are let in, and so many at once after a pause, lest an agent fills the
// record of all with its own. What is beyond waits, and for those without the credential, who may be
// somebody else on this machine, goes unreported.
const (
	pacePerSecond, paceBurst           = 20, 200
	strangersPerSecond, strangersBurst = 1, 20
)

// via is what RFC 9110 wants a proxy to add to what it passes on.
const via = "1.1 otters"

// door is one agent's listener and what holds for it.
type door struct {
	proxy     *Proxy
	grant     Grant
	server    *http.Server
	forward   *httputil.ReverseProxy
	transport *http.Transport
	slots     chan struct{}
	own       *pace
	strangers *pace

	// ctx ends every connection.
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

func newDoor(p *Proxy, g Grant) *door {
	d := &door{
		proxy: p, grant: g, slots: make(chan struct{}, maxConnections),
		own: newPace(pacePerSecond, paceBurst), strangers: newPace(strangersPerSecond, strangersBurst),
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.transport = &http.Transport{
		// The connection was checked and made for this very request, and serves no other.
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, ok := ctx.Value(dialledKey{}).(net.Conn)
			if !ok {
				return nil, errors.New("no connection was made for this request")
			}
			return conn, nil
		},
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswer,
		ExpectContinueTimeout: time.Second,
	}
	errorLog := slog.NewLogLogger(p.opts.Logger.With("agent", g.Agent).Handler(), slog.LevelDebug)
	d.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.Host, r.Out.URL.RawQuery = r.In.URL.Host, r.In.URL.RawQuery
			r.Out.Header.Add("Via", via)
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Add("Via", via)
			return nil
		},
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, err error) { answer(w, asRefusal(err)) },
		Transport:     d.transport,
		FlushInterval: -1,
		ErrorLog:      errorLog,
	}
	d.server = &http.Server{
		Handler:           http.HandlerFunc(d.handle),
		ReadHeaderTimeout: p.opts.headerWait,
		IdleTimeout:       idleWait,
		MaxHeaderBytes:    maxHeader,
		// OPTIONS * without a credential is refused as anything else is.
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return d.ctx },
		ConnContext:                  gate.ConnContext,
		ErrorLog:                     errorLog,
	}
	return d
}

// serve answers until l is closed or end was called, and returns when nothing runs any more.
func (d *door) serve(l net.Listener) error {
	err := d.server.Serve(gate.Limit(l, maxClients, d.proxy.opts.IdleTimeout))
	d.end()
	d.running.Wait()
	d.transport.CloseIdleConnections()
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return fmt.Errorf("serve the proxy of agent %s: %w", d.grant.Agent, err)
}

// end cuts every connection, and keeps new ones out.
func (d *door) end() {
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
	d.cancel()
	_ = d.server.Close()
}

func (d *door) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false
	}
	d.running.Add(1)
	return true
}

// handle checks the credential, whatever is asked for, and passes on.
func (d *door) handle(w http.ResponseWriter, r *http.Request) {
	if !d.enter() {
		answer(w, &refusal{http.StatusServiceUnavailable, "proxy_internal_error", "the agent's proxy is closing"})
		return
	}
	defer d.running.Done()
	// A body that nobody reads any more must not keep the connection.
	defer func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWait)) }()
	ctx := r.Context()
	if !gate.TokenMatches(d.grant.TokenHash, credential(r.Header)) {
		f := &refusal{http.StatusProxyAuthRequired, "http_request_denied",
			"credential: missing, or not this agent's current one; use the address in HTTP_PROXY as it is"}
		if d.strangers.now() {
			d.report(ctx, f)
		}
		answer(w, f)
		return
	}
	gate.Known(ctx)
	if d.own.wait(ctx) != nil {
		return
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	default:
		d.reject(ctx, w, &refusal{http.StatusServiceUnavailable, "connection_limit_reached",
			fmt.Sprintf("%d connections are open, which is the limit of one agent; end one first", maxConnections)})
		return
	}
	switch {
	case len(r.Method) > maxMethod:
		r.Method = r.Method[:maxMethod]
		d.reject(ctx, w, &refusal{http.StatusBadRequest, "http_request_error", fmt.Sprintf("the method has more than %d bytes", maxMethod)})
	case r.Method == http.MethodConnect:
		d.tunnel(w, r)
	case r.URL.Scheme == "http" && r.URL.Host != "":
		d.pass(w, r)
	default:
		d.reject(ctx, w, &refusal{http.StatusBadRequest, "http_request_error",
			"this is a proxy: want CONNECT host:port, or the URL of an http:// server in place of a path"})
	}
}

// reject reports and answers a request whose destination was not looked at.
func (d *door) reject(ctx context.Context, w http.ResponseWriter, f *refusal) {
	d.report(ctx, f)
	answer(w, f)
}

func (d *door) report(ctx context.Context, f *refusal) {
	// It is refused whether or not that could be recorded.
	_ = d.proxy.opts.Reporter.Report(ctx, Connection{Agent: d.grant.Agent, Reason: f.reason})
}

// credential is the password of the one Proxy-Authorization header of scheme Basic, empty where there
// is none.
func credential(h http.Header) string {
	values := h.Values("Proxy-Authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, encoded, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Basic") {
		return ""
	}
	text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return ""
	}
	user, password, _ := strings.Cut(string(text), ":")
	if user != User {
		return ""
	}
	return password
}

type dialledKey struct{}

// pass answers a plain request by that of the server.
func (d *door) pass(w http.ResponseWriter, r *http.Request) {
	port := r.URL.Port()
	if port == "" {
		port = "80"
	}
	conn, err := d.dial(r.Context(), r.Method, r.URL.Hostname(), port)
	if err != nil {
		answer(w, asRefusal(err))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	control := http.NewResponseController(w)
	out := newWatched(conn, d.proxy.opts.IdleTimeout, func() {
		cancel()
		// It may be the agent's body that does not come, and its reader holds all up.
		_ = control.SetReadDeadline(time.Now())
	})
	defer out.Close()
	defer cancel()
	// A server may answer before it has had the whole request.
	_ = control.EnableFullDuplex()
	d.forward.ServeHTTP(w, r.WithContext(context.WithValue(ctx, dialledKey{}, net.Conn(out))))
}

func asRefusal(err error) *refusal {
	var f *refusal
	var timeout net.Error
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.Canceled), errors.Is(err, net.ErrClosed):
		return &refusal{http.StatusGatewayTimeout, "connection_read_timeout", "the server was silent for too long, or the connection was ended"}
	}
	// Addresses of the daemon's machine are not the agent's to know.
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err
	}
	return &refusal{http.StatusBadGateway, "http_protocol_error", "the server's answer: " + err.Error()}
}

// answer tells why there is no connection: in the body, and in Proxy-Status (RFC 9209), which is what
// a program sees of a refused CONNECT.
func answer(w http.ResponseWriter, f *refusal) {
	h := w.Header()
	if f.status == http.StatusProxyAuthRequired {
		h.Set("Proxy-Authenticate", `Basic realm="otters"`)
	}
	h.Set("Proxy-Status", `otters; error=`+f.problem+`; details=`+quoted(f.reason))
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Connection", "close")
	body := "otters proxy: " + f.reason + "\n"
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.status)
	_, _ = w.Write([]byte(body))
}

// quoted is a string of RFC 8941, which has printable ASCII alone.
func quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c < ' ' || c > '~':
			b.WriteByte('?')
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
