// Package anthropic is a model client for the loop: Anthropic Messages, streamed, with thinking and
// prompt caching. It speaks to the provider itself, or to a gateway in front of it.
package anthropic

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/internal/endpoint"
)

// GatewayKeyPrefix starts the keys a gateway gives out. With such a key nothing is retried here: whoever
// counts and decides is the gateway.
const GatewayKeyPrefix = endpoint.GatewayKeyPrefix

// DefaultIdleTimeout is long enough for a model that thinks in silence.
const DefaultIdleTimeout = endpoint.DefaultIdleTimeout

// Thinking says how a model thinks before it answers. A positive number is its budget in tokens, which
// are part of an answer's MaxTokens. A request whose MaxTokens is not above the budget, such as one for a
// summary, goes without; so does an adaptive one that is not above MinThinkingBudget.
type Thinking int

// What Thinking can be beside a budget.
const (
	// ThinkingDefault leaves it to the model.
	ThinkingDefault Thinking = 0
	// ThinkingOff is an answer without.
	ThinkingOff Thinking = -1
	// ThinkingAdaptive lets the model decide how much, and shows what it thought.
	ThinkingAdaptive Thinking = -2
)

// MinThinkingBudget is the least budget that the provider takes, in tokens.
const MinThinkingBudget = 1024

// Options say where a model is. BaseURL and Model are required.
type Options struct {
	// BaseURL is the API's address without /v1, such as https://api.anthropic.com.
	BaseURL string
	// APIKey is sent as X-Api-Key; empty sends none.
	APIKey string
	// Model is the name without the provider.
	Model    string
	Thinking Thinking
	// IdleTimeout is how long the provider may stay silent; 0 is DefaultIdleTimeout.
	IdleTimeout time.Duration
	// Transport is http.DefaultTransport where nil.
	Transport http.RoundTripper
}

// Model is a loop.Model. It is safe for use by several goroutines at once.
type Model struct {
	opts   Options
	at     endpoint.Endpoint
	client anthropic.Client
}

var (
	_ loop.ObjectModel = (*Model)(nil)
	_ loop.ImageModel  = (*Model)(nil)
)

// ErrOptions is wrapped by the errors of New.
var ErrOptions = errors.New("anthropic options")

// New checks the options and makes a client. Nothing is dialled, and no environment variable and no
// file is read.
func New(opts Options) (*Model, error) {
	at := endpoint.Endpoint{BaseURL: opts.BaseURL, APIKey: opts.APIKey, Model: opts.Model, IdleTimeout: opts.IdleTimeout, Transport: opts.Transport}
	if err := at.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	// Check has parsed it.
	if u, _ := url.Parse(opts.BaseURL); strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") {
		return nil, fmt.Errorf("%w: base address %q ends in /v1, which a call brings along; leave it out", ErrOptions, u.Redacted())
	}
	if t := opts.Thinking; t > 0 && t < MinThinkingBudget || t < ThinkingAdaptive {
		return nil, fmt.Errorf("%w: a thinking budget of %d tokens; want at least %d", ErrOptions, t, MinThinkingBudget)
	}
	ropts := []option.RequestOption{
		option.WithBaseURL(at.BaseURL),
		option.WithMaxRetries(at.Retries()),
		option.WithHTTPClient(at.Client()),
		option.WithoutOpenTelemetry(),
	}
	if at.APIKey != "" {
		ropts = append(ropts, option.WithAPIKey(at.APIKey))
	}
	return &Model{opts: opts, at: at, client: anthropic.Client{Options: ropts}}, nil
}

// TakesObjects is loop.ObjectModel's. A model that has no structured outputs, or none for a schema, says
// so when asked.
func (m *Model) TakesObjects() bool { return true }

// TakesImages is loop.ImageModel's. They are sent in base64.
func (m *Model) TakesImages() bool { return true }

// Stream is loop.Model's. Metadata goes out as headers. Reasoning that the provider signed, or hides,
// has an opaque part, and is sent back to this model with the answer it was part of.
func (m *Model) Stream(ctx context.Context, req loop.Request) iter.Seq2[loop.Delta, error] {
	return func(yield func(loop.Delta, error) bool) {
		params, err := m.params(req)
		if err != nil {
			yield(loop.Delta{}, m.at.Refused(err))
			return
		}
		ctx, silence := m.at.Watch(ctx)
		defer silence.Stop()

		opts := make([]option.RequestOption, 0, len(req.Metadata)+1)
		for k, v := range req.Metadata {
			opts = append(opts, option.WithHeader(k, v))
		}
		var resp *http.Response
		// Post, and not the typed call, since that decodes each event into all that it could be.
		err = m.client.Post(ctx, "v1/messages", params, &resp, append(opts, option.WithJSONSet("stream", true))...)
		stream := ssestream.NewStream[event](ssestream.NewDecoder(resp), err)
		defer stream.Close()
		listening, err := m.relay(stream, silence, yield)
		if err != nil && listening {
			yield(loop.Delta{}, m.explain(ctx, silence.Err(err)))
		}
	}
}

// relay yields what the stream brings, and tells whether anyone still listens. The finish is held
// back until the stream has ended, since what comes after it may be an error.
func (m *Model) relay(stream *ssestream.Stream[event], silence *endpoint.Silence, yield func(loop.Delta, error) bool) (listening bool, err error) {
	r := reader{model: m.opts.Model}
	for stream.Next() {
		silence.Heard()
		e := stream.Current()
		d, err := r.read(&e)
		if err != nil {
			return true, err
		}
		if d != nil && !yield(*d, nil) {
			return false, nil
		}
	}
	if r.finished && stream.Err() == nil {
		return yield(loop.Delta{Kind: loop.DeltaFinish, Finish: r.finish}, nil), nil
	}
	return true, stream.Err()
}
