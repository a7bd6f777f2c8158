package loop

import (
	"slices"
	"strings"
)

// Role says who a message is from.
type Role string

// The roles of a history. The system prompt is not part of it.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Kind says what a part of a message is.
type Kind string

// The kinds of parts.
const (
	KindText      Kind = "text"
	KindReasoning Kind = "reasoning"
	KindCall      Kind = "call"
	KindResult    Kind = "result"
	// KindFile and KindImage are what comes with a prompt. A Model gets a file as KindText, with its
	// name, and images only where it is an ImageModel.
	KindFile  Kind = "file"
	KindImage Kind = "image"
)

// Message is one entry of a history. In a consistent history, which is the only one that Run returns
// and records, every call of an assistant message has its result in the tool message that follows.
type Message struct {
	Role  Role   `json:"role"`
	Parts []Part `json:"parts"`
	// Incomplete marks an answer that ended before the model was done with it.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Part is a piece of a message; Kind says which fields count.
type Part struct {
	Kind Kind `json:"kind"`
	// Text is the text, the reasoning, a result's output, or a file's content.
	Text string `json:"text,omitempty"`
	// ID ties a result to its call; it is unique within a turn.
	ID string `json:"id,omitempty"`
	// Name is the tool's name, of calls and results, or the file's.
	Name string `json:"name,omitempty"`
	// MediaType and Data are those of an image, the former of a file too.
	MediaType string `json:"media_type,omitempty"`
	Data      []byte `json:"data,omitempty"`
	// Args are a call's arguments, always a JSON object.
	Args string `json:"args,omitempty"`
	// Failed marks a result that is an error.
	Failed bool `json:"failed,omitempty"`
	// Opaque is what a provider wants back with its reasoning, such as a signature. Only the model client
	// that gave it reads it.
	Opaque string `json:"opaque,omitempty"`
	// DurationMS is how long a call took, in milliseconds; on results.
	DurationMS int64 `json:"duration_ms,omitempty"`
}

// UserMessage is a message of the user that holds text.
func UserMessage(text string) Message {
	return Message{Role: RoleUser, Parts: []Part{{Kind: KindText, Text: text}}}
}

// Text is the text of the message without reasoning, calls and results.
func (m Message) Text() string {
	var b strings.Builder
	for _, p := range m.Parts {
		if p.Kind == KindText {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// calls are the message's calls in order.
func (m Message) calls() []Call {
	var calls []Call
	for _, p := range m.Parts {
		if p.Kind == KindCall {
			calls = append(calls, Call{ID: p.ID, Name: p.Name, Args: []byte(p.Args)})
		}
	}
	return calls
}

// Repair makes a history consistent that a killed process left: a call without a result gets one
// that says note. It returns history itself where nothing is missing.
func Repair(history []Message, note string) []Message {
	var out []Message
	for i := 0; i < len(history); i++ {
		if out != nil {
			out = append(out, history[i])
		}
		calls, given := history[i].calls(), []Part(nil)
		if i+1 < len(history) && history[i+1].Role == RoleTool {
			given = history[i+1].Parts
		}
		results, whole := refuseAll(calls, note), true
		for n, c := range calls {
			at := slices.IndexFunc(given, func(p Part) bool { return p.ID == c.ID })
			if whole = whole && at >= 0; at >= 0 {
				results.Parts[n] = given[at]
			}
		}
		if whole {
			continue
		}
		if out == nil {
			out = append(out, history[:i+1]...)
		}
		out = append(out, results)
		if given != nil {
			i++
		}
	}
	if out == nil {
		return history
	}
	return out
}

// refuseAll is the tool message that answers every call with the same error.
func refuseAll(calls []Call, note string) Message {
	m := Message{Role: RoleTool}
	for _, c := range calls {
		m.Parts = append(m.Parts, Part{Kind: KindResult, ID: c.ID, Name: c.Name, Text: note, Failed: true})
	}
	return m
}
