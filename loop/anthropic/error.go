package anthropic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go"

	"github.com/otters-sh/otters/loop"
)

// explain turns what went wrong into a *loop.CallError, whose code is the provider's type of error.
func (m *Model) explain(ctx context.Context, err error) error {
	return m.at.Explain(ctx, err, func(call *loop.CallError) bool {
		var api *anthropic.Error
		if !errors.As(err, &api) {
			return false
		}
		var body struct {
			Error struct{ Message string }
		}
		_ = json.Unmarshal([]byte(api.RawJSON()), &body) // no JSON is told as it is
		call.Code = string(api.Type())
		text := cmp.Or(body.Error.Message, api.RawJSON(), http.StatusText(api.StatusCode))
		if api.StatusCode < http.StatusBadRequest {
			// The answer had begun.
			call.Message = "broke off: " + text
			return true
		}
		call.Status = api.StatusCode
		call.Message = fmt.Sprintf("%d %s", api.StatusCode, text)
		return true
	})
}
