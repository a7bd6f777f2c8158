package openai_test

// Invariant: of a stream that no good server sends either all that counts is taken, or the answer has
// no finish. Worst inputs: pieces of calls that come mixed and before their names, usage before the
// text, a connection that breaks in the middle of an event.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/openai"
)

// say is a tool that gives back its arguments.
type say string

func (s say) Spec() loop.ToolSpec {
	return loop.ToolSpec{Name: string(s), Parameters: []byte(`{"type":"object"}`)}
}

func (s say) Call(_ context.Context, c loop.Call) (string, error) {
	return string(s) + string(c.Args), nil
}

func chunks(choices ...string) string {
	var b strings.Builder
	for _, c := range choices {
		fmt.Fprintf(&b, "data: {\"choices\":[%s]}\n\n", c)
	}
	return b.String()
}

func TestPiecesOutOfOrderAreTaken(t *testing.T) {
	t.Parallel()
	raw := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\n" + chunks(
		`{"index":1,"delta":{"content":"another choice"},"finish_reason":"length"}`,
		`{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"b\""}}]}}`,
		`{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c0","function":{"name":"one","arguments":"{\"a\""}}]}}`,
		`{"index":0,"delta":{"tool_calls":[{"index":1,"id":"c1","function":{"name":"two","arguments":":2}"}},{"index":0,"function":{"arguments":":1}"}}]}}`,
		`{"index":0,"delta":{},"finish_reason":"tool_calls"}`,
		`{"index":0,"delta":{"content":"so"}}`,
	) + "data: [DONE]\n\n"
	s := serve(t, modelserver.Script(modelserver.Answer{Raw: raw}, modelserver.Answer{Text: "done", InputTokens: 9, CachedTokens: 4, OutputTokens: 1}))
	l := loop.New(loop.Config{Model: open(t, openai.Options{BaseURL: s.URL}), Tools: []loop.Tool{say("one"), say("two")}})
	out, err := l.Run(context.Background(), loop.Turn{Prompt: "go"})
	if err != nil || out.Text != "done" || out.Reason != loop.Done {
		t.Fatalf("outcome %+v, error %v", out, err)
	}
	results := map[string]string{}
	for _, p := range out.Messages[2].Parts {
		results[p.ID] = p.Text
	}
	if len(results) != 2 || results["c0"] != `one{"a":1}` || results["c1"] != `two{"b":2}` {
		t.Errorf("results %v", results)
	}
	if out.Messages[1].Text() != "so" {
		t.Errorf("the answer says %q", out.Messages[1].Text())
	}
	if out.Usage != (loop.Usage{InputTokens: 12, OutputTokens: 3, CachedTokens: 5}) {
		t.Errorf("usage %+v", out.Usage)
	}
}

func TestWhatBreaksOffIsNotWhole(t *testing.T) {
	t.Parallel()
	whole := chunks(`{"index":0,"delta":{"content":"half"}}`)
	for name, answer := range map[string]modelserver.Answer{
		"the connection":     {Text: "half", Abort: true},
		"the stream":         {Text: "half", Cut: true},
		"inside an event":    {Raw: whole + "data: {\"choices\":[{\"ind"},
		"no event but bytes": {Raw: whole + "\x00\xff\n\n"},
		"a page":             {Raw: whole + "<html>gateway</html>\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, modelserver.Script(answer))
			l := loop.New(loop.Config{Model: open(t, openai.Options{BaseURL: s.URL})})
			out, err := l.Run(context.Background(), loop.Turn{Prompt: "go"})
			var call *loop.CallError
			if out.Reason != loop.ModelError || !errors.As(err, &call) || out.Text != "half" || !out.Messages[1].Incomplete {
				t.Errorf("outcome %+v, error %v", out, err)
			}
		})
	}
}

func TestRefusalsAreSeen(t *testing.T) {
	t.Parallel()
	// One that the model speaks itself is its answer; one of the provider's filter is none.
	spoken := chunks(`{"index":0,"delta":{"refusal":"I won't"}}`, `{"index":0,"delta":{},"finish_reason":"stop"}`) + "data: [DONE]\n\n"
	s := serve(t, modelserver.Script(modelserver.Answer{Raw: spoken}, modelserver.Answer{Text: "I", Finish: "content_filter"}))
	l := loop.New(loop.Config{Model: open(t, openai.Options{BaseURL: s.URL})})
	if out, err := l.Run(context.Background(), loop.Turn{Prompt: "go"}); err != nil || out.Text != "I won't" || out.Reason != loop.Done {
		t.Errorf("outcome %+v, error %v", out, err)
	}
	if out, err := l.Run(context.Background(), loop.Turn{Prompt: "go"}); err == nil || !strings.Contains(err.Error(), "withheld") || out.Reason != loop.ModelError {
		t.Errorf("outcome %+v, error %v", out, err)
	}
}

func TestOnlyTheBeginningOfAnErrorPageIsRead(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Status: 500, Text: strings.Repeat("x", 4<<20)}))
	_, _, _, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL, APIKey: "otr_k"}), loop.Request{})
	var call *loop.CallError
	if !errors.As(err, &call) || call.Status != 500 || len(call.Message) > 600 {
		t.Errorf("error %.200v", err)
	}
}

func TestRateLimitsAreWaitedForWithoutAGateway(t *testing.T) {
	t.Parallel()
	limited := modelserver.Answer{Status: 429, Code: "rate_limit_exceeded", Text: "slow down", RetryAfter: "0"}
	s := serve(t, modelserver.Script(limited, limited, modelserver.Answer{Text: "ok"}))
	if text, _, _, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL, APIKey: "sk-1"}), loop.Request{}); err != nil || text != "ok" {
		t.Errorf("text %q, error %v", text, err)
	}
	s = serve(t, modelserver.Script(limited, modelserver.Answer{Text: "ok"}))
	if _, _, _, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL, APIKey: "otr_1"}), loop.Request{}); err == nil || len(s.Requests()) != 1 {
		t.Errorf("a gateway was asked %d times, error %v", len(s.Requests()), err)
	}
}
