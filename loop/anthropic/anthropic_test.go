package anthropic_test

// Invariant: what the wire brings reaches the loop at once and whole, and what goes wrong is one
// bounded line without the key. Worst inputs: a stream that is cut, silent, out of order or nonsense;
// an error page in place of JSON that repeats the key; a redirect to elsewhere.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/anthropic"
)

func open(t *testing.T, opts anthropic.Options) *anthropic.Model {
	t.Helper()
	if opts.Model == "" {
		opts.Model = "claude-1"
	}
	m, err := anthropic.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func serve(t *testing.T, answer func(modelserver.Request) modelserver.Answer) *modelserver.Server {
	t.Helper()
	s := modelserver.Start(answer)
	t.Cleanup(s.Close)
	return s
}

// hello is the least that can be asked.
func hello() loop.Request { return loop.Request{Messages: []loop.Message{loop.UserMessage("hi")}} }

// collect reads a whole answer.
func collect(ctx context.Context, m *anthropic.Model, req loop.Request) (text, reasoning string, all []loop.Delta, err error) {
	for d, err := range m.Stream(ctx, req) {
		if err != nil {
			return text, reasoning, all, err
		}
		all = append(all, d)
		switch d.Kind {
		case loop.DeltaText:
			text += d.Text
		case loop.DeltaReasoning:
			reasoning += d.Text
		}
	}
	return text, reasoning, all, nil
}

func finishOf(all []loop.Delta) (finish loop.Finish, finished bool) {
	if n := len(all); n > 0 && all[n-1].Kind == loop.DeltaFinish {
		return all[n-1].Finish, true
	}
	return 0, false
}

func usageOf(all []loop.Delta) (u loop.Usage) {
	for _, d := range all {
		if d.Kind == loop.DeltaUsage {
			u = d.Usage
		}
	}
	return u
}

func TestTextIsPassedOnAtOnce(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "a", Hold: hold}))
	released := false
	for d, err := range open(t, anthropic.Options{BaseURL: s.Base}).Stream(context.Background(), hello()) {
		if err != nil {
			t.Fatal(err)
		}
		if d.Kind == loop.DeltaText && !released {
			released = true
			close(hold) // the server goes on only after the piece has come through
		}
	}
	if !released {
		t.Error("no text came")
	}
}

func TestStopReasons(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]loop.Finish{
		"end_turn": loop.FinishStop, "stop_sequence": loop.FinishStop, "tool_use": loop.FinishStop, "max_tokens": loop.FinishLength,
		"model_context_window_exceeded": loop.FinishLength, "refusal": loop.FinishFiltered, "one_of_tomorrow": loop.FinishStop,
	} {
		s := serve(t, modelserver.Script(modelserver.Answer{Text: "x", Finish: reason}))
		_, _, all, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base}), hello())
		if got, ok := finishOf(all); err != nil || !ok || got != want {
			t.Errorf("%s: %v %v, error %v", reason, got, ok, err)
		}
	}
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "x", Finish: "pause_turn"}))
	if _, _, all, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base}), hello()); err == nil || !strings.Contains(err.Error(), "paused") {
		t.Errorf("a pause: %v, error %v", all, err)
	}
}

func TestUsageCountsTheCacheAsInput(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "x", InputTokens: 100, CachedTokens: 60, CacheWrites: 30, OutputTokens: 7}))
	_, _, all, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base}), hello())
	if got := usageOf(all); err != nil || got != (loop.Usage{InputTokens: 100, CachedTokens: 60, OutputTokens: 7}) {
		t.Errorf("usage %+v, error %v", got, err)
	}
	// A delta that tells of the output alone leaves the rest as it was.
	raw := `event: message_start
data: {"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":3,"output_tokens":1}}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9,"output_tokens_details":{"thinking_tokens":4}}}

event: message_stop
data: {"type":"message_stop"}

`
	s = serve(t, modelserver.Script(modelserver.Answer{Raw: raw}))
	_, _, all, err = collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base}), hello())
	if got := usageOf(all); err != nil || got != (loop.Usage{InputTokens: 8, CachedTokens: 3, OutputTokens: 9, ReasoningTokens: 4}) {
		t.Errorf("usage %+v, error %v", got, err)
	}
}

func TestErrorsAreOneLineWithoutTheKey(t *testing.T) {
	t.Parallel()
	const key = "otr_0123456789"
	const start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n"
	block := func(kind string, index int) string {
		return fmt.Sprintf("event: %s\ndata: {\"type\":%q,\"index\":%d,\"content_block\":{\"type\":\"text\"},\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n", kind, kind, index)
	}
	for name, c := range map[string]struct {
		answer modelserver.Answer
		status int
		code   string
		want   string
	}{
		"wrong key":    {modelserver.Answer{Status: 401, Code: "authentication_error", Text: "key " + key + "\nis wrong"}, 401, "authentication_error", "model claude-1: 401 key … is wrong"},
		"rate limited": {modelserver.Answer{Status: 429, Code: "rate_limit_error", Text: "slow down", RetryAfter: "1"}, 429, "rate_limit_error", "429 slow down"},
		"overloaded":   {modelserver.Answer{Status: 529, Code: "overloaded_error", Text: "Overloaded"}, 529, "overloaded_error", "529 Overloaded"},
		"server":       {modelserver.Answer{Status: 503, Code: "api_error", Text: strings.Repeat("long ", 1000)}, 503, "api_error", "503 "},
		"mid-stream": {modelserver.Answer{Raw: start + "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"over\\nloaded\"}}\n\n"},
			0, "overloaded_error", "model claude-1: broke off: over loaded"},
		"odd error":           {modelserver.Answer{Raw: "event: error\ndata: nope\n\n"}, 0, "", "broke off: nope"},
		"nonsense":            {modelserver.Answer{Raw: "event: message_start\ndata: {nonsense\n\n"}, 0, "", "answer cannot be read"},
		"before its start":    {modelserver.Answer{Raw: block("content_block_start", 0)}, 0, "", "content_block_start of block 0 is out of order"},
		"a delta too early":   {modelserver.Answer{Raw: start + block("content_block_delta", 0)}, 0, "", "content_block_delta of block 0 is out of order"},
		"of another block":    {modelserver.Answer{Raw: start + block("content_block_start", 0) + block("content_block_delta", 1)}, 0, "", "content_block_delta of block 1 is out of order"},
		"two at once":         {modelserver.Answer{Raw: start + block("content_block_start", 0) + block("content_block_start", 1)}, 0, "", "content_block_start of block 1 is out of order"},
		"an end too many":     {modelserver.Answer{Raw: start + block("content_block_stop", 0)}, 0, "", "content_block_stop of block 0 is out of order"},
		"begun twice":         {modelserver.Answer{Raw: start + start}, 0, "", "message_start of block 0 is out of order"},
		"the end inside":      {modelserver.Answer{Raw: start + block("content_block_start", 0) + block("message_delta", 0)}, 0, "", "message_delta of block 0 is out of order"},
		"endless error pages": {modelserver.Answer{Status: 500, Text: strings.Repeat("x", 4<<20)}, 500, "", "500 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(modelserver.Request) modelserver.Answer { return c.answer })
			_, _, all, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base, APIKey: key}), hello())
			var call *loop.CallError
			if !errors.As(err, &call) {
				t.Fatalf("error %v is no CallError", err)
			}
			if call.Status != c.status || call.Code != c.code || !strings.Contains(call.Message, c.want) {
				t.Errorf("got %d %q %q", call.Status, call.Code, call.Message)
			}
			if strings.ContainsAny(call.Message, "\n\r") || len(call.Message) > 600 || strings.Contains(call.Message, key) {
				t.Errorf("message %q", call.Message)
			}
			if n := len(s.Requests()); n != 1 {
				t.Errorf("a gateway was asked %d times", n)
			}
			if _, finished := finishOf(all); finished {
				t.Error("it finished")
			}
		})
	}
}

func TestAPromptThatIsTooLongIsKnown(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"prompt is too long: 210000 tokens > 200000 maximum", "input length and `max_tokens` exceed context limit: 198000 + 4096 > 200000"} {
		s := serve(t, modelserver.Script(modelserver.Answer{Status: 400, Code: "invalid_request_error", Text: text}))
		if _, _, _, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base}), hello()); !loop.Overflowed(err) {
			t.Errorf("error %v", err)
		}
	}
	s := serve(t, modelserver.Script(modelserver.Answer{Status: 400, Code: "invalid_request_error", Text: "temperature: too high"}))
	if _, _, _, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base}), hello()); err == nil || loop.Overflowed(err) {
		t.Errorf("error %v", err)
	}
}

func TestOtherKeysAreRetried(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Status: 529, Code: "overloaded_error", Text: "once", RetryAfter: "0"}, modelserver.Answer{Text: "ok"}))
	text, _, _, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base, APIKey: "sk-ant-1"}), hello())
	if err != nil || text != "ok" || len(s.Requests()) != 2 {
		t.Errorf("text %q, error %v, %d requests", text, err, len(s.Requests()))
	}
}

func TestACutStreamHasNoFinish(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]modelserver.Answer{"cut": {Text: "half", Cut: true}, "aborted": {Text: "half", Abort: true}} {
		s := serve(t, modelserver.Script(answer))
		text, _, all, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base}), hello())
		if _, finished := finishOf(all); text != "half" || finished || answer.Abort && err == nil {
			t.Errorf("%s: text %q, finished %v, error %v", name, text, finished, err)
		}
	}
}

func TestWhatBreaksOffIsNotWhole(t *testing.T) {
	t.Parallel()
	whole := `event: message_start
data: {"type":"message_start","message":{}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"half"}}

`
	call := []modelserver.Call{{ID: "t1", Name: "one", Args: `{"say":"x"}`}}
	for name, c := range map[string]struct {
		answer modelserver.Answer
		reason loop.Reason
		says   string
	}{
		"the connection":     {modelserver.Answer{Text: "half", Abort: true}, loop.ModelError, "unexpected EOF"},
		"behind a call":      {modelserver.Answer{Text: "half", Calls: call, Cut: true}, loop.ModelError, "before it was complete"},
		"inside an event":    {modelserver.Answer{Raw: whole + "event: content_block_delta\ndata: {\"type"}, loop.ModelError, "before it was complete"},
		"a page":             {modelserver.Answer{Raw: whole + "<html>gateway</html>\n\n"}, loop.ModelError, "before it was complete"},
		"an event of no use": {modelserver.Answer{Raw: whole + "event: content_block_delta\ndata: []\n\n"}, loop.ModelError, "cannot be read"},
		"its end is missing": {modelserver.Answer{Raw: whole + "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"}, loop.ModelError, "before it was complete"},
		"a refusal":          {modelserver.Answer{Text: "half", Finish: "refusal"}, loop.ModelError, "withheld"},
		"at its length":      {modelserver.Answer{Text: "half", Finish: "max_tokens"}, loop.MaxTokens, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, modelserver.Script(c.answer, modelserver.Answer{Text: "on"}))
			l := loop.New(loop.Config{Model: open(t, anthropic.Options{BaseURL: s.Base}), Tools: []loop.Tool{echo{"one"}}})
			out, err := l.Run(context.Background(), loop.Turn{Prompt: "go"})
			if out.Reason != c.reason || out.Text != "half" || !out.Messages[1].Incomplete || len(out.Messages) != 2 {
				t.Errorf("outcome %+v", out)
			}
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			// The next turn goes on from there.
			if out, err := l.Run(context.Background(), loop.Turn{History: out.Messages, Prompt: "and?"}); err != nil || out.Text != "on" {
				t.Errorf("the next turn: %+v, error %v", out, err)
			}
		})
	}
}

func TestSilenceHasALimit(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "x", Hold: make(chan struct{})}))
	_, _, _, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base, IdleTimeout: 50 * time.Millisecond}), hello())
	if err == nil || !strings.Contains(err.Error(), "limit of 50ms") {
		t.Errorf("error %v", err)
	}
}

func TestCancelEndsTheStreamAndReachesTheServer(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "x", Hold: make(chan struct{})}))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var last error
	for d, err := range open(t, anthropic.Options{BaseURL: s.Base}).Stream(ctx, hello()) {
		if d.Kind == loop.DeltaText {
			cancel()
		}
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("error %v", last)
	}
	for {
		n, changed := s.Cancelled()
		if n == 1 {
			return
		}
		<-changed
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	asked := make(chan http.Header, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header }))
	defer other.Close()
	from := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer from.Close()
	_, _, _, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: from.URL, APIKey: "otr_k"}), hello())
	if err == nil || !strings.Contains(err.Error(), "redirects") {
		t.Errorf("error %v", err)
	}
	select {
	case h := <-asked:
		t.Errorf("the other server was asked with %v", h)
	default:
	}
}

func TestAnUnreachableServerIsNamed(t *testing.T) {
	t.Parallel()
	nobody, free, err := modelserver.Refusing()
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	_, _, _, err = collect(context.Background(), open(t, anthropic.Options{BaseURL: nobody, APIKey: "otr_k"}), hello())
	if err == nil || !strings.Contains(err.Error(), "model claude-1: cannot be reached") {
		t.Errorf("error %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, opts := range []anthropic.Options{
		{Model: "m"}, {BaseURL: "ftp://x", Model: "m"}, {BaseURL: "http:///x", Model: "m"}, {BaseURL: "::", Model: "m"},
		{BaseURL: "http://x/v1", Model: "m"}, {BaseURL: "http://x/v1/", Model: "m"},
		{BaseURL: "http://x"}, {BaseURL: "http://x", Model: "m", APIKey: "a\nb"},
		{BaseURL: "http://x", Model: "m", Thinking: 1023}, {BaseURL: "http://x", Model: "m", Thinking: -3},
	} {
		if _, err := anthropic.New(opts); !errors.Is(err, anthropic.ErrOptions) {
			t.Errorf("%+v: error %v", opts, err)
		}
	}
	for _, opts := range []anthropic.Options{
		{BaseURL: "http://user:pw@x:1", Model: "m"}, {BaseURL: "https://x/proxy/", Model: "m", Thinking: anthropic.MinThinkingBudget},
	} {
		if _, err := anthropic.New(opts); err != nil {
			t.Error(err)
		}
	}
}
