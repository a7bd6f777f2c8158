package loop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// overflowTexts are how providers without a code for it say that a prompt is too long.
var overflowTexts = []string{
	"maximum context length", "context length", "context limit", "context window", "prompt is too long", "too many tokens", "input is too long",
}

// Overflowed tells whether err is a model's refusal of a prompt that is longer than its context.
func Overflowed(err error) bool {
	var call *CallError
	if !errors.As(err, &call) {
		return false
	}
	if call.Code == "context_length_exceeded" {
		return true
	}
	switch call.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
	default:
		return false
	}
	text := strings.ToLower(call.Message)
	for _, t := range overflowTexts {
		if strings.Contains(text, t) {
			return true
		}
	}
	return false
}

// newerHalf leaves out the older half of a history, up to the start of a turn.
func newerHalf(history []Message) []Message {
	for i := (len(history) + 1) / 2; i < len(history); i++ {
		if history[i].Role == RoleUser {
			return history[i:]
		}
	}
	return nil
}

// bytesPerToken is the rule of thumb for text.
const bytesPerToken = 4

// EstimateTokens is about how many tokens a history has, at four bytes a token. It asks no model.
func EstimateTokens(history []Message) int {
	n := 0
	for _, m := range history {
		n += bytesPerToken
		for _, p := range m.Parts {
			n += len(p.Text) + len(p.Name) + len(p.Args)
			if p.Kind == KindImage {
				n += imageTokens * bytesPerToken
			}
		}
	}
	return n / bytesPerToken
}

const (
	// summaryTokens bounds a summary.
	summaryTokens = 1024
	// summaryPart and summaryInput bound what a summary is made of: each part and all, in bytes.
	summaryPart  = 4 << 10
	summaryInput = 256 << 10
)

const summarySystem = `You compress conversations. Write a summary of the conversation that you are given, for the assistant who goes on with it:
who wants what, facts, names, numbers, paths and decisions, what was done with which result, and what is still open.
Write facts only, without introduction, in the language of the conversation.`

// Summarize asks a model for a summary of a history. Of very long parts it sees the start.
func Summarize(ctx context.Context, m Model, history []Message, metadata map[string]string) (string, error) {
	var b strings.Builder
	for _, msg := range history {
		for _, p := range msg.Parts {
			text := p.Text
			switch p.Kind {
			case KindReasoning:
				continue
			case KindCall:
				text = p.Name + " " + p.Args
			case KindFile, KindImage:
				text = p.Name + " " + p.Text
			}
			fmt.Fprintf(&b, "%s (%s): %s\n", msg.Role, p.Kind, start(text, summaryPart))
		}
	}
	req := Request{
		System: summarySystem, Messages: []Message{UserMessage(end(b.String(), summaryInput))}, MaxTokens: summaryTokens, Metadata: metadata,
	}
	g, err := gather(ctx, m, req)
	switch {
	case err != nil:
	case g.finish == FinishFiltered:
		err = &CallError{Message: "the provider withheld the answer (content filter)"}
	case g.finish == FinishRefused:
		err = ErrRefused
	case strings.TrimSpace(g.text) == "":
		err = errors.New("the model gave no summary")
	}
	return strings.TrimSpace(g.text), err
}

// gathered is a whole answer.
type gathered struct {
	text   string // without reasoning
	usage  Usage
	finish Finish
}

// gather streams an answer to its end. On error the usage is what was told until then.
func gather(ctx context.Context, m Model, req Request) (gathered, error) {
	rcv := receiver{calls: make(map[int]*part)}
	if err := asked(ctx, m, req, func(d Delta) error { return rcv.take(&d) }); err != nil {
		return gathered{usage: rcv.usage}, err
	}
	switch {
	case ctx.Err() != nil:
		return gathered{usage: rcv.usage}, context.Cause(ctx)
	case !rcv.finished:
		return gathered{usage: rcv.usage}, &CallError{Message: "the model's answer ended before it was complete"}
	}
	var b strings.Builder
	for _, p := range rcv.parts {
		if p.Kind == KindText {
			b.WriteString(p.text.String())
		}
	}
	return gathered{b.String(), rcv.usage, rcv.finish}, nil
}

// start is at most the first n bytes of s, whole characters.
func start(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// end is at most the last n bytes of s, whole characters.
func end(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + strings.ToValidUTF8(s[len(s)-n:], "")
}
