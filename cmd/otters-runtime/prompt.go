package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/otters-sh/otters/agentruntime"
	"github.com/otters-sh/otters/loop"
)

// maxPrompt bounds a prompt from standard input, in bytes.
const maxPrompt = 4 << 20

// prompt runs one turn of a tree that no runtime serves.
func prompt(args []string) int {
	var opts agentruntime.Options
	var q agentruntime.Question
	var events bool
	flags := flag.NewFlagSet("prompt", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&opts.Root, "root", "", "")
	flags.StringVar(&opts.Model, "model", "", "")
	flags.StringVar(&q.Session, "session", "", "")
	flags.BoolVar(&q.Regenerate, "regenerate", false, "")
	flags.BoolVar(&events, "json", false, "")
	if err := flags.Parse(args); err != nil {
		return misused("prompt: " + err.Error())
	}
	switch {
	case flags.NArg() > 1:
		return misused(fmt.Sprintf("prompt: unexpected argument %q", flags.Arg(1)))
	case q.Regenerate && flags.NArg() > 0:
		return misused("prompt: with --regenerate the session's last prompt is answered again; give no text")
	case q.Regenerate && q.Session == "":
		return misused("prompt: --regenerate needs --session")
	}
	if err := hideEnvironment(); err != nil {
		return failed(err)
	}
	if !q.Regenerate {
		var err error
		if q.Text, err = promptText(flags.Arg(0)); err != nil {
			return failed(err)
		}
	}
	if q.Session == "" {
		q.Session = strings.ToLower(rand.Text())
	}
	// Nothing that this process was given reaches a tool.
	if _, err := agentruntime.Inherit(func(string) string { return "" }); err != nil {
		return failed(err)
	}
	// A reader that goes away ends the turn, and the turn is then stored as far as it came.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts.Environ, opts.Log = os.Environ(), os.Stderr
	p := printer{out: bufio.NewWriter(os.Stdout), session: q.Session, events: events, failed: cancel}
	q.Observe = p.event
	out, err := agentruntime.Ask(ctx, opts, q)
	if err = errors.Join(err, p.end()); err != nil {
		return failed(err)
	}
	if out.Reason != loop.Done {
		return failed(fmt.Errorf("the turn ended early: %s", out.Reason))
	}
	return 0
}

// promptText is the prompt given, or that of standard input.
func promptText(given string) (string, error) {
	if given != "" && given != "-" {
		return given, nil
	}
	text, err := io.ReadAll(io.LimitReader(os.Stdin, maxPrompt+1))
	if err != nil {
		return "", fmt.Errorf("prompt: standard input: %w", err)
	}
	if len(text) > maxPrompt {
		return "", fmt.Errorf("prompt: standard input has more than %d bytes", maxPrompt)
	}
	return string(text), nil
}

// eventLine is an event as JSON; the first has the session.
type eventLine struct {
	SessionID  string     `json:"session_id,omitempty"`
	Type       string     `json:"type"`
	Step       int        `json:"step,omitempty"`
	Tool       string     `json:"tool,omitempty"`
	ToolID     string     `json:"tool_id,omitempty"`
	Content    string     `json:"content,omitempty"`
	DurationMS int64      `json:"duration_ms,omitempty"`
	Usage      *usageLine `json:"usage,omitempty"`
	Reason     string     `json:"reason,omitempty"`
}

type usageLine struct {
	InputTokens     int64 `json:"input_tokens"`
	OutputTokens    int64 `json:"output_tokens"`
	CachedTokens    int64 `json:"cached_tokens"`
	ReasoningTokens int64 `json:"reasoning_tokens"`
}

// printer prints a turn as it comes: its text, or its events.
type printer struct {
	out     *bufio.Writer
	session string
	events  bool
	failed  context.CancelFunc // called when nothing can be printed any more
	inText  bool               // the last line is not ended yet
	begun   bool
	err     error
}

func (p *printer) event(e loop.Event) {
	if p.err != nil {
		return
	}
	if p.events {
		p.line(e)
	} else {
		p.text(e)
	}
	if err := p.out.Flush(); err != nil && p.err == nil {
		p.err = err
	}
	if p.err != nil {
		p.failed()
	}
}

func (p *printer) line(e loop.Event) {
	l := eventLine{
		Type: string(e.Type), Step: e.Step, Tool: e.Tool, ToolID: e.ToolID, Content: e.Content,
		DurationMS: e.Duration.Milliseconds(), Reason: string(e.Reason),
	}
	if !p.begun {
		l.SessionID, p.begun = p.session, true
	}
	if e.Type == loop.StepFinish || e.Type == loop.TurnFinish {
		l.Usage = &usageLine{e.Usage.InputTokens, e.Usage.OutputTokens, e.Usage.CachedTokens, e.Usage.ReasoningTokens}
	}
	enc := json.NewEncoder(p.out)
	enc.SetEscapeHTML(false)
	p.err = enc.Encode(l)
}

func (p *printer) text(e loop.Event) {
	switch {
	case e.Type == loop.TextDelta && e.Content != "":
		_, p.err = p.out.WriteString(e.Content)
		p.inText = !strings.HasSuffix(e.Content, "\n")
	case e.Type == loop.StepFinish && p.inText:
		p.err = p.out.WriteByte('\n')
		p.inText = false
	}
}

// end says how to go on with the session.
func (p *printer) end() error {
	if p.err != nil {
		return fmt.Errorf("standard output: %w", p.err)
	}
	if p.inText {
		p.event(loop.Event{Type: loop.StepFinish})
	}
	if !p.events {
		fmt.Fprintf(os.Stderr, "go on with --session %s\n", p.session)
	}
	return nil
}
