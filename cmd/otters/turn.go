package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// Of a tool's arguments and result only the beginning is shown; the agent saw everything.
	shownLines = 8
	shownWidth = 160
)

// style marks what is not the answer. The zero style marks nothing.
type style struct{ dim, red, reset string }

func newStyle(terminal bool) style {
	if !terminal || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return style{}
	}
	return style{dim: "\x1b[2m", red: "\x1b[31m", reset: "\x1b[0m"}
}

// turn prints the events of one turn as they come: the answer to text, everything else to notes.
type turn struct {
	text, notes io.Writer
	// neutralise makes the answer harmless for a terminal; the notes always are.
	neutralise bool
	style      style
	// json prints events in place of answer and notes.
	json bool

	session string
	took    time.Duration
	usage   *daemonv1.Usage
	reason  string
	failure string
	// inText tells that the answer's last line is not ended yet.
	inText bool
	// inReasoning tells the same of reasoning, among the notes.
	inReasoning bool
	err         error
}

// play sends the prompt and prints the turn; it fails where the turn did not come to its end.
func (t *turn) play(ctx context.Context, c *client.Client, req *daemonv1.PromptRequest) error {
	began := time.Now()
	err := t.receive(ctx, c, req)
	t.took = time.Since(began)
	t.endLine()
	switch {
	case err != nil:
		return err
	case t.err != nil:
		return t.err
	case t.reason != "" && t.reason != "done":
		return ended(req.GetAgent(), t.reason, t.failure)
	case t.reason == "" && t.failure != "":
		return ended(req.GetAgent(), "error", t.failure)
	}
	return nil
}

func (t *turn) receive(ctx context.Context, c *client.Client, req *daemonv1.PromptRequest) error {
	for ev, err := range c.Prompt(ctx, req) {
		if err != nil {
			return err
		}
		if t.event(ev); t.err != nil {
			return nil
		}
	}
	return nil
}

// event prints one event. A type that it does not know is left out, as the contract asks.
func (t *turn) event(ev *daemonv1.PromptResponse) {
	if ev.GetSessionId() != "" {
		t.session = ev.GetSessionId()
	}
	if t.json {
		t.line(ev)
		return
	}
	switch ev.GetType() {
	case "text.delta":
		t.answer(ev.GetContent())
	case "reasoning.delta":
		t.reasoning(ev.GetContent())
	case "tool.call":
		t.note("→ %s %s", excerpt(ev.GetTool(), 80), excerpt(ev.GetContent(), shownWidth))
	case "tool.result":
		t.note("← %s (%s)%s", excerpt(ev.GetTool(), 80), duration(ev.GetDurationMs()), result(ev.GetContent()))
	case "step.finish":
		t.note("  step %d took %s%s", ev.GetStep(), duration(ev.GetDurationMs()), tokens(ev.GetUsage()))
	case "approval.request":
		t.note("? %s asks for approval: %s", excerpt(ev.GetTool(), 80), excerpt(ev.GetContent(), shownWidth))
	case "approval.result":
		t.note("? %s: %s", excerpt(ev.GetTool(), 80), excerpt(ev.GetContent(), shownWidth))
	case "error":
		t.failure = ev.GetContent()
		t.note("%s! %s", t.style.red, excerpt(ev.GetContent(), 1000))
	case "turn.finish":
		t.reason, t.usage = ev.GetReason(), ev.GetUsage()
	}
}

func (t *turn) answer(s string) {
	if s == "" {
		return
	}
	if t.inReasoning {
		t.endLine()
	}
	if t.neutralise {
		s = neutral(s, true)
	}
	t.write(t.text, s)
	t.inText = !strings.HasSuffix(s, "\n")
}

func (t *turn) reasoning(s string) {
	if s == "" {
		return
	}
	if t.inText {
		t.endLine()
	}
	s = neutral(s, true)
	t.write(t.notes, t.style.dim+s+t.style.reset)
	t.inReasoning = !strings.HasSuffix(s, "\n")
}

// endLine ends a line of text that is followed by something else.
func (t *turn) endLine() {
	if t.inText {
		t.write(t.text, "\n")
	}
	if t.inReasoning {
		t.write(t.notes, "\n")
	}
	t.inText, t.inReasoning = false, false
}

func (t *turn) note(format string, args ...any) {
	t.endLine()
	t.write(t.notes, t.style.dim+fmt.Sprintf(format, args...)+t.style.reset+"\n")
}

func (t *turn) write(w io.Writer, s string) {
	if t.err == nil {
		_, t.err = io.WriteString(w, s)
	}
}

// line prints an event as JSON.
func (t *turn) line(ev *daemonv1.PromptResponse) {
	switch ev.GetType() {
	case "error":
		t.failure = ev.GetContent()
	case "turn.finish":
		t.reason = ev.GetReason()
	}
	enc := json.NewEncoder(t.text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(newEventJSON(ev)); err != nil && t.err == nil {
		t.err = err
	}
}

// summary says how long the turn took, what it cost and how to go on.
func (t *turn) summary() error {
	if t.json {
		return t.err
	}
	if t.session != "" {
		t.note("  turn took %s%s; go on with --session %s", duration(t.took.Milliseconds()), tokens(t.usage), neutral(t.session, false))
	}
	return t.err
}

// result is the beginning of what a tool said: beside its name where it is one line, else beneath.
func result(s string) string {
	all := strings.Split(strings.TrimRight(s, "\r\n"), "\n")
	if len(all) == 1 {
		if line := excerpt(all[0], shownWidth); line != "" {
			return " " + line
		}
		return ""
	}
	var b strings.Builder
	for i, line := range all {
		if i == shownLines {
			fmt.Fprintf(&b, "\n    … %d more lines", len(all)-i)
			break
		}
		b.WriteString("\n    " + clip(neutral(strings.TrimRight(line, "\r"), true), shownWidth))
	}
	return b.String()
}

// clip keeps blanks, which carry meaning in the output of tools.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

func duration(ms int64) string {
	if ms < 1000 {
		return fmt.Sprintf("%d ms", ms)
	}
	return fmt.Sprintf("%.1f s", float64(ms)/1000)
}

func tokens(u *daemonv1.Usage) string {
	if u.GetInputTokens() == 0 && u.GetOutputTokens() == 0 {
		return ""
	}
	return fmt.Sprintf(", %d tokens in, %d out", u.GetInputTokens(), u.GetOutputTokens())
}
