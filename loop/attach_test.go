package loop_test

// Invariant: what comes with a prompt reaches the model and stays in the history as it came; images
// go only to clients that send them, and those of earlier turns never stop a later one. Worst inputs:
// a model that refuses images after one that took them; more images than a request may hold.

import (
	"context"
	"strings"
	"testing"

	"github.com/otters-sh/otters/loop"
)

// seeing is a script whose client sends images.
type seeing struct{ *script }

func (seeing) TakesImages() bool { return true }

// picture is a message with an image of n bytes.
func picture(name string, n int) loop.Message {
	return loop.Message{Role: loop.RoleUser, Parts: []loop.Part{{Kind: loop.KindText, Text: "see"}, loop.Image(name, "image/png", make([]byte, n))}}
}

func images(messages []loop.Message) string {
	var names []string
	for _, m := range messages {
		for _, p := range m.Attachments() {
			names = append(names, string(p.Kind)+" "+p.Name)
		}
	}
	return strings.Join(names, ", ")
}

func TestWhatComesWithAPromptReachesTheModel(t *testing.T) {
	t.Parallel()
	s := &script{answers: []answerFunc{say("ok")}}
	turn := loop.Turn{Prompt: "compare", Attachments: []loop.Part{loop.TextFile("a \"b\".txt", "text/plain", "one\n"), loop.Image("c.png", "image/png", []byte("png"))}}
	out, err := loop.New(loop.Config{Model: seeing{s}}).Run(context.Background(), turn)
	if err != nil {
		t.Fatal(err)
	}
	got := s.requests[0].Messages[0]
	if got.Text() != "compare\n\n<file name=\"a \\\"b\\\".txt\" type=\"text/plain\">\none\n</file>" || images(s.requests[0].Messages) != "image c.png" {
		t.Errorf("the model got %+v", got)
	}
	if kept := out.Messages[0]; kept.Text() != "compare" || images(out.Messages) != `file a "b".txt, image c.png` || kept.Parts[1].Text != "one\n" {
		t.Errorf("kept %+v", kept)
	}
	if n := loop.EstimateTokens(out.Messages[:1]); n < 1000 || n > 1100 {
		t.Errorf("estimated %d tokens", n)
	}

	// The next turn has them too, and a client that sends no images a note.
	for model, want := range map[loop.Model]string{seeing{s}: "image c.png", s: ""} {
		s.requests = nil
		if _, err := loop.New(loop.Config{Model: model}).Run(context.Background(), loop.Turn{Prompt: "and?", History: out.Messages}); err != nil {
			t.Fatal(err)
		}
		sent := s.requests[0].Messages
		if images(sent) != want || !strings.Contains(sent[0].Text(), "one") || (want == "") != strings.Contains(sent[0].Text(), `[the image "c.png" was here]`) {
			t.Errorf("the model got %+v", sent[0])
		}
	}
	s.requests = nil
	out, err = loop.New(loop.Config{Model: s}).Run(context.Background(), turn)
	if err == nil || out.Reason != loop.ModelError || len(s.requests) != 0 || !strings.Contains(err.Error(), "sends no images") {
		t.Errorf("outcome %+v, error %v", out, err)
	}
}

func TestImagesThatAModelRefuses(t *testing.T) {
	t.Parallel()
	no := failing(&loop.CallError{Status: 400, Message: "text only"})
	s := &script{answers: []answerFunc{no}}
	_, err := loop.New(loop.Config{Model: seeing{s}}).Run(context.Background(), loop.Turn{Prompt: "see", Attachments: picture("a", 1).Attachments()})
	if err == nil || err.Error() != "text only; the prompt has images, which this model may not take" || len(s.requests) != 1 {
		t.Errorf("%d requests, error %v", len(s.requests), err)
	}

	history := []loop.Message{picture("a", 1), {Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.KindText, Text: "ok"}}}}
	s = &script{answers: []answerFunc{no, deltas(call(0, "1", "echo", "{}"), finish(loop.FinishStop)), say("done")}}
	out, err := loop.New(loop.Config{Model: seeing{s}, Tools: []loop.Tool{echo}}).Run(context.Background(), loop.Turn{Prompt: "and now?", History: history})
	if err != nil || out.Text != "done" || len(s.requests) != 3 || images(s.requests[0].Messages) == "" || images(s.requests[1].Messages)+images(s.requests[2].Messages) != "" {
		t.Errorf("outcome %+v, error %v, %d requests", out, err, len(s.requests))
	}
	s = &script{answers: []answerFunc{no}}
	if _, err := loop.New(loop.Config{Model: seeing{s}}).Run(context.Background(), loop.Turn{Prompt: "and now?"}); err == nil || err.Error() != "text only" || len(s.requests) != 1 {
		t.Errorf("%d requests, error %v", len(s.requests), err)
	}
}

func TestOfManyImagesTheNewestAreSent(t *testing.T) {
	t.Parallel()
	s := &script{answers: []answerFunc{say("ok")}}
	history := []loop.Message{picture("old", 4<<20), picture("mid", 6<<20), picture("new", 4<<20)}
	if _, err := loop.New(loop.Config{Model: seeing{s}}).Run(context.Background(), loop.Turn{Prompt: "x", History: history}); err != nil {
		t.Fatal(err)
	}
	if got := images(s.requests[0].Messages); got != "image mid, image new" || images(history) != "image old, image mid, image new" {
		t.Errorf("sent %s", got)
	}
}
