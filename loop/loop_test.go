package loop_test

// Invariant: whatever a model, a tool or a caller does, a turn ends for one of ten reasons, its last
// event is turn.finish, its history has a result for every call, and nothing of it is left running.
// Worst inputs: a model that never ends or asks for the same call for ever; a cancel in the middle of
// a sentence or of three tools; calls without ids, with one id for two, with arguments that are no
// JSON, for tools that do not exist or that panic.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/otters-sh/otters/loop"
)

// script is a model that gives one answer after the other, and the last one again and again.
type script struct {
	mu       sync.Mutex
	answers  []func(yield func(loop.Delta, error) bool)
	requests []loop.Request
}

func (s *script) Stream(_ context.Context, req loop.Request) iter.Seq2[loop.Delta, error] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, req)
	a := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return a
}

type answerFunc = func(yield func(loop.Delta, error) bool)

func deltas(ds ...loop.Delta) answerFunc {
	return func(yield func(loop.Delta, error) bool) {
		for _, d := range ds {
			if !yield(d, nil) {
				return
			}
		}
	}
}

func text(s string) loop.Delta        { return loop.Delta{Kind: loop.DeltaText, Text: s} }
func finish(f loop.Finish) loop.Delta { return loop.Delta{Kind: loop.DeltaFinish, Finish: f} }

func call(i int, id, name, args string) loop.Delta {
	return loop.Delta{Kind: loop.DeltaCall, Index: i, ID: id, Name: name, Text: args}
}

func say(s string) answerFunc {
	return deltas(text(s), loop.Delta{Kind: loop.DeltaUsage, Usage: loop.Usage{InputTokens: 3, OutputTokens: 2}}, finish(loop.FinishStop))
}

func failing(err error) answerFunc {
	return func(yield func(loop.Delta, error) bool) { yield(loop.Delta{}, err) }
}

// tool is a tool made of a function.
type tool struct {
	name string
	run  func(ctx context.Context, args string) (string, error)
}

func (t tool) Spec() loop.ToolSpec { return loop.ToolSpec{Name: t.name} }

func (t tool) Call(ctx context.Context, c loop.Call) (string, error) {
	return t.run(ctx, string(c.Args))
}

var echo = tool{"echo", func(_ context.Context, args string) (string, error) { return args, nil }}

// journal keeps events and recorded messages.
type journal struct {
	events   []loop.Event
	recorded []loop.Message
	err      error
	seen     func(loop.Event) // may be nil
}

func (j *journal) Record(_ context.Context, m loop.Message) error {
	if j.err != nil {
		return j.err
	}
	j.recorded = append(j.recorded, m)
	return nil
}

func (j *journal) types() string {
	var types []string
	for _, e := range j.events {
		types = append(types, string(e.Type))
	}
	return strings.Join(types, " ")
}

// take runs a turn and checks what holds for every one.
func take(t *testing.T, ctx context.Context, cfg loop.Config, j *journal) (loop.Outcome, error) {
	t.Helper()
	observe := func(e loop.Event) {
		j.events = append(j.events, e)
		if j.seen != nil {
			j.seen(e)
		}
	}
	out, err := loop.New(cfg).Run(ctx, loop.Turn{Prompt: "hello", Observe: observe, Recorder: j, Metadata: map[string]string{"otters-run": "r1"}})
	for i, e := range j.events {
		if last := i == len(j.events)-1; last != (e.Type == loop.TurnFinish) {
			t.Errorf("event %d of %d is %s", i+1, len(j.events), e.Type)
		}
	}
	if n := len(j.events); n == 0 || j.events[n-1].Reason != out.Reason {
		t.Errorf("turn.finish does not tell the reason %s", out.Reason)
	}
	if !slices.EqualFunc(j.recorded, out.Messages, func(a, b loop.Message) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) && j.err == nil {
		t.Errorf("recorded %v, returned %v", j.recorded, out.Messages)
	}
	checkConsistent(t, out.Messages)
	return out, err
}

func checkConsistent(t *testing.T, history []loop.Message) {
	t.Helper()
	for i, m := range history {
		var calls, results []string
		for _, p := range m.Parts {
			if p.Kind == loop.KindCall {
				calls = append(calls, p.ID)
				if !json.Valid([]byte(p.Args)) {
					t.Errorf("call %s has arguments %q", p.ID, p.Args)
				}
			}
		}
		if len(calls) == 0 {
			continue
		}
		if i+1 < len(history) {
			for _, p := range history[i+1].Parts {
				results = append(results, p.ID)
			}
		}
		if !slices.Equal(calls, results) {
			t.Errorf("calls %v have results %v", calls, results)
		}
	}
}

func results(m loop.Message) []string {
	var texts []string
	for _, p := range m.Parts {
		texts = append(texts, p.Text)
	}
	return texts
}

func TestTurnCallsAToolAndAnswers(t *testing.T) {
	t.Parallel()
	m := &script{answers: []answerFunc{
		deltas(loop.Delta{Kind: loop.DeltaReasoning, Text: "hm"}, text("let "), text("me see"),
			call(0, "a", "echo", `{"x"`), call(0, "", "", `:1}`), finish(loop.FinishStop)),
		say("it is 1"),
	}}
	var j journal
	out, err := take(t, context.Background(), loop.Config{Model: m, Tools: []loop.Tool{echo}, System: "be kind"}, &j)
	if err != nil || out.Reason != loop.Done || out.Text != "it is 1" || out.Steps != 2 {
		t.Fatalf("outcome %+v, error %v", out, err)
	}
	want := "step.start reasoning.delta text.delta text.delta tool.call tool.result step.finish step.start text.delta step.finish message.create turn.finish"
	if got := j.types(); got != want {
		t.Errorf("events\n%s, want\n%s", got, want)
	}
	if e := j.events[4]; e.Tool != "echo" || e.ToolID != "a" || e.Content != `{"x":1}` || e.Step != 1 {
		t.Errorf("call event %+v", e)
	}
	if e := j.events[5]; e.ToolID != "a" || e.Content != `{"x":1}` || e.Failed {
		t.Errorf("result event %+v", e)
	}
	if out.Usage != (loop.Usage{InputTokens: 3, OutputTokens: 2}) || j.events[9].Usage != out.Usage {
		t.Errorf("usage %+v", out.Usage)
	}
	req := m.requests[1]
	if req.System != "be kind" || len(req.Messages) != 3 || req.Messages[2].Parts[0].Text != `{"x":1}` || req.Metadata["otters-run"] != "r1" {
		t.Errorf("second request %+v", req)
	}
}

func TestCallsOfAStepRunAtOnceAndAnswerInOrder(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	slow := tool{"slow", func(ctx context.Context, _ string) (string, error) { <-gate; return "slow", nil }}
	quick := tool{"quick", func(context.Context, string) (string, error) { close(gate); return "quick", nil }}
	m := &script{answers: []answerFunc{deltas(call(0, "a", "slow", ""), call(1, "b", "quick", ""), finish(loop.FinishStop)), say("ok")}}
	var j journal
	out, err := take(t, context.Background(), loop.Config{Model: m, Tools: []loop.Tool{slow, quick}}, &j)
	if err != nil {
		t.Fatal(err)
	}
	if got := results(out.Messages[2]); !slices.Equal(got, []string{"slow", "quick"}) {
		t.Errorf("results %v", got)
	}
}

func TestToolTroubleIsToldToTheModel(t *testing.T) {
	t.Parallel()
	var at clock
	told := make(chan struct{})
	tools := []loop.Tool{
		echo,
		tool{"fail", func(context.Context, string) (string, error) { return "half", errors.New("no such file") }},
		tool{"break", func(context.Context, string) (string, error) { panic("boom") }},
		tool{"hang", func(ctx context.Context, _ string) (string, error) {
			<-told // those before it are over, which the time would end too
			at.move(time.Minute)
			<-ctx.Done()
			return "", ctx.Err()
		}},
	}
	m := &script{answers: []answerFunc{deltas(
		call(0, "1", "echo", `{}`), call(1, "2", "fail", ``), call(2, "3", "break", `{}`), call(3, "4", "hang", `{}`),
		call(4, "5", "nobody", `{}`), call(5, "6", "echo", `{"cut`), call(6, "7", "echo", `[1]`), call(7, "", "echo", "{}"), call(8, "1", "echo", "{}"),
		call(9, "8", "echo", strings.Repeat("[", 10001)),
		finish(loop.FinishStop)), say("sorry")}}
	j := journal{seen: func(e loop.Event) {
		if e.Type == loop.ToolResult && e.ToolID == "3" {
			close(told)
		}
	}}
	out, err := take(t, context.Background(), loop.Config{Model: m, Tools: tools, Clock: &at, ToolTimeout: time.Minute}, &j)
	if err != nil || out.Reason != loop.Done {
		t.Fatalf("outcome %v, error %v", out.Reason, err)
	}
	want := []string{"{}", "half\nno such file", "tool break broke: boom", "longer than its limit of 1m0s", `unknown tool "nobody"; the tools are echo, fail`,
		"arguments are no JSON object", "want {…}", "{}", "{}", "it nests deeper than 10000 levels"}
	for i, p := range out.Messages[2].Parts {
		if !strings.Contains(p.Text, want[i]) || p.Failed != (want[i] != "{}") {
			t.Errorf("result %d is %q (failed %v), want %q", i, p.Text, p.Failed, want[i])
		}
	}
}

func TestBoundsEndATurn(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	count := tool{"count", func(context.Context, string) (string, error) { return fmt.Sprint(n.Add(1)), nil }}
	same := deltas(call(0, "x", "echo", "{}"), finish(loop.FinishStop))
	for name, c := range map[string]struct {
		answer answerFunc
		cfg    loop.Config
		want   loop.Reason
		steps  int
		failed bool
	}{
		"iterations":      {deltas(call(0, "x", "count", "{}"), finish(loop.FinishStop)), loop.Config{MaxIterations: 4}, loop.MaxIterations, 4, false},
		"repeated calls":  {same, loop.Config{RepeatLimit: 3}, loop.Repeat, 3, false},
		"tokens":          {deltas(text("a long"), finish(loop.FinishLength)), loop.Config{}, loop.MaxTokens, 1, false},
		"tokens in calls": {deltas(call(0, "x", "echo", `{"a":`), finish(loop.FinishLength)), loop.Config{}, loop.MaxTokens, 1, false},
		"tokens of a turn": {deltas(call(0, "x", "count", "{}"), loop.Delta{Kind: loop.DeltaUsage, Usage: loop.Usage{InputTokens: 30, OutputTokens: 10}}, finish(loop.FinishStop)),
			loop.Config{MaxTurnTokens: 100}, loop.MaxTokens, 3, false},
		"filter":     {deltas(text("I"), finish(loop.FinishFiltered)), loop.Config{}, loop.ModelError, 1, true},
		"denied":     {failing(loop.End(loop.Denied, "no")), loop.Config{}, loop.Denied, 1, true},
		"budget":     {failing(fmt.Errorf("ask: %w", loop.End(loop.Budget, "spent"))), loop.Config{}, loop.Budget, 1, true},
		"a mood":     {failing(loop.End("mood", "not today")), loop.Config{}, loop.Interrupted, 1, true},
		"model":      {failing(&loop.CallError{Status: 500, Message: "down"}), loop.Config{}, loop.ModelError, 1, true},
		"broken off": {deltas(text("half a sen")), loop.Config{}, loop.ModelError, 1, true},
		"endless answer": {func(yield func(loop.Delta, error) bool) {
			for yield(text(strings.Repeat("x", 1<<20)), nil) {
			}
		}, loop.Config{}, loop.ModelError, 1, true},
		"endless calls": {func(yield func(loop.Delta, error) bool) {
			for i := 0; yield(call(i, "", "echo", "{}"), nil); i++ {
			}
		}, loop.Config{}, loop.ModelError, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cfg.Model, c.cfg.Tools = &script{answers: []answerFunc{c.answer}}, []loop.Tool{echo, count}
			var j journal
			out, err := take(t, context.Background(), c.cfg, &j)
			if out.Reason != c.want || out.Steps != c.steps || (err != nil) != c.failed {
				t.Errorf("reason %s after %d steps, error %v", out.Reason, out.Steps, err)
			}
			if told := strings.Contains(j.types(), "error"); told != c.failed {
				t.Errorf("events %s", j.types())
			}
		})
	}
}

func TestCancelAnywhereLeavesAConsistentHistory(t *testing.T) {
	t.Parallel()
	hang := tool{"hang", func(ctx context.Context, _ string) (string, error) { <-ctx.Done(); return "partial", ctx.Err() }}
	answers := []answerFunc{
		deltas(text("one "), text("two"), call(0, "a", "hang", "{}"), call(1, "b", "echo", "{}"), finish(loop.FinishStop)),
		say("never"),
	}
	events := 0
	for at := 0; ; at++ {
		ctx, cancel := context.WithCancelCause(context.Background())
		cause := context.Canceled
		want := loop.Cancelled
		if at%2 == 1 {
			cause, want = loop.End(loop.Interrupted, "stopping"), loop.Interrupted
		}
		var j journal
		seen := 0
		cfg := loop.Config{Model: &script{answers: slices.Clone(answers)}, Tools: []loop.Tool{hang, echo}}
		out, err := loop.New(cfg).Run(ctx, loop.Turn{Prompt: "go", Recorder: &j, Observe: func(e loop.Event) {
			if seen++; seen == at+1 || e.Type == loop.ToolCall && e.Tool == "echo" {
				cancel(cause)
			}
		}})
		cancel(nil)
		checkConsistent(t, out.Messages)
		if out.Reason != want || err == nil {
			t.Errorf("cancelled at event %d: reason %s, error %v", at, out.Reason, err)
		}
		if len(j.recorded) != len(out.Messages) {
			t.Errorf("cancelled at event %d: %d messages recorded of %d", at, len(j.recorded), len(out.Messages))
		}
		if at == 1 && (len(out.Messages) != 2 || out.Messages[1].Text() != "one " || !out.Messages[1].Incomplete) {
			t.Errorf("a cut sentence is kept as %+v", out.Messages)
		}
		if events = seen; at >= events {
			break
		}
	}
	if events < 8 {
		t.Errorf("only %d events were cut at", events)
	}
}

func TestATurnHasATimeLimit(t *testing.T) {
	t.Parallel()
	hang := tool{"hang", func(ctx context.Context, _ string) (string, error) { <-ctx.Done(); return "", ctx.Err() }}
	m := &script{answers: []answerFunc{deltas(call(0, "a", "hang", "{}"), finish(loop.FinishStop))}}
	var j journal
	out, err := take(t, context.Background(), loop.Config{Model: m, Tools: []loop.Tool{hang}, Timeout: 20 * time.Millisecond}, &j)
	if out.Reason != loop.Timeout || err == nil || !strings.Contains(err.Error(), "20ms") {
		t.Errorf("reason %s, error %v", out.Reason, err)
	}
}

func TestFromTheSoftLimitOnTheModelIsToldToFinish(t *testing.T) {
	t.Parallel()
	var at clock
	wait := tool{"wait", func(context.Context, string) (string, error) { at.move(time.Minute); return "ok", nil }}
	m := &script{answers: []answerFunc{deltas(call(0, "a", "wait", "{}"), finish(loop.FinishStop)), say("done")}}
	for soft, told := range map[time.Duration]bool{time.Minute: true, time.Hour: false} {
		var j journal
		m := &script{answers: slices.Clone(m.answers)}
		out, err := take(t, context.Background(), loop.Config{Model: m, Tools: []loop.Tool{wait}, SoftTimeout: soft, Timeout: 2 * time.Hour, Clock: &at}, &j)
		if err != nil || out.Reason != loop.Done || len(out.Messages) != 4 {
			t.Errorf("reason %s with %d messages, error %v", out.Reason, len(out.Messages), err)
		}
		last := m.requests[1].Messages[len(m.requests[1].Messages)-1]
		if strings.Contains(last.Text(), "Finish now") != told || len(m.requests[0].Messages) != 1 {
			t.Errorf("soft limit %s: the last message of the request is %+v", soft, last)
		}
	}
}

func TestOutputOverTheLimitIsKeptAndCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	long := "a" + strings.Repeat("€", 100)
	out := func(keep func(context.Context, loop.Call, string) (string, error)) string {
		big := tool{"big", func(context.Context, string) (string, error) { return long, nil }}
		m := &script{answers: []answerFunc{deltas(call(0, "a", "big", "{}"), finish(loop.FinishStop)), say("done")}}
		var j journal
		o, err := take(t, context.Background(), loop.Config{Model: m, Tools: []loop.Tool{big}, MaxOutput: 40, Keep: keep}, &j)
		if err != nil {
			t.Fatal(err)
		}
		return o.Messages[2].Parts[0].Text
	}
	var kept string
	keep := func(_ context.Context, c loop.Call, text string) (string, error) {
		kept = text
		return "file-" + c.ID, nil
	}
	want := "a€€€€€€\n[cut: the first 19 and the last 18 of 301 bytes; all of it is in file-a]\n€€€€€€"
	if got := out(keep); got != want || kept != long {
		t.Errorf("got %q, want %q; kept %d bytes", got, want, len(kept))
	}
	if got := out(nil); !strings.Contains(got, "the rest is not kept") {
		t.Errorf("got %q", got)
	}
	if got := out(func(context.Context, loop.Call, string) (string, error) { return "", errors.New("disk is full") }); !strings.Contains(got, "could not be kept: disk is full") {
		t.Errorf("got %q", got)
	}
}

func TestAToolMayEndTheTurn(t *testing.T) {
	t.Parallel()
	no := tool{"no", func(context.Context, string) (string, error) { return "", loop.End(loop.Denied, "policy: not today") }}
	m := &script{answers: []answerFunc{deltas(call(0, "a", "no", "{}"), call(1, "b", "echo", "{}"), finish(loop.FinishStop)), say("never")}}
	var j journal
	out, err := take(t, context.Background(), loop.Config{Model: m, Tools: []loop.Tool{no, echo}}, &j)
	if out.Reason != loop.Denied || err == nil || len(m.requests) != 1 {
		t.Errorf("reason %s, error %v, %d requests", out.Reason, err, len(m.requests))
	}
}

func TestWhatCannotBeRecordedEndsTheTurn(t *testing.T) {
	t.Parallel()
	full := errors.New("disk is full")
	j := journal{err: full}
	m := &script{answers: []answerFunc{say("never")}}
	out, err := take(t, context.Background(), loop.Config{Model: m}, &j)
	if !errors.Is(err, full) || out.Reason != loop.Interrupted || len(m.requests) != 0 {
		t.Errorf("reason %s, error %v, %d requests", out.Reason, err, len(m.requests))
	}
}

func TestBrokenTextBecomesValid(t *testing.T) {
	t.Parallel()
	m := &script{answers: []answerFunc{deltas(text("a\xffb"), finish(loop.FinishStop))}}
	var j journal
	out, err := take(t, context.Background(), loop.Config{Model: m}, &j)
	if err != nil || out.Text != "a\uFFFDb" || j.events[1].Content != out.Text {
		t.Errorf("text %q, error %v", out.Text, err)
	}
}

func TestRepairAnswersCallsThatAKilledProcessLeft(t *testing.T) {
	t.Parallel()
	asked := loop.Message{Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.KindCall, ID: "a", Name: "echo", Args: "{}"}}}
	answered := loop.Message{Role: loop.RoleTool, Parts: []loop.Part{{Kind: loop.KindResult, ID: "a"}}}
	whole := []loop.Message{loop.UserMessage("x"), asked, answered}
	if got := loop.Repair(whole, "n"); len(got) != 3 {
		t.Errorf("a whole history became %v", got)
	}
	for _, h := range [][]loop.Message{{loop.UserMessage("x"), asked}, {asked, loop.UserMessage("y"), asked, answered}} {
		got := loop.Repair(h, "gone")
		if len(got) != len(h)+1 {
			t.Errorf("%v became %v", h, got)
		}
		checkConsistent(t, got)
	}
	two := loop.Message{Role: loop.RoleAssistant, Parts: append([]loop.Part{{Kind: loop.KindCall, ID: "b", Name: "echo", Args: "{}"}}, asked.Parts...)}
	got := loop.Repair([]loop.Message{two, answered, loop.UserMessage("y")}, "gone")
	if len(got) != 3 || len(got[1].Parts) != 2 || got[1].Parts[0].Text != "gone" || got[1].Parts[1].Text == "gone" {
		t.Errorf("of two calls one was answered: %v", got)
	}
	checkConsistent(t, got)
}

// Not parallel: it reads what the whole process allocates.
func TestALongAnswerTakesLinearMemory(t *testing.T) {
	allocated := func(n int) uint64 {
		piece := text("word ")
		m := &script{answers: []answerFunc{func(yield func(loop.Delta, error) bool) {
			for range n {
				if !yield(piece, nil) {
					return
				}
			}
			yield(finish(loop.FinishStop), nil)
		}}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if out, err := loop.New(loop.Config{Model: m}).Run(context.Background(), loop.Turn{Prompt: "x"}); err != nil || len(out.Text) != 5*n {
			t.Fatalf("%d bytes, error %v", len(out.Text), err)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	short, long := allocated(10_000), allocated(160_000)
	if long > 32*short { // 16 where it is linear, 256 where every piece is copied again
		t.Errorf("16 times the length took %d bytes in place of %d", long, short)
	}
}

func TestALoopWithoutAModelSaysSo(t *testing.T) {
	t.Parallel()
	if _, err := loop.New(loop.Config{}).Run(context.Background(), loop.Turn{Prompt: "x"}); !errors.Is(err, loop.ErrNoModel) {
		t.Errorf("error %v", err)
	}
}
