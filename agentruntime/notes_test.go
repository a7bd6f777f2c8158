package agentruntime_test

// Invariant: notes outlive sessions and restarts, stay within their quotas, and reach the model only
// where they are pinned or it was granted the tools. Worst inputs: keys of any shape, a note one byte
// over its quota, a tool that was not granted.

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

func save(c agentv1.AgentRuntimeClient, key, content string, maxBytes, maxCount int32) (*agentv1.SaveNoteResponse, error) {
	return c.SaveNote(context.Background(), &agentv1.SaveNoteRequest{Key: key, Content: content, MaxBytes: maxBytes, MaxCount: maxCount})
}

func TestNotesAreKeptListedAndDeleted(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {notes-max-bytes-per: \"200\", notes-max-count: \"3\"}\n", say("ok"))
	c := a.serve()
	ctx := context.Background()
	long := strings.Repeat("€", 60) + strings.Repeat("x", 20)
	first, err := save(c, "river", long, 0, 0)
	if err != nil || first.GetOverwrote() || first.GetNote().GetContent() != long || first.GetNote().GetCreatedAt() == 0 {
		t.Fatalf("saved %v, error %v", first, err)
	}
	if again, err := save(c, "river", "Severn", 0, 0); err != nil || !again.GetOverwrote() {
		t.Errorf("saved again %v, error %v", again, err)
	}
	if n, err := save(c, "a-1_b", strings.Repeat("é", 100), 0, 0); err != nil || len([]rune(n.GetNote().GetPreview())) != 80 {
		t.Errorf("preview of %v, error %v", n, err)
	}
	for name, c2 := range map[string]struct {
		key, content       string
		maxBytes, maxCount int32
		want               codes.Code
	}{
		"too long":           {"x", strings.Repeat("x", 201), 0, 0, codes.FailedPrecondition},
		"caller's own limit": {"x", "xx", 1, 0, codes.FailedPrecondition},
		"over the caller's":  {"x", strings.Repeat("x", 201), 500, 0, codes.FailedPrecondition},
		"caller's own count": {"x", "x", 0, 2, codes.FailedPrecondition},
		"negative":           {"x", "x", -1, 0, codes.InvalidArgument},
		"empty key":          {"", "x", 0, 0, codes.InvalidArgument},
		"key with dash":      {"-x", "x", 0, 0, codes.InvalidArgument},
		"upper case":         {"X", "x", 0, 0, codes.InvalidArgument},
		"long key":           {strings.Repeat("k", 65), "x", 0, 0, codes.InvalidArgument},
	} {
		if _, err := save(c, c2.key, c2.content, c2.maxBytes, c2.maxCount); status.Code(err) != c2.want {
			t.Errorf("%s: %v, want %s", name, err, c2.want)
		}
	}
	if _, err := save(c, strings.Repeat("k", 64), "x", 0, 0); err != nil {
		t.Errorf("the third note: %v", err)
	}
	if _, err := save(c, "fourth", "x", 0, 0); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "at most 3") {
		t.Errorf("the fourth note: %v", err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	c = a.serve()
	list, err := c.ListNotes(ctx, &agentv1.ListNotesRequest{})
	if err != nil || len(list.GetNotes()) != 3 || list.GetNotes()[2].GetKey() != "river" || list.GetNotes()[2].GetContent() != "" || list.GetNotes()[2].GetPreview() != "Severn" {
		t.Errorf("notes %v, error %v", list, err)
	}
	for _, want := range []bool{true, false} {
		if d, err := c.DeleteNote(ctx, &agentv1.DeleteNoteRequest{Key: "river"}); err != nil || d.GetDeleted() != want {
			t.Errorf("deleted %v, error %v", d, err)
		}
	}
	if _, err := c.GetNote(ctx, &agentv1.GetNoteRequest{Key: "river"}); status.Code(err) != codes.NotFound {
		t.Errorf("a deleted note: %v", err)
	}
	if _, err := c.SetNoteInContext(ctx, &agentv1.SetNoteInContextRequest{Key: "river", InContext: true}); status.Code(err) != codes.NotFound {
		t.Errorf("a deleted note: %v", err)
	}
}

func TestPinnedNotesReachTheModel(t *testing.T) {
	t.Parallel()
	for where, check := range map[string]func(system string) bool{
		"below": func(s string) bool {
			return strings.HasSuffix(s, "</document>\n\n<document name=\"note b\">\nSevern\n</document>") && strings.HasPrefix(s, `<document name="AGENT">`)
		},
		"above": func(s string) bool {
			return strings.HasPrefix(s, "<document name=\"note b\">\nSevern\n</document>\n\n<document name=\"AGENT\">")
		},
		"off": func(s string) bool { return !strings.Contains(s, "Severn") },
	} {
		a := newAgent(t, fmt.Sprintf("configs: {notes-prompt-section: %q}\n", where), say("ok"))
		c := a.serve()
		for key, text := range map[string]string{"b": "Severn", "c": "unpinned"} {
			if _, err := save(c, key, text, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		pinned, err := c.SetNoteInContext(context.Background(), &agentv1.SetNoteInContextRequest{Key: "b", InContext: true})
		if err != nil || !pinned.GetNote().GetInContext() {
			t.Fatalf("pinned %v, error %v", pinned, err)
		}
		if err := chat(context.Background(), c, "s", "p"); err != nil {
			t.Fatal(err)
		}
		if s := a.model.Requests()[0].Messages[0].Content; !check(s) || strings.Contains(s, "unpinned") {
			t.Errorf("%s: system prompt\n%s", where, s)
		}
		list, err := c.ListNotes(context.Background(), &agentv1.ListNotesRequest{OnlyInContext: true})
		if err != nil || len(list.GetNotes()) != 1 {
			t.Errorf("pinned notes %v, error %v", list, err)
		}
	}
}

func TestTheModelKeepsNotesWhereItIsGrantedTo(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "capabilities: [{name: notes}]\n", modelserver.Script(
		toolCall("1", "note_save", `{"key":"river","content":"Severn"}`),
		toolCall("2", "note_pin", `{"key":"river","pinned":true}`),
		toolCall("3", "note_list", `{}`),
		toolCall("4", "note_get", `{"key":"river"}`),
		toolCall("5", "note_save", `{"key":"No","content":"x"}`),
		toolCall("6", "note_delete", `{"key":"river"}`),
		toolCall("7", "note_get", `{"key":"river"}`),
		modelserver.Answer{Text: "done"}))
	events, err := stream(context.Background(), a.serve(), "s", "go", nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		if e.GetType() == "tool.result" {
			got = append(got, strings.TrimSpace(e.GetContent()))
		}
	}
	want := []string{"saved", "done; it counts from the next prompt on", "river (pinned): Severn", "Severn", `key "No": want`, "deleted", "note river: there is none"}
	if len(got) != len(want) {
		t.Fatalf("results %q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("result %d is %q, want %q", i+1, got[i], want[i])
		}
	}

	one := newAgent(t, "capabilities: [{name: note-get}]\n", callThenSay("note_save", `{"key":"a","content":"b"}`))
	events, err = stream(context.Background(), one.serve(), "s", "go", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := find(t, events, "tool.result"); r.GetContent() != `unknown tool "note_save"; the tools are cat, sh, note_get` {
		t.Errorf("a tool that was not granted: %q", r.GetContent())
	}
}
