package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/otters-sh/otters/loop"
)

// maxMessage bounds what is taken over from a provider's error text, in bytes.
const maxMessage = 500

// explain turns what went wrong into a *loop.CallError with one line. It leaves a cancelled
// context's error alone, since that is not the model's.
func (m *Model) explain(ctx context.Context, err error) error {
	var known *loop.CallError
	if errors.As(err, &known) {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	call := &loop.CallError{Err: err}
	var api *openai.Error
	var mid *ssestream.StreamError
	var dial *url.Error
	switch {
	case errors.Is(err, errRedirect):
		call.Message = errRedirect.Error()
	case errors.As(err, &api):
		call.Status, call.Code = api.StatusCode, m.line(first(api.Code, api.Type))
		call.Message = fmt.Sprintf("%d %s", api.StatusCode, first(api.Message, api.RawJSON(), http.StatusText(api.StatusCode)))
	case errors.As(err, &mid):
		call.Code, call.Message = streamError(mid)
		call.Code = m.line(call.Code)
	case errors.As(err, &dial):
		call.Message = "cannot be reached: " + dial.Err.Error()
	default:
		call.Message = "answer cannot be read: " + err.Error()
	}
	call.Message = m.line("model " + m.opts.Model + ": " + call.Message)
	return call
}

// streamError reads an error that came in place of a chunk: {"error": {"code", "message"}}, or with a
// string in place of the object.
func streamError(e *ssestream.StreamError) (code, message string) {
	var event struct {
		Error json.RawMessage `json:"error"`
	}
	var body struct {
		Code    any    `json:"code"`
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	if json.Unmarshal(e.Event.Data, &event) != nil {
		return "", "broke off: " + e.Message
	}
	if json.Unmarshal(event.Error, &body) != nil || body.Message == "" {
		return "", "broke off: " + string(event.Error)
	}
	if s, ok := body.Code.(string); ok {
		code = s
	}
	return first(code, body.Type), "broke off: " + body.Message
}

func first(texts ...string) string {
	for _, s := range texts {
		if s != "" {
			return s
		}
	}
	return ""
}

// line makes s one bounded line of valid UTF-8 without the key, should a provider repeat it.
func (m *Model) line(s string) string {
	if m.opts.APIKey != "" {
		s = strings.ReplaceAll(s, m.opts.APIKey, "…")
	}
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if len(s) > maxMessage {
		s = s[:maxMessage] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
