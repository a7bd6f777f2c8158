package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/gateway"
	"github.com/otters-sh/otters/model"
)

const realKey = "sk-real-0123456789abcdef0123456789abcdef"

// vendor is a scripted model server.
type vendor struct {
	*httptest.Server
	mu   sync.Mutex
	seen []*http.Request
	body []string
}

// newVendor answers each call with answer, after it has noted it.
func newVendor(t *testing.T, answer http.HandlerFunc) *vendor {
	t.Helper()
	v := &vendor{}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		v.mu.Lock()
		v.seen, v.body = append(v.seen, r.Clone(context.Background())), append(v.body, string(body))
		v.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(v.Close)
	return v
}

func (v *vendor) last(t *testing.T) (*http.Request, string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.seen) == 0 {
		t.Fatal("the vendor saw no call")
	}
	return v.seen[len(v.seen)-1], v.body[len(v.body)-1]
}

func (v *vendor) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.seen)
}

// say answers with a completion.
func say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"choices":[{"message":{"content":%q}}]}`, text)
	}
}

// sayEvents answers with n events and [DONE], flushing each.
func sayEvents(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range n {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d \"}}]}\n\n", i)
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}
}

// world is a gateway with a providers.yaml.
type world struct {
	*gateway.Gateway
	t    *testing.T
	file string
	log  *lockedBuffer
}

func newWorld(t *testing.T, providers string, opts gateway.Options) *world {
	t.Helper()
	w := &world{t: t, file: filepath.Join(t.TempDir(), "providers.yaml"), log: &lockedBuffer{}}
	w.write(providers)
	p, err := gateway.LoadProviders(w.file)
	if err != nil {
		t.Fatal(err)
	}
	opts.Providers = p
	opts.Logger = slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.Gateway = gateway.New(opts)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if log := w.log.String(); strings.Contains(log, realKey) || strings.Contains(log, "otr_") {
			t.Errorf("a secret is in the log:\n%s", log)
		}
	})
	return w
}

func (w *world) write(providers string) {
	w.t.Helper()
	if err := os.WriteFile(w.file+".new", []byte(providers), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(w.file+".new", w.file); err != nil {
		w.t.Fatal(err)
	}
}

// agent is one that may call ref.
type agent struct {
	t      *testing.T
	id     uuid.UUID
	base   string
	token  string
	l      net.Listener
	served chan error
	client *http.Client
}

func (w *world) agent(ref string) *agent {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	a := &agent{t: w.t, id: uuid.New(), l: l, base: "http://" + l.Addr().String() + gateway.BasePath, served: make(chan error, 1), client: &http.Client{Transport: &http.Transport{}}}
	go func() { a.served <- w.Serve(a.id, l) }()
	a.token = w.grant(a.id, ref)
	w.t.Cleanup(func() {
		a.client.CloseIdleConnections()
		_ = l.Close()
		if err := <-a.served; err != nil {
			w.t.Errorf("serve: %v", err)
		}
	})
	return a
}

func (w *world) grant(id uuid.UUID, ref string) string {
	w.t.Helper()
	r, err := model.ParseRef(ref)
	if err != nil {
		w.t.Fatal(err)
	}
	token, _, err := w.Grant(id, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

// request makes one as a runtime does; a nil body is a GET.
func (a *agent) request(ctx context.Context, path, body string) *http.Request {
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(ctx, method, a.base+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+a.token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

func (a *agent) do(r *http.Request) (*http.Response, string) {
	a.t.Helper()
	res, err := a.client.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatalf("after %d bytes: %v", len(text), err)
	}
	var all bytes.Buffer
	_ = res.Write(&all)
	if got := all.String() + string(text); strings.Contains(got, realKey) {
		a.t.Errorf("the agent got the key:\n%s", got)
	}
	return res, string(text)
}

func (a *agent) chat(body string) (*http.Response, string) {
	a.t.Helper()
	return a.do(a.request(context.Background(), "/chat/completions", body))
}

func code(text string) string {
	var body struct {
		Error struct{ Code, Message, Type string }
	}
	if err := json.Unmarshal([]byte(text), &body); err != nil || body.Error.Message == "" {
		return "no error in " + text
	}
	return body.Error.Code
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func providers(base string) string {
	return fmt.Sprintf("providers:\n  - name: acme\n    api-base: %s/v1\n    api-key: %s\n    models: [big/one, small]\n", base, realKey)
}

const hello = `{"model":"big/one","messages":[{"role":"user","content":"hello <you> & me"}]}`

// Invariant: a provider sees the real key, the granted model and the messages, and nothing else of
// the agent. The worst three: the agent's own Authorization, a run id, a cookie.
func TestACallReachesTheProviderWithTheRealKeyAndNothingElse(t *testing.T) {
	t.Parallel()
	v := newVendor(t, say("hi"))
	a := newWorld(t, providers(v.URL), gateway.Options{}).agent("acme/big/one")
	r := a.request(context.Background(), "/chat/completions", strings.Replace(hello, "big/one", "acme/big/one", 1))
	for _, h := range []string{"Otters-Run", "Traceparent", "Cookie", "Forwarded", "X-Forwarded-For", "Openai-Organization", "X-Api-Key", "Te", "Proxy-Authorization", "Accept-Encoding"} {
		r.Header.Set(h, "from-the-agent")
	}
	res, text := a.do(r)
	if res.StatusCode != 200 || !strings.Contains(text, `"content":"hi"`) {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	got, body := v.last(t)
	if got.Header.Get("Authorization") != "Bearer "+realKey || got.URL.Path != "/v1/chat/completions" || got.Host != strings.TrimPrefix(v.URL, "http://") {
		t.Errorf("the vendor saw %s %s %v", got.Host, got.URL, got.Header)
	}
	for name, values := range got.Header {
		switch name {
		case "Authorization", "Content-Type", "Content-Length", "Accept", "User-Agent":
		default:
			t.Errorf("the vendor saw %s: %q", name, values)
		}
		if strings.Contains(strings.Join(values, ""), "from-the-agent") || strings.Contains(strings.Join(values, ""), "otr_") {
			t.Errorf("the vendor saw %s: %q", name, values)
		}
	}
	var sent struct {
		Model    string
		Messages []struct{ Content string }
	}
	if err := json.Unmarshal([]byte(body), &sent); err != nil || sent.Model != "big/one" || sent.Messages[0].Content != "hello <you> & me" {
		t.Errorf("the vendor read %s, %v", body, err)
	}
}

// Worst three: another agent's token (A6), a token after rotation (A6), one after the agent stopped
// (A6).
func TestA6OnlyTheAgentsCurrentTokenOpens(t *testing.T) {
	t.Parallel()
	v := newVendor(t, say("hi"))
	w := newWorld(t, providers(v.URL), gateway.Options{})
	a, b := w.agent("acme/big/one"), w.agent("acme/big/one")
	own := a.token
	try := func(name, header string, want int) {
		t.Helper()
		for _, path := range []string{"/chat/completions", "/models", "/nothing"} {
			body := hello
			if path != "/chat/completions" {
				body = ""
			}
			r := a.request(context.Background(), path, body)
			r.Header.Del("Authorization")
			if header != "" {
				r.Header.Set("Authorization", header)
			}
			res, text := a.do(r)
			expect := want
			if path == "/nothing" && want == 200 {
				expect = 404
			}
			if res.StatusCode != expect {
				t.Errorf("%s: %s answered %d %s, want %d", name, path, res.StatusCode, text, expect)
			}
		}
	}
	try("own token", "Bearer "+own, 200)
	try("no token", "", 401)
	try("another agent's", "Bearer "+b.token, 401)
	try("the real key", "Bearer "+realKey, 401)
	try("basic", "Basic "+own, 401)
	try("its beginning", "Bearer "+own[:len(own)-1], 401)
	fresh := w.grant(a.id, "acme/big/one")
	try("after rotation, the old", "Bearer "+own, 401)
	try("after rotation, the new", "Bearer "+fresh, 200)
	w.Revoke(a.id)
	try("after the end", "Bearer "+fresh, 401)
	if v.count() != 2 {
		t.Errorf("the vendor saw %d calls, want 2", v.count())
	}
	if res, _ := b.chat(hello); res.StatusCode != 200 {
		t.Errorf("the other agent: %d", res.StatusCode)
	}
}

func TestARestoredGrantKeepsItsToken(t *testing.T) {
	t.Parallel()
	v := newVendor(t, say("hi"))
	before, after := newWorld(t, providers(v.URL), gateway.Options{}), newWorld(t, providers(v.URL), gateway.Options{})
	ref := model.Ref{Provider: "acme", Name: "big/one"}
	a := after.agent("acme/small")
	token, hash, err := before.Grant(a.id, ref)
	if err != nil {
		t.Fatal(err)
	}
	after.Restore(a.id, ref, hash)
	if res, _ := a.chat(hello); res.StatusCode != 401 {
		t.Errorf("the replaced token: %d", res.StatusCode)
	}
	a.token = token
	if res, text := a.chat(hello); res.StatusCode != 200 {
		t.Errorf("the restored token: %d %s", res.StatusCode, text)
	}
}

// Worst three: the model given twice, given in another case to a server that does not mind, and a
// list of models to fall back to.
func TestOnlyTheGrantedModelIsCalled(t *testing.T) {
	t.Parallel()
	v := newVendor(t, say("hi"))
	w := newWorld(t, providers(v.URL), gateway.Options{})
	a := w.agent("acme/big/one")
	for _, tc := range []struct {
		body, want string
		status     int
	}{
		{hello, "", 200},
		{`{"model":"acme/big/one"}`, "", 200},
		{`{"model":"small"}`, "model_not_granted", 403},
		{`{"model":"acme/small"}`, "model_not_granted", 403},
		{`{"model":"other/big/one"}`, "model_not_granted", 403},
		{`{"model":"one"}`, "model_not_granted", 403},
		{`{"model":"big/one","model":"small"}`, "model_not_granted", 403},
		{`{"model":"small","model":"big/one"}`, "", 200}, // counts once: the vendor sees one
		{`{"model":"big/one","MODEL":"small"}`, "field_not_allowed", 400},
		{`{"model":"big/one","models":["small"]}`, "field_not_allowed", 400},
		{`{"model":"big/one","fallbacks":["small"]}`, "field_not_allowed", 400},
		{`{"model":7}`, "model_missing", 400},
		{`{}`, "model_missing", 400},
		{`{"model":"big/one","stream":"yes"}`, "stream_invalid", 400},
		{`[]`, "invalid_json", 400},
		{`null`, "invalid_json", 400},
		{`{"model":"big/one"`, "invalid_json", 400},
		{`{"model":"big/one"} {"model":"small"}`, "invalid_json", 400},
		{strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000), "invalid_json", 400},
	} {
		before := v.count()
		res, text := a.chat(tc.body)
		if res.StatusCode != tc.status || tc.want != "" && code(text) != tc.want {
			t.Errorf("%.60s: %d %s, want %d %s", tc.body, res.StatusCode, text, tc.status, tc.want)
		}
		if passed := v.count() - before; (passed == 1) != (tc.status == 200) {
			t.Errorf("%.60s: the vendor saw %d calls", tc.body, passed)
		}
		if tc.status == 200 {
			if _, body := v.last(t); strings.Count(body, "model") != 1 || strings.Contains(body, "small") {
				t.Errorf("%.60s: the vendor read %s", tc.body, body)
			}
		}
	}
	if res, text := a.do(a.request(context.Background(), "/models", "")); res.StatusCode != 200 || !strings.Contains(text, `"id":"big/one"`) || strings.Contains(text, "small") {
		t.Errorf("models: %d %s", res.StatusCode, text)
	}
}

func TestTheDoorRefusesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	v := newVendor(t, say("hi"))
	a := newWorld(t, providers(v.URL), gateway.Options{}).agent("acme/big/one")
	for _, tc := range []struct {
		name   string
		change func(*http.Request)
		status int
	}{
		{"as it should be", func(*http.Request) {}, 200},
		{"A1 another host", func(r *http.Request) { r.Host = "evil.test" }, 421},
		{"A2 a web page", func(r *http.Request) { r.Header.Set("Origin", "http://evil.test") }, 403},
		{"A2 a text post", func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415},
		{"another method", func(r *http.Request) { r.Method = http.MethodPut }, 405},
		{"another path", func(r *http.Request) { r.URL.Path = "/v1/embeddings" }, 404},
		{"A7 a path with dots", func(r *http.Request) { r.URL.Path = "/v1/x/../chat/completions" }, 404},
		{"a query", func(r *http.Request) { r.URL.RawQuery = "x=1" }, 400},
		{"a compressed body", func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, 415},
		{"a body over the bound", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(io.LimitReader(spaces{}, 33<<20)), 33<<20
		}, 413},
		{"a body over the bound that does not say so", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(io.LimitReader(spaces{}, 33<<20)), -1
		}, 413},
		{"headers over the bound", func(r *http.Request) { r.Header.Set("X-Large", strings.Repeat("x", 80<<10)) }, 431},
	} {
		before := v.count()
		r := a.request(context.Background(), "/chat/completions", hello)
		tc.change(r)
		res, err := a.client.Do(r)
		if err != nil {
			// The server may hang up on a body that it will not read.
			if tc.status != 413 {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		_ = res.Body.Close()
		if res.StatusCode != tc.status {
			t.Errorf("%s: %d, want %d", tc.name, res.StatusCode, tc.status)
		}
		if passed := v.count() - before; (passed == 1) != (tc.status == 200) {
			t.Errorf("%s: the vendor saw %d calls", tc.name, passed)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Access-Control-Allow-Origin": ""} {
			if got := res.Header.Get(name); got != want && tc.status != 431 {
				t.Errorf("%s: %s %q, want %q", tc.name, name, got, want)
			}
		}
	}
}

type spaces struct{}

var blank = bytes.Repeat([]byte(" "), 32<<10)

func (spaces) Read(p []byte) (int, error) { return copy(p, blank), nil }

func TestCheckSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, providers("http://127.0.0.1:1")+"  - name: env\n    api-base: https://e.test\n    api-key: $OTTERS_TEST_NO_SUCH_KEY\n", gateway.Options{})
	for ref, want := range map[model.Ref]error{
		{Provider: "offline", Name: "otter"}: nil,
		{Provider: "offline", Name: "other"}: gateway.ErrModelNotAllowed,
		{Provider: "acme", Name: "small"}:    nil,
		{Provider: "acme", Name: "large"}:    gateway.ErrModelNotAllowed,
		{Provider: "nobody", Name: "small"}:  gateway.ErrUnknownProvider,
		{Provider: "env", Name: "any"}:       gateway.ErrProviders,
		{}:                                   gateway.ErrUnknownProvider,
	} {
		err := w.Check(ref)
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", ref, err, want)
		}
		if _, _, gerr := w.Grant(uuid.New(), ref); (gerr == nil) != (err == nil) {
			t.Errorf("%s: check %v, grant %v", ref, err, gerr)
		}
		if err != nil && ref.Provider != "offline" && !strings.Contains(err.Error(), w.file) {
			t.Errorf("%v does not name the file", err)
		}
	}
	none := gateway.New(gateway.Options{})
	if err := none.Check(model.Ref{Provider: "acme", Name: "small"}); !errors.Is(err, gateway.ErrUnknownProvider) {
		t.Errorf("without a file: %v", err)
	}
}
