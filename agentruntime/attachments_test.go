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

func TestAttachmentsAreBounded(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	c := a.serve()
	many := make([]*agentv1.Attachment, 17)
	for i := range many {
		many[i] = file("a", "text/plain", "x")
	}
	image := string(png) + strings.Repeat("x", 5<<20-len(png))
	for name, c2 := range map[string]struct {
		files []*agentv1.Attachment
		want  string // empty where it is taken
	}{
		"text":          {[]*agentv1.Attachment{file("a", "application/ld+json", "{}")}, ""},
		"sixteen":       {many[:16], ""},
		"seventeen":     {many, "17 are over the limit of 16"},
		"largest text":  {[]*agentv1.Attachment{file("a", "text/plain", strings.Repeat("x", 1<<20))}, ""},
		"larger text":   {[]*agentv1.Attachment{file("a", "text/plain", strings.Repeat("x", 1<<20+1))}, "over the limit of 1048576 for text"},
		"two images":    {[]*agentv1.Attachment{file("a", "image/png", image), file("b", "image/png", image)}, ""},
		"larger image":  {[]*agentv1.Attachment{file("a", "image/png", image+"x")}, "over the limit of 5242880 for an image"},
		"all too large": {[]*agentv1.Attachment{file("a", "image/png", image), file("b", "image/png", image), many[0]}, "all together are over the limit of 10485760 bytes"},
		"empty":         {[]*agentv1.Attachment{file("a", "text/plain", "")}, `attachment 1 ("a"): data: there is none`},
		"no type":       {[]*agentv1.Attachment{many[0], file("b", "", "x")}, `attachment 2 ("b"): media_type ""`},
		"other type":    {[]*agentv1.Attachment{file("a.pdf", "application/pdf", "%PDF-1.7")}, "media_type application/pdf: not taken; taken are text and image/png"},
		"not the type":  {[]*agentv1.Attachment{file("a", "image/jpeg", string(png))}, "it is image/png, not image/jpeg"},
		"a script":      {[]*agentv1.Attachment{file("a", "image/png", "<svg/>")}, "it is text/plain; charset=utf-8, not image/png"},
		"no text":       {[]*agentv1.Attachment{file("a", "text/plain", "\xff\xfe")}, "no UTF-8 text"},
		"zero byte":     {[]*agentv1.Attachment{file("a", "text/plain", "a\x00b")}, "no UTF-8 text"},
		"other charset": {[]*agentv1.Attachment{file("a", "text/plain; charset=latin1", "a")}, "no UTF-8 text"},
		"a path":        {[]*agentv1.Attachment{file("../a", "text/plain", "x")}, "name: want 1 to 255 bytes without slashes"},
		"no name":       {[]*agentv1.Attachment{file("", "text/plain", "x")}, "name: want 1 to 255 bytes"},
		"control":       {[]*agentv1.Attachment{file("a\n", "text/plain", "x")}, "control characters"},
	} {
		_, err := send(c, strings.ReplaceAll(name, " ", "-"), "x", c2.files...)
		if c2.want == "" && err != nil || c2.want != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c2.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c2.want)
		}
	}
	s, err := c.ChatStream(context.Background(), &agentv1.ChatStreamRequest{SessionId: "s", Regenerate: true, Attachments: many[:1]})
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
