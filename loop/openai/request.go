package openai

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"

	"github.com/otters-sh/otters/loop"
)

// params writes a request in the wire's terms. Reasoning is not sent back: the format has no place
// for it.
func (m *Model) params(req loop.Request) (openai.ChatCompletionNewParams, error) {
	p := openai.ChatCompletionNewParams{
		Model:            m.opts.Model,
		Messages:         make([]openai.ChatCompletionMessageParamUnion, 0, len(req.Messages)+1),
		StreamOptions:    openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
		Temperature:      opt(req.Params.Temperature),
		TopP:             opt(req.Params.TopP),
		PresencePenalty:  opt(req.Params.PresencePenalty),
		FrequencyPenalty: opt(req.Params.FrequencyPenalty),
	}
	if req.Params.TopK != nil {
		return p, errors.New("the format has no top-k; leave it out")
	}
	if req.MaxTokens > 0 {
		if m.opts.MaxCompletionTokens {
			p.MaxCompletionTokens = openai.Int(int64(req.MaxTokens))
		} else {
			p.MaxTokens = openai.Int(int64(req.MaxTokens))
		}
	}
	if req.System != "" {
		p.Messages = append(p.Messages, openai.SystemMessage(req.System))
	}
	for _, msg := range req.Messages {
		p.Messages = appendMessage(p.Messages, msg)
	}
	if req.Object != nil {
		if err := setFormat(&p, req.Object); err != nil {
			return p, err
		}
	}
	for _, t := range req.Tools {
		def := shared.FunctionDefinitionParam{Name: t.Name}
		if t.Description != "" {
			def.Description = openai.String(t.Description)
		}
		if len(t.Parameters) > 0 {
			if err := json.Unmarshal(t.Parameters, &def.Parameters); err != nil {
				return p, fmt.Errorf("parameters of tool %s: %w", t.Name, err)
			}
		}
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(def))
	}
	return p, nil
}

func opt(v *float64) param.Opt[float64] {
	if v == nil {
		return param.Opt[float64]{}
	}
	return openai.Float(*v)
}

func appendMessage(to []openai.ChatCompletionMessageParamUnion, msg loop.Message) []openai.ChatCompletionMessageParamUnion {
	switch msg.Role {
	case loop.RoleUser:
		return append(to, userMessage(msg))
	case loop.RoleTool:
		for _, p := range msg.Parts {
			if p.Kind == loop.KindResult {
				to = append(to, openai.ToolMessage(p.Text, p.ID))
			}
		}
		return to
	}
	var a openai.ChatCompletionAssistantMessageParam
	if text := msg.Text(); text != "" {
		a.Content.OfString = openai.String(text)
	}
	for _, p := range msg.Parts {
		if p.Kind != loop.KindCall {
			continue
		}
		a.ToolCalls = append(a.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
			OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
				ID:       p.ID,
				Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: p.Name, Arguments: p.Args},
			},
		})
	}
	if len(a.ToolCalls) == 0 && !a.Content.OfString.Valid() {
		return to // an answer that was reasoning alone
	}
	return append(to, openai.ChatCompletionMessageParamUnion{OfAssistant: &a})
}

// userMessage is text alone where there is no more, since not every server knows parts.
func userMessage(msg loop.Message) openai.ChatCompletionMessageParamUnion {
	parts := []openai.ChatCompletionContentPartUnionParam{openai.TextContentPart(msg.Text())}
	for _, p := range msg.Parts {
		if p.Kind == loop.KindImage {
			url := "data:" + p.MediaType + ";base64," + base64.StdEncoding.EncodeToString(p.Data)
			parts = append(parts, openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: url}))
		}
	}
	if len(parts) == 1 {
		return openai.UserMessage(msg.Text())
	}
	return openai.UserMessage(parts)
}

// setFormat asks for an object of a schema. Servers hold an answer to it strictly only where every
// object of the schema is closed and needs all it names, and refuse strictness for others.
func setFormat(p *openai.ChatCompletionNewParams, f *loop.ObjectFormat) error {
	var schema map[string]any
	if err := json.Unmarshal(f.Schema, &schema); err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	format := shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: formatName(f.Name), Schema: schema, Strict: openai.Bool(closed(schema))}
	if f.Description != "" {
		format.Description = openai.String(f.Description)
	}
	p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{JSONSchema: format}
	return nil
}

// maxFormatName is the format's bound, in bytes.
const maxFormatName = 64

// formatName makes a name of letters, digits, _ and -, which the format demands.
func formatName(name string) string {
	b := []byte(name)
	for i, c := range b {
		if !(c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') {
			b[i] = '_'
		}
	}
	if len(b) == 0 {
		return "object"
	}
	return string(b[:min(len(b), maxFormatName)])
}

// closed tells whether every object of a schema allows no further property and requires all it has.
func closed(node any) bool {
	switch node := node.(type) {
	case []any:
		for _, v := range node {
			if !closed(v) {
				return false
			}
		}
	case map[string]any:
		if properties, ok := node["properties"].(map[string]any); ok || node["type"] == "object" {
			required, _ := node["required"].([]any)
			if node["additionalProperties"] != false || len(required) != len(properties) {
				return false
			}
		}
		for _, v := range node {
			if !closed(v) {
				return false
			}
		}
	}
	return true
}
