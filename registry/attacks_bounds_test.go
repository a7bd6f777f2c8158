package registry_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/otters-sh/otters/registry"
)

// A request's header lines are bounded, whether their names differ or not.
func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for n, want := range map[int]int{100: 200, 128: 431, 5000: 431} {
		for _, name := range []string{"X-Same", "X-%d"} {
			var text strings.Builder
			fmt.Fprintf(&text, "GET /v2/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n", token)
			for i := range n {
				fmt.Fprintf(&text, "%s: x\r\n", strings.Replace(name, "%d", fmt.Sprint(i), 1))
			}
			if status, code := s.raw(t, text.String()+"\r\n", false); status != want || want != 200 && code != "UNSUPPORTED" {
				t.Errorf("%d lines %s: %d %s, want %d", n, name, status, code, want)
			}
		}
	}
}

func TestRequestsAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	s := serve(t, openStore(t, t.TempDir(), registry.Options{}), registry.HandlerOptions{MaxRequests: 1})
	at := s.start("/v2/r/blobs/uploads/")
	r, w := io.Pipe()
	req, err := http.NewRequest("PATCH", "http://"+s.host+at, r)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	// The body is sent when the server asks for it, which it does in its place.
	req.Header.Set("Expect", "100-continue")
	done := make(chan error, 1)
	go func() {
		resp, err := s.client.RoundTrip(req)
		if err == nil && resp.StatusCode != http.StatusAccepted {
			err = fmt.Errorf("the other request: %s", resp.Status)
		}
		if err == nil {
			err = resp.Body.Close()
		}
		_ = r.CloseWithError(io.ErrClosedPipe)
		done <- err
	}()
	if _, err := w.Write([]byte("first")); err != nil {
		t.Fatal(err, <-done)
	}
	s.want(s.do("GET", "/v2/", nil), 429, "TOOMANYREQUESTS")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.want(s.do("GET", "/v2/", nil), 200, "")
}
