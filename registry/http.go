package registry

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

// HandlerOptions of the distribution API.
type HandlerOptions struct {
	// TokenHash is the SHA-256 of the token that callers present: as the password of Basic, with any
	// user name, or as Bearer. With the zero value no token is right. For it a caller also gets, at
	// /v2/token, tokens that are for some repositories and good for five minutes.
	TokenHash [sha256.Size]byte
	// AnonymousPull lets callers without a token read repositories; not the catalog.
	AnonymousPull bool
	// MaxRequests bounds the requests served at once, further ones get 429; 0 means 256.
	MaxRequests int
	// BodyIdle is how long a caller may leave a body, or an answer, standing, before its connection
	// is cut; 0 means 30 seconds. Above that it must keep to 1 KiB/s when sending, 64 KiB/s when
	// receiving.
	BodyIdle time.Duration
	// Log gets the cause of each answer of class 5xx; nil drops them.
	Log *slog.Logger
}

// maxHeaders bounds the header lines of a request; clients send a dozen.
const maxHeaders = 128

// Least rates, in bytes per second.
const (
	leastReceive = 1 << 10
	leastSend    = 64 << 10
)

// Handler serves the distribution API, version 1.1, below /v2/. It checks the token; whether the
// request's Host and Origin are right is for the caller to check first. The server around it should
// set ReadHeaderTimeout, IdleTimeout and MaxHeaderBytes. Uploads it leaves open belong to the Store.
func (s *Store) Handler(opts HandlerOptions) http.Handler {
	if opts.MaxRequests == 0 {
		opts.MaxRequests = 256
	}
	if opts.BodyIdle == 0 {
		opts.BodyIdle = 30 * time.Second
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &handler{store: s, opts: opts, places: make(chan struct{}, opts.MaxRequests), key: newTokenKey()}
}

type handler struct {
	store  *Store
	opts   HandlerOptions
	places chan struct{} // one for each request served at once
	key    [32]byte      // seals the tokens that are issued
}

// exchange is one request and its answer.
type exchange struct {
	*handler
	w http.ResponseWriter
	r *http.Request

	repository string
	reference  string // the last element: tag, digest or upload id
	grant      *grant // what the caller may; nil is everything
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{handler: h, w: w, r: r}
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 {
		// The server reads what is left of a body before it sends the answer.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.opts.BodyIdle))
	}
	if err := x.serve(); err != nil {
		x.fail(err)
	}
}

func (x *exchange) serve() error {
	lines := 0
	for _, values := range x.r.Header {
		lines += len(values)
	}
	if lines > maxHeaders {
		return &apiError{http.StatusRequestHeaderFieldsTooLarge, codeUnsupported, fmt.Sprintf("the request has %d header lines, at most %d are allowed", lines, maxHeaders)}
	}
	route, err := x.route()
	if authErr := x.authorize(route, err); authErr != nil {
		return authErr
	}
	if err != nil {
		return err
	}
	select {
	case x.places <- struct{}{}:
		defer func() { <-x.places }()
	default:
		x.w.Header().Set("Retry-After", "1")
		return &apiError{http.StatusTooManyRequests, codeTooMany, "all " + strconv.Itoa(cap(x.places)) + " request places are taken: try again"}
	}
	serve := route.serve(x.r.Method)
	if serve == nil {
		x.w.Header().Set("Allow", route.allow())
		return &apiError{http.StatusMethodNotAllowed, codeUnsupported, x.r.Method + " is not allowed here, " + route.allow() + " are"}
	}
	return serve(x)
}

// answerWithin bounds the time in which the caller must take an answer of size bytes. It counts from
// now and has to outlast the wait for the rest of a body.
func (x *exchange) answerWithin(size int64) {
	limit := 2*x.opts.BodyIdle + time.Duration(size/leastSend)*time.Second
	// A writer without deadlines is a test's recorder.
	_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(limit))
}

// body is the request's body: bounded in time, its errors told apart from ours.
func (x *exchange) body() io.Reader {
	return &body{r: x.r.Body, deadline: http.NewResponseController(x.w), idle: x.opts.BodyIdle, started: time.Now()}
}

type body struct {
	r        io.Reader
	deadline *http.ResponseController
	idle     time.Duration
	started  time.Time
	received int64
}

func (b *body) Read(p []byte) (int, error) {
	now := time.Now()
	until := now.Add(b.idle)
	if rate := b.started.Add(b.idle + time.Duration(b.received/leastReceive)*time.Second); rate.Before(until) {
		until = rate
	}
	_ = b.deadline.SetReadDeadline(until)
	n, err := b.r.Read(p)
	b.received += int64(n)
	if err == io.EOF {
		_ = b.deadline.SetReadDeadline(time.Time{})
		return n, err
	}
	if err != nil {
		return n, &bodyError{err}
	}
	return n, nil
}

type bodyError struct{ err error }

func (e *bodyError) Error() string { return "request body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }
