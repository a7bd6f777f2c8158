package gateway_test

// Invariant: a call in Anthropic's format is held to what holds for every call, and answered in that
// format, errors too. The worst three: a token in the other header, the real key in an answer, a
// call in the format that the provider does not speak.

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/otters-sh/otters/gateway"
	"github.com/otters-sh/otters/internal/leak"
	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/model"
)

func TestMain(m *testing.M) {
	os.Exit(leak.Code(m.Run()))
}

const (
	helloClaude  = `{"model":"claude-1","max_tokens":9,"messages":[{"role":"user","content":"hello <you>"}]}`
	streamClaude = `{"model":"anthropic/claude-1","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hello"}]}`
)

func anthropicAt(base string) string {
	return fmt.Sprintf("providers:\n  - name: anthropic\n    api-base: %s\n    api-key: %s\n    models: [claude-1]\n", base, realKey)
}

func messageServer(t *testing.T, answers ...modelserver.Answer) *modelserver.Server {
	t.Helper()
	s := modelserver.Start(modelserver.Script(answers...))
	t.Cleanup(s.Close)
	return s
}

// claude makes a call as Anthropic's own clients do.
func (a *agent) claude(ctx context.Context, path, body string) *http.Request {
	r := a.request(ctx, path, body)
	r.Header.Del("Authorization")
	r.Header.Set("X-Api-Key", a.token)
	r.Header.Set("Anthropic-Version", "2023-06-01")
	return r
}

// anthropicError is the type of an error in Anthropic's shape, and its message.
func anthropicError(text string) (kind, message string) {
	var body struct {
		Type  string
		Error struct{ Type, Message string }
	}
	if err := json.Unmarshal([]byte(text), &body); err != nil || body.Type != "error" || body.Error.Message == "" {
		return "no error in " + text, ""
	}
	return body.Error.Type, body.Error.Message
}

func TestMessagesReachTheProviderWithTheRealKeyAndNothingElse(t *testing.T) {
	t.Parallel()
	s := messageServer(t, modelserver.Answer{Text: "héllo", InputTokens: 5}, modelserver.Answer{Text: "x"}, modelserver.Answer{InputTokens: 17})
	a := newWorld(t, anthropicAt(s.Base), gateway.Options{}).agent("anthropic/claude-1")
	r := a.claude(context.Background(), "/messages", streamClaude)
	for _, h := range []string{"Otters-Run", "Traceparent", "Cookie", "X-Forwarded-For", "Anthropic-Beta", "Anthropic-Dangerous-Direct-Browser-Access", "X-Stainless-Lang", "Accept-Encoding"} {
		r.Header.Set(h, "from-the-agent")
	}
	res, text := a.do(r)
	if res.StatusCode != 200 || !strings.HasPrefix(text, "event: message_start\n") || !strings.HasSuffix(text, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n") {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	r = a.claude(context.Background(), "/messages", streamClaude)
	r.Header.Del("X-Api-Key")
	r.Header.Del("Anthropic-Version")
	r.Header.Set("Authorization", "Bearer "+a.token)
	if res, text := a.do(r); res.StatusCode != 200 {
		t.Errorf("a bearer token and no version: %d %s", res.StatusCode, text)
	}
	if res, text := a.do(a.claude(context.Background(), "/messages/count_tokens", helloClaude)); res.StatusCode != 200 || !strings.Contains(text, `"input_tokens":17`) {
		t.Errorf("count: %d %s", res.StatusCode, text)
	}
	paths := []string{"/v1/messages", "/v1/messages", "/v1/messages/count_tokens"}
	for i, got := range s.Requests() {
		if got.Path != paths[i] || got.Model != "claude-1" || got.Header.Get("X-Api-Key") != realKey || got.Header.Get("Anthropic-Version") != "2023-06-01" {
			t.Errorf("the provider saw %s %s %v", got.Path, got.Model, got.Header)
		}
		for name, values := range got.Header {
			switch name {
			case "X-Api-Key", "Anthropic-Version", "Content-Type", "Content-Length", "Accept", "User-Agent":
			default:
				t.Errorf("the provider saw %s: %q", name, values)
			}
		}
		if strings.Contains(string(got.Raw), "otr_") || strings.Contains(fmt.Sprint(got.Header), "otr_") {
			t.Errorf("the token reached the provider")
		}
	}
	if res, text := a.do(a.claude(context.Background(), "/models", "")); res.StatusCode != 200 || !strings.Contains(text, `"data":[{"type":"model","id":"claude-1"`) {
		t.Errorf("models: %d %s", res.StatusCode, text)
	}
}

func TestMessagesAreRefusedInTheirOwnFormat(t *testing.T) {
	t.Parallel()
	s := modelserver.Start(func(modelserver.Request) modelserver.Answer { return modelserver.Answer{Text: "x"} })
	t.Cleanup(s.Close)
	w := newWorld(t, anthropicAt(s.Base)+"  - name: acme\n    api-base: "+s.URL+"\n", gateway.Options{})
	a, b, c := w.agent("anthropic/claude-1"), w.agent("anthropic/claude-1"), w.agent("acme/big")
	for _, tc := range []struct {
		name   string
		who    *agent
		change func(*http.Request)
		body   string
		status int
		kind   string
		says   string
	}{
		{"as it should be", a, func(*http.Request) {}, streamClaude, 200, "", ""},
		{"A6 no token", a, func(r *http.Request) { r.Header.Del("X-Api-Key") }, streamClaude, 401, "authentication_error", "token"},
		{"A6 another agent's", a, func(r *http.Request) { r.Header.Set("X-Api-Key", b.token) }, streamClaude, 401, "authentication_error", "token"},
		{"A6 the real key", a, func(r *http.Request) { r.Header.Set("X-Api-Key", realKey) }, streamClaude, 401, "authentication_error", "token"},
		{"A6 two keys", a, func(r *http.Request) { r.Header.Add("X-Api-Key", "otr_x") }, streamClaude, 401, "authentication_error", "token"},
		{"A6 a wrong key beside the right bearer", a, func(r *http.Request) {
			r.Header.Set("X-Api-Key", "otr_x")
			r.Header.Set("Authorization", "Bearer "+a.token)
		}, streamClaude, 401, "authentication_error", "token"},
		{"another model", a, func(*http.Request) {}, strings.Replace(streamClaude, "claude-1", "claude-2", 1), 403, "permission_error", "claude-1"},
		{"the model twice", a, func(*http.Request) {}, strings.Replace(streamClaude, `"max_tokens"`, `"Model":"claude-2","max_tokens"`, 1), 400, "invalid_request_error", "Model"},
		{"no JSON", a, func(*http.Request) {}, "what", 400, "invalid_request_error", "body"},
		{"another method", a, func(r *http.Request) { r.Method = http.MethodPut }, streamClaude, 405, "invalid_request_error", "POST"},
		{"an unknown path", a, func(r *http.Request) { r.URL.Path = "/v1/messages/batches" }, streamClaude, 404, "not_found_error", "/v1/messages"},
		{"a query", a, func(r *http.Request) { r.URL.RawQuery = "beta=true" }, streamClaude, 400, "invalid_request_error", "query"},
		{"a version that is none", a, func(r *http.Request) { r.Header.Set("Anthropic-Version", "newest") }, streamClaude, 400, "invalid_request_error", "2023-06-01"},
		{"two versions", a, func(r *http.Request) { r.Header.Add("Anthropic-Version", "2023-01-01") }, streamClaude, 400, "invalid_request_error", "2023-06-01"},
		{"a body over the bound", a, func(r *http.Request) { r.ContentLength = 33 << 20 }, streamClaude, 413, "request_too_large", "33554432"},
		{"the provider of another format", c, func(*http.Request) {}, streamClaude, 400, "invalid_request_error", "/v1/chat/completions"},
	} {
		before := len(s.Requests())
		r := tc.who.claude(context.Background(), "/messages", tc.body)
		tc.change(r)
		if r.ContentLength > 1<<20 {
			r.Body = io.NopCloser(io.LimitReader(spaces{}, r.ContentLength))
		}
		res, err := tc.who.client.Do(r)
		if err != nil {
			// The server may hang up on a body that it will not read.
			if tc.status != 413 {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != tc.status {
			t.Errorf("%s: %d %s, %v, want %d", tc.name, res.StatusCode, text, err, tc.status)
		}
		if kind, message := anthropicError(string(text)); tc.kind != "" && (kind != tc.kind || !strings.Contains(message, tc.says)) {
			t.Errorf("%s: %s %s, want %s that says %s", tc.name, kind, message, tc.kind, tc.says)
		}
		if passed := len(s.Requests()) - before; (passed == 1) != (tc.status == 200) {
			t.Errorf("%s: the provider saw %d calls", tc.name, passed)
		}
	}
	// The other way round is told in the other format, and the same agents' right format passes.
	if res, text := a.chat(`{"model":"claude-1","messages":[]}`); res.StatusCode != 400 || code(text) != "wrong_format" || !strings.Contains(text, "/v1/messages") {
		t.Errorf("chat completions of anthropic: %d %s", res.StatusCode, text)
	}
	if res, text := c.chat(`{"model":"big","messages":[]}`); res.StatusCode != 200 {
		t.Errorf("chat completions of acme: %d %s", res.StatusCode, text)
	}
	if res, text := a.do(a.claude(context.Background(), "/messages", streamClaude)); res.StatusCode != 200 {
		t.Errorf("messages of anthropic: %d %s", res.StatusCode, text)
	}
	// A key in X-Api-Key does not open the door of the other format.
	r := c.request(context.Background(), "/chat/completions", `{"model":"big","messages":[]}`)
	r.Header.Del("Authorization")
	r.Header.Set("X-Api-Key", c.token)
	if res, _ := c.do(r); res.StatusCode != 401 {
		t.Errorf("chat completions with X-Api-Key: %d", res.StatusCode)
	}
}

func TestWhatAnthropicRefusesPasses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		kind   string
	}{{429, "rate_limit_error"}, {529, "overloaded_error"}, {500, "api_error"}} {
		v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Retry-After", "7")
			h.Set("Request-Id", "req_1")
			h.Set("Anthropic-Ratelimit-Tokens-Remaining", "3")
			h.Set("Anthropic-Organization-Id", "acme-inc")
			h.Set("Content-Type", "application/json")
			w.WriteHeader(tc.status)
			fmt.Fprintf(w, `{"type":"error","error":{"type":%q,"message":"not now, %s"}}`, tc.kind, r.Header.Get("X-Api-Key"))
		})
		a := newWorld(t, anthropicAt(v.URL), gateway.Options{}).agent("anthropic/claude-1")
		res, text := a.do(a.claude(context.Background(), "/messages", streamClaude))
		kind, message := anthropicError(text)
		if res.StatusCode != tc.status || kind != tc.kind || message != "not now, "+strings.Repeat("*", len(realKey)) {
			t.Errorf("%d %s", res.StatusCode, text)
		}
		for name, want := range map[string]string{"Retry-After": "7", "Request-Id": "req_1", "Anthropic-Ratelimit-Tokens-Remaining": "3", "Anthropic-Organization-Id": ""} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if v.count() != 1 {
			t.Errorf("the provider was asked %d times", v.count())
		}
	}
}

func TestAMessageStreamThatBreaksSaysSo(t *testing.T) {
	t.Parallel()
	s := messageServer(t, modelserver.Answer{Text: "half", Abort: true})
	a := newWorld(t, anthropicAt(s.Base), gateway.Options{}).agent("anthropic/claude-1")
	_, text := a.do(a.claude(context.Background(), "/messages", streamClaude))
	events := strings.Split(strings.TrimSpace(text), "\n\n")
	last, ok := strings.CutPrefix(events[len(events)-1], "event: error\ndata: ")
	if kind, message := anthropicError(last); !ok || kind != "api_error" || !strings.Contains(message, "broke its answer off") {
		t.Errorf("the stream ends with %q", events[len(events)-1])
	}
	if !strings.HasPrefix(text, "event: message_start\n") {
		t.Errorf("the stream begins with %.80q", text)
	}
}

func TestMessagesPassOneByOneAndCancelTravels(t *testing.T) {
	t.Parallel()
	s := messageServer(t, modelserver.Answer{Text: "x", Hold: make(chan struct{})})
	a := newWorld(t, anthropicAt(s.Base), gateway.Options{}).agent("anthropic/claude-1")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	res, err := a.client.Do(a.claude(ctx, "/messages", streamClaude))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	// The provider says no more than this until the call is given up.
	for lines := bufio.NewReader(res.Body); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "content_block_stop") {
			break
		}
	}
	cancel()
	for {
		n, changed := s.Cancelled()
		if n == 1 {
			return
		}
		<-changed
	}
}

func TestTheAPIBaseGoesWithTheFormat(t *testing.T) {
	t.Parallel()
	for provider, want := range map[string]string{"anthropic": "http://127.0.0.1:7", "openai": "http://127.0.0.1:7/v1", "offline": "http://127.0.0.1:7/v1"} {
		if got := gateway.APIBase(model.Ref{Provider: provider, Name: "m"}, "127.0.0.1:7"); got != want {
			t.Errorf("%s: %s, want %s", provider, got, want)
		}
	}
}
