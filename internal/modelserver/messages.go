package modelserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Block is a content block of Messages.
type Block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	Data      string          `json:"data"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
	Source    struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      []byte `json:"data"`
	} `json:"source"`
	Cache map[string]any `json:"cache_control"`
}

// messages answers /v1/messages and /v1/messages/count_tokens. A request that breaks a rule of the
// format is refused, as the provider refuses it.
func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	req, err := read(w, r)
	for i := range req.Messages {
		m := &req.Messages[i]
		if json.Unmarshal(m.RawContent, &m.Content) == nil {
			m.Blocks = []Block{{Type: "text", Text: m.Content}}
		} else if err == nil {
			err = json.Unmarshal(m.RawContent, &m.Blocks)
		}
	}
	counts := r.URL.Path != "/v1/messages"
	if err == nil {
		err = s.check(req, counts)
	}
	if err != nil {
		failMessages(w, Answer{Status: http.StatusBadRequest, Code: "invalid_request_error", Text: err.Error()})
		return
	}
	s.change(func() { s.requests = append(s.requests, req) })
	a := s.answer(req)
	switch {
	case a.Status != 0 && a.Status != http.StatusOK:
		failMessages(w, a)
	case counts:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]int{"input_tokens": a.InputTokens})
	default:
		s.change(func() {
			s.signed[a.Signature] = a.Reasoning
			s.signed[a.Redacted] = ""
		})
		out := &messageWriter{w: w, flush: http.NewResponseController(w), model: req.Model}
		s.play(w, r, a, out)
	}
}

func failMessages(w http.ResponseWriter, a Answer) {
	errorHeader(w, a)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "error", "error": map[string]any{"type": a.Code, "message": a.Text}, "request_id": "req_1",
	})
}

// check holds a request against the rules that the provider states.
func (s *Server) check(req Request, counts bool) error {
	budget, _ := req.Thinking["budget_tokens"].(float64)
	switch kind := req.Thinking["type"]; {
	case req.Header.Get("Anthropic-Version") == "":
		return fmt.Errorf("anthropic-version: header is required")
	case req.Model == "":
		return fmt.Errorf("model: field required")
	case req.MaxTokens < 1 && !counts:
		return fmt.Errorf("max_tokens: must be greater than or equal to 1")
	case len(req.Messages) == 0 || req.Messages[0].Role != "user":
		return fmt.Errorf("messages: first message must use the \"user\" role")
	case kind == "enabled" && (budget < 1024 || int(budget) >= req.MaxTokens):
		return fmt.Errorf("thinking.budget_tokens: must be at least 1024 and below max_tokens")
	case (kind == "enabled" || kind == "adaptive") && req.Temperature != nil && *req.Temperature != 1:
		return fmt.Errorf("temperature: may only be set to 1 when thinking is enabled")
	}
	marks := 0
	for _, b := range req.System {
		marks += min(1, len(b.Cache))
	}
	for _, t := range req.Tools {
		marks += min(1, len(t.Cache))
		if t.Name == "" || len(t.InputSchema) == 0 {
			return fmt.Errorf("tools: name and input_schema are required")
		}
	}
	var open map[string]bool
	for i, m := range req.Messages {
		next, n, err := s.checkMessage(m, open)
		if err != nil {
			return fmt.Errorf("messages.%d: %w", i, err)
		}
		open, marks = next, marks+n
	}
	if len(open) > 0 {
		return fmt.Errorf("tool_use ids were found without tool_result blocks immediately after")
	}
	if marks > 4 {
		return fmt.Errorf("a maximum of 4 blocks with cache_control may be provided")
	}
	return nil
}

// checkMessage checks a message that follows the calls open, and returns its own and how many marks
// for the cache it has.
func (s *Server) checkMessage(m Message, open map[string]bool) (calls map[string]bool, marks int, err error) {
	results := true // only results so far
	if len(m.Blocks) == 0 {
		return nil, 0, fmt.Errorf("content is empty")
	}
	for _, b := range m.Blocks {
		marks += min(1, len(b.Cache))
		switch {
		case b.Type == "tool_result":
			if m.Role != "user" || !open[b.ToolUseID] {
				return nil, 0, fmt.Errorf("unexpected tool_use_id %q in tool_result", b.ToolUseID)
			}
			if !results {
				return nil, 0, fmt.Errorf("tool_result blocks must come first")
			}
			delete(open, b.ToolUseID)
			continue
		case m.Role == "user" && b.Type != "text" && b.Type != "image", m.Role != "user" && m.Role != "assistant":
			return nil, 0, fmt.Errorf("a block of type %s of role %s", b.Type, m.Role)
		case b.Type == "image" && (b.Source.Type != "base64" || b.Source.MediaType == "" || len(b.Source.Data) == 0):
			return nil, 0, fmt.Errorf("image wants a source of type base64, with media_type and data")
		case b.Type == "text" && b.Text == "":
			return nil, 0, fmt.Errorf("text content blocks must be non-empty")
		case b.Type == "tool_use" && (b.ID == "" || b.Name == "" || len(b.Input) == 0 || b.Input[0] != '{'):
			return nil, 0, fmt.Errorf("tool_use wants id, name and an object as input")
		case b.Type == "tool_use":
			if calls == nil {
				calls = map[string]bool{}
			}
			calls[b.ID] = true
		case b.Type == "thinking" && !s.gave(b.Signature, b.Thinking), b.Type == "redacted_thinking" && !s.gave(b.Data, ""):
			return nil, 0, fmt.Errorf("invalid `signature` in `thinking` block")
		}
		results = false
	}
	if len(open) > 0 {
		return nil, 0, fmt.Errorf("tool_use ids were found without tool_result blocks immediately after")
	}
	if last := m.Blocks[len(m.Blocks)-1].Type; m.Role == "assistant" && (last == "thinking" || last == "redacted_thinking") {
		return nil, 0, fmt.Errorf("the final block in an assistant message cannot be `thinking`")
	}
	return calls, marks, nil
}

// gave tells whether the server has given out that signature of that text.
func (s *Server) gave(signature, text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.signed[signature]
	return ok && signature != "" && of == text
}

// messageWriter writes the events of an answer, each flushed.
type messageWriter struct {
	w      io.Writer
	flush  *http.ResponseController
	model  string
	index  int
	pieces int
}

func (o *messageWriter) event(kind string, fields map[string]any) {
	fields["type"] = kind
	data, err := json.Marshal(fields)
	if err != nil {
		return
	}
	_, _ = fmt.Fprintf(o.w, "event: %s\ndata: %s\n\n", kind, data)
	_ = o.flush.Flush()
}

// block writes a content block with its deltas.
func (o *messageWriter) block(start map[string]any, deltas ...map[string]any) {
	o.event("content_block_start", map[string]any{"index": o.index, "content_block": start})
	for _, d := range deltas {
		o.pieces++
		o.event("content_block_delta", map[string]any{"index": o.index, "delta": d})
	}
	o.event("content_block_stop", map[string]any{"index": o.index})
	o.index++
}

func (o *messageWriter) usage(a Answer, output int) map[string]any {
	if a.InputTokens == 0 && a.OutputTokens == 0 {
		a.InputTokens = 1
	}
	return map[string]any{
		"input_tokens":                a.InputTokens - a.CachedTokens - a.CacheWrites,
		"cache_creation_input_tokens": a.CacheWrites, "cache_read_input_tokens": a.CachedTokens, "output_tokens": output,
	}
}

func (o *messageWriter) content(a Answer) {
	o.event("message_start", map[string]any{"message": map[string]any{
		"id": "msg_1", "type": "message", "role": "assistant", "model": o.model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": o.usage(a, 1),
	}})
	o.event("ping", map[string]any{})
	if a.Redacted != "" {
		o.block(map[string]any{"type": "redacted_thinking", "data": a.Redacted})
	}
	if a.Reasoning != "" || a.Signature != "" {
		deltas := []map[string]any{}
		if a.Reasoning != "" {
			deltas = append(deltas, map[string]any{"type": "thinking_delta", "thinking": a.Reasoning})
		}
		if a.Signature != "" {
			deltas = append(deltas, map[string]any{"type": "signature_delta", "signature": a.Signature})
		}
		o.block(map[string]any{"type": "thinking", "thinking": "", "signature": ""}, deltas...)
	}
	var texts []map[string]any
	for _, p := range a.pieces() {
		texts = append(texts, map[string]any{"type": "text_delta", "text": p})
	}
	if texts != nil {
		o.block(map[string]any{"type": "text", "text": ""}, texts...)
	}
	for _, c := range a.Calls {
		var args []map[string]any
		for _, p := range c.pieces() {
			args = append(args, map[string]any{"type": "input_json_delta", "partial_json": p})
		}
		o.block(map[string]any{"type": "tool_use", "id": c.ID, "name": c.Name, "input": map[string]any{}}, args...)
	}
}

func (o *messageWriter) end(a Answer) {
	finish := a.Finish
	if finish == "" {
		finish = "end_turn"
		if len(a.Calls) > 0 {
			finish = "tool_use"
		}
	}
	output := a.OutputTokens
	if a.InputTokens == 0 && a.OutputTokens == 0 {
		output = o.pieces
	}
	o.event("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": finish, "stop_sequence": nil}, "usage": o.usage(a, output),
	})
	o.event("message_stop", map[string]any{})
}
