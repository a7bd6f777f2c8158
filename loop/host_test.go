package loop_test

// Invariant: without hooks of its host a loop does all by itself; a call that is not approved does not
// run, and what is said meanwhile reaches the model in a consistent history. Worst inputs: a denial
// among calls that are approved; a decision that never comes; a user who never stops talking; a clock
// that jumps; a host that panics.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/otters-sh/otters/internal/leak"
	"github.com/otters-sh/otters/loop"
)

func TestMain(m *testing.M) {
	os.Exit(leak.Code(m.Run()))
}

// approver decides by a call's arguments, and keeps what it was asked.
type approver struct {
	mu    sync.Mutex
	asked []string
	clock clock
}

func (a *approver) Approve(ctx context.Context, c loop.Call) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, c.ID+" "+c.Metadata["otters-run"])
	switch {
	case strings.Contains(string(c.Args), "risky"):
		return errors.New("the user says no")
	case strings.Contains(string(c.Args), "odd"):
		return errors.New("no\xff")
	case strings.Contains(string(c.Args), "worst"):
		return loop.End(loop.Denied, "never again")
	case strings.Contains(string(c.Args), "wait"):
		a.clock.move(time.Hour)
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func TestACallThatIsNotApprovedDoesNotRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		calls   []loop.Delta
		asked   string
		results string
		reason  loop.Reason
	}{
		"approved": {[]loop.Delta{call(0, "1", "echo", `{"a":1}`), call(1, "2", "echo", `{"b":2}`)}, "1 r1, 2 r1", `{"a":1}, {"b":2}`, loop.Done},
		"refused":  {[]loop.Delta{call(0, "1", "echo", `{"a":"risky"}`), call(1, "2", "echo", `{}`)}, "1 r1, 2 r1", "not run: the user says no, {}", loop.Done},
		"oddly":    {[]loop.Delta{call(0, "1", "echo", `{"a":"odd"}`)}, "1 r1", "not run: no\uFFFD", loop.Done},
		"denied": {[]loop.Delta{call(0, "1", "echo", `{}`), call(1, "2", "echo", `{"a":"worst"}`), call(2, "3", "echo", `{}`)},
			"1 r1, 2 r1", "{}, not run: never again, not run: the turn ends", loop.Denied},
		"nothing to ask": {[]loop.Delta{call(0, "1", "nobody", `{}`), call(1, "2", "echo", `{"cut`)}, "", `unknown tool "nobody"; the tools are echo, arguments are no`, loop.Done},
		"no decision":    {[]loop.Delta{call(0, "1", "echo", `{"a":"wait"}`), call(1, "2", "echo", `{}`)}, "1 r1", "not run: turn took longer", loop.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var a approver
			var j journal
			m := &script{answers: []answerFunc{deltas(append(c.calls, finish(loop.FinishStop))...), say("ok")}}
			out, _ := take(t, context.Background(), loop.Config{Model: m, Tools: []loop.Tool{echo}, Approver: &a, Clock: &a.clock, Timeout: time.Hour}, &j)
			if out.Reason != c.reason || strings.Join(a.asked, ", ") != c.asked {
				t.Errorf("reason %s, asked %q", out.Reason, a.asked)
			}
			if got := strings.Join(results(out.Messages[2]), ", "); !strings.HasPrefix(got, c.results) {
				t.Errorf("results %q", got)
			}
			requests, decisions := 0, 0
			for _, e := range j.events {
				switch e.Type {
				case loop.ApprovalRequest:
					requests++
				case loop.ApprovalResult:
					decisions++
					if e.Failed == (e.Content == "approved") || e.ToolID == "" || !utf8.ValidString(e.Content) {
						t.Errorf("decision %+v", e)
					}
				}
			}
			if requests != len(a.asked) || decisions != requests {
				t.Errorf("events %s", j.types())
			}
		})
	}
}

// past is a store that has a history, or an error.
type past struct {
	history []loop.Message
	err     error
	asked   int
}

func (p *past) History(ctx context.Context) ([]loop.Message, error) {
	p.asked++
	return p.history, p.err
}

func TestAStoreHasTheHistory(t *testing.T) {
	t.Parallel()
	said := []loop.Message{loop.UserMessage("a"), {Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.KindText, Text: "b"}}}}
	for name, c := range map[string]struct {
		err    error
		reason loop.Reason
		asked  int
	}{
		"there":   {nil, loop.Done, 4},
		"broken":  {errors.New("no such table"), loop.Interrupted, 0},
		"refused": {loop.End(loop.Budget, "spent"), loop.Budget, 0},
	} {
		m, p, j := &script{answers: []answerFunc{deltas(call(0, "1", "echo", "{}"), finish(loop.FinishStop)), say("ok")}}, past{said, c.err, 0}, journal{}
		out, err := loop.New(loop.Config{Model: m, Tools: []loop.Tool{echo}}).Run(context.Background(), loop.Turn{Prompt: "c", Store: &p, Recorder: &j})
		if out.Reason != c.reason || (err == nil) != (c.err == nil) || p.asked != 1 || len(j.recorded) != max(1, c.asked) || j.recorded[0].Text() != "c" {
			t.Errorf("%s: reason %s, error %v, asked %d times, recorded %v", name, out.Reason, err, p.asked, j.recorded)
		}
		if c.err == nil && (len(m.requests) != 2 || len(m.requests[0].Messages) != 3 || m.requests[1].Messages[1].Text() != "b") || c.err != nil && len(m.requests) != 0 {
			t.Errorf("%s: the model was asked %+v", name, m.requests)
		}
	}
}

// steerer says one list of texts after the other, and the last one again and again.
type steerer [][]string

func (s *steerer) Steer() []string {
	said := (*s)[0]
	if len(*s) > 1 {
		*s = (*s)[1:]
	}
	return said
}

func TestWhatIsSaidMeanwhileReachesTheModel(t *testing.T) {
	t.Parallel()
	steps := []answerFunc{deltas(call(0, "1", "echo", "{}"), finish(loop.FinishStop)), say("done"), say("really done")}
	for name, c := range map[string]struct {
		said  steerer
		roles string
		steps int
		text  string
		most  int // tokens; an answer has 5
	}{
		"nothing":                {steerer{nil, {""}}, "user assistant tool assistant", 2, "done", 0},
		"between steps":          {steerer{{"also this", "and that"}, nil}, "user assistant tool user user assistant", 2, "done", 0},
		"when it is done":        {steerer{nil, {"one more"}, nil}, "user assistant tool assistant user assistant", 3, "really done", 0},
		"without end, bounded":   {steerer{{"x"}}, "user assistant tool user assistant user assistant user assistant user assistant", 5, "really done", 0},
		"without end, by tokens": {steerer{{"x"}}, "user assistant tool user assistant user assistant", 3, "really done", 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var j journal
			m := &script{answers: slices.Clone(steps)}
			out, err := loop.New(loop.Config{Model: m, Tools: []loop.Tool{echo}, MaxIterations: 5, MaxTurnTokens: c.most}).Run(context.Background(), loop.Turn{Prompt: "go", Steerer: &c.said, Recorder: &j})
			var roles []string
			for _, m := range j.recorded {
				roles = append(roles, string(m.Role))
			}
			if got := strings.Join(roles, " "); err != nil || got != c.roles || out.Reason != loop.Done || out.Steps != c.steps || out.Text != c.text {
				t.Errorf("%s after %d steps: %s, %q, error %v", out.Reason, out.Steps, got, out.Text, err)
			}
			if len(m.requests) != c.steps || len(j.recorded) != len(out.Messages) {
				t.Errorf("%d requests, %d messages", len(m.requests), len(out.Messages))
			}
			checkConsistent(t, out.Messages)
		})
	}
}

// breaking is a host that panics.
type breaking struct{}

func (breaking) Approve(context.Context, loop.Call) error                { panic("boom") }
func (breaking) Steer() []string                                         { panic("boom") }
func (breaking) History(context.Context) ([]loop.Message, error)         { panic("boom") }
func (breaking) keep(context.Context, loop.Call, string) (string, error) { panic("boom") }
func (breaking) compact(context.Context) ([]loop.Message, error)         { panic("boom") }
func (breaking) Record(context.Context, loop.Message) error              { panic("boom") }

// broken is a model that panics after half a sentence.
func broken(yield func(loop.Delta, error) bool) {
	if yield(text("half a"), nil) {
		panic("boom")
	}
}

// breaksAt is an observer that panics at events of a type.
func breaksAt(at loop.EventType) func(loop.Event) {
	return func(e loop.Event) {
		if e.Type == at {
			panic("boom")
		}
	}
}

func TestAHostThatPanicsEndsTheTurnInOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg      loop.Config
		turn     loop.Turn
		says     string
		messages int
		reason   loop.Reason
	}{
		"approver":     {loop.Config{Approver: breaking{}}, loop.Turn{}, "approver broke: boom", 3, loop.Interrupted},
		"steerer":      {loop.Config{}, loop.Turn{Steerer: breaking{}}, "steerer broke: boom", 3, loop.Interrupted},
		"store":        {loop.Config{}, loop.Turn{Store: breaking{}}, "store broke: boom", 1, loop.Interrupted},
		"keeper":       {loop.Config{Keep: breaking{}.keep, MaxOutput: 2}, loop.Turn{}, "", 4, loop.Done},
		"recorder":     {loop.Config{}, loop.Turn{Recorder: breaking{}}, "recorder broke: boom", 1, loop.Interrupted},
		"compactor":    {loop.Config{Model: &script{answers: []answerFunc{tooLong}}}, loop.Turn{Compact: breaking{}.compact}, "compactor broke: boom", 1, loop.Interrupted},
		"model":        {loop.Config{Model: &script{answers: []answerFunc{broken}}}, loop.Turn{}, "model broke: boom", 2, loop.ModelError},
		"observer":     {loop.Config{}, loop.Turn{Observe: breaksAt(loop.ToolCall)}, "observer broke: boom", 3, loop.Interrupted},
		"of the start": {loop.Config{}, loop.Turn{Observe: breaksAt(loop.StepStart)}, "observer broke: boom", 1, loop.Interrupted},
		"of a text":    {loop.Config{Model: &script{answers: []answerFunc{say("ok")}}}, loop.Turn{Observe: breaksAt(loop.TextDelta)}, "observer broke: boom", 2, loop.Interrupted},
		"of the end":   {loop.Config{}, loop.Turn{Observe: breaksAt(loop.TurnFinish)}, "observer broke: boom", 4, loop.Interrupted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var j journal
			if c.cfg.Model == nil {
				c.cfg.Model = &script{answers: []answerFunc{deltas(call(0, "1", "echo", `{"a":1}`), finish(loop.FinishStop)), say("ok")}}
			}
			c.cfg.Tools = []loop.Tool{echo}
			c.turn.Prompt = "go"
			observer := c.turn.Observe
			c.turn.Observe = func(e loop.Event) {
				j.events = append(j.events, e)
				if observer != nil {
					observer(e)
				}
			}
			if c.turn.Recorder == nil {
				c.turn.Recorder = &j
			}
			out, err := loop.New(c.cfg).Run(context.Background(), c.turn)
			if got := fmt.Sprint(err); c.says != "" && !strings.HasSuffix(got, c.says) || c.says == "" && err != nil || out.Reason != c.reason {
				t.Errorf("reason %s, error %v", out.Reason, err)
			}
			if len(out.Messages) != c.messages || c.turn.Recorder == &j && len(j.recorded) != c.messages || j.events[len(j.events)-1].Type != loop.TurnFinish {
				t.Errorf("%d messages, events %s", len(out.Messages), j.types())
			}
			checkConsistent(t, out.Messages)
		})
	}
}

var tooLong = failing(&loop.CallError{Status: 400, Code: "context_length_exceeded", Message: "too long"})

func TestAModelThatPanicsGivesNoObject(t *testing.T) {
	t.Parallel()
	var call *loop.CallError
	if _, err := object(&script{answers: []answerFunc{broken}}, riverSchema); !errors.As(err, &call) || call.Message != "model broke: boom" {
		t.Errorf("error %v", err)
	}
}

// clock is moved by hand.
type clock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[time.Time][]func()
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) AfterFunc(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timers == nil {
		c.timers = make(map[time.Time][]func())
	}
	c.timers[c.now.Add(d)] = append(c.timers[c.now.Add(d)], f)
	return func() bool { return true } // a late end of a context that is over ends nothing
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	var due []func()
	for at, fs := range c.timers {
		if !at.After(c.now) {
			due = append(due, fs...)
			delete(c.timers, at)
		}
	}
	c.mu.Unlock()
	for _, f := range due {
		f()
	}
}

func TestBoundsGoByTheClock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		passes time.Duration
		result string
		reason loop.Reason
		told   bool
	}{
		"within":         {time.Minute - 1, "ran", loop.Done, false},
		"the call's":     {time.Minute, "longer than its limit of 1m0s", loop.Done, false},
		"the soft limit": {50 * time.Minute, "longer than its limit of 1m0s", loop.Done, true},
		"the turn's":     {time.Hour, "", loop.Timeout, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var at clock
			work := tool{"work", func(ctx context.Context, _ string) (string, error) {
				at.move(c.passes)
				if ctx.Err() != nil {
					return "", ctx.Err()
				}
				return "ran", nil
			}}
			m := &script{answers: []answerFunc{deltas(call(0, "1", "work", "{}"), finish(loop.FinishStop)), say("ok")}}
			var j journal
			out, _ := take(t, context.Background(), loop.Config{Model: m, Tools: []loop.Tool{work}, Clock: &at, Timeout: time.Hour, ToolTimeout: time.Minute}, &j)
			if out.Reason != c.reason || !strings.Contains(results(out.Messages[2])[0], c.result) {
				t.Errorf("reason %s, results %q", out.Reason, results(out.Messages[2]))
			}
			if last := j.events[len(j.events)-1]; last.Duration != c.passes {
				t.Errorf("the turn took %s", last.Duration)
			}
			if told := len(m.requests) > 1 && strings.Contains(fmt.Sprint(m.requests[1].Messages), "Finish now"); told != c.told {
				t.Errorf("told to finish: %t", told)
			}
		})
	}
}
