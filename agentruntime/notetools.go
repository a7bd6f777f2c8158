package agentruntime

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/workspace"
)

// Where pinned notes stand in the system prompt.
const (
	sectionOff   = "off"
	sectionAbove = "above"
	sectionBelow = "below"
)

// noteTool is a tool on the notes that the model gets by a capability of the same name.
type noteTool struct {
	name, description, properties string
	required                      string
	call                          func(ctx context.Context, st *store, limits noteLimits, in noteInput) (string, error)
	service                       *service
}

type noteInput struct {
	Key     string `json:"key"`
	Content string `json:"content"`
	Pinned  *bool  `json:"pinned"`
}

const (
	keyProperty     = `"key":{"type":"string","pattern":"^[a-z0-9][a-z0-9_-]{0,63}$"}`
	contentProperty = `"content":{"type":"string"}`
	pinnedProperty  = `"pinned":{"type":"boolean"}`
)

// noteTools are all there are.
var noteTools = []noteTool{
	{name: "note_list", description: "Lists your notes: durable facts that you keep over conversations.", call: listNotes},
	{name: "note_get", description: "Reads a note.", properties: keyProperty, required: `"key"`, call: getNote},
	{name: "note_save", description: "Writes a note; one of the same key is replaced.", properties: keyProperty + "," + contentProperty, required: `"key","content"`, call: saveNote},
	{name: "note_delete", description: "Deletes a note.", properties: keyProperty, required: `"key"`, call: deleteNote},
	{name: "note_pin", description: "Pins a note into your instructions, or takes it out.", properties: keyProperty + "," + pinnedProperty, required: `"key","pinned"`, call: pinNote},
}

// Capabilities are the names that a CAPABILITY may have with this runtime, as the model sees them.
func Capabilities() []string {
	names := []string{"notes"}
	for _, t := range noteTools {
		names = append(names, t.name)
	}
	return names
}

// openCapabilities adds the tools of capabilities to programs; notes stands for all of note_*. A name may be
// written with hyphens. Errors wrap ErrConfig.
func openCapabilities(svc *service, capabilities []workspace.Capability, programs []loop.Tool) ([]loop.Tool, error) {
	names := Capabilities()
	granted := make(map[string]bool)
	for _, c := range capabilities {
		name := strings.ReplaceAll(c.Name, "-", "_")
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%w: capability %s: nothing here provides it; there are %s", ErrConfig, c.Name, strings.Join(names, ", "))
		}
		granted[name] = true
	}
	tools := programs
	for _, t := range noteTools {
		taken := func(p loop.Tool) bool { return p.Spec().Name == t.name }
		if (granted["notes"] || granted[t.name]) && slices.ContainsFunc(programs, taken) {
			return nil, fmt.Errorf("%w: capability %s: a tool has the same name; rename the tool", ErrConfig, t.name)
		}
		if granted["notes"] || granted[t.name] {
			t.service = svc
			tools = append(tools, &t)
		}
	}
	return tools, nil
}

func (t *noteTool) Spec() loop.ToolSpec {
	schema := `{"type":"object","properties":{` + t.properties + `},"required":[` + t.required + `],"additionalProperties":false}`
	return loop.ToolSpec{Name: t.name, Description: t.description, Parameters: json.RawMessage(schema)}
}

// Call is loop.Tool's.
func (t *noteTool) Call(ctx context.Context, call loop.Call) (string, error) {
	var in noteInput
	if err := decodeArgs(call, &in); err != nil {
		return "", err
	}
	if t.required != "" {
		if err := checkKey(in.Key); err != nil {
			return "", err
		}
	}
	st, err := t.service.store.wait(ctx)
	if err != nil {
		return "", err
	}
	return t.call(ctx, st, t.service.limits, in)
}

func listNotes(ctx context.Context, st *store, _ noteLimits, _ noteInput) (string, error) {
	list, err := st.notes(ctx, false)
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "there are no notes", nil
	}
	var b strings.Builder
	for _, n := range list {
		mark := ""
		if n.pinned {
			mark = " (pinned)"
		}
		fmt.Fprintf(&b, "%s%s: %s\n", n.key, mark, oneLine(start(n.content, previewRunes)))
	}
	return b.String(), nil
}

func getNote(ctx context.Context, st *store, _ noteLimits, in noteInput) (string, error) {
	n, err := st.note(ctx, in.Key)
	return n.content, err
}

func saveNote(ctx context.Context, st *store, limits noteLimits, in noteInput) (string, error) {
	if _, err := st.saveNote(ctx, in.Key, in.Content, limits); err != nil {
		return "", err
	}
	return "saved", nil
}

func deleteNote(ctx context.Context, st *store, _ noteLimits, in noteInput) (string, error) {
	deleted, err := st.deleteNote(ctx, in.Key)
	if err == nil && !deleted {
		err = fmt.Errorf("note %s: %w", in.Key, errNoNote)
	}
	if err != nil {
		return "", err
	}
	return "deleted", nil
}

func pinNote(ctx context.Context, st *store, _ noteLimits, in noteInput) (string, error) {
	if in.Pinned == nil {
		return "", fmt.Errorf("arguments: pinned is missing")
	}
	if err := st.pinNote(ctx, in.Key, *in.Pinned); err != nil {
		return "", err
	}
	return "done; it counts from the next prompt on", nil
}
