package agentruntime_test

// Invariant: what a turn said and did is stored once and found again, whoever went away in the middle;
// a session takes one turn at a time and others are not held up. Worst inputs: a caller that cancels
// in the middle of a sentence or a tool; a hundred sessions at once; requests of any size and shape.

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/agentruntime"
	"github.com/otters-sh/otters/internal/leak"
	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

func TestMain(m *testing.M) {
	os.Exit(leak.Code(m.Run()))
}

func TestATurnCallsAToolOnARealFileAndIsKept(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", callThenSay("cat", `{"args":["notes.txt","-"],"stdin":"from stdin"}`))
	a.write("workspace/notes.txt", "otters swim\n")
	c := a.serve()
	events, err := stream(runContext(), c, "s1", "what is in notes.txt?", nil)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(types(events), " text.delta")
	if head != "step.start tool.call tool.result step.finish step.start" || !strings.HasSuffix(types(events), "step.finish message.create turn.finish") {
		t.Errorf("events %s", types(events))
	}
	const out = "otters swim\nfrom stdin\nexit code 0"
	if r := find(t, events, "tool.result"); r.GetContent() != out || r.GetTool() != "cat" || r.GetToolId() != "call1" || r.GetStep() != 1 {
		t.Errorf("result %v", r)
	}
	last := events[len(events)-1]
	if last.GetReason() != "done" || last.GetUsage().GetInputTokens() != 2 || last.GetStep() != 2 {
		t.Errorf("last event %v", last)
	}

	reqs := a.model.Requests()
	for _, r := range reqs {
		if r.Header.Get("Otters-Run") != "run-7" || r.Header.Get("Traceparent") != "00-ab-cd-01" || r.Header.Get("Other") != "" || r.Header.Get("Authorization") != "Bearer "+modelKey {
			t.Errorf("headers %v", r.Header)
		}
	}
	const system = `<document name="AGENT">
You are guide.
</document>

<document name="WORKSPACE">
Folders.
</document>

<document name="MOUNTS">
No mounts.
</document>

<document name="STYLE">
Be short.
</document>`
	if got := reqs[0].Messages[0].Content; got != system {
		t.Errorf("system prompt\n%s", got)
	}
	if d := reqs[0].Tools[0].Function.Description; d != "prints files\n\ncat FILE prints FILE." {
		t.Errorf("tool description %q", d)
	}

	msgs := messages(t, c, "s1")
	if len(msgs) != 2 || msgs[0].GetRole() != "user" || msgs[0].GetContent() != "what is in notes.txt?" || msgs[0].GetCreatedAt() == 0 {
		t.Fatalf("messages %v", msgs)
	}
	var parts []map[string]any
	if err := json.Unmarshal([]byte(msgs[1].GetContent()), &parts); err != nil {
		t.Fatal(err)
	}
	if len(parts) != 2 || parts[0]["kind"] != "tool" || parts[0]["result"] != out || parts[1]["kind"] != "text" || parts[1]["text"] != "it says "+out {
		t.Errorf("parts %v", parts)
	}
}

func TestASessionRemembersWithinItsWindow(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {memory-max-messages: \"4\", temperature: \"0.25\", max-tokens: \"77\"}\n", say("ok"))
	c := a.serve()
	for i := range 4 {
		resp, err := c.Chat(context.Background(), &agentv1.ChatRequest{SessionId: "s", Prompt: fmt.Sprint("p", i)})
		if err != nil || resp.GetResponse() != "ok" {
			t.Fatalf("%v, error %v", resp, err)
		}
	}
	var texts []string
	req := a.model.Requests()[3]
	for _, m := range req.Messages[1:] {
		texts = append(texts, m.Content)
	}
	if got := strings.Join(texts, " "); got != "p1 ok p2 ok p3" || req.MaxTokens != 77 || !strings.Contains(string(req.Raw), `"temperature":0.25`) {
		t.Errorf("the model got %s in %s", got, req.Raw)
	}

	list, err := c.ListSessions(context.Background(), &agentv1.ListSessionsRequest{})
	if err != nil || len(list.GetSessions()) != 1 {
		t.Fatalf("sessions %v, error %v", list, err)
	}
	if s := list.GetSessions()[0]; s.GetId() != "s" || s.GetMessageCount() != 8 || s.GetLastActive() == 0 {
		t.Errorf("session %v", s)
	}
	limited, err := c.ListSessionMessages(context.Background(), &agentv1.ListSessionMessagesRequest{SessionId: "s", Limit: 3})
	if err != nil || len(limited.GetMessages()) != 3 || limited.GetMessages()[1].GetContent() != "p3" {
		t.Errorf("messages %v, error %v", limited, err)
	}
	for range 2 { // the second time there is none
		if _, err := c.DeleteSession(context.Background(), &agentv1.DeleteSessionRequest{SessionId: "s"}); err != nil {
			t.Fatal(err)
		}
	}
	if msgs := messages(t, c, "s"); len(msgs) != 0 {
		t.Errorf("a deleted session has %v", msgs)
	}
}

func TestCancelInAnAnswerKeepsWhatWasSaid(t *testing.T) {
	t.Parallel()
	answers := modelserver.Script(modelserver.Answer{Text: "half", Hold: make(chan struct{})}, modelserver.Answer{Text: "whole"})
	a := newAgent(t, "", answers)
	c := a.serve()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var text string
	_, err := stream(ctx, c, "s", "go", func(e *agentv1.ChatStreamEvent) {
		if e.GetType() == "text.delta" {
			if text += e.GetContent(); text == "half" {
				cancel()
			}
		}
	})
	if status.Code(err) != codes.Canceled {
		t.Errorf("error %v", err)
	}
	// The session's next turn waits for the cancelled one to be stored.
	if _, err := c.Chat(context.Background(), &agentv1.ChatRequest{SessionId: "s", Prompt: "again"}); err != nil {
		t.Fatal(err)
	}
	msgs := messages(t, c, "s")
	if len(msgs) != 4 || msgs[1].GetContent() != `[{"kind":"text","text":"half","incomplete":true,"reason":"cancelled"}]` || !strings.Contains(msgs[3].GetContent(), "whole") {
		t.Errorf("messages %v", msgs)
	}
	for n, changed := a.model.Cancelled(); n != 1; n, changed = a.model.Cancelled() {
		<-changed
	}
}

func TestCancelInAToolKillsItsWholeGroup(t *testing.T) {
	t.Parallel()
	answers := modelserver.Script(
		toolCall("1", "sh", `{"args":["-c","sleep 1000 & echo $$ $! > fifo; wait"]}`), modelserver.Answer{Text: "again"})
	a := newAgent(t, "", answers)
	fifo := filepath.Join(a.root, "workspace", "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c := a.serve()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	processes := make(chan []int, 1)
	go func() {
		defer cancel()
		data, err := os.ReadFile(fifo) // opens once the tool runs
		if err != nil {
			t.Error(err)
		}
		processes <- openProcesses(t, string(data))
	}()
	if _, err := stream(ctx, c, "s", "go", nil); status.Code(err) != codes.Canceled {
		t.Errorf("error %v", err)
	}
	fds := <-processes
	if len(fds) != 2 {
		t.Fatalf("the tool has %d processes", len(fds))
	}
	for _, fd := range fds {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 60_000)
		for err == unix.EINTR {
			n, err = unix.Poll(poll, 60_000)
		}
		if n != 1 {
			t.Errorf("a process of the tool lives on (%v)", err)
		}
		unix.Close(fd)
	}
	// The session's next turn waits for the cancelled one to be stored.
	if err := chat(context.Background(), c, "s", "again"); err != nil {
		t.Fatal(err)
	}
	if got := messages(t, c, "s")[1].GetContent(); !strings.Contains(got, `"failed":true`) || !strings.Contains(got, `"reason":"cancelled"`) {
		t.Errorf("stored %s", got)
	}
}

// openProcesses returns a descriptor for each process number in text, which is readable once that
// process has ended.
func openProcesses(t *testing.T, text string) (fds []int) {
	for _, f := range strings.Fields(text) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			t.Error(err)
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		fds = append(fds, fd)
	}
	return fds
}

func TestSessionsAreIndependentAndEachTakesOneTurnAtATime(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	a := newAgent(t, "", func(r modelserver.Request) modelserver.Answer {
		if r.Last().Content == "slow" {
			return modelserver.Answer{Text: "slow", Hold: hold}
		}
		return modelserver.Answer{Text: "quick"}
	})
	c := a.serve()
	inside := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := stream(context.Background(), c, "a", "slow", func(e *agentv1.ChatStreamEvent) {
			if e.GetType() == "text.delta" {
				once.Do(func() { close(inside) })
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-inside
	ctx, cancel := context.WithCancel(context.Background())
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Chat(ctx, &agentv1.ChatRequest{SessionId: "a", Prompt: "waits in vain"})
		waiting <- err
	}()
	if resp, err := c.Chat(context.Background(), &agentv1.ChatRequest{SessionId: "b", Prompt: "x"}); err != nil || resp.GetResponse() != "quick" {
		t.Errorf("the other session: %v, error %v", resp, err)
	}
	cancel()
	if err := <-waiting; status.Code(err) != codes.Canceled {
		t.Errorf("who waited and left got %v", err)
	}
	wg.Go(func() {
		if _, err := c.Chat(context.Background(), &agentv1.ChatRequest{SessionId: "a", Prompt: "second"}); err != nil {
			t.Error(err)
		}
	})
	close(hold)
	wg.Wait()
	// What becomes of who left depends on when the runtime hears of it; the others keep their order.
	var got []string
	for _, m := range messages(t, c, "a") {
		got = append(got, m.GetContent())
	}
	all := strings.Join(got, "\n")
	first := "slow\n" + `[{"kind":"text","text":"slow"}]`
	second := "second\n" + `[{"kind":"text","text":"quick"}]`
	if before, after, found := strings.Cut(all, second); !strings.HasPrefix(before, first) || !found || strings.Contains(after, first) {
		t.Errorf("messages\n%s", all)
	}
}

func TestAHundredSessionsAtOnce(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", callThenSay("cat", `{"stdin":"x"}`))
	c := a.serve()
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			resp, err := c.Chat(context.Background(), &agentv1.ChatRequest{SessionId: fmt.Sprint("s", i), Prompt: "go"})
			if err != nil || resp.GetResponse() != "it says x\nexit code 0" {
				t.Errorf("session %d: %v, error %v", i, resp, err)
			}
		})
	}
	wg.Wait()
	list, err := c.ListSessions(context.Background(), &agentv1.ListSessionsRequest{})
	if err != nil || len(list.GetSessions()) != 100 {
		t.Errorf("%d sessions, error %v", len(list.GetSessions()), err)
	}
}

func TestAModelsErrorIsOneClearLine(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", func(modelserver.Request) modelserver.Answer {
		return modelserver.Answer{Status: 429, Text: "too many"}
	})
	c := a.serve()
	events, err := stream(context.Background(), c, "s", "go", nil)
	if err != nil || types(events) != "step.start step.finish error turn.finish" {
		t.Fatalf("events %s, error %v", types(events), err)
	}
	if e := events[2]; e.GetContent() != "model m1: 429 too many" || events[3].GetReason() != "model_error" {
		t.Errorf("events %v", events)
	}
	_, err = c.Chat(context.Background(), &agentv1.ChatRequest{SessionId: "s", Prompt: "go"})
	if status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != "model_error: model m1: 429 too many" {
		t.Errorf("error %v", err)
	}
	if msgs := messages(t, c, "s"); len(msgs) != 4 || msgs[1].GetContent() != `[{"kind":"text","reason":"model_error"}]` {
		t.Errorf("messages %v", msgs)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	c := a.serve()
	ctx := context.Background()
	for name, c := range map[string]struct {
		call func() error
		want codes.Code
	}{
		"allowed":         {func() error { return chat(ctx, c, "a/b:c@ü", "x") }, codes.OK},
		"no session":      {func() error { return chat(ctx, c, "", "x") }, codes.InvalidArgument},
		"session blanks":  {func() error { return chat(ctx, c, "a b", "x") }, codes.InvalidArgument},
		"session control": {func() error { return chat(ctx, c, "a\x00", "x") }, codes.InvalidArgument},
		"long session":    {func() error { return chat(ctx, c, strings.Repeat("x", 257), "x") }, codes.InvalidArgument},
		"no prompt":       {func() error { return chat(ctx, c, "s", " \n") }, codes.InvalidArgument},
		"long prompt":     {func() error { return chat(ctx, c, "s", strings.Repeat("x", 4<<20+1)) }, codes.InvalidArgument},
		"huge message":    {func() error { return chat(ctx, c, "s", strings.Repeat("x", 16<<20)) }, codes.ResourceExhausted},
		"long run": {func() error {
			return chat(metadata.AppendToOutgoingContext(ctx, "otters-run", strings.Repeat("x", 257)), c, "s", "x")
		}, codes.InvalidArgument},
		"two runs": {func() error {
			return chat(metadata.AppendToOutgoingContext(ctx, "otters-run", "a", "otters-run", "b"), c, "s", "x")
		}, codes.InvalidArgument},
		"attachment": {func() error {
			_, err := c.Chat(ctx, &agentv1.ChatRequest{SessionId: "s", Prompt: "x", Attachments: []*agentv1.Attachment{{Name: "f"}}})
			return err
		}, codes.InvalidArgument},
		"regenerate with a prompt": {func() error {
			s, err := c.ChatStream(ctx, &agentv1.ChatStreamRequest{SessionId: "s", Prompt: "x", Regenerate: true})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		}, codes.InvalidArgument},
		"object without a prompt": {func() error {
			_, err := c.PromptObject(ctx, &agentv1.PromptObjectRequest{SchemaJson: []byte("{}")})
			return err
		}, codes.InvalidArgument},
		"object without a schema": {func() error { _, err := c.PromptObject(ctx, &agentv1.PromptObjectRequest{Prompt: "x"}); return err }, codes.InvalidArgument},
		"object of a long name": {func() error {
			_, err := c.PromptObject(ctx, &agentv1.PromptObjectRequest{Prompt: "x", SchemaJson: []byte("{}"), SchemaName: strings.Repeat("x", 257)})
			return err
		}, codes.InvalidArgument},
		"note key": {func() error {
			_, err := c.SaveNote(ctx, &agentv1.SaveNoteRequest{Key: "Ab c", Content: "x"})
			return err
		}, codes.InvalidArgument},
		"a limit": {func() error { return list(ctx, c, 1000) }, codes.OK},
		"no such": {func() error { return list(ctx, c, 1001) }, codes.InvalidArgument},
		"below":   {func() error { return list(ctx, c, -1) }, codes.InvalidArgument},
		"delete":  {func() error { _, err := c.DeleteSession(ctx, &agentv1.DeleteSessionRequest{}); return err }, codes.InvalidArgument},
	} {
		if err := c.call(); status.Code(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if n := len(a.model.Requests()); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
}

func chat(ctx context.Context, c agentv1.AgentRuntimeClient, session, prompt string) error {
	_, err := c.Chat(ctx, &agentv1.ChatRequest{SessionId: session, Prompt: prompt})
	return err
}

func list(ctx context.Context, c agentv1.AgentRuntimeClient, limit int32) error {
	_, err := c.ListSessionMessages(ctx, &agentv1.ListSessionMessagesRequest{SessionId: "s", Limit: limit})
	return err
}

func TestHealthAndReadyTellWhoServes(t *testing.T) {
	t.Parallel()
	c := newAgent(t, "", say("ok")).serve()
	h, err := c.Health(context.Background(), &agentv1.HealthRequest{})
	if err != nil || h.GetStatus() != "ok" || h.GetAgentName() != "guide" || h.GetModel() != "test/m1" {
		t.Errorf("health %v, error %v", h, err)
	}
	if r, err := c.Ready(context.Background(), &agentv1.ReadyRequest{}); err != nil || !r.GetReady() {
		t.Errorf("ready %v, error %v", r, err)
	}
}

func TestACallerThatIsGoneIsNoFaultOfTheModel(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	if reason, err := agentruntime.PromptLost(context.Background(), a.opts, "s"); err != nil || reason != "cancelled" {
		t.Errorf("the turn ended with %q, error %v", reason, err)
	}
}

// A caller who reads nothing holds no stop up: the turn waits for it, and then not.
func TestAStopWaitsForNobodyWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	a := newAgent(t, "", modelserver.Script(modelserver.Answer{Pieces: []string{long, long, long, "the end"}}))
	c := a.serve()
	s, err := c.ChatStream(context.Background(), &agentv1.ChatStreamRequest{SessionId: "s", Prompt: "go"})
	if err == nil {
		_, err = s.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if msgs := messages(t, a.serve(), "s"); len(msgs) != 2 || strings.Contains(msgs[1].GetContent(), "the end") {
		t.Errorf("%d messages", len(msgs))
	}
}
