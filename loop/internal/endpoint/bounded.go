package endpoint

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// maxAnswer is what is read of an answer, in bytes: with all that surrounds it on the wire, a
	// longer one than the loop takes.
	maxAnswer = 128 << 20
	// maxError is what is read of an error, in bytes; the rest is left out.
	maxError = 64 << 10
	// maxRest and restWait are what an answer may still say after its last event, in bytes and in
	// time, for its connection to be used again.
	maxRest  = 4 << 10
	restWait = 20 * time.Millisecond
)

// bounded bounds what is read of answers, and how long their end is waited for.
type bounded struct {
	base http.RoundTripper
	rest time.Duration
}

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	res, err := b.base.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	body := &limited{ReadCloser: res.Body, left: maxAnswer, end: fmt.Errorf("longer than its limit of %d bytes", maxAnswer), rest: b.rest, cancel: cancel}
	if res.StatusCode >= http.StatusBadRequest {
		body.left, body.end = maxError, io.EOF
	}
	res.Body = body
	return res, nil
}

// limited ends with end where its limit is.
type limited struct {
	io.ReadCloser
	left   int64
	end    error
	rest   time.Duration
	cancel context.CancelFunc
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, l.end
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// Close reads what is left where that is little and there, since a connection is used again only if its
// answer was read whole, and streams are closed at their last event.
func (l *limited) Close() error {
	defer l.cancel()
	late := time.AfterFunc(l.rest, l.cancel)
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, l.ReadCloser, maxRest)
	return l.ReadCloser.Close()
}
