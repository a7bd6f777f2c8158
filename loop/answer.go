package loop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds on one answer, far above what a model gives and far below what hurts the host.
const (
	maxAnswerBytes = 8 << 20
	maxCalls       = 128
	// maxJSONDepth is how deep encoding/json reads.
	maxJSONDepth = 10000
)

// answer is what the model gave in one step, whole or not.
type answer struct {
	message Message
	usage   Usage
	finish  Finish
	invalid map[string]string // call id → why its arguments are none
}

// part is a part being received. The builder makes a long answer cost linear time.
type part struct {
	Part
	text strings.Builder
}

// receiver puts an answer together from its deltas.
type receiver struct {
	parts    []*part
	calls    map[int]*part
	size     int
	usage    Usage
	finish   Finish
	finished bool
}

// ask streams one answer. On error the answer holds what was said until then, without its calls.
func (r *run) ask(ctx context.Context) (answer, error) {
	req := Request{
		System:    cmp.Or(r.turn.System, r.cfg.System),
		Messages:  r.sent(),
		Tools:     r.specs,
		MaxTokens: r.cfg.MaxTokens,
		Params:    r.cfg.Params,
		Metadata:  r.turn.Metadata,
	}
	if r.out.Steps > 1 && r.since(r.started) >= r.cfg.SoftTimeout {
		// It is for this request alone and no part of the history.
		req.Messages = append(req.Messages, UserMessage(fmt.Sprintf(
			"The time of this turn is nearly over (%s of %s). Finish now: answer with what you have, without further calls.",
			r.since(r.started).Round(time.Second), r.cfg.Timeout)))
	}
	rcv := receiver{calls: make(map[int]*part)}
	err := r.receive(ctx, &rcv, req)
	if err == nil && !rcv.finished {
		err = &CallError{Message: "the model's answer ended before it was complete"}
	}
	if ctx.Err() != nil && !rcv.finished {
		err = context.Cause(ctx)
	}
	a := answer{usage: rcv.usage, finish: rcv.finish, invalid: make(map[string]string)}
	a.message = Message{Role: RoleAssistant, Incomplete: err != nil || rcv.finish == FinishLength || rcv.finish == FinishFiltered}
	for _, p := range rcv.parts {
		if p.Kind == KindCall {
			if err == nil {
				a.message.Parts = append(a.message.Parts, r.finishCall(p, a.invalid))
			}
			continue
		}
		p.Text = p.text.String()
		a.message.Parts = append(a.message.Parts, p.Part)
	}
	return a, err
}

func (r *run) receive(ctx context.Context, rcv *receiver, req Request) error {
	return asked(ctx, r.cfg.Model, req, func(d Delta) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := rcv.take(&d); err != nil {
			return err
		}
		switch {
		case d.Text == "":
		case d.Kind == DeltaText:
			r.emit(Event{Type: TextDelta, Content: d.Text})
		case d.Kind == DeltaReasoning:
			r.emit(Event{Type: ReasoningDelta, Content: d.Text})
		}
		return nil
	})
}

// take adds d to the answer, and makes its text valid UTF-8.
func (rcv *receiver) take(d *Delta) error {
	if !utf8.ValidString(d.Text) {
		d.Text = strings.ToValidUTF8(d.Text, "\uFFFD")
	}
	if rcv.size += len(d.Text) + len(d.Name) + len(d.ID) + len(d.Opaque); rcv.size > maxAnswerBytes {
		return &CallError{Message: fmt.Sprintf("the model's answer is longer than %d bytes", maxAnswerBytes)}
	}
	switch d.Kind {
	case DeltaText:
		rcv.grow(KindText, d.Text)
	case DeltaReasoning:
		rcv.reason(d)
	case DeltaCall:
		return rcv.call(d)
	case DeltaUsage:
		rcv.usage = d.Usage
	case DeltaFinish:
		rcv.finish, rcv.finished = d.Finish, true
	default:
		return &CallError{Message: fmt.Sprintf("the model client gave a delta of unknown kind %d", d.Kind)}
	}
	return nil
}

// grow appends text to the last part where that is of the same kind.
func (rcv *receiver) grow(kind Kind, text string) {
	if text == "" {
		return
	}
	if n := len(rcv.parts); n == 0 || rcv.parts[n-1].Kind != kind {
		rcv.parts = append(rcv.parts, &part{Part: Part{Kind: kind}})
	}
	rcv.parts[len(rcv.parts)-1].text.WriteString(text)
}

// reason appends to the reasoning at hand, which what is opaque ends.
func (rcv *receiver) reason(d *Delta) {
	if d.Text == "" && d.Opaque == "" {
		return
	}
	n := len(rcv.parts)
	if n == 0 || rcv.parts[n-1].Kind != KindReasoning || rcv.parts[n-1].Opaque != "" {
		rcv.parts = append(rcv.parts, &part{Part: Part{Kind: KindReasoning}})
		n++
	}
	rcv.parts[n-1].text.WriteString(d.Text)
	rcv.parts[n-1].Opaque = d.Opaque
}

func (rcv *receiver) call(d *Delta) error {
	p := rcv.calls[d.Index]
	if p == nil {
		if len(rcv.calls) == maxCalls {
			return &CallError{Message: fmt.Sprintf("the model made more than %d calls at once", maxCalls)}
		}
		p = &part{Part: Part{Kind: KindCall}}
		rcv.calls[d.Index] = p
		rcv.parts = append(rcv.parts, p)
	}
	if d.ID != "" {
		p.ID = strings.ToValidUTF8(d.ID, "\uFFFD")
	}
	if d.Name != "" {
		p.Name = strings.ToValidUTF8(d.Name, "\uFFFD")
	}
	p.text.WriteString(d.Text)
	return nil
}

// finishCall gives a call an id of its own and arguments that any provider takes back: what is no
// JSON object is wrapped into one, and invalid says why.
func (r *run) finishCall(p *part, invalid map[string]string) Part {
	if p.ID == "" || r.seen[p.ID] {
		p.ID = fmt.Sprintf("call_%d_%d", r.out.Steps, len(r.seen))
	}
	r.seen[p.ID] = true
	p.Args = p.text.String()
	if strings.TrimSpace(p.Args) == "" {
		p.Args = "{}"
	}
	if err := checkObject(p.Args); err != nil {
		invalid[p.ID] = "arguments are no JSON object: " + err.Error()
		wrapped, merr := json.Marshal(map[string]string{"invalid_arguments": p.Args})
		if merr != nil {
			wrapped = []byte("{}")
		}
		p.Args = string(wrapped)
	}
	return p.Part
}

func checkObject(args string) error {
	raw := []byte(args)
	if !json.Valid(raw) {
		if err := checkDepth(raw, maxJSONDepth); err != nil {
			return err
		}
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			return err
		}
	}
	if !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		return errors.New("want {…}")
	}
	return nil
}
