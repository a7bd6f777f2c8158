package loop

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// run is the state of one turn; only its own goroutine touches it.
type run struct {
	*Loop
	turn    Turn
	started time.Time
	out     Outcome
	seen    map[string]bool // ids of calls

	compacted bool // the history was made shorter once
	noImages  bool // the images of earlier turns stay out

	stop   context.CancelCauseFunc
	broken error // of the observer

	last    [sha256.Size]byte // calls and results of the step before
	repeats int
}

// recordError is a recorder's, which is neither the model's fault nor the caller's wish.
type recordError struct{ err error }

func (e *recordError) Error() string { return "record message: " + e.err.Error() }

func (e *recordError) Unwrap() error { return e.err }

func (r *run) emit(e Event) {
	if e.Step == 0 {
		e.Step = r.out.Steps
	}
	if r.turn.Observe == nil {
		return
	}
	err := guarded("observer", func() error {
		r.turn.Observe(e)
		return nil
	})
	if err != nil && r.broken == nil {
		r.broken = err
		r.stop(err)
	}
}

// add takes m into the turn and has it recorded, even when the turn is being cancelled.
func (r *run) add(ctx context.Context, m Message) error {
	r.out.Messages = append(r.out.Messages, m)
	if r.turn.Recorder == nil {
		return nil
	}
	if err := guarded("recorder", func() error { return r.turn.Recorder.Record(context.WithoutCancel(ctx), m) }); err != nil {
		return &EndError{Reason: Interrupted, Err: &recordError{err}}
	}
	return nil
}

// steps takes steps until one ends the turn.
func (r *run) steps(ctx context.Context) (Reason, error) {
	prompt := UserMessage(r.turn.Prompt)
	prompt.Parts = append(prompt.Parts, r.turn.Attachments...)
	if err := r.add(ctx, prompt); err != nil {
		return ended(err)
	}
	if err := r.load(ctx); err != nil {
		return ended(err)
	}
	if hasImages(prompt) && !TakesImages(r.cfg.Model) {
		return ended(&CallError{Message: "the client of this model sends no images; send text"})
	}
	for {
		if err := context.Cause(ctx); err != nil {
			return ended(err)
		}
		r.out.Steps++
		reason, err := r.step(ctx)
		if err != nil {
			return ended(err)
		}
		over := reason != ""
		if over && (reason != Done || r.out.Steps >= r.cfg.MaxIterations || r.tokens(Usage{}) >= int64(r.cfg.MaxTurnTokens)) {
			return reason, nil
		}
		said, err := r.steer(ctx)
		if err != nil {
			return ended(err)
		}
		if over && !said {
			return reason, nil
		}
	}
}

// step asks the model once and runs the calls it wants. It returns a reason where the turn is over.
func (r *run) step(ctx context.Context) (Reason, error) {
	started := r.cfg.Clock.Now()
	r.emit(Event{Type: StepStart})
	answer, err := r.ask(ctx)
	if Overflowed(err) && len(answer.message.Parts) == 0 {
		shorter, cerr := r.compact(ctx)
		switch {
		case cerr != nil:
			err = cerr
		case shorter:
			answer, err = r.ask(ctx)
		}
	}
	if err != nil && len(answer.message.Parts) == 0 {
		var again bool
		if again, err = r.askPlain(err); again {
			answer, err = r.ask(ctx)
		}
	}
	defer func() {
		r.out.Usage.add(answer.usage)
		r.emit(Event{Type: StepFinish, Duration: r.since(started), Usage: answer.usage})
	}()
	if len(answer.message.Parts) > 0 {
		r.out.Text = answer.message.Text()
		if err := r.add(ctx, answer.message); err != nil {
			return "", err
		}
	}
	if err != nil {
		return "", err
	}
	calls := answer.message.calls()
	switch {
	case answer.finish == FinishFiltered:
		return "", r.refuse(ctx, calls, "not run: the provider withheld the answer", errors.New("the provider withheld the answer (content filter)"))
	case answer.finish == FinishLength:
		return MaxTokens, r.refuse(ctx, calls, fmt.Sprintf("not run: the answer was cut at %d tokens", r.cfg.MaxTokens), nil)
	case len(calls) == 0:
		return Done, nil
	case r.tokens(answer.usage) >= int64(r.cfg.MaxTurnTokens):
		return MaxTokens, r.refuse(ctx, calls, fmt.Sprintf("not run: the turn used %d tokens, its limit is %d", r.tokens(answer.usage), r.cfg.MaxTurnTokens), nil)
	case r.out.Steps >= r.cfg.MaxIterations:
		return MaxIterations, r.refuse(ctx, calls, fmt.Sprintf("not run: the turn reached its limit of %d iterations", r.cfg.MaxIterations), nil)
	}
	results, err := r.call(ctx, calls, answer.invalid)
	if rerr := r.add(ctx, results); rerr != nil {
		return "", rerr
	}
	if err == nil && r.repeated(calls, results) {
		return Repeat, nil
	}
	return "", err
}

// compact makes the history shorter, once a turn, and tells whether it did. The error is one that ends the turn.
func (r *run) compact(ctx context.Context) (bool, error) {
	if r.compacted {
		return false, nil
	}
	r.compacted = true
	if r.turn.Compact == nil {
		shorter := newerHalf(r.turn.History)
		ok := len(shorter) < len(r.turn.History)
		r.turn.History = shorter
		return ok, nil
	}
	var shorter []Message
	err := guarded("compactor", func() (err error) {
		shorter, err = r.turn.Compact(ctx)
		return err
	})
	switch {
	case err == nil:
		r.turn.History = shorter
	case ends(err):
		return false, err
	}
	return err == nil, nil
}

// tokens is what the turn used, the answer at hand included.
func (r *run) tokens(last Usage) int64 {
	return r.out.Usage.InputTokens + r.out.Usage.OutputTokens + last.InputTokens + last.OutputTokens
}

// refuse answers calls that are not run and returns err, or what went wrong with the record.
func (r *run) refuse(ctx context.Context, calls []Call, note string, err error) error {
	if len(calls) > 0 {
		m := refuseAll(calls, note)
		for i, c := range calls {
			r.emit(Event{Type: ToolCall, Tool: c.Name, ToolID: c.ID, Content: string(c.Args)})
			r.emit(Event{Type: ToolResult, Tool: c.Name, ToolID: c.ID, Content: m.Parts[i].Text, Failed: true})
		}
		if rerr := r.add(ctx, m); rerr != nil {
			return rerr
		}
	}
	return err
}

// repeated tells whether this step did just what the ones before it did, RepeatLimit times in a row.
func (r *run) repeated(calls []Call, results Message) bool {
	h := sha256.New()
	for i, c := range calls {
		for _, s := range []string{c.Name, string(c.Args), results.Parts[i].Text} {
			h.Write(strconv.AppendInt(nil, int64(len(s)), 10))
			h.Write([]byte{' '})
			h.Write([]byte(s))
		}
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	if sum != r.last {
		r.last, r.repeats = sum, 0
	}
	r.repeats++
	return r.repeats >= r.cfg.RepeatLimit
}
