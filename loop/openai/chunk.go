package openai

import (
	"encoding/json"

	"github.com/otters-sh/otters/loop"
)

// chunk is what the loop takes of a streamed chunk. Servers differ in all the rest, and in the types
// of what they leave empty; decoding it all would cost more than the rest of an event's way.
type chunk struct {
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage"`
}

type choice struct {
	Index number `json:"index"`
	Delta struct {
		Content text `json:"content"`
		Refusal text `json:"refusal"`
		// Reasoning is streamed by several servers beside the format, under one of two names.
		ReasoningContent text       `json:"reasoning_content"`
		Reasoning        text       `json:"reasoning"`
		ToolCalls        []toolCall `json:"tool_calls"`
	} `json:"delta"`
	FinishReason text `json:"finish_reason"`
}

type toolCall struct {
	Index    number `json:"index"`
	ID       text   `json:"id"`
	Function struct {
		Name      text `json:"name"`
		Arguments text `json:"arguments"`
	} `json:"function"`
}

type usage struct {
	PromptTokens     number `json:"prompt_tokens"`
	CompletionTokens number `json:"completion_tokens"`
	PromptDetails    struct {
		Cached number `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning number `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// text is a string, and empty where the server gave something else.
type text string

func (t *text) UnmarshalJSON(data []byte) error {
	*t = ""
	if len(data) == 0 || data[0] != '"' {
		return nil
	}
	return json.Unmarshal(data, (*string)(t))
}

// number is a whole number of at least 0, and 0 where the server gave something else.
type number int64

func (n *number) UnmarshalJSON(data []byte) error {
	*n = 0
	var f float64
	if json.Unmarshal(data, &f) == nil && f > 0 && f < 1<<53 {
		*n = number(f)
	}
	return nil
}

func (u *usage) delta() loop.Delta {
	return loop.Delta{Kind: loop.DeltaUsage, Usage: loop.Usage{
		InputTokens:     int64(u.PromptTokens),
		OutputTokens:    int64(u.CompletionTokens),
		CachedTokens:    int64(u.PromptDetails.Cached),
		ReasoningTokens: int64(u.CompletionDetails.Reasoning),
	}}
}

// relay yields what the choice brings and tells whether anyone still listens.
func (c *choice) relay(yield func(loop.Delta, error) bool) bool {
	d := &c.Delta
	for _, t := range []text{d.ReasoningContent, d.Reasoning} {
		if t == "" {
			continue
		}
		if !yield(loop.Delta{Kind: loop.DeltaReasoning, Text: string(t)}, nil) {
			return false
		}
		break
	}
	for _, t := range []text{d.Content, d.Refusal} {
		if t != "" && !yield(loop.Delta{Kind: loop.DeltaText, Text: string(t)}, nil) {
			return false
		}
	}
	for i := range d.ToolCalls {
		t := &d.ToolCalls[i]
		if !yield(loop.Delta{
			Kind: loop.DeltaCall, Index: int(t.Index), ID: string(t.ID), Name: string(t.Function.Name), Text: string(t.Function.Arguments),
		}, nil) {
			return false
		}
	}
	return true
}

func finishOf(reason text) loop.Finish {
	switch reason {
	case "length":
		return loop.FinishLength
	case "content_filter":
		return loop.FinishFiltered
	}
	return loop.FinishStop
}
