package anthropic

import (
	"encoding/json"
	"fmt"

	"github.com/otters-sh/otters/loop"
)

// event is what the loop takes of a streamed event.
type event struct {
	Type    string `json:"type"`
	Index   int    `json:"index"`
	Message struct {
		Usage *usage `json:"usage"`
	} `json:"message"`
	Block struct {
		Type      string          `json:"type"`
		ID        string          `json:"id"`
		Name      string          `json:"name"`
		Input     json.RawMessage `json:"input"`
		Text      string          `json:"text"`
		Thinking  string          `json:"thinking"`
		Signature string          `json:"signature"`
		Data      string          `json:"data"`
	} `json:"content_block"`
	Delta struct {
		Type        string `json:"type"`
		Text        string `json:"text"`
		PartialJSON string `json:"partial_json"`
		Thinking    string `json:"thinking"`
		Signature   string `json:"signature"`
		StopReason  string `json:"stop_reason"`
	} `json:"delta"`
	Usage *usage `json:"usage"`
}

// usage is cumulative; what is not there is as it was.
type usage struct {
	Input      *int64 `json:"input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	Output     *int64 `json:"output_tokens"`
	Details    *struct {
		Thinking *int64 `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

// opaque is what the provider wants back with reasoning: the signature of what it showed, or what it
// does not show. It is of use to the model alone that gave it.
type opaque struct {
	Model     string `json:"model"`
	Signature string `json:"signature,omitempty"`
	Redacted  string `json:"redacted,omitempty"`
}

func (o opaque) String() string {
	// Strings always marshal.
	text, _ := json.Marshal(o)
	return string(text)
}

// reader makes deltas of events. Blocks come one after the other; an event of another than the one at
// hand is out of order.
type reader struct {
	model string

	open      bool
	index     int
	kind      string
	signature string
	args      bool // arguments of the call at hand came in pieces
	input     string

	counts          [5]int64 // input, cache writes, cache reads, output, thinking
	begun, finished bool
	finish          loop.Finish
}

// read gives the delta of an event; nil where it has none.
func (r *reader) read(e *event) (*loop.Delta, error) {
	switch e.Type {
	case "message_start":
		if r.begun {
			return nil, outOfOrder(e)
		}
		r.begun = true
		return r.usage(e.Message.Usage), nil
	case "content_block_start", "content_block_delta", "content_block_stop", "message_delta":
		if !r.begun || r.finished && e.Type != "message_delta" {
			return nil, outOfOrder(e)
		}
	default:
		return nil, nil // the end, or of a kind that came later than this reader
	}
	switch e.Type {
	case "content_block_start":
		if r.open {
			return nil, outOfOrder(e)
		}
		return r.start(e), nil
	case "content_block_delta":
		if !r.open || e.Index != r.index {
			return nil, outOfOrder(e)
		}
		return r.delta(e), nil
	case "content_block_stop":
		if !r.open || e.Index != r.index {
			return nil, outOfOrder(e)
		}
		return r.stop(), nil
	}
	if r.open {
		return nil, outOfOrder(e)
	}
	if e.Delta.StopReason != "" {
		var err error
		if r.finish, err = finishOf(e.Delta.StopReason); err != nil {
			return nil, err
		}
		r.finished = true
	}
	return r.usage(e.Usage), nil
}

func outOfOrder(e *event) error {
	return fmt.Errorf("the event %s of block %d is out of order", e.Type, e.Index)
}

// start begins a block. Blocks mostly begin empty; what is there already counts.
func (r *reader) start(e *event) *loop.Delta {
	b := &e.Block
	r.open, r.index, r.kind, r.signature, r.args, r.input = true, e.Index, b.Type, b.Signature, false, ""
	switch b.Type {
	case "text":
		return textDelta(loop.DeltaText, b.Text)
	case "thinking":
		return textDelta(loop.DeltaReasoning, b.Thinking)
	case "redacted_thinking":
		return &loop.Delta{Kind: loop.DeltaReasoning, Opaque: opaque{Model: r.model, Redacted: b.Data}.String()}
	case "tool_use":
		r.input = string(b.Input)
		return &loop.Delta{Kind: loop.DeltaCall, Index: e.Index, ID: b.ID, Name: b.Name}
	}
	return nil
}

func textDelta(kind loop.DeltaKind, text string) *loop.Delta {
	if text == "" {
		return nil
	}
	return &loop.Delta{Kind: kind, Text: text}
}

func (r *reader) delta(e *event) *loop.Delta {
	d := &e.Delta
	switch {
	case d.Type == "text_delta" && r.kind == "text":
		return textDelta(loop.DeltaText, d.Text)
	case d.Type == "thinking_delta" && r.kind == "thinking":
		return textDelta(loop.DeltaReasoning, d.Thinking)
	case d.Type == "signature_delta" && r.kind == "thinking":
		r.signature += d.Signature
	case d.Type == "input_json_delta" && r.kind == "tool_use":
		r.args = r.args || d.PartialJSON != ""
		return &loop.Delta{Kind: loop.DeltaCall, Index: e.Index, Text: d.PartialJSON}
	}
	return nil
}

// stop ends a block. Reasoning without a signature is shown, and never sent back.
func (r *reader) stop() *loop.Delta {
	r.open = false
	switch {
	case r.kind == "thinking" && r.signature != "":
		return &loop.Delta{Kind: loop.DeltaReasoning, Opaque: opaque{Model: r.model, Signature: r.signature}.String()}
	case r.kind == "tool_use" && !r.args:
		return &loop.Delta{Kind: loop.DeltaCall, Index: r.index, Text: r.input}
	}
	return nil
}

// usage counts what was read of a cache, or written to it, as input too.
func (r *reader) usage(u *usage) *loop.Delta {
	if u == nil {
		return nil
	}
	fields := []*int64{u.Input, u.CacheWrite, u.CacheRead, u.Output, nil}
	if u.Details != nil {
		fields[4] = u.Details.Thinking
	}
	for i, v := range fields {
		if v != nil && *v >= 0 && *v < 1<<53 {
			r.counts[i] = *v
		}
	}
	return &loop.Delta{Kind: loop.DeltaUsage, Usage: loop.Usage{
		InputTokens:     r.counts[0] + r.counts[1] + r.counts[2],
		OutputTokens:    r.counts[3],
		CachedTokens:    r.counts[2],
		ReasoningTokens: r.counts[4],
	}}
}

func finishOf(reason string) (loop.Finish, error) {
	switch reason {
	case "max_tokens", "model_context_window_exceeded":
		return loop.FinishLength, nil
	case "refusal":
		return loop.FinishFiltered, nil
	case "pause_turn":
		return loop.FinishStop, fmt.Errorf("the provider paused the answer, which goes with tools of its own alone")
	}
	return loop.FinishStop, nil
}
