package daemon

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"
)

// bodyTimeout is how long nothing may come of a request over HTTP/1.1 of which more is to come.
const bodyTimeout = time.Minute

// patient ends requests that say they have a body and send nothing of it for so long, which would hold
// their connections for ever. A stream may last as long as it likes: what has come whole waits for
// nothing, and an answer has no bound.
func patient(next http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &patientBody{ReadCloser: r.Body, conn: http.NewResponseController(w), timeout: timeout}
		// It holds for what the server reads of a body that nobody asked for, too.
		if err := b.conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
			http.Error(w, "the request can't be bounded in time", http.StatusInternalServerError)
			return
		}
		bounded := *r
		bounded.Body = b
		next.ServeHTTP(w, &bounded)
	})
}

type patientBody struct {
	io.ReadCloser
	conn    *http.ResponseController
	timeout time.Duration
	err     error
}

// Read waits for the next bytes, and after their end takes the bound away.
func (b *patientBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if err := b.conn.SetReadDeadline(time.Now().Add(b.timeout)); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		if failed := b.conn.SetReadDeadline(time.Time{}); failed != nil {
			err = failed
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("request body: nothing came for %s; send all that Content-Length says", b.timeout))
	}
	b.err = err
	return n, err
}
