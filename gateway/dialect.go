package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/otters-sh/otters/internal/gate"
	"github.com/otters-sh/otters/model"
)

// AnthropicProvider is the provider that speaks Messages; every other one speaks Chat Completions.
const AnthropicProvider = "anthropic"

// anthropicBase is where it is reached unless the file says otherwise.
const anthropicBase = "https://api.anthropic.com"

// anthropicVersion is what a caller that names no version speaks.
const anthropicVersion = "2023-06-01"

// APIBase is what the agent of ref is given as its API base when address is its listener's: for
// Messages without a path, since its clients add /v1 themselves, and with BasePath for all others.
func APIBase(ref model.Ref, address string) string {
	if dialectOf(ref.Provider) == messages {
		return "http://" + address
	}
	return "http://" + address + BasePath
}

// dialect is a wire format of model calls: how a caller shows its token, how a call goes to the
// provider, and how errors look.
type dialect int

const (
	completions dialect = iota // OpenAI Chat Completions
	messages                   // Anthropic Messages
)

func dialectOf(provider string) dialect {
	if provider == AnthropicProvider {
		return messages
	}
	return completions
}

// callPaths are the paths of calls that cost, with what is appended to a provider's base for each.
var callPaths = map[string]struct {
	speaks dialect
	target []string
}{
	BasePath + "/chat/completions":      {completions, []string{"chat", "completions"}},
	BasePath + "/messages":              {messages, []string{"v1", "messages"}},
	BasePath + "/messages/count_tokens": {messages, []string{"v1", "messages", "count_tokens"}},
}

// dialectFor is what the sender of r understands.
func dialectFor(r *http.Request) dialect {
	if p, ok := callPaths[r.URL.Path]; ok {
		return p.speaks
	}
	if r.Header.Get("Anthropic-Version") != "" {
		return messages
	}
	return completions
}

func (d dialect) String() string {
	if d == messages {
		return "Anthropic Messages, at " + BasePath + "/messages"
	}
	return "OpenAI Chat Completions, at " + BasePath + "/chat/completions"
}

// token is what the caller shows. A Messages caller has it in X-Api-Key, or as a bearer token.
func (d dialect) token(h http.Header) string {
	if keys := h.Values("X-Api-Key"); d == messages && len(keys) > 0 {
		if len(keys) > 1 {
			return ""
		}
		return keys[0]
	}
	token, _ := gate.BearerToken(h)
	return token
}

// prepare completes the headers of a call on its way to a provider. Of the agent's own headers the
// version of the format passes, and no other: what else providers read of them opens features that
// nobody has allowed.
func (d dialect) prepare(to, from http.Header, key string) {
	if d == messages {
		to.Set("Anthropic-Version", anthropicVersion)
		if v := from.Get("Anthropic-Version"); v != "" {
			to.Set("Anthropic-Version", v)
		}
	}
	switch {
	case key == "":
	case d == messages:
		to.Set("X-Api-Key", key)
	default:
		to.Set("Authorization", "Bearer "+key)
	}
}

// checkVersion refuses what is no version of Messages, which are dates.
func (d dialect) checkVersion(h http.Header) error {
	values := h.Values("Anthropic-Version")
	if d != messages || len(values) == 0 {
		return nil
	}
	v := values[0]
	if len(values) > 1 || len(v) != len(anthropicVersion) || strings.Trim(v, "0123456789-") != "" {
		return badRequest("version_invalid", "anthropic-version: not one version; send %s", anthropicVersion)
	}
	return nil
}

// errorBody is f in the shape that clients of the format know.
func (d dialect) errorBody(f refusal) []byte {
	type openAI struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	type anthropic struct {
		Type    string `json:"type"`
		Message string `json:"message"`
		// Code is ours: clients ignore it, people and tests do not.
		Code string `json:"code"`
	}
	var body any = map[string]openAI{"error": {f.message, f.kind, nil, f.code}}
	if d == messages {
		body = struct {
			Type  string    `json:"type"`
			Error anthropic `json:"error"`
		}{"error", anthropic{anthropicType(f), f.message, f.code}}
	}
	// Strings always marshal.
	text, _ := json.Marshal(body)
	return text
}

// anthropicType is the error type that goes with a status where Messages has one of its own.
func anthropicType(f refusal) string {
	switch f.status {
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	return f.kind
}

// event is a server-sent event that carries an error.
func (d dialect) event(f refusal) []byte {
	if d == messages {
		return fmt.Appendf(nil, "event: error\ndata: %s\n\n", d.errorBody(f))
	}
	return fmt.Appendf(nil, "data: %s\n\n", d.errorBody(f))
}

// checkBase refuses the base of a provider that its dialect would make a wrong address of.
func (d dialect) checkBase(base *url.URL) string {
	if d == messages && strings.HasSuffix(strings.TrimRight(base.Path, "/"), "/v1") {
		return "api-base: ends in /v1, which a call of Messages brings along; leave it out, as in " + anthropicBase
	}
	return ""
}
