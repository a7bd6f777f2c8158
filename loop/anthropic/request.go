package anthropic

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"github.com/otters-sh/otters/loop"
)

// params writes a request in the wire's terms. What stays the same from request to request, which are
// tools and system prompt, ends with a mark for the provider's cache; within a turn's calls what was
// said so far does too.
func (m *Model) params(req loop.Request) (anthropic.MessageNewParams, error) {
	p := anthropic.MessageNewParams{
		Model:       anthropic.Model(m.opts.Model),
		MaxTokens:   int64(req.MaxTokens),
		Temperature: floatOpt(req.Params.Temperature),
		TopP:        floatOpt(req.Params.TopP),
	}
	if req.Params.PresencePenalty != nil || req.Params.FrequencyPenalty != nil {
		return p, errors.New("the format has no presence-penalty and no frequency-penalty; leave them out")
	}
	if req.Params.TopK != nil {
		p.TopK = anthropic.Int(int64(*req.Params.TopK))
	}
	if p.MaxTokens <= 0 {
		p.MaxTokens = loop.DefaultMaxTokens
	}
	p.Thinking = m.thinking(p.MaxTokens)
	if strings.TrimSpace(req.System) != "" {
		p.System = []anthropic.TextBlockParam{{Text: req.System, CacheControl: anthropic.NewCacheControlEphemeralParam()}}
	}
	for i, t := range req.Tools {
		tool, err := toolParam(t)
		if err != nil {
			return p, err
		}
		if i == len(req.Tools)-1 {
			tool.CacheControl = anthropic.NewCacheControlEphemeralParam()
		}
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: tool})
	}
	if req.Object != nil {
		var err error
		if p.OutputConfig.Format.Schema, err = objectSchema(req.Object); err != nil {
			return p, err
		}
	}
	w := writer{model: m.opts.Model, used: make(map[string]bool)}
	for _, msg := range req.Messages {
		w.add(msg)
	}
	if len(w.messages) == 0 {
		return p, errors.New("nothing was said yet; give a prompt")
	}
	w.mark()
	p.Messages = w.messages
	return p, nil
}

func floatOpt(v *float64) param.Opt[float64] {
	if v == nil {
		return param.Opt[float64]{}
	}
	return anthropic.Float(*v)
}

func (m *Model) thinking(maxTokens int64) (p anthropic.ThinkingConfigParamUnion) {
	switch t := m.opts.Thinking; {
	case t == ThinkingOff:
		off := anthropic.NewThinkingConfigDisabledParam()
		p.OfDisabled = &off
	case t == ThinkingAdaptive && maxTokens > MinThinkingBudget:
		p.OfAdaptive = &anthropic.ThinkingConfigAdaptiveParam{Display: anthropic.ThinkingConfigAdaptiveDisplaySummarized}
	case t > 0 && int64(t) < maxTokens:
		p.OfEnabled = &anthropic.ThinkingConfigEnabledParam{BudgetTokens: int64(t)}
	}
	return p
}

// objectSchema is the schema of an object with what is said of it, for which the format has no other
// place.
func objectSchema(f *loop.ObjectFormat) (schema map[string]any, err error) {
	if err := json.Unmarshal(f.Schema, &schema); err != nil || schema == nil {
		return nil, fmt.Errorf("schema: not a JSON object")
	}
	for key, text := range map[string]string{"title": f.Name, "description": f.Description} {
		if _, there := schema[key]; !there && text != "" {
			schema[key] = text
		}
	}
	return schema, nil
}

func toolParam(t loop.ToolSpec) (*anthropic.ToolParam, error) {
	tool := &anthropic.ToolParam{Name: t.Name}
	if t.Description != "" {
		tool.Description = anthropic.String(t.Description)
	}
	if len(t.Parameters) > 0 {
		if !json.Valid(t.Parameters) {
			return nil, fmt.Errorf("parameters of tool %s are no JSON", t.Name)
		}
		tool.InputSchema = param.Override[anthropic.ToolInputSchemaParam](t.Parameters)
	}
	return tool, nil
}

// writer puts a history into the format: what one side said in a row is one message, results come
// first in theirs, and ids are unique in all of it.
type writer struct {
	model    string
	messages []anthropic.MessageParam
	used     map[string]bool   // ids that are taken
	ids      map[string]string // of the calls at hand: the loop's id and the one that is sent
}

func (w *writer) add(msg loop.Message) {
	switch msg.Role {
	case loop.RoleUser:
		w.append(anthropic.MessageParamRoleUser, promptBlocks(msg)...)
	case loop.RoleTool:
		w.append(anthropic.MessageParamRoleUser, w.results(msg)...)
	default:
		w.append(anthropic.MessageParamRoleAssistant, w.answer(msg)...)
	}
}

func (w *writer) append(role anthropic.MessageParamRole, blocks ...anthropic.ContentBlockParamUnion) {
	if len(blocks) == 0 {
		return
	}
	if n := len(w.messages); n > 0 && w.messages[n-1].Role == role {
		w.messages[n-1].Content = append(w.messages[n-1].Content, blocks...)
		return
	}
	w.messages = append(w.messages, anthropic.MessageParam{Role: role, Content: blocks})
}

// promptBlocks are the texts and images of a message. The provider takes no text that is blank.
func promptBlocks(msg loop.Message) (blocks []anthropic.ContentBlockParamUnion) {
	for _, p := range msg.Parts {
		switch {
		case p.Kind == loop.KindText && strings.TrimSpace(p.Text) != "":
			blocks = append(blocks, anthropic.NewTextBlock(p.Text))
		case p.Kind == loop.KindImage:
			blocks = append(blocks, anthropic.NewImageBlockBase64(p.MediaType, base64.StdEncoding.EncodeToString(p.Data)))
		}
	}
	return blocks
}

func (w *writer) results(msg loop.Message) (blocks []anthropic.ContentBlockParamUnion) {
	for _, p := range msg.Parts {
		id, ok := w.ids[p.ID]
		if p.Kind != loop.KindResult || !ok {
			continue
		}
		result := anthropic.ToolResultBlockParam{ToolUseID: id}
		if strings.TrimSpace(p.Text) != "" {
			result.Content = []anthropic.ToolResultBlockParamContentUnion{{OfText: &anthropic.TextBlockParam{Text: p.Text}}}
		}
		if p.Failed {
			result.IsError = anthropic.Bool(true)
		}
		blocks = append(blocks, anthropic.ContentBlockParamUnion{OfToolResult: &result})
	}
	return blocks
}

// answer are the blocks of an answer. One that ends with reasoning broke off there; that reasoning is
// left out.
func (w *writer) answer(msg loop.Message) (blocks []anthropic.ContentBlockParamUnion) {
	w.ids = make(map[string]string)
	said := 0
	for _, p := range msg.Parts {
		switch p.Kind {
		case loop.KindReasoning:
			if b, ok := w.reasoning(p); ok {
				blocks = append(blocks, b)
			}
			continue
		case loop.KindText:
			if strings.TrimSpace(p.Text) == "" {
				continue
			}
			blocks = append(blocks, anthropic.NewTextBlock(p.Text))
		case loop.KindCall:
			blocks = append(blocks, anthropic.ContentBlockParamUnion{OfToolUse: &anthropic.ToolUseBlockParam{
				ID: w.id(p.ID), Name: p.Name, Input: json.RawMessage(p.Args),
			}})
		default:
			continue
		}
		said = len(blocks)
	}
	return blocks[:said]
}

// reasoning is what this model gave, as it gave it.
func (w *writer) reasoning(p loop.Part) (b anthropic.ContentBlockParamUnion, ok bool) {
	var o opaque
	if json.Unmarshal([]byte(p.Opaque), &o) != nil || o.Model != w.model {
		return b, false
	}
	switch {
	case o.Signature != "":
		return anthropic.NewThinkingBlock(o.Signature, p.Text), true
	case o.Redacted != "":
		return anthropic.NewRedactedThinkingBlock(o.Redacted), true
	}
	return b, false
}

// id is the id that a call is sent with: its own, unless another provider gave it one that this one
// does not take, or that was there before.
func (w *writer) id(own string) string {
	id := strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, own)
	for n := len(w.used); id == "" || w.used[id]; n++ {
		id = fmt.Sprintf("call_%d", n)
	}
	w.used[id], w.ids[own] = true, id
	return id
}

// mark marks the end of what was said for the cache, once results are in it: the next request says it
// again.
func (w *writer) mark() {
	last := w.messages[len(w.messages)-1].Content
	if last[0].OfToolResult == nil {
		return
	}
	if c := last[len(last)-1].GetCacheControl(); c != nil {
		*c = anthropic.NewCacheControlEphemeralParam()
	}
}
