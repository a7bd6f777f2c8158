package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/otters-sh/otters/loop"
)

// explain turns what went wrong into a *loop.CallError.
func (m *Model) explain(ctx context.Context, err error) error {
	return m.at.Explain(ctx, err, func(call *loop.CallError) bool {
		var api *openai.Error
		var mid *ssestream.StreamError
		switch {
		case errors.As(err, &api):
			call.Status, call.Code = api.StatusCode, cmp.Or(api.Code, api.Type)
			call.Message = fmt.Sprintf("%d %s", api.StatusCode, cmp.Or(api.Message, api.RawJSON(), http.StatusText(api.StatusCode)))
		case errors.As(err, &mid):
			call.Code, call.Message = streamError(mid)
		default:
			return false
		}
		return true
	})
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
	return cmp.Or(code, body.Type), "broke off: " + body.Message
}
