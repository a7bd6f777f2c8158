package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"github.com/otters-sh/otters/internal/gate"
)

// What one agent may take of the daemon.
const (
	maxConns  = 256      // connections, idle ones included; for more, those without the token are ended, or they wait
	maxCalls  = 64       // model calls in flight
	maxBody   = 32 << 20 // bytes of one request, which is held whole
	maxBodies = 64 << 20 // bytes of all requests in flight; more wait
	maxHeader = 64 << 10 // bytes of a request's headers
)

const (
	headerWait = 10 * time.Second // for a request's headers
	bodyWait   = time.Minute      // for its body
	idleWait   = 2 * time.Minute  // for the next request
	// farewell is for handlers to tell their agents why a call was cut off. It is over sooner unless an agent
	// does not read.
	farewell = 3 * time.Second
	// reportEvery keeps an agent from flooding the log with refusals.
	reportEvery = time.Second
)

// door is one agent's listener and what holds for it.
type door struct {
	gateway *Gateway
	agent   uuid.UUID
	server  *http.Server
	calls   chan struct{}
	bodies  *semaphore.Weighted
	running sync.WaitGroup

	quiet chan struct{} // closed once no answer is on its way, after draining was set

	mu         sync.Mutex
	active     map[net.Conn]struct{} // connections with a request or an answer on its way
	draining   bool
	finishing  bool // no handler may begin any more, so that running can be waited for
	reportedAt time.Time
	unreported int
}

func newDoor(g *Gateway, agent uuid.UUID, l net.Listener) *door {
	d := &door{
		gateway: g,
		agent:   agent,
		calls:   make(chan struct{}, maxCalls),
		bodies:  semaphore.NewWeighted(maxBodies),
		quiet:   make(chan struct{}),
		active:  map[net.Conn]struct{}{},
	}
	d.server = &http.Server{
		Handler: gate.HTTP(http.HandlerFunc(d.handle), gate.HTTPOptions{
			Hosts:             gate.LoopbackHosts(l.Addr()),
			RefuseSimpleTypes: true,
		}),
		ReadHeaderTimeout: headerWait,
		IdleTimeout:       idleWait,
		MaxHeaderBytes:    maxHeader,
		ConnState:         d.connState,
		ConnContext:       gate.ConnContext,
		ErrorLog:          slog.NewLogLogger(g.opts.Logger.With("agent", agent.String()).Handler(), slog.LevelDebug),
	}
	return d
}

func (d *door) serve(l net.Listener) error { return d.server.Serve(gate.Limit(l, maxConns, 0)) }

func (d *door) connState(c net.Conn, s http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s == http.StateActive {
		d.active[c] = struct{}{}
		return
	}
	if _, was := d.active[c]; was {
		delete(d.active, c)
		d.tellQuiet()
	}
}

// tellQuiet is called with d.mu held.
func (d *door) tellQuiet() {
	if !d.draining || len(d.active) > 0 {
		return
	}
	select {
	case <-d.quiet:
	default:
		close(d.quiet)
	}
}

// drain stops listening and waits until every answer has been sent, which it tells, or ctx is done.
// Shutdown alone would wait five seconds for a connection on which nothing was ever said.
func (d *door) drain(ctx context.Context) bool {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_ = d.server.Shutdown(over) // closes the listener and idle connections, and waits for none
	d.mu.Lock()
	d.draining = true
	d.tellQuiet()
	d.mu.Unlock()
	select {
	case <-d.quiet:
		return true
	case <-ctx.Done():
	}
	// A ctx that was done before cuts nothing off where nothing is on its way.
	select {
	case <-d.quiet:
		return true
	default:
		return false
	}
}

// finish ends connections and waits for their handlers, which have been cancelled. What these told
// their agents is still on its way when they are done, so connections get a moment to become quiet.
func (d *door) finish() error {
	d.mu.Lock()
	d.finishing, d.draining = true, true
	d.tellQuiet()
	d.mu.Unlock()
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-d.quiet:
	case <-timer.C:
	}
	err := d.server.Close()
	d.running.Wait()
	return err
}

// handle checks the token, whatever the path, and answers.
func (d *door) handle(w http.ResponseWriter, r *http.Request) {
	says := dialectFor(r)
	if !d.enter() {
		cutOff(errStopping).write(w, says)
		return
	}
	defer d.running.Done()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	c, ok := d.gateway.begin(d, says.token(r.Header), cancel)
	if !ok {
		w.Header().Set("WWW-Authenticate", "Bearer")
		d.refuse(w, says, refusal{http.StatusUnauthorized, "authentication_error", "invalid_api_key",
			"token: missing, or not this agent's current one; send the key that the runtime was given as Authorization: Bearer"})
		return
	}
	defer d.gateway.end(c)
	gate.Known(ctx)
	r = r.WithContext(ctx)
	path, isCall := callPaths[r.URL.Path]
	switch {
	case r.URL.Path == BasePath+"/models":
		if d.allow(w, r, says, http.MethodGet) {
			writeModels(w, c.ref)
		}
	case !isCall:
		d.refuse(w, says, refusal{http.StatusNotFound, "invalid_request_error", "unknown_url",
			"path: not one of the gateway; there are " + BasePath + "/models, " + BasePath + "/chat/completions, " + BasePath + "/messages and " + BasePath + "/messages/count_tokens"})
	case !d.allow(w, r, says, http.MethodPost):
	case says != dialectOf(c.ref.Provider):
		d.refuse(w, says, badRequest("wrong_format", "path: the model %s speaks %s; use that", c.ref, dialectOf(c.ref.Provider)))
	default:
		if f := d.call(w, r, c, path.target); f != nil {
			d.refuse(w, says, asRefusal(f))
		}
	}
}

func (d *door) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.finishing {
		return false
	}
	d.running.Add(1)
	return true
}

func (d *door) allow(w http.ResponseWriter, r *http.Request, says dialect, method string) bool {
	if r.Method == method {
		return true
	}
	w.Header().Set("Allow", method)
	d.refuse(w, says, refusal{http.StatusMethodNotAllowed, "invalid_request_error", "method_not_allowed", "method: not one of this path; use " + method})
	return false
}

// call answers a model call; target is its path at the provider. An error is one that the agent has
// not been told yet.
func (d *door) call(w http.ResponseWriter, r *http.Request, c *call, target []string) error {
	select {
	case d.calls <- struct{}{}:
		defer func() { <-d.calls }()
	default:
		return refusal{http.StatusTooManyRequests, "rate_limit_error", "too_many_calls", fmt.Sprintf("model calls: %d are in flight, which is the limit of one agent; wait for one to end", maxCalls)}
	}
	if err := dialectOf(c.ref.Provider).checkVersion(r.Header); err != nil {
		return err
	}
	body, release, err := d.readBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	req, err := parseRequest(body, c.ref)
	if err != nil {
		return err
	}
	if c.ref.Provider == OfflineProvider {
		return d.answerOffline(w, r, req)
	}
	to, err := d.gateway.opts.Providers.route(c.ref)
	if err != nil {
		d.gateway.opts.Logger.Warn("model call refused", "agent", d.agent, "model", c.ref.String(), "error", err)
		return routeRefusal(c.ref, err)
	}
	d.forward(w, r, c, req, to, target)
	return nil
}

// readBody reads a request whole: forwarding one that is still arriving loses answers, since the
// server stops reading when the answer begins.
func (d *door) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), err error) {
	switch {
	case r.URL.RawQuery != "":
		return nil, nil, badRequest("query", "query: parameters are not passed on; leave them out")
	case r.Header.Get("Content-Encoding") != "":
		return nil, nil, refusal{http.StatusUnsupportedMediaType, "invalid_request_error", "content_encoding", "content encoding: the body is read as it is; send it uncompressed"}
	case r.ContentLength > maxBody:
		return nil, nil, tooLarge()
	}
	weight := r.ContentLength
	if weight < 0 {
		weight = maxBody
	}
	if err := d.bodies.Acquire(r.Context(), weight); err != nil {
		return nil, nil, err
	}
	release = func() { d.bodies.Release(weight) }
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyWait))
	var buf bytes.Buffer
	buf.Grow(int(min(max(r.ContentLength, 0), 1<<20)) + bytes.MinRead)
	_, err = buf.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
	_ = control.SetReadDeadline(time.Time{})
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		err = tooLarge()
	case err != nil && !errors.Is(err, context.Canceled):
		err = badRequest("body", "body: it did not arrive whole within %s; send it again", bodyWait)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return buf.Bytes(), release, nil
}

// refuse tells the agent, and the log now and then.
func (d *door) refuse(w http.ResponseWriter, says dialect, f refusal) {
	d.mu.Lock()
	report := time.Since(d.reportedAt) >= reportEvery
	unreported := d.unreported
	if report {
		d.reportedAt, d.unreported = time.Now(), 0
	} else {
		d.unreported++
	}
	d.mu.Unlock()
	if report {
		d.gateway.opts.Logger.Info("agent refused", "agent", d.agent, "status", f.status, "code", f.code, "not_reported", unreported)
	}
	f.write(w, says)
}
