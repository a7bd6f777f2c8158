package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// maxParallel bounds how many calls of a step run at once; the others wait for their turn.
const maxParallel = 16

// call runs the calls of a step at once and returns their results in order. The error is set where
// the turn must end; even then every call has a result.
func (r *run) call(ctx context.Context, calls []Call, invalid map[string]string) (Message, error) {
	results := make([]Part, len(calls))
	errs := make([]error, len(calls))
	done := make([]chan struct{}, len(calls))
	slots := make(chan struct{}, maxParallel)
	var wg sync.WaitGroup
	over := false // the turn will end
	for i, c := range calls {
		r.emit(Event{Type: ToolCall, Tool: c.Name, ToolID: c.ID, Content: string(c.Args)})
		c.Metadata = r.turn.Metadata
		done[i] = make(chan struct{})
		refusal := r.refusal(ctx, c, invalid[c.ID], over)
		over = over || ends(refusal)
		wg.Go(func() {
			defer close(done[i])
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i], errs[i] = r.callOne(ctx, c, refusal)
		})
	}
	for i, c := range calls {
		<-done[i]
		r.emit(Event{
			Type: ToolResult, Tool: c.Name, ToolID: c.ID, Content: results[i].Text, Failed: results[i].Failed,
			Duration: time.Duration(results[i].DurationMS) * time.Millisecond,
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return Message{Role: RoleTool, Parts: results}, err
	}
	return Message{Role: RoleTool, Parts: results}, errors.Join(errs...)
}

// refusal is why a call is not to run. Nobody is asked about one that cannot.
func (r *run) refusal(ctx context.Context, c Call, invalid string, over bool) error {
	_, known := r.tools[c.Name]
	switch {
	case over:
		return errors.New("not run: the turn ends")
	case context.Cause(ctx) != nil:
		return fmt.Errorf("not run: %w", context.Cause(ctx))
	case invalid != "":
		return errors.New(invalid)
	case !known:
		return fmt.Errorf("unknown tool %q; %s", c.Name, r.toolNames())
	}
	return r.approve(ctx, c)
}

// callOne runs one call. Only an error that ends the turn is returned as one.
func (r *run) callOne(ctx context.Context, c Call, refusal error) (Part, error) {
	started := r.cfg.Clock.Now()
	text, err := "", refusal
	if refusal == nil {
		text, err = r.invoke(ctx, c)
	}
	text = r.bound(ctx, c, text)
	p := Part{Kind: KindResult, ID: c.ID, Name: c.Name, Text: text, DurationMS: r.since(started).Milliseconds()}
	if err != nil {
		p.Failed = true
		if p.Text != "" {
			p.Text += "\n"
		}
		p.Text += err.Error()
	}
	if !utf8.ValidString(p.Text) {
		p.Text = strings.ToValidUTF8(p.Text, "\uFFFD")
	}
	if ends(err) && ctx.Err() == nil {
		return p, err
	}
	return p, nil
}

// bound leaves the head and the tail of an output that is over the limit, and says where the whole is.
func (r *run) bound(ctx context.Context, c Call, text string) string {
	if len(text) <= r.cfg.MaxOutput {
		return text
	}
	where := "the rest is not kept"
	if r.cfg.Keep != nil {
		var kept string
		err := guarded("keeper", func() (err error) {
			kept, err = r.cfg.Keep(ctx, c, text)
			return err
		})
		if where = "all of it is in " + kept; err != nil {
			where = "the rest could not be kept: " + err.Error()
		}
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	head, tail := r.cfg.MaxOutput/2, len(text)-r.cfg.MaxOutput/2
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[cut: the first %d and the last %d of %d bytes; %s]\n%s", text[:head], head, len(text)-tail, len(text), where, text[tail:])
}

func (r *run) invoke(ctx context.Context, c Call) (text string, err error) {
	if cause := context.Cause(ctx); cause != nil {
		return "", fmt.Errorf("not run: %w", cause)
	}
	limit := fmt.Errorf("stopped: the call took longer than its limit of %s", r.cfg.ToolTimeout)
	tctx, cancel := r.within(ctx, r.cfg.ToolTimeout, limit)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			text, err = "", fmt.Errorf("tool %s broke: %v", c.Name, p)
		}
	}()
	text, err = r.tools[c.Name].Call(tctx, c)
	if err != nil && tctx.Err() != nil {
		err = context.Cause(tctx)
	}
	return text, err
}

func (r *run) toolNames() string {
	if len(r.specs) == 0 {
		return "there are no tools"
	}
	names := make([]string, len(r.specs))
	for i, s := range r.specs {
		names[i] = s.Name
	}
	return "the tools are " + strings.Join(names, ", ")
}
