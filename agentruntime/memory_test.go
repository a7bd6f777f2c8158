package agentruntime_test

// Invariant: nothing that was said is lost, whatever the model gets of it, and what it gets is
// consistent and holds the newest. Worst inputs: a context that is too small for anything; a model
// that fails while an answer is made again or a summary is; a database of the version before.

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// texts are what the model was told, without the system prompt.
func texts(r modelserver.Request) string {
	var list []string
	for _, m := range r.Messages {
		if m.Role != "system" {
			list = append(list, m.Content)
		}
	}
	return strings.Join(list, " | ")
}

// again asks for another answer and returns the events.
func again(c agentv1.AgentRuntimeClient, session string) ([]*agentv1.ChatStreamEvent, error) {
	s, err := c.ChatStream(context.Background(), &agentv1.ChatStreamRequest{SessionId: session, Regenerate: true})
	if err != nil {
		return nil, err
	}
	var events []*agentv1.ChatStreamEvent
	for {
		e, err := s.Recv()
		if err != nil {
			if len(events) > 0 && events[len(events)-1].GetType() == "turn.finish" {
				return events, nil
			}
			return events, err
		}
		events = append(events, e)
	}
}

func TestAnAnswerMadeAgainIsABranch(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	var broken atomic.Bool
	a := newAgent(t, "", func(modelserver.Request) modelserver.Answer {
		if broken.Load() {
			return modelserver.Answer{Status: 400, Text: "no"}
		}
		return modelserver.Answer{Text: fmt.Sprint("a", n.Add(1))}
	})
	c := a.serve()
	ctx := context.Background()
	if _, err := again(c, "s"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no prompt yet") {
		t.Errorf("an empty session: %v", err)
	}
	for _, p := range []string{"p1", "p2"} {
		if err := chat(ctx, c, "s", p); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if events, err := again(c, "s"); err != nil || events[len(events)-1].GetReason() != "done" {
			t.Fatalf("events %s, error %v", types(events), err)
		}
	}
	broken.Store(true)
	if events, err := again(c, "s"); err != nil || events[len(events)-1].GetReason() != "model_error" {
		t.Fatalf("events %s, error %v", types(events), err)
	}
	broken.Store(false)
	msgs := messages(t, c, "s")
	if len(msgs) != 4 || msgs[2].GetContent() != "p2" || msgs[1].GetBranchesJson() != "" {
		t.Fatalf("messages %v", msgs)
	}
	var branches [][]map[string]any
	if err := json.Unmarshal([]byte(msgs[3].GetBranchesJson()), &branches); err != nil {
		t.Fatal(err)
	}
	if len(branches) != 4 || msgs[3].GetActiveBranch() != 2 || branches[0][0]["text"] != "a2" || branches[2][0]["text"] != "a4" || branches[3][0]["reason"] != "model_error" {
		t.Errorf("branch %d of %v", msgs[3].GetActiveBranch(), branches)
	}
	if !strings.Contains(msgs[3].GetContent(), `"a4"`) {
		t.Errorf("the answer is %s", msgs[3].GetContent())
	}
	if err := chat(ctx, c, "s", "p3"); err != nil {
		t.Fatal(err)
	}
	reqs := a.model.Requests()
	if got := texts(reqs[2]); got != "p1 | a1 | p2" {
		t.Errorf("to answer again the model got %s", got)
	}
	if got := texts(reqs[len(reqs)-1]); got != "p1 | a1 | p2 | a4 | p3" {
		t.Errorf("the next prompt came with %s", got)
	}
	list, err := c.ListSessions(ctx, &agentv1.ListSessionsRequest{})
	if err != nil || list.GetSessions()[0].GetMessageCount() != 6 {
		t.Errorf("sessions %v, error %v", list, err)
	}
	if _, err := c.DeleteSession(ctx, &agentv1.DeleteSessionRequest{SessionId: "s"}); err != nil || len(messages(t, c, "s")) != 0 {
		t.Errorf("a session with branches cannot be deleted: %v", err)
	}
}

// summarizing echoes prompts, and answers what asks for a summary with the number of its lines.
func summarizing(r modelserver.Request) modelserver.Answer {
	if strings.Contains(r.Messages[0].Content, "compress conversations") {
		return modelserver.Answer{Text: fmt.Sprintf("S%d", strings.Count(r.Last().Content, "\n"))}
	}
	return modelserver.Answer{Text: "re " + r.Last().Content}
}

func TestOlderTurnsBecomeASummaryAndStay(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {memory-strategy: summarize, memory-max-messages: \"4\"}\n", summarizing)
	c := a.serve()
	for i := range 6 {
		if err := chat(context.Background(), c, "s", fmt.Sprint("p", i)); err != nil {
			t.Fatal(err)
		}
	}
	var asked []string
	for _, r := range a.model.Requests() {
		if !strings.Contains(r.Messages[0].Content, "compress") {
			asked = append(asked, texts(r))
		}
	}
	const head = "Summary of our conversation until here:\n"
	if got := asked[3]; got != head+"S4 | p2 | re p2 | p3" {
		t.Errorf("after three turns the model got %q", got)
	}
	if got := asked[5]; got != head+"S6 | p4 | re p4 | p5" {
		t.Errorf("after five turns the model got %q", got)
	}
	if msgs := messages(t, c, "s"); len(msgs) != 12 || msgs[0].GetContent() != "p0" {
		t.Errorf("%d messages are left", len(msgs))
	}
}

func TestASummaryThatFailsIsMadeUpForBySliding(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {memory-strategy: summarize, memory-max-messages: \"4\"}\n", func(r modelserver.Request) modelserver.Answer {
		if strings.Contains(r.Messages[0].Content, "compress") {
			return modelserver.Answer{Status: 400, Text: "no"}
		}
		return modelserver.Answer{Text: "ok"}
	})
	c := a.serve()
	for i := range 4 {
		if err := chat(context.Background(), c, "s", fmt.Sprint("p", i)); err != nil {
			t.Fatal(err)
		}
	}
	reqs := a.model.Requests()
	if got := texts(reqs[len(reqs)-1]); got != "p1 | ok | p2 | ok | p3" {
		t.Errorf("the model got %s", got)
	}
}

func TestACancelInASummaryKeepsThePrompt(t *testing.T) {
	t.Parallel()
	holding := make(chan struct{})
	var held atomic.Bool
	a := newAgent(t, "configs: {memory-strategy: summarize, memory-max-messages: \"2\"}\n", func(r modelserver.Request) modelserver.Answer {
		if strings.Contains(r.Messages[0].Content, "compress") && held.CompareAndSwap(false, true) {
			close(holding)
			return modelserver.Answer{Hold: make(chan struct{})}
		}
		return summarizing(r)
	})
	c := a.serve()
	for _, p := range []string{"p0", "p1"} {
		if err := chat(context.Background(), c, "s", p); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- chat(ctx, c, "s", "p2") }()
	<-holding
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("error %v", err)
	}
	// It waits for the cancelled one to be stored.
	if err := chat(context.Background(), c, "s", "p3"); err != nil {
		t.Fatal(err)
	}
	msgs := messages(t, c, "s")
	if len(msgs) != 8 || msgs[4].GetContent() != "p2" || msgs[5].GetContent() != `[{"kind":"text","reason":"cancelled"}]` || !strings.Contains(msgs[7].GetContent(), "re p3") {
		t.Errorf("messages %v", msgs)
	}
}

func TestMemoryIsBoundedByTokens(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {memory-max-tokens: \"100\"}\n", say("ok"))
	c := a.serve()
	for _, p := range []string{"small", strings.Repeat("x", 300), strings.Repeat("y", 300), "last"} {
		if err := chat(context.Background(), c, "s", p); err != nil {
			t.Fatal(err)
		}
	}
	if got := texts(a.model.Requests()[3]); !strings.HasPrefix(got, "yyy") || !strings.HasSuffix(got, "| ok | last") {
		t.Errorf("the model got %s", got)
	}
}

func TestASummaryIsMadeWhereTokensAreTooMany(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {memory-strategy: summarize, memory-max-tokens: \"200\"}\n", summarizing)
	c := a.serve()
	for _, p := range []string{"small", strings.Repeat("x", 300), strings.Repeat("y", 300), "last"} {
		if err := chat(context.Background(), c, "s", p); err != nil {
			t.Fatal(err)
		}
	}
	reqs := a.model.Requests()
	got := texts(reqs[len(reqs)-1])
	if !strings.HasPrefix(got, "Summary of our conversation until here:\nS") || !strings.Contains(got, "| yyy") || strings.Contains(got, "xxx") || !strings.HasSuffix(got, "| last") {
		t.Errorf("the model got %s", got)
	}
	if msgs := messages(t, c, "s"); len(msgs) != 8 || msgs[2].GetContent() != strings.Repeat("x", 300) {
		t.Errorf("%d messages are left", len(msgs))
	}
}

// small refuses requests of more than n messages, in the words of code or of text.
func small(n int, code, text string) func(modelserver.Request) modelserver.Answer {
	return func(r modelserver.Request) modelserver.Answer {
		if strings.Contains(r.Messages[0].Content, "compress") {
			return modelserver.Answer{Text: "in short"}
		}
		if len(r.Messages)-1 > n {
			return modelserver.Answer{Status: 400, Code: code, Text: text}
		}
		return modelserver.Answer{Text: "ok"}
	}
}

func TestAPromptThatOverflowsIsCompactedAndSentOnceMore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ config, code, text, want string }{
		"slide":     {"{}", "context_length_exceeded", "too long", "p2 | ok | p3"},
		"summarize": {"{memory-strategy: summarize}", "", "This model's maximum context length is 5 messages", "Summary of our conversation until here:\nin short | p2 | ok | p3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, "configs: "+c.config+"\n", small(5, c.code, c.text))
			rt := a.serve()
			for i := range 4 {
				if err := chat(context.Background(), rt, "s", fmt.Sprint("p", i)); err != nil {
					t.Fatal(err)
				}
			}
			reqs := a.model.Requests()
			if got := texts(reqs[len(reqs)-1]); got != c.want {
				t.Errorf("the model got %q", got)
			}
			if msgs := messages(t, rt, "s"); len(msgs) != 8 {
				t.Errorf("%d messages are left", len(msgs))
			}
			if name == "slide" && len(reqs) != 5 {
				t.Errorf("%d requests", len(reqs))
			}
		})
	}
	t.Run("hopeless", func(t *testing.T) {
		t.Parallel()
		a := newAgent(t, "", small(0, "context_length_exceeded", "too long"))
		rt := a.serve()
		if err := chat(context.Background(), rt, "s", "p"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "too long") {
			t.Errorf("error %v", err)
		}
		if n := len(a.model.Requests()); n != 1 {
			t.Errorf("%d requests, although there was nothing to leave out", n)
		}
	})
}

func TestADatabaseOfTheFirstVersionIsTakenOver(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	a.sql(`
CREATE TABLE sessions (id TEXT PRIMARY KEY, last_active INTEGER NOT NULL) STRICT;
CREATE TABLE turns (id INTEGER PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE, run TEXT NOT NULL,
	reason TEXT NOT NULL DEFAULT '', started_at INTEGER NOT NULL, finished_at INTEGER NOT NULL DEFAULT 0,
	input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE INDEX turns_session ON turns (session, id);
CREATE INDEX turns_running ON turns (id) WHERE reason = '';
CREATE TABLE messages (turn INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE, seq INTEGER NOT NULL, role TEXT NOT NULL,
	body TEXT NOT NULL, created_at INTEGER NOT NULL, PRIMARY KEY (turn, seq)) STRICT, WITHOUT ROWID;
INSERT INTO sessions VALUES ('s', 5);
INSERT INTO turns (id, session, run, reason, started_at) VALUES (7, 's', '', 'done', 5);
INSERT INTO messages VALUES (7, 1, 'user', '{"role":"user","parts":[{"kind":"text","text":"old"}]}', 5),
	(7, 2, 'assistant', '{"role":"assistant","parts":[{"kind":"text","text":"answer"}]}', 5);
PRAGMA user_version = 1`)
	c := a.serve()
	if err := chat(context.Background(), c, "s", "new"); err != nil {
		t.Fatal(err)
	}
	if got := texts(a.model.Requests()[0]); got != "old | answer | new" {
		t.Errorf("the model got %s", got)
	}
	if _, err := again(c, "s"); err != nil || len(messages(t, c, "s")) != 4 {
		t.Errorf("error %v", err)
	}
}
