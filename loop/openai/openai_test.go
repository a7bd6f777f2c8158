package openai_test

// Invariant: what the wire brings reaches the loop at once and whole, and what goes wrong is one
// bounded line without the key. Worst inputs: a stream that is cut, silent or nonsense; an error page
// in place of JSON that repeats the key; a redirect to elsewhere.

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/openai"
)

func open(t *testing.T, opts openai.Options) *openai.Model {
	t.Helper()
	if opts.Model == "" {
		opts.Model = "m1"
	}
	m, err := openai.New(opts)
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

// collect reads a whole answer.
func collect(ctx context.Context, m *openai.Model, req loop.Request) (text, reasoning string, all []loop.Delta, err error) {
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

func TestRequestAndAnswerInTheWireFormat(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{
		Text: "héllo", Reasoning: "thinking", InputTokens: 7, OutputTokens: 5,
		Calls: []modelserver.Call{{ID: "c1", Name: "jq", Args: `{"args":["."]}`}, {ID: "c2", Name: "wc", Args: `{}`}},
	}))
	temp := 0.5
	req := loop.Request{
		System: "sys", MaxTokens: 99, Params: loop.Params{Temperature: &temp},
		Metadata: map[string]string{"otters-run": "run-1", "traceparent": "00-x"},
		Tools:    []loop.ToolSpec{{Name: "jq", Description: "d", Parameters: json.RawMessage(`{"type":"object"}`)}},
		Messages: []loop.Message{
			loop.UserMessage("hi"),
			{Role: loop.RoleAssistant, Parts: []loop.Part{
				{Kind: loop.KindReasoning, Text: "secret"}, {Kind: loop.KindText, Text: "wait"},
				{Kind: loop.KindCall, ID: "c0", Name: "jq", Args: `{"a":1}`}}},
			{Role: loop.RoleTool, Parts: []loop.Part{{Kind: loop.KindResult, ID: "c0", Text: "out"}}},
			{Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.KindReasoning, Text: "alone"}}},
		},
	}
	text, reasoning, all, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL, APIKey: "otr_key"}), req)
	if err != nil || text != "héllo" || reasoning != "thinking" {
		t.Fatalf("text %q, reasoning %q, error %v", text, reasoning, err)
	}
	args := map[int]string{}
	names := map[int]string{}
	for _, d := range all {
		if d.Kind == loop.DeltaCall {
			args[d.Index] += d.Text
			names[d.Index] += d.ID + d.Name
		}
	}
	if args[0] != `{"args":["."]}` || args[1] != `{}` || names[0] != "c1jq" || names[1] != "c2wc" {
		t.Errorf("calls %v %v", names, args)
	}
	n := len(all)
	if all[n-1].Kind != loop.DeltaFinish || all[n-2].Usage != (loop.Usage{InputTokens: 7, OutputTokens: 5}) {
		t.Errorf("the stream ends with %+v", all[n-2:])
	}

	got := s.Requests()[0]
	if got.Header.Get("Authorization") != "Bearer otr_key" || got.Header.Get("Otters-Run") != "run-1" || got.Header.Get("Traceparent") != "00-x" {
		t.Errorf("headers %v", got.Header)
	}
	var raw map[string]any
	if err := json.Unmarshal(got.Raw, &raw); err != nil {
		t.Fatal(err)
	}
	if raw["model"] != "m1" || raw["temperature"] != 0.5 || raw["max_tokens"] != 99.0 || raw["stream"] != true || raw["top_p"] != nil {
		t.Errorf("request %s", got.Raw)
	}
	if opts, _ := raw["stream_options"].(map[string]any); opts["include_usage"] != true {
		t.Errorf("stream options %v", raw["stream_options"])
	}
	var roles []string
	for _, m := range got.Messages {
		roles = append(roles, m.Role)
	}
	if strings.Join(roles, " ") != "system user assistant tool" || strings.Contains(string(got.Raw), "secret") {
		t.Errorf("messages %s", got.Raw)
	}
	if m := got.Messages[2]; m.Content != "wait" || m.ToolCalls[0].ID != "c0" || m.ToolCalls[0].Function.Arguments != `{"a":1}` {
		t.Errorf("assistant %+v", m)
	}
	if got.Messages[3].ToolCallID != "c0" || got.Messages[3].Content != "out" || string(got.Tools[0].Function.Parameters) != `{"type":"object"}` {
		t.Errorf("tool message %+v, tools %+v", got.Messages[3], got.Tools)
	}
}

func TestTextIsPassedOnAtOnce(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "a", Hold: hold}))
	released := false
	for d, err := range open(t, openai.Options{BaseURL: s.URL}).Stream(context.Background(), loop.Request{}) {
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

func TestFinishReasons(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]loop.Finish{"stop": loop.FinishStop, "length": loop.FinishLength, "content_filter": loop.FinishFiltered, "tool_calls": loop.FinishStop} {
		s := serve(t, modelserver.Script(modelserver.Answer{Text: "x", Finish: reason}))
		_, _, all, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL}), loop.Request{})
		if err != nil || all[len(all)-1].Finish != want {
			t.Errorf("%s: %+v, error %v", reason, all[len(all)-1], err)
		}
	}
}

func TestErrorsAreOneLineWithoutTheKey(t *testing.T) {
	t.Parallel()
	const key = "otr_0123456789"
	for name, c := range map[string]struct {
		answer modelserver.Answer
		status int
		code   string
		want   string
	}{
		"refused":      {modelserver.Answer{Status: 401, Code: "bad_key", Text: "key " + key + "\nis wrong"}, 401, "bad_key", "model m1: 401 key … is wrong"},
		"rate limited": {modelserver.Answer{Status: 429, Code: "rate_limit", Text: "slow down"}, 429, "rate_limit", "429 slow down"},
		"server":       {modelserver.Answer{Status: 503, Text: strings.Repeat("long ", 1000)}, 503, "error", "503 long"},
		"mid-stream":   {modelserver.Answer{Raw: "data: {\"error\":{\"message\":\"over\\nloaded\",\"code\":\"busy\"}}\n\n"}, 0, "busy", "model m1: broke off: over loaded"},
		"odd error":    {modelserver.Answer{Raw: "data: {\"error\":\"nope\"}\n\n"}, 0, "", `broke off: "nope"`},
		"nonsense":     {modelserver.Answer{Raw: "data: {nonsense\n\n"}, 0, "", "answer cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(modelserver.Request) modelserver.Answer { return c.answer })
			_, _, _, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL, APIKey: key}), loop.Request{})
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
		})
	}
}

func TestOtherKeysAreRetried(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Status: 500, Text: "once"}, modelserver.Answer{Text: "ok"}))
	text, _, _, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL, APIKey: "sk-1"}), loop.Request{})
	if err != nil || text != "ok" || len(s.Requests()) != 2 {
		t.Errorf("text %q, error %v, %d requests", text, err, len(s.Requests()))
	}
}

func TestACutStreamHasNoFinish(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "half", Cut: true}))
	text, _, all, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL}), loop.Request{})
	if text != "half" || err == nil && all[len(all)-1].Kind == loop.DeltaFinish {
		t.Errorf("text %q, last %+v, error %v", text, all[len(all)-1], err)
	}
}

func TestSilenceHasALimit(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "x", Hold: make(chan struct{})}))
	_, _, _, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL, IdleTimeout: 50 * time.Millisecond}), loop.Request{})
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
	for d, err := range open(t, openai.Options{BaseURL: s.URL}).Stream(ctx, loop.Request{}) {
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
	_, _, _, err := collect(context.Background(), open(t, openai.Options{BaseURL: from.URL, APIKey: "otr_k"}), loop.Request{})
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
	_, _, _, err = collect(context.Background(), open(t, openai.Options{BaseURL: nobody, APIKey: "otr_k"}), loop.Request{})
	if err == nil || !strings.Contains(err.Error(), "model m1: cannot be reached") {
		t.Errorf("error %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, opts := range []openai.Options{
		{Model: "m"}, {BaseURL: "ftp://x/v1", Model: "m"}, {BaseURL: "http:///v1", Model: "m"}, {BaseURL: "::", Model: "m"},
		{BaseURL: "http://x/v1"}, {BaseURL: "http://x/v1", Model: "m", APIKey: "a\nb"},
	} {
		if _, err := openai.New(opts); !errors.Is(err, openai.ErrOptions) {
			t.Errorf("%+v: error %v", opts, err)
		}
	}
	if _, err := openai.New(openai.Options{BaseURL: "http://user:pw@x:1/v1", Model: "m"}); err != nil {
		t.Error(err)
	}
}

func TestAnObjectIsAskedForInTheWireFormat(t *testing.T) {
	t.Parallel()
	const strict = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`
	prompt := func(schema string) loop.ObjectPrompt {
		return loop.ObjectPrompt{Prompt: "n?", Format: loop.ObjectFormat{Name: "my object", Description: "d", Schema: json.RawMessage(schema)}}
	}
	ctx := context.Background()
	for schema, isStrict := range map[string]bool{
		strict: true,
		`{"type":"object","properties":{"n":{"type":"integer"}}}`:                                                                       false,
		`{"type":"object","properties":{"n":{"type":"integer"},"m":{}},"required":["n"],"additionalProperties":false}`:                  false,
		`{"type":"object","properties":{"n":{"type":"array","items":{"type":"object"}}},"required":["n"],"additionalProperties":false}`: false,
		`{"type":"object","properties":{"n":{"type":"array","items":` + strict + `}},"required":["n"],"additionalProperties":false}`:    true,
	} {
		s := serve(t, modelserver.Script(modelserver.Answer{Text: `{"n":[]}`}))
		out, _ := loop.New(loop.Config{Model: open(t, openai.Options{BaseURL: s.URL}), ObjectTries: 1}).Object(ctx, prompt(schema))
		got := s.Requests()[0].ResponseFormat
		var sent, want any
		if err := errors.Join(json.Unmarshal(got.JSONSchema.Schema, &sent), json.Unmarshal([]byte(schema), &want)); err != nil {
			t.Fatal(err)
		}
		if got.Type != "json_schema" || got.JSONSchema.Name != "my_object" || got.JSONSchema.Description != "d" || got.JSONSchema.Strict != isStrict || !reflect.DeepEqual(sent, want) {
			t.Errorf("%s: sent %+v for %+v", schema, got, out)
		}
	}

	for name, c := range map[string]struct {
		answers []modelserver.Answer
		want    string // of the object or of the error
	}{
		"right at once":  {[]modelserver.Answer{{Text: `{"n":1}`}}, `{"n":1}`},
		"then right":     {[]modelserver.Answer{{Text: `{"n":"1"}`}, {Text: `{"n":1}`}}, `{"n":1}`},
		"never right":    {[]modelserver.Answer{{Text: `{}`}, {Text: `{}`}, {Text: `{}`}}, "no answer of 3 fits the schema; of the last one /n: it is missing"},
		"mode refused":   {[]modelserver.Answer{{Status: 400, Text: "response_format is not supported"}, {Text: `{"n":1}`}}, `{"n":1}`},
		"always refused": {[]modelserver.Answer{{Status: 400, Text: "no"}, {Status: 400, Text: "never"}}, "400 never"},
		"cut":            {[]modelserver.Answer{{Text: `{"n":1}`, Cut: true}}, "ended before it was complete"},
		"refusal":        {[]modelserver.Answer{{Refusal: "I will not."}}, "the model refuses: I will not."},
		"filtered":       {[]modelserver.Answer{{Text: "x", Finish: "content_filter"}}, "the model refuses: the provider withheld"},
	} {
		s := serve(t, modelserver.Script(c.answers...))
		out, err := loop.New(loop.Config{Model: open(t, openai.Options{BaseURL: s.URL, APIKey: "otr_x"})}).Object(ctx, prompt(strict))
		got := string(out.JSON)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) || len(s.Requests()) != len(c.answers) {
			t.Errorf("%s: %s after %d requests", name, got, len(s.Requests()))
		}
		last := s.Requests()[len(c.answers)-1]
		if refused := c.answers[0].Status != 0; refused != (last.ResponseFormat.Type == "") || refused != strings.Contains(string(last.Raw), "JSON Schema") {
			t.Errorf("%s: the last request was %s", name, last.Raw)
		}
	}
}

func TestImagesAreDataURLs(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "ok"}))
	m := loop.Message{Role: loop.RoleUser, Parts: []loop.Part{{Kind: loop.KindText, Text: "see"}, loop.Image("a.png", "image/png", []byte("png"))}}
	if _, _, _, err := collect(context.Background(), open(t, openai.Options{BaseURL: s.URL}), loop.Request{Messages: []loop.Message{m}}); err != nil {
		t.Fatal(err)
	}
	const want = `[{"text":"see","type":"text"},{"image_url":{"url":"data:image/png;base64,cG5n"},"type":"image_url"}]`
	if got := string(s.Requests()[0].Messages[0].RawContent); got != want {
		t.Errorf("sent %s", got)
	}
}
