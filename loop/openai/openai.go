// Package openai is a model client for the loop: OpenAI Chat Completions, streamed, which most
// providers and the gateway speak.
package openai

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/internal/endpoint"
)

// GatewayKeyPrefix starts the keys a gateway gives out. With such a key nothing is retried here: whoever
// counts and decides is the gateway.
const GatewayKeyPrefix = endpoint.GatewayKeyPrefix

// DefaultIdleTimeout is long enough for a model that thinks in silence.
const DefaultIdleTimeout = endpoint.DefaultIdleTimeout

// Options say where a model is. BaseURL and Model are required.
type Options struct {
	// BaseURL is the API's address, mostly ending in /v1.
	BaseURL string
	// APIKey is sent as a bearer token; empty sends none.
	APIKey string
	// Model is the name without the provider.
	Model string
	// MaxCompletionTokens sends the bound of an answer under that name, which OpenAI's own newer
	// models demand and which others do not know.
	MaxCompletionTokens bool
	// IdleTimeout is how long the provider may stay silent; 0 is DefaultIdleTimeout.
	IdleTimeout time.Duration
	// Transport is http.DefaultTransport where nil.
	Transport http.RoundTripper
}

// Model is a loop.Model. It is safe for use by several goroutines at once.
type Model struct {
	opts   Options
	at     endpoint.Endpoint
	client openai.Client
}

var (
	_ loop.ObjectModel = (*Model)(nil)
	_ loop.ImageModel  = (*Model)(nil)
)

// ErrOptions is wrapped by the errors of New.
var ErrOptions = errors.New("openai options")

// New checks the options and makes a client. Nothing is dialled, and no environment variable is read.
func New(opts Options) (*Model, error) {
	at := endpoint.Endpoint{BaseURL: opts.BaseURL, APIKey: opts.APIKey, Model: opts.Model, IdleTimeout: opts.IdleTimeout, Transport: opts.Transport}
	if err := at.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	ropts := []option.RequestOption{
		option.WithBaseURL(at.BaseURL),
		option.WithMaxRetries(at.Retries()),
		option.WithHTTPClient(at.Client()),
	}
	if at.APIKey != "" {
		ropts = append(ropts, option.WithAPIKey(at.APIKey))
	}
	return &Model{opts: opts, at: at, client: openai.Client{Options: ropts}}, nil
}

// TakesObjects is loop.ObjectModel's. A server that does not know response_format says so when asked.
func (m *Model) TakesObjects() bool { return true }

// TakesImages is loop.ImageModel's. They are sent as data URLs.
func (m *Model) TakesImages() bool { return true }

// Stream is loop.Model's. Metadata goes out as headers.
func (m *Model) Stream(ctx context.Context, req loop.Request) iter.Seq2[loop.Delta, error] {
	return func(yield func(loop.Delta, error) bool) {
		params, err := m.params(req)
		if err != nil {
			yield(loop.Delta{}, m.at.Refused(err))
			return
		}
		ctx, silence := m.at.Watch(ctx)
		defer silence.Stop()

		opts := make([]option.RequestOption, 0, len(req.Metadata))
		for k, v := range req.Metadata {
			opts = append(opts, option.WithHeader(k, v))
		}
		var resp *http.Response
		err = m.client.Post(ctx, "chat/completions", params, &resp, append(opts, option.WithJSONSet("stream", true))...)
		stream := ssestream.NewStream[chunk](ssestream.NewDecoder(resp), err)
		defer stream.Close()
		if !m.relay(stream, silence, yield) {
			return
		}
		if err := stream.Err(); err != nil {
			yield(loop.Delta{}, m.explain(ctx, silence.Err(err)))
		}
	}
}

// relay yields what the stream brings and tells whether anyone still listens. Usage comes in a chunk
// after the one that tells the finish, so the finish is held back until the stream ends.
func (m *Model) relay(stream *ssestream.Stream[chunk], silence *endpoint.Silence, yield func(loop.Delta, error) bool) bool {
	finish := loop.Delta{Kind: loop.DeltaFinish}
	finished, refused := false, false
	for stream.Next() {
		silence.Heard()
		c := stream.Current()
		if c.Usage != nil && !yield(c.Usage.delta(), nil) {
			return false
		}
		for i := range c.Choices {
			choice := &c.Choices[i]
			if choice.Index != 0 {
				continue
			}
			if !choice.relay(yield) {
				return false
			}
			refused = refused || choice.Delta.Refusal != ""
			if choice.FinishReason != "" {
				finish.Finish, finished = finishOf(choice.FinishReason), true
			}
		}
	}
	if refused && finish.Finish == loop.FinishStop {
		finish.Finish = loop.FinishRefused
	}
	if finished && stream.Err() == nil {
		return yield(finish, nil)
	}
	return true
}
