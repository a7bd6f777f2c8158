package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/otters-sh/otters/model"
)

// request is a model call, of which only what the gateway decides on is parsed. What that is stands
// in the same fields in both formats.
type request struct {
	body   []byte // as it is forwarded: one model field, and it is the granted one
	stream bool
}

// parseRequest checks the body of a call against what was granted. The body is written anew from
// what was read, so that the provider cannot read another model out of it than was checked: a field
// given twice counts once, and one that differs from "model" in case alone is refused.
func parseRequest(body []byte, granted model.Ref) (request, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		// The reason would quote the body.
		return request{}, badRequest("invalid_json", "body: not a JSON object; send a request of the model's format")
	}
	for name := range fields {
		if name != "model" && strings.EqualFold(name, "model") || strings.EqualFold(name, "models") || strings.EqualFold(name, "fallbacks") {
			return request{}, badRequest("field_not_allowed", "field %q: it would name another model; name the one model in \"model\"", name)
		}
	}
	var asked string
	if err := json.Unmarshal(fields["model"], &asked); err != nil || asked == "" {
		return request{}, badRequest("model_missing", "model: missing or not text; name the granted one, %q", granted.String())
	}
	if asked != granted.Name && asked != granted.String() {
		return request{}, refusal{http.StatusForbidden, "permission_error", "model_not_granted",
			"model " + quoteShort(asked) + ": not granted to this agent; its MODEL is " + granted.String() + ", use that"}
	}
	var req request
	if raw, ok := fields["stream"]; ok && json.Unmarshal(raw, &req.stream) != nil {
		return request{}, badRequest("stream_invalid", "stream: not true or false; send one of them")
	}
	name, err := json.Marshal(granted.Name)
	if err != nil {
		return request{}, err
	}
	fields["model"] = name
	var out bytes.Buffer
	out.Grow(len(body) + len(name))
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(fields); err != nil {
		return request{}, err
	}
	req.body = out.Bytes()
	return req, nil
}

// quoteShort repeats what an agent asked for, as far as a name goes.
func quoteShort(s string) string {
	if len(s) > 100 {
		s = s[:100] + "…"
	}
	text, _ := json.Marshal(s)
	return string(text)
}

// writeModels answers with the one model that the agent may call.
func writeModels(w http.ResponseWriter, ref model.Ref) {
	w.Header().Set("Content-Type", "application/json")
	if dialectOf(ref.Provider) == messages {
		type entry struct {
			Type        string `json:"type"`
			ID          string `json:"id"`
			DisplayName string `json:"display_name"`
			CreatedAt   string `json:"created_at"`
		}
		_ = json.NewEncoder(w).Encode(struct {
			Data    []entry `json:"data"`
			HasMore bool    `json:"has_more"`
			FirstID string  `json:"first_id"`
			LastID  string  `json:"last_id"`
		}{[]entry{{"model", ref.Name, ref.Name, "1970-01-01T00:00:00Z"}}, false, ref.Name, ref.Name})
		return
	}
	type entry struct {
		ID          string `json:"id"`
		Object      string `json:"object"`
		Created     int64  `json:"created"`
		OwnedBy     string `json:"owned_by"`
		Description string `json:"description,omitempty"`
	}
	e := entry{ID: ref.Name, Object: "model", OwnedBy: ref.Provider}
	if ref.Provider == OfflineProvider {
		e.Description = offlineSelf
	}
	_ = json.NewEncoder(w).Encode(struct {
		Object string  `json:"object"`
		Data   []entry `json:"data"`
	}{"list", []entry{e}})
}
