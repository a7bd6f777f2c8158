package agentruntime_test

// Invariant: what comes with a prompt is within bounds, what it says it is, and kept with the prompt
// for every later turn. Worst inputs: an image that is something else; a name that is a path; sixteen
// files that together are too large; a model that takes no images.

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

var png = []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")

func file(name, kind, data string) *agentv1.Attachment {
	return &agentv1.Attachment{Name: name, MediaType: kind, Data: []byte(data)}
}

func send(c agentv1.AgentRuntimeClient, session, prompt string, files ...*agentv1.Attachment) ([]*agentv1.ChatStreamEvent, error) {
	s, err := c.ChatStream(context.Background(), &agentv1.ChatStreamRequest{SessionId: session, Prompt: prompt, Attachments: files})
	var events []*agentv1.ChatStreamEvent
	for err == nil {
		var e *agentv1.ChatStreamEvent
		if e, err = s.Recv(); err == nil {
			events = append(events, e)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return events, err
}

func TestAttachmentsAreKeptWithTheirPrompt(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	c := a.serve()
	if _, err := send(c, "s", "compare", file("a.txt", "text/plain; charset=utf-8", "one"), file("b.png", "image/png", string(png))); err != nil {
		t.Fatal(err)
	}
	if _, err := send(c, "s", "and now?"); err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	kept := a.offline()
	listed, all, err := kept.Attachments(context.Background(), "s")
	if err := errors.Join(err, kept.Close()); err != nil || listed != 0 || all != 2 {
		t.Errorf("a list holds %d of %d attachments, error %v", listed, all, err)
	}
	c = a.serve() // a later runtime has them too
	if _, err := again(c, "s"); err != nil {
		t.Fatal(err)
	}
	const want = `[{"text":"compare\n\n\u003cfile name=\"a.txt\" type=\"text/plain\"\u003e\none\n\u003c/file\u003e","type":"text"},` +
		`{"image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="},"type":"image_url"}]`
	for i, r := range a.model.Requests() {
		if got := string(r.Messages[1].RawContent); unescape(got) != unescape(want) {
			t.Errorf("request %d has %s", i+1, got)
		}
	}
	if msgs := messages(t, c, "s"); len(msgs) != 4 || msgs[0].GetContent() != "compare" {
		t.Errorf("messages %v", msgs)
	}
	if _, err := c.DeleteSession(context.Background(), &agentv1.DeleteSessionRequest{SessionId: "s"}); err != nil {
		t.Fatal(err)
	}
	if _, err := send(c, "s", "see", file("b.png", "image/png", string(png))); err != nil {
		t.Fatal(err)
	}
	if _, err := again(c, "s"); err != nil {
		t.Fatal(err)
	}
	reqs := a.model.Requests()
	if got := string(reqs[len(reqs)-1].Messages[1].RawContent); !strings.Contains(got, "data:image/png") {
		t.Errorf("the prompt that is answered again is %s", got)
	}
}

func unescape(s string) string { return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(s) }

func TestAttachmentsAreRefusedByStatus(t *testing.T) {
	t.Parallel()
	c := newAgent(t, "", say("ok")).serve()
	if _, err := send(c, "s", "x", file("a", "text/plain", "")); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `attachment 1 ("a"): data: there is none`) {
		t.Errorf("an empty one: %v", err)
	}
	s, err := c.ChatStream(context.Background(), &agentv1.ChatStreamRequest{SessionId: "s", Regenerate: true, Attachments: []*agentv1.Attachment{file("a", "text/plain", "x")}})
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "with its own") {
		t.Errorf("regenerate with an attachment: %v", err)
	}
}

func TestAModelThatTakesNoImages(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", func(r modelserver.Request) modelserver.Answer {
		if strings.Contains(string(r.Raw), "image_url") {
			return modelserver.Answer{Status: 400, Code: "content_unsupported", Text: "this model reads text only"}
		}
		return modelserver.Answer{Text: "fine"}
	})
	c := a.serve()
	events, err := send(c, "s", "see", file("b.png", "image/png", string(png)))
	if err != nil {
		t.Fatal(err)
	}
	if e := find(t, events, "error"); !strings.Contains(e.GetContent(), "this model reads text only; the prompt has images, which this model may not take") || events[len(events)-1].GetReason() != "model_error" {
		t.Errorf("events %v", events)
	}
	// The session goes on without it.
	if events, err = send(c, "s", "never mind"); err != nil || events[len(events)-1].GetReason() != "done" {
		t.Errorf("events %v, error %v", events, err)
	}
}
