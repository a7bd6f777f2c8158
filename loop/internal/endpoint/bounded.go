package endpoint

import (
	"fmt"
	"io"
	"net/http"
)

const (
	// maxAnswer is what is read of an answer, in bytes: with all that surrounds it on the wire, a
	// longer one than the loop takes.
	maxAnswer = 128 << 20
	// maxError is what is read of an error, in bytes; the rest is left out.
	maxError = 64 << 10
)

// bounded bounds what is read of answers.
type bounded struct{ base http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= http.StatusBadRequest {
		res.Body = &limited{ReadCloser: res.Body, left: maxError, end: io.EOF}
	} else {
		res.Body = &limited{ReadCloser: res.Body, left: maxAnswer, end: fmt.Errorf("longer than its limit of %d bytes", maxAnswer)}
	}
	return res, nil
}

// limited ends with end where its limit is.
type limited struct {
	io.ReadCloser
	left int64
	end  error
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, l.end
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}
