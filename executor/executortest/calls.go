package executortest

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/otters-sh/otters/executor"
)

func prompt(s *suite) {
	a := s.create(agentfile)
	s.run(a)
	if got := s.ask(a, "what is a holt"); got != "what is a holt" {
		s.Errorf("answer %q", got)
	}
	// Only the last step's text is the answer.
	if got := s.ask(a, "tool"); got != "tool" {
		s.Errorf("answer %q", got)
	}
	p := a.(executor.Prompter)
	var b bytes.Buffer
	ctx := metadata.AppendToOutgoingContext(s.Context(), "otters-run", "run-7")
	if err := p.Prompt(ctx, executor.PromptRequest{Prompt: "metadata otters-run"}, &b); err != nil || b.String() != "run-7" {
		s.Errorf("the caller's metadata came as %q, %v", b.String(), err)
	}
	b.Reset()
	req := executor.PromptRequest{Prompt: "files", Attachments: []executor.Attachment{{Name: "n.txt", MediaType: "text/plain", Data: []byte("data")}}}
	if err := p.Prompt(s.Context(), req, &b); err != nil || b.String() != "n.txt text/plain data" {
		s.Errorf("the attachment came as %q, %v", b.String(), err)
	}
}

func stream(s *suite) {
	a := s.create(agentfile)
	p := s.streamer(a)
	s.run(a)
	var events []executor.PromptEvent
	if err := p.PromptStream(s.Context(), executor.PromptRequest{SessionID: "s", Prompt: "tool"}, func(e executor.PromptEvent) { events = append(events, e) }); err != nil {
		s.Fatal(err)
	}
	var types []string
	for _, e := range events {
		types = append(types, e.Type)
	}
	want := "step.start text.delta tool.call tool.result step.finish step.start text.delta step.finish turn.finish"
	if got := strings.Join(types, " "); got != want {
		s.Fatalf("events\n%s, want\n%s", got, want)
	}
	if e := events[3]; e.Tool != "echo" || e.ToolID != "c1" || e.Content != "x" || e.DurationMs != 7 || e.Step != 1 {
		s.Errorf("result %+v", e)
	}
	if e := events[8]; e.Reason != "done" || e.Usage == nil || *e.Usage != (executor.Usage{InputTokens: 3, OutputTokens: 5, CachedTokens: 2, ReasoningTokens: 1}) {
		s.Errorf("end %+v with %+v", e, e.Usage)
	}
	if events[0].Usage != nil {
		s.Error("an event without counts has some")
	}
}

func object(s *suite) {
	a := s.create(agentfile)
	p, ok := a.(executor.ObjectPrompter)
	if !ok {
		s.Skip("the agent is no executor.ObjectPrompter")
	}
	s.run(a)
	b, err := p.PromptObject(s.Context(), executor.ObjectPromptRequest{Prompt: "p", Schema: []byte(`{"type":"object"}`), SchemaName: "n", SchemaDescription: "d"})
	var got map[string]string
	if err != nil || json.Unmarshal(b, &got) != nil || got["prompt"] != "p" || got["schema"] != "n" || got["description"] != "d" {
		s.Errorf("object %s, %v", b, err)
	}
	if _, err := p.PromptObject(s.Context(), executor.ObjectPromptRequest{Prompt: "p", Schema: []byte(`{`)}); err == nil {
		s.Error("the runtime's refusal was lost")
	}
}

func sessions(s *suite) {
	a := s.create(agentfile)
	list, ok1 := a.(executor.SessionLister)
	read, ok2 := a.(executor.SessionReader)
	del, ok3 := a.(executor.SessionDeleter)
	p, ok4 := a.(executor.StreamPrompter)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		s.Skip("the agent keeps no sessions that can be read")
	}
	s.run(a)
	ctx := s.Context()
	turn := func(again bool) {
		if err := p.PromptStream(ctx, executor.PromptRequest{SessionID: "s1", Prompt: "hello", Regenerate: again}, func(executor.PromptEvent) {}); err != nil {
			s.Fatal(err)
		}
	}
	turn(false)
	turn(true)
	infos, err := list.ListSessions(ctx)
	if err != nil || len(infos) != 1 || infos[0].ID != "s1" || infos[0].MessageCount != 2 || infos[0].LastActive == 0 {
		s.Errorf("sessions %+v, %v", infos, err)
	}
	msgs, err := read.ListSessionMessages(ctx, "s1", 0)
	if err != nil || len(msgs) != 2 || msgs[0].Role != "user" || msgs[0].Content != "hello" || msgs[0].CreatedAt == 0 {
		s.Fatalf("messages %+v, %v", msgs, err)
	}
	if m := msgs[1]; m.Role != "assistant" || m.Content != `[{"kind":"text","text":"hello"}]` || m.ActiveBranch != 1 || !json.Valid([]byte(m.BranchesJSON)) {
		s.Errorf("the regenerated answer is %+v", m)
	}
	if msgs, err := read.ListSessionMessages(ctx, "s1", 1); err != nil || len(msgs) != 1 || msgs[0].Role != "assistant" {
		s.Errorf("the newest message is %+v, %v", msgs, err)
	}
	for range 2 { // Deleting what is not there is no error.
		if err := del.DeleteSession(ctx, "s1"); err != nil {
			s.Error(err)
		}
	}
	if infos, err := list.ListSessions(ctx); err != nil || len(infos) != 0 {
		s.Errorf("sessions %+v, %v", infos, err)
	}
}

func notes(s *suite) {
	a := s.create(agentfile)
	n, ok := a.(executor.NotesAPI)
	if !ok {
		s.Skip("the agent is no executor.NotesAPI")
	}
	s.run(a)
	ctx := s.Context()
	if _, err := n.GetNote(ctx, "rivers"); !errors.Is(err, executor.ErrNoteNotFound) {
		s.Errorf("a note that is not there: %v", err)
	}
	if _, err := n.SetNoteInContext(ctx, "rivers", true); !errors.Is(err, executor.ErrNoteNotFound) {
		s.Errorf("a note that is not there was pinned: %v", err)
	}
	long := strings.Repeat("ö", 90)
	for _, over := range []bool{false, true} {
		if res, err := n.SaveNote(ctx, "rivers", long, 0, 0); err != nil || res.Overwrote != over || res.Note.Key != "rivers" {
			s.Errorf("saved %+v, %v", res, err)
		}
	}
	if _, err := n.SaveNote(ctx, "rivers", long, 8, 0); err == nil {
		s.Error("a limit in bytes was lost")
	}
	if _, err := n.SaveNote(ctx, "second", "x", 0, 1); err == nil {
		s.Error("a limit of the count was lost")
	}
	if got, err := n.GetNote(ctx, "rivers"); err != nil || got.Content != long || got.CreatedAt == 0 || got.UpdatedAt == 0 {
		s.Errorf("note %+v, %v", got, err)
	}
	if list, err := n.ListNotes(ctx, true); err != nil || len(list) != 0 {
		s.Errorf("pinned are %+v, %v", list, err)
	}
	if got, err := n.SetNoteInContext(ctx, "rivers", true); err != nil || !got.InContext {
		s.Errorf("pinned %+v, %v", got, err)
	}
	if list, err := n.ListNotes(ctx, true); err != nil || len(list) != 1 || list[0].Content != "" || list[0].Preview != long[:160] {
		s.Errorf("pinned are %+v, %v", list, err)
	}
	for _, there := range []bool{true, false} {
		if was, err := n.DeleteNote(ctx, "rivers"); err != nil || was != there {
			s.Errorf("deleted %v, %v; want %v", was, err, there)
		}
	}
}
