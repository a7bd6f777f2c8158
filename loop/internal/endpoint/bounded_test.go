package endpoint

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// endless answers with a status and a body that has no end.
type endless int

func (e endless) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(e), Body: io.NopCloser(e)}, nil
}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Invariant: no answer is read without an end. Worst inputs: an error page without one, a stream
// without one.
func TestAnswersWithoutAnEndAreCut(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]struct {
		size int64
		says string
	}{
		http.StatusInternalServerError: {maxError, ""},
		http.StatusOK:                  {maxAnswer, "longer than its limit of 134217728 bytes"},
	} {
		e := Endpoint{BaseURL: "http://x", Model: "m", Transport: endless(status)}
		if err := e.Check(); err != nil {
			t.Fatal(err)
		}
		res, err := e.Client().Get(e.BaseURL)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, make([]byte, 1<<20))
		if n != want.size || (err == nil) != (want.says == "") || err != nil && !strings.Contains(err.Error(), want.says) {
			t.Errorf("status %d: %d bytes, %v", status, n, err)
		}
	}
}
