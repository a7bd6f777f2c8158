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

// transcript shows turns as messages: each prompt, and all that came of it as one answer. Of several
// turns of one prompt the active one is the answer, and all are its branches.
func transcript(turns []storedTurn) ([]*agentv1.SessionMessage, error) {
	var list []*agentv1.SessionMessage
	for len(turns) > 0 {
		n := 1
		for n < len(turns) && turns[n].prompt == turns[0].prompt {
			n++
		}
		list = append(list, &agentv1.SessionMessage{
			Role: string(loop.RoleUser), Content: turns[0].messages[0].Text(), CreatedAt: turns[0].started,
		})
		answer, err := answerOf(turns[:n])
		if err != nil {
			return nil, err
		}
		if answer != nil {
			list = append(list, answer)
		}
		turns = turns[n:]
	}
	return list, nil
}

// answerOf shows the turns of one prompt as an answer; nil where there is none yet.
func answerOf(turns []storedTurn) (*agentv1.SessionMessage, error) {
	m := &agentv1.SessionMessage{Role: string(loop.RoleAssistant)}
	branches := make([][]viewPart, len(turns))
	for i, t := range turns {
		branches[i] = partsOf(t)
		if t.active {
			m.ActiveBranch, m.CreatedAt = int32(i), t.answered
		}
	}
	if len(turns) == 1 && branches[0] == nil {
		return nil, nil
	}
	content, err := json.Marshal(branches[m.ActiveBranch])
	if err != nil {
		return nil, err
	}
	m.Content = string(content)
	if len(turns) > 1 {
		all, err := json.Marshal(branches)
		if err != nil {
			return nil, err
		}
		m.BranchesJson = string(all)
	}
	return m, nil
}

func partsOf(t storedTurn) []viewPart {
	var parts []viewPart
	for _, m := range t.messages {
		if m.Role != loop.RoleUser {
			parts = appendParts(parts, m)
		}
	}
	if t.reason != "" && t.reason != loop.Done {
		if len(parts) == 0 {
			parts = append(parts, viewPart{Kind: "text"})
		}
		parts[len(parts)-1].Reason = t.reason
	}
	return parts
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
