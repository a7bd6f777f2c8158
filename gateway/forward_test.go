package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/gateway"
	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/model"
)

// Invariant: an answer passes whole, event by event, and with nothing in it that is the provider's
// or the operator's secret. The worst three: a stream cut because its request was still being read,
// a provider that quotes the key, one that falls silent in the middle.

const helloStream = `{"model":"big/one","stream":true,"messages":[]}`

func TestNoEventOf500StreamsIsLost(t *testing.T) {
	t.Parallel()
	v := newVendor(t, sayEvents(20))
	w := newWorld(t, providers(v.URL), gateway.Options{})
	agents := []*agent{w.agent("acme/big/one"), w.agent("acme/big/one"), w.agent("acme/big/one"), w.agent("acme/big/one")}
	large := strings.Replace(helloStream, "[]", `[{"role":"user","content":"`+strings.Repeat("x", 20000)+`"}]`, 1)
	var wg sync.WaitGroup
	for _, a := range agents {
		wg.Go(func() {
			for i := range 125 {
				body := helloStream
				if i%2 == 0 {
					body = large
				}
				res, text := a.chat(body)
				if res.StatusCode != 200 || strings.Count(text, "data: {") != 20 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
					t.Errorf("call %d: %d, %d events", i, res.StatusCode, strings.Count(text, "data: {"))
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestEventsPassOneByOneAndCancelTravels(t *testing.T) {
	t.Parallel()
	step, gone := make(chan struct{}), make(chan struct{})
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			fmt.Fprint(w, "data: {}\n\n")
			w.(http.Flusher).Flush()
			select {
			case <-step:
			case <-r.Context().Done():
				close(gone)
				return
			}
		}
	})
	a := newWorld(t, providers(v.URL), gateway.Options{}).agent("acme/big/one")
	ctx, cancel := context.WithCancel(context.Background())
	res, err := a.client.Do(a.request(ctx, "/chat/completions", helloStream))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	part := make([]byte, len("data: {}\n\n"))
	for range 5 {
		// The vendor says the next event only after this one has arrived.
		if _, err := io.ReadFull(res.Body, part); err != nil {
			t.Fatal(err)
		}
		step <- struct{}{}
	}
	cancel()
	<-gone
}

func TestAnswersLoseWhatIsSecret(t *testing.T) {
	t.Parallel()
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		quoted := r.Header.Get("Authorization")
		h := w.Header()
		h.Set("Link", "</x>; rel=preload; as="+realKey)
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
		h.Set("Set-Cookie", "session=1")
		h.Set("Openai-Organization", "acme-inc")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("X-Request-Id", "req-1")
		h.Set("Retry-After", "7")
		h.Set("X-Ratelimit-Remaining-Tokens", "3")
		h.Set("X-Ratelimit-Owner", realKey)
		h.Set("Trailer", "X-Key")
		h.Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTooManyRequests)
		half := len(quoted) / 2
		fmt.Fprintf(w, `{"error":{"message":"slow down, %s`, quoted[:half])
		w.(http.Flusher).Flush()
		fmt.Fprintf(w, `%s, and %s"}}`, quoted[half:], quoted)
		h.Set("X-Key", realKey)
	})
	a := newWorld(t, providers(v.URL), gateway.Options{}).agent("acme/big/one")
	res, text := a.chat(hello)
	want := strings.Repeat("*", len(realKey))
	if res.StatusCode != 429 || text != `{"error":{"message":"slow down, Bearer `+want+`, and Bearer `+want+`"}}` {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	for name, want := range map[string]string{
		"X-Request-Id": "req-1", "Retry-After": "7", "X-Ratelimit-Remaining-Tokens": "3",
		"Set-Cookie": "", "Openai-Organization": "", "Access-Control-Allow-Origin": "", "X-Ratelimit-Owner": "", "Link": "",
		"X-Content-Type-Options": "nosniff",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if len(res.Trailer) != 0 {
		t.Errorf("trailers %v", res.Trailer)
	}
}

func TestAFailingProviderIsOneClearLine(t *testing.T) {
	t.Parallel()
	var elsewhere int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	nobody, free, err := modelserver.Refusing()
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		status int
		says   string
	}{
		{"its own error passes", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(529)
			fmt.Fprint(w, `{"error":{"message":"overloaded"}}`)
		}, 529, "overloaded"},
		{"a redirect is not followed", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, 502, "redirect"},
		{"an encoding is not passed", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "x")
		}, 502, "encoding"},
		{"no HTTP", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			fmt.Fprint(conn, "what?\r\n\r\n")
			_ = conn.Close()
		}, 502, "no answer"},
		{"a switch of protocols", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			_ = conn.Close()
		}, 502, "no answer"},
		{"nobody listens", nil, 502, "refused the connection"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			base := nobody
			if tc.answer != nil {
				base = newVendor(t, tc.answer).URL
			}
			a := newWorld(t, providers(base), gateway.Options{}).agent("acme/big/one")
			res, text := a.chat(hello)
			if res.StatusCode != tc.status || !strings.Contains(text, tc.says) || strings.Count(text, "\n") > 0 {
				t.Errorf("%d %s", res.StatusCode, text)
			}
			if strings.Contains(text, "127.0.0.1") {
				t.Errorf("the address is told: %s", text)
			}
		})
	}
	if elsewhere != 0 {
		t.Error("the redirect was followed")
	}
}

func TestAStreamThatBreaksSaysSo(t *testing.T) {
	t.Parallel()
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	a := newWorld(t, providers(v.URL), gateway.Options{}).agent("acme/big/one")
	if _, text := a.chat(helloStream); !strings.HasPrefix(text, "data: {}\n\ndata: {\"error\"") || !strings.Contains(text, "broke its answer off") {
		t.Errorf("got %q", text)
	}
	half := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {}\n\ndata: {\"half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	a = newWorld(t, providers(half.URL), gateway.Options{}).agent("acme/big/one")
	res, err := a.client.Do(a.request(context.Background(), "/chat/completions", helloStream))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("half an event passed for a whole answer: %q", text)
	}
}

func TestAnEditOfTheFileCountsFromTheNextCall(t *testing.T) {
	t.Parallel()
	v := newVendor(t, say("hi"))
	w := newWorld(t, providers(v.URL), gateway.Options{})
	a := w.agent("acme/big/one")
	offline := w.agent("offline/otter")
	ref := model.Ref{Provider: "acme", Name: "big/one"}
	good := providers(v.URL)
	for _, tc := range []struct {
		name, text string
		status     int
		want       error
	}{
		{"as it was", good, 200, nil},
		{"narrowed", strings.Replace(good, "big/one, ", "", 1), 403, gateway.ErrModelNotAllowed},
		{"widened", strings.Replace(good, "[big/one, small]", "[]", 1), 200, nil},
		{"broken", good + "    colour: red\n", 503, gateway.ErrProviders},
		{"emptied", "", 403, gateway.ErrUnknownProvider},
		{"mended", good, 200, nil},
	} {
		w.write(tc.text)
		if res, text := a.chat(hello); res.StatusCode != tc.status || strings.Contains(text, w.file) {
			t.Errorf("%s: %d %s, want %d", tc.name, res.StatusCode, text, tc.status)
		}
		if err := w.Check(ref); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		if res, text := offline.chat(`{"model":"otter","messages":[{"role":"user","content":"x"}]}`); res.StatusCode != 200 {
			t.Errorf("%s: the offline model: %d %s", tc.name, res.StatusCode, text)
		}
	}
	if err := os.Chmod(w.file, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := w.Check(ref); !errors.Is(err, gateway.ErrProviders) || !strings.Contains(err.Error(), "mode 0640") {
		t.Errorf("after chmod 0640: %v", err)
	}
	if err := os.Remove(w.file); err != nil {
		t.Fatal(err)
	}
	if err := w.Check(ref); !errors.Is(err, gateway.ErrUnknownProvider) {
		t.Errorf("after removal: %v", err)
	}
}

// inFlight is a vendor whose streams stay open, and a call that has had its first event.
func inFlight(t *testing.T) (w *world, a *agent, body *bufio.Reader, finish chan struct{}) {
	t.Helper()
	finish = make(chan struct{})
	v := newVendor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-finish:
			fmt.Fprint(w, "data: [DONE]\n\n")
		case <-r.Context().Done():
		}
	})
	w = newWorld(t, providers(v.URL), gateway.Options{})
	a = w.agent("acme/big/one")
	res, err := a.client.Do(a.request(context.Background(), "/chat/completions", helloStream))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	body = bufio.NewReader(res.Body)
	if line, err := body.ReadString('\n'); err != nil || line != "data: {}\n" {
		t.Fatal(line, err)
	}
	return w, a, body, finish
}

func TestCloseWaitsForACallThatEnds(t *testing.T) {
	t.Parallel()
	w, a, body, finish := inFlight(t)
	closed := make(chan error)
	go func() { closed <- w.Close(context.Background()) }()
	// The listener closes first, so from then on nothing new comes in.
	for a.l.(*net.TCPListener).SetDeadline(time.Time{}) == nil {
		runtime.Gosched()
	}
	select {
	case err := <-closed:
		t.Fatalf("closed while a call was in flight: %v", err)
	default:
	}
	close(finish)
	if rest, err := io.ReadAll(body); err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the call ended with %q, %v", rest, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Serve(uuid.New(), l); !errors.Is(err, gateway.ErrClosed) {
		t.Errorf("serve after close: %v", err)
	}
}

func TestACallThatIsCutOffIsToldWhy(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		cut  func(*testing.T, *world, *agent)
		says string
	}{
		{"by the end of the daemon", func(t *testing.T, w *world, _ *agent) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := w.Close(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("close: %v", err)
			}
		}, "stopping"},
		{"by the end of the grant", func(_ *testing.T, w *world, a *agent) { w.Revoke(a.id) }, "withdrawn"},
		{"by the end of the listener", func(t *testing.T, _ *world, a *agent) {
			_ = a.l.Close()
			if err := <-a.served; err != nil {
				t.Errorf("serve: %v", err)
			}
			a.served <- nil
		}, "stopping"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, a, body, _ := inFlight(t)
			tc.cut(t, w, a)
			if rest, err := io.ReadAll(body); err != nil || !strings.Contains(string(rest), `"error"`) || !strings.Contains(string(rest), tc.says) {
				t.Errorf("the call ended with %q, %v", rest, err)
			}
		})
	}
}

func TestOneAgentCannotHaveTooManyCalls(t *testing.T) {
	t.Parallel()
	finish := make(chan struct{})
	v := newVendor(t, func(http.ResponseWriter, *http.Request) { <-finish })
	w := newWorld(t, providers(v.URL), gateway.Options{})
	a, b := w.agent("acme/big/one"), w.agent("offline/otter")
	results := make(chan int)
	const many = 70
	for range many {
		go func() {
			res, _ := a.chat(hello)
			results <- res.StatusCode
		}()
	}
	for range many - 64 {
		if got := <-results; got != http.StatusTooManyRequests {
			t.Errorf("status %d, want 429", got)
		}
	}
	if res, _ := b.chat(`{"model":"otter","messages":[{"role":"user","content":"x"}]}`); res.StatusCode != 200 {
		t.Errorf("another agent: %d", res.StatusCode)
	}
	close(finish)
	for range 64 {
		if got := <-results; got != 200 {
			t.Errorf("status %d, want 200", got)
		}
	}
}
