// Package openai is a model client for the loop: OpenAI Chat Completions, streamed, which most
// providers and the gateway speak.
package openai

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/otters-sh/otters/loop"
)

// GatewayKeyPrefix starts the keys a gateway gives out. With such a key nothing is retried here: the
// gateway retries, and counts.
const GatewayKeyPrefix = "otr_"

// maxRetries is what a client without a gateway in front of it does about 429 and 5xx.
const maxRetries = 2

// DefaultIdleTimeout is long enough for a model that thinks in silence.
const DefaultIdleTimeout = 5 * time.Minute

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
	u, err := url.Parse(opts.BaseURL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: base address is no URL", ErrOptions)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("%w: base address %q is no http or https URL", ErrOptions, u.Redacted())
	case opts.Model == "":
		return nil, fmt.Errorf("%w: no model named", ErrOptions)
	case strings.ContainsAny(opts.APIKey, "\r\n\x00"):
		return nil, fmt.Errorf("%w: the key holds a line break", ErrOptions)
	}
	if opts.IdleTimeout <= 0 {
		opts.IdleTimeout = DefaultIdleTimeout
	}
	retries := maxRetries
	if strings.HasPrefix(opts.APIKey, GatewayKeyPrefix) {
		retries = 0
	}
	ropts := []option.RequestOption{
		option.WithBaseURL(opts.BaseURL),
		option.WithMaxRetries(retries),
		option.WithHTTPClient(&http.Client{Transport: opts.Transport, CheckRedirect: refuseRedirect}),
	}
	if opts.APIKey != "" {
		ropts = append(ropts, option.WithAPIKey(opts.APIKey))
	}
	return &Model{opts: opts, client: openai.Client{Options: ropts}}, nil
}

var errRedirect = errors.New("the provider redirects, which would take the key elsewhere; set its final address")

func refuseRedirect(*http.Request, []*http.Request) error { return errRedirect }

// TakesObjects is loop.ObjectModel's. A server that does not know response_format says so when asked.
func (m *Model) TakesObjects() bool { return true }

// TakesImages is loop.ImageModel's. They are sent as data URLs.
func (m *Model) TakesImages() bool { return true }

// Stream is loop.Model's. Metadata goes out as headers.
func (m *Model) Stream(ctx context.Context, req loop.Request) iter.Seq2[loop.Delta, error] {
	return func(yield func(loop.Delta, error) bool) {
		params, err := m.params(req)
		if err != nil {
			yield(loop.Delta{}, &loop.CallError{Message: m.line("model " + m.opts.Model + ": " + err.Error()), Err: err})
			return
		}
		idle := &loop.CallError{Message: fmt.Sprintf("model %s: silent for longer than its limit of %s", m.opts.Model, m.opts.IdleTimeout)}
		ctx, cancel := context.WithCancelCause(ctx)
		timer := time.AfterFunc(m.opts.IdleTimeout, func() { cancel(idle) })
		defer cancel(nil)
		defer timer.Stop()

		opts := make([]option.RequestOption, 0, len(req.Metadata))
		for k, v := range req.Metadata {
			opts = append(opts, option.WithHeader(k, v))
		}
		var resp *http.Response
		err = m.client.Post(ctx, "chat/completions", params, &resp, append(opts, option.WithJSONSet("stream", true))...)
		stream := ssestream.NewStream[chunk](ssestream.NewDecoder(resp), err)
		defer stream.Close()
		if !m.relay(stream, timer, yield) {
			return
		}
		if err := stream.Err(); err != nil {
			if errors.Is(context.Cause(ctx), idle) {
				err = idle
			}
			yield(loop.Delta{}, m.explain(ctx, err))
		}
	}
}

// relay yields what the stream brings and tells whether anyone still listens. Usage comes in a chunk
// after the one that tells the finish, so the finish is held back until the stream ends.
func (m *Model) relay(stream *ssestream.Stream[chunk], idle *time.Timer, yield func(loop.Delta, error) bool) bool {
	finish := loop.Delta{Kind: loop.DeltaFinish}
	finished, refused := false, false
	for stream.Next() {
		idle.Reset(m.opts.IdleTimeout)
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
