package agentruntime

import (
	"encoding/json"

	"github.com/otters-sh/otters/loop"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// viewPart is a part of an assistant message as the wire has it. Fields beside kind that a client
// does not know are ignored by it.
type viewPart struct {
	Kind string `json:"kind"` // text or tool
	Text string `json:"text,omitempty"`

	ID         string `json:"id,omitempty"`
	Tool       string `json:"tool,omitempty"`
	Args       string `json:"args,omitempty"`
	Result     string `json:"result,omitempty"`
	Failed     bool   `json:"failed,omitempty"`
	DurationMS int64  `json:"duration_ms,omitempty"`

	// Incomplete marks a text that breaks off and a call whose result is not known.
	Incomplete bool `json:"incomplete,omitempty"`
	// Reason is on the last part of a turn that did not end with done.
	Reason loop.Reason `json:"reason,omitempty"`
}

// transcript shows turns as messages: each prompt, and all that came of it as one answer.
func transcript(turns []storedTurn) ([]*agentv1.SessionMessage, error) {
	var list []*agentv1.SessionMessage
	for _, t := range turns {
		var parts []viewPart
		for _, m := range t.messages {
			if m.Role == loop.RoleUser {
				list = append(list, &agentv1.SessionMessage{Role: string(m.Role), Content: m.Text(), CreatedAt: t.started})
				continue
			}
			parts = appendParts(parts, m)
		}
		if t.reason != "" && t.reason != loop.Done {
			if len(parts) == 0 {
				parts = append(parts, viewPart{Kind: "text"})
			}
			parts[len(parts)-1].Reason = t.reason
		}
		if len(parts) == 0 {
			continue
		}
		content, err := json.Marshal(parts)
		if err != nil {
			return nil, err
		}
		list = append(list, &agentv1.SessionMessage{Role: string(loop.RoleAssistant), Content: string(content), CreatedAt: t.answered})
	}
	return list, nil
}

// appendParts adds what m says, and puts results to their calls.
func appendParts(parts []viewPart, m loop.Message) []viewPart {
	for _, p := range m.Parts {
		switch p.Kind {
		case loop.KindText:
			parts = append(parts, viewPart{Kind: "text", Text: p.Text, Incomplete: m.Incomplete})
		case loop.KindCall:
			parts = append(parts, viewPart{Kind: "tool", ID: p.ID, Tool: p.Name, Args: p.Args, Incomplete: true})
		case loop.KindResult:
			for i := range parts {
				if v := &parts[i]; v.Kind == "tool" && v.ID == p.ID {
					v.Result, v.Failed, v.DurationMS, v.Incomplete = p.Text, p.Failed, p.DurationMS, false
				}
			}
		}
	}
	return parts
}
