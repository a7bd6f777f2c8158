// Package gateway is the daemon's door for agents: it brokers their model calls. Each agent has a
// listener of its own and a token that opens only that; the real key of a provider never leaves this
// package towards an agent. Invariant: a call reaches a provider only with a live grant of that
// agent, for the one model granted, while providers.yaml allows it.
//
// The wire format is that of the provider, which its name tells: Anthropic Messages for anthropic and
// OpenAI Chat Completions for all others, streamed or not. The model offline/otter is built in;
// offline.go says what it can do.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/internal/gate"
	"github.com/otters-sh/otters/model"
)

// BasePath is where the API starts; APIBase says what of it an agent is given.
const BasePath = "/v1"

// TokenPrefix starts every token that Grant makes.
const TokenPrefix = "otr_"

// OfflineProvider and OfflineModel name the built-in model offline/otter.
const (
	OfflineProvider = "offline"
	OfflineModel    = "otter"
)

const (
	defaultHeaderTimeout = 10 * time.Minute
	defaultIdleTimeout   = 2 * time.Minute
)

// Sentinels of this package.
var (
	// ErrUnknownProvider: providers.yaml has no provider of that name.
	ErrUnknownProvider = errors.New("unknown model provider")
	// ErrModelNotAllowed: the provider is there, and does not have that model.
	ErrModelNotAllowed = errors.New("model not allowed")
	// ErrProviders: providers.yaml, or a variable that it names, is not usable as it is.
	ErrProviders = errors.New("providers file not usable")
	// ErrClosed: the gateway was closed.
	ErrClosed = errors.New("gateway closed")
)

// Why a call in flight ends before its answer does; the agent is told these words.
var (
	errRevoked  = errors.New("the agent's token was withdrawn")
	errStopping = errors.New("the daemon is stopping")
	errUnserved = errors.New("the agent's listener was closed")
	errSilent   = errors.New("the provider was silent for too long")
)

// Options of a Gateway; the zero value serves the offline model only.
type Options struct {
	// Providers are where models are reached; nil means none but offline.
	Providers *Providers
	// Logger hears of refusals and of provider failures; nil means nobody does. Neither keys and
	// tokens nor what is said are ever written to it.
	Logger *slog.Logger
	// HeaderTimeout bounds the wait for a provider's answer to begin. 0 means 10 minutes.
	HeaderTimeout time.Duration
	// IdleTimeout bounds the silence inside a provider's answer, and how long an agent may leave
	// an answer unread. 0 means 2 minutes.
	IdleTimeout time.Duration
}

// Gateway serves agents. Its methods may be called at the same time.
type Gateway struct {
	opts      Options
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	closed    chan struct{} // closed when Close has ended everything

	mu      sync.Mutex
	closing bool
	grants  map[uuid.UUID]grant
	doors   map[*door]struct{}
	calls   map[*call]struct{}
}

// grant is what an agent may call, and the hash of the token it must show.
type grant struct {
	ref  model.Ref
	hash [32]byte
}

// call is a request of an agent that is being answered.
type call struct {
	door   *door
	ref    model.Ref
	cancel context.CancelCauseFunc
}

// New makes a gateway without grants. It starts nothing until Serve; Close ends it.
func New(opts Options) *Gateway {
	if opts.Providers == nil {
		opts.Providers = &Providers{}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.HeaderTimeout <= 0 {
		opts.HeaderTimeout = defaultHeaderTimeout
	}
	if opts.IdleTimeout <= 0 {
		opts.IdleTimeout = defaultIdleTimeout
	}
	g := &Gateway{
		opts:      opts,
		transport: newTransport(),
		closed:    make(chan struct{}),
		grants:    map[uuid.UUID]grant{},
		doors:     map[*door]struct{}{},
		calls:     map[*call]struct{}{},
	}
	g.proxy = newProxy(g.transport, opts.Logger)
	return g
}

// Check tells whether a call of ref would be let through now: its provider is in providers.yaml, its
// model allowed there, its key known. It does not call the provider. Errors wrap ErrUnknownProvider,
// ErrModelNotAllowed or ErrProviders and say where to mend it; they are meant for the operator and
// name the file.
func (g *Gateway) Check(ref model.Ref) error {
	if ref.Provider == OfflineProvider {
		if ref.Name != OfflineModel {
			return fmt.Errorf("%w: provider %s has the one model %q; use %s/%s", ErrModelNotAllowed, OfflineProvider, OfflineModel, OfflineProvider, OfflineModel)
		}
		return nil
	}
	_, err := g.opts.Providers.route(ref)
	return err
}

// Grant checks ref and gives agent a fresh token for it. The token goes to the agent and is not
// kept; hash is what Restore takes after a restart of the daemon. An earlier grant of this agent
// ends, with the calls that run under it. Errors are those of Check.
func (g *Gateway) Grant(agent uuid.UUID, ref model.Ref) (token string, hash [32]byte, err error) {
	if err := g.Check(ref); err != nil {
		return "", hash, err
	}
	token, err = gate.NewToken(TokenPrefix)
	if err != nil {
		return "", hash, err
	}
	hash = gate.TokenHash(token)
	g.Restore(agent, ref, hash)
	return token, hash, nil
}

// Restore gives agent a grant for ref whose token has the given hash, in place of any earlier one.
// The model is checked at each call, so it may be restored while providers.yaml is broken.
func (g *Gateway) Restore(agent uuid.UUID, ref model.Ref, hash [32]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grants[agent] = grant{ref, hash}
	g.cancelCalls(errRevoked, func(c *call) bool { return c.door.agent == agent })
}

// Revoke ends agent's grant and its calls in flight. An agent without one is no error.
func (g *Gateway) Revoke(agent uuid.UUID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.grants, agent)
	g.cancelCalls(errRevoked, func(c *call) bool { return c.door.agent == agent })
}

// cancelCalls ends the chosen calls; g.mu is held.
func (g *Gateway) cancelCalls(why error, chosen func(*call) bool) {
	for c := range g.calls {
		if chosen(c) {
			c.cancel(why)
		}
	}
}

// begin lets a request in that shows the token of d's agent. The caller must end the call.
func (g *Gateway) begin(d *door, token string, cancel context.CancelCauseFunc) (*call, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	granted, ok := g.grants[d.agent]
	if !ok || !gate.TokenMatches(granted.hash, token) {
		return nil, false
	}
	c := &call{d, granted.ref, cancel}
	if g.closing {
		cancel(errStopping)
	}
	g.calls[c] = struct{}{}
	return c, true
}

func (g *Gateway) end(c *call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.calls, c)
}

// Serve answers agent on l, which it owns from now on, until l is closed or the gateway is. It
// returns after the last call that came through l has ended, those in flight being cancelled when l
// was closed. It is nil in both cases, and ErrClosed when the gateway was closed before.
func (g *Gateway) Serve(agent uuid.UUID, l net.Listener) error {
	d := newDoor(g, agent, l)
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		return errors.Join(ErrClosed, l.Close())
	}
	g.doors[d] = struct{}{}
	g.mu.Unlock()

	err := d.serve(l)

	g.mu.Lock()
	closing := g.closing
	if !closing {
		delete(g.doors, d)
		g.cancelCalls(errUnserved, func(c *call) bool { return c.door == d })
	}
	g.mu.Unlock()
	if closing {
		<-g.closed
	} else {
		err = errors.Join(err, d.finish())
	}
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return fmt.Errorf("serve agent %s: %w", agent, err)
}

// Close stops accepting, waits for the calls in flight and, once ctx is done, cancels them and ends
// their connections. It returns when nothing of the gateway runs any more: nil if every call ended
// by itself, else an error that wraps ctx's. Calling it again waits for the same end.
func (g *Gateway) Close(ctx context.Context) error {
	g.mu.Lock()
	first := !g.closing
	g.closing = true
	doors := make([]*door, 0, len(g.doors))
	for d := range g.doors {
		doors = append(doors, d)
	}
	g.mu.Unlock()
	if !first {
		<-g.closed
		return nil
	}
	drained := make([]bool, len(doors))
	var wg sync.WaitGroup
	for i, d := range doors {
		wg.Go(func() { drained[i] = d.drain(ctx) })
	}
	wg.Wait()
	var err error
	if slices.Contains(drained, false) {
		err = fmt.Errorf("close gateway: calls in flight were cut off: %w", context.Cause(ctx))
	}
	g.mu.Lock()
	g.cancelCalls(errStopping, func(*call) bool { return true })
	g.mu.Unlock()
	for _, d := range doors {
		wg.Go(func() { _ = d.finish() })
	}
	wg.Wait()
	g.transport.CloseIdleConnections()
	close(g.closed)
	return err
}
