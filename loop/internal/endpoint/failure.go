package endpoint

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/otters-sh/otters/loop"
)

// maxMessage bounds what is taken over from a provider's error text, in bytes.
const maxMessage = 500

// Explain turns what went wrong into a *loop.CallError with one line. known fills in what it knows of
// the error, which is then told so. A cancelled context's error is left alone, since that is not the
// model's.
func (e *Endpoint) Explain(ctx context.Context, err error, known func(*loop.CallError) bool) error {
	var call *loop.CallError
	if errors.As(err, &call) {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	call = &loop.CallError{Err: err}
	var dial *url.Error
	switch {
	case errors.Is(err, errRedirect):
		call.Message = errRedirect.Error()
	case known(call):
	case errors.As(err, &dial):
		call.Message = "cannot be reached: " + dial.Err.Error()
	default:
		call.Message = "answer cannot be read: " + err.Error()
	}
	call.Code = e.line(call.Code)
	call.Message = e.line("model " + e.Model + ": " + call.Message)
	return call
}

// Refused is the error of a request that cannot be written in the model's format.
func (e *Endpoint) Refused(err error) error {
	return &loop.CallError{Message: e.line("model " + e.Model + ": " + err.Error()), Err: err}
}

// line makes s one bounded line of valid UTF-8 without the key, should a provider repeat it.
func (e *Endpoint) line(s string) string {
	if e.APIKey != "" {
		s = strings.ReplaceAll(s, e.APIKey, "…")
	}
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if len(s) > maxMessage {
		s = s[:maxMessage] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
