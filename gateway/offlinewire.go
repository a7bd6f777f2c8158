package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// offlineAnswer is a reply in the wire format. Its id is made from the request and its time of
// creation is 0, so that the same request gives the same bytes.
type offlineAnswer struct {
	id     string
	said   reply
	words  []string
	usage  usage
	counts bool // the stream ends with the usage
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

type choice struct {
	Index   int            `json:"index"`
	Message *answerMessage `json:"message,omitempty"`
	Delta   *delta         `json:"delta,omitempty"`
	Finish  *string        `json:"finish_reason"`
}

type answerMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

type delta struct {
	Role      string          `json:"role,omitempty"`
	Content   *string         `json:"content,omitempty"`
	ToolCalls []toolCallDelta `json:"tool_calls,omitempty"`
}

type toolCallDelta struct {
	Index    int          `json:"index"`
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function functionPart `json:"function"`
}

type functionPart struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

func newOfflineAnswer(req *chatRequest, said reply, body []byte) *offlineAnswer {
	a := &offlineAnswer{
		id: "chatcmpl-" + fingerprint(body, -1), said: said, words: tokens(said.text),
		counts: req.StreamOptions.IncludeUsage,
	}
	for _, m := range req.Messages {
		a.usage.Prompt += len(tokens(string(m.Content)))
		for _, c := range m.ToolCalls {
			a.usage.Prompt += 1 + len(tokens(c.Function.Arguments))
		}
	}
	a.usage.Completion = len(a.words)
	if said.call != nil {
		a.usage.Completion += 1 + len(tokens(said.call.Function.Arguments))
	}
	a.usage.Total = a.usage.Prompt + a.usage.Completion
	return a
}

// write answers at once.
func (a *offlineAnswer) write(w http.ResponseWriter) {
	msg := &answerMessage{Role: "assistant"}
	if a.said.call != nil {
		msg.ToolCalls = []toolCall{*a.said.call}
	} else {
		msg.Content = &a.said.text
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// The agent that hangs up wants no answer.
	_ = json.NewEncoder(w).Encode(completion{
		ID: a.id, Object: "chat.completion", Model: OfflineModel,
		Choices: []choice{{Message: msg, Finish: &a.said.finish}}, Usage: &a.usage,
	})
}

// stream answers word by word, each flushed. An agent that takes nothing for the time patience is
// let go.
func (a *offlineAnswer) stream(w http.ResponseWriter, r *http.Request, patience time.Duration) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	for _, c := range a.chunks() {
		if r.Context().Err() != nil {
			_, _ = w.Write(completions.event(cutOff(context.Cause(r.Context()))))
			return
		}
		_ = control.SetWriteDeadline(time.Now().Add(patience))
		// Chunks always marshal.
		text, _ := json.Marshal(c)
		if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
	}
	_, _ = w.Write([]byte("data: [DONE]\n\n"))
}

func (a *offlineAnswer) chunks() []completion {
	var list []completion
	add := func(d *delta, finish *string) {
		list = append(list, completion{
			ID: a.id, Object: "chat.completion.chunk", Model: OfflineModel,
			Choices: []choice{{Delta: d, Finish: finish}},
		})
	}
	empty := ""
	add(&delta{Role: "assistant", Content: &empty}, nil)
	if call := a.said.call; call != nil {
		add(&delta{ToolCalls: []toolCallDelta{{ID: call.ID, Type: call.Type, Function: functionPart{Name: call.Function.Name}}}}, nil)
		add(&delta{ToolCalls: []toolCallDelta{{Function: functionPart{Arguments: call.Function.Arguments}}}}, nil)
	}
	for i := range a.words {
		add(&delta{Content: &a.words[i]}, nil)
	}
	add(&delta{}, &a.said.finish)
	if a.counts {
		list = append(list, completion{ID: a.id, Object: "chat.completion.chunk", Model: OfflineModel, Choices: []choice{}, Usage: &a.usage})
	}
	return list
}

// fingerprint names a request, and the index-th call in answer to it.
func fingerprint(body []byte, index int) string {
	h := sha256.New()
	h.Write(body)
	fmt.Fprint(h, index)
	return hex.EncodeToString(h.Sum(nil)[:12])
}
