package loop

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// DefaultObjectTries is an answer and two corrections.
const DefaultObjectTries = 3

// ObjectFormat is the form that an answer is to have.
type ObjectFormat struct {
	// Name and Description say what the object is; both may be empty.
	Name, Description string
	// Schema is a JSON Schema (draft 2020-12 or draft-07) of an object.
	Schema json.RawMessage
}

// ObjectModel is a Model whose provider can hold an answer to a schema: its Stream obeys
// Request.Object. Other models are told the schema in words.
type ObjectModel interface {
	Model
	// TakesObjects tells whether it does; it always returns the same.
	TakesObjects() bool
}

// ObjectPrompt asks for one object, without tools and history.
type ObjectPrompt struct {
	// System is the system prompt; where empty, it is Config's.
	System string
	Prompt string
	Format ObjectFormat
	// Metadata goes along with every request.
	Metadata map[string]string
}

// Object is a model's answer that fits its schema.
type Object struct {
	// JSON is the object as it was checked, without blanks, its names in order.
	JSON json.RawMessage
	// Text is the answer that it was found in.
	Text string
	// Tries is how many answers it took, and Usage what all of them used.
	Tries int
	Usage Usage
}

// ErrRefused is wrapped where the model declines to answer.
var ErrRefused = errors.New("the model refuses")

// ObjectError says that no answer fitted the schema, and why the last one did not.
type ObjectError struct {
	Tries    int
	Problems []Problem
	// Text is the last answer.
	Text string
}

// Error names every problem.
func (e *ObjectError) Error() string {
	list := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		list[i] = p.String()
	}
	return fmt.Sprintf("no answer of %d fits the schema; of the last one %s", e.Tries, strings.Join(list, "; "))
}

// Object asks the model for one object and checks it. What does not fit is told to the model, which
// may correct itself, Config.ObjectTries answers in all. On error the Object holds what was used. The
// error wraps ErrSchema, before the model is asked, or ErrRefused; is an *ObjectError where no answer
// fitted, an *EndError for a bound of the loop, a *CallError of the model, also where that panics, or the
// context's.
func (l *Loop) Object(ctx context.Context, p ObjectPrompt) (Object, error) {
	if l.cfg.Model == nil {
		return Object{}, ErrNoModel
	}
	s, err := parseSchema(p.Format.Schema)
	if err != nil {
		return Object{}, err
	}
	limit := &EndError{Reason: Timeout, Err: errors.New("the object took longer than the limit of " + l.cfg.Timeout.String())}
	ctx, cancel := l.within(ctx, l.cfg.Timeout, limit)
	defer cancel()
	mode := false
	if m, ok := l.cfg.Model.(ObjectModel); ok {
		mode = m.TakesObjects()
	}
	asked := &objectRun{Loop: l, prompt: p, schema: s, mode: mode, messages: []Message{UserMessage(p.Prompt)}}
	err = asked.tries(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return asked.out, err
}

// objectRun is the state of one prompt for an object.
type objectRun struct {
	*Loop
	prompt   ObjectPrompt
	schema   *schema
	mode     bool // the provider holds the answer to the schema
	messages []Message
	out      Object
}

func (r *objectRun) tries(ctx context.Context) error {
	for {
		text, err := r.ask(ctx)
		if err != nil {
			return err
		}
		r.out.Tries++
		r.out.Text = text
		object, problems := r.schema.parse(text)
		used := r.out.Usage.InputTokens + r.out.Usage.OutputTokens
		switch {
		case len(problems) == 0:
			r.out.JSON = object
			return nil
		case r.out.Tries >= r.cfg.ObjectTries:
			return &ObjectError{Tries: r.out.Tries, Problems: problems, Text: text}
		case used >= int64(r.cfg.MaxTurnTokens):
			return &EndError{Reason: MaxTokens, Err: fmt.Errorf("the answers used %d tokens, the limit is %d: %w", used, r.cfg.MaxTurnTokens,
				&ObjectError{Tries: r.out.Tries, Problems: problems, Text: text})}
		}
		r.messages = append(r.messages, Message{Role: RoleAssistant, Parts: []Part{{Kind: KindText, Text: text}}}, UserMessage(correction(problems)))
	}
}

// ask gets one whole answer. Where the provider refuses the mode for objects, it is asked again without.
func (r *objectRun) ask(ctx context.Context) (string, error) {
	g, err := r.gather(ctx)
	if r.mode && refused(err, http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusNotImplemented) {
		r.mode = false
		g, err = r.gather(ctx)
	}
	if err != nil {
		return "", err
	}
	switch g.finish {
	case FinishLength:
		return "", End(MaxTokens, fmt.Sprintf("the answer was cut at %d tokens", r.cfg.MaxTokens))
	case FinishFiltered:
		return "", fmt.Errorf("%w: the provider withheld the answer (content filter)", ErrRefused)
	case FinishRefused:
		return "", fmt.Errorf("%w: %s", ErrRefused, cut(g.text, maxProblemText))
	}
	return g.text, nil
}

func (r *objectRun) gather(ctx context.Context) (gathered, error) {
	req := Request{
		System: cmp.Or(r.prompt.System, r.cfg.System), Messages: r.messages,
		MaxTokens: r.cfg.MaxTokens, Params: r.cfg.Params, Metadata: r.prompt.Metadata,
	}
	if r.mode {
		req.Object = &r.prompt.Format
	} else {
		req.System = strings.TrimSpace(req.System + "\n\n" + instruction(r.prompt.Format))
	}
	g, err := gather(ctx, r.cfg.Model, req)
	r.out.Usage.add(g.usage)
	return g, err
}

// instruction tells a model in words what others get as a setting.
func instruction(f ObjectFormat) string {
	var b strings.Builder
	b.WriteString("Answer with one JSON object and nothing else: no sentence before or after it, no code block.")
	if f.Name != "" {
		b.WriteString(" The object is called " + cut(f.Name, maxProblemText) + ".")
	}
	if f.Description != "" {
		b.WriteString(" It is: " + oneLine(f.Description))
	}
	b.WriteString("\nIt fits this JSON Schema:\n")
	b.Write(f.Schema)
	return b.String()
}

// correction tells a model what was wrong with its answer.
func correction(problems []Problem) string {
	var b strings.Builder
	b.WriteString("This does not fit the schema:\n")
	for _, p := range problems {
		b.WriteString("- " + p.String() + "\n")
	}
	b.WriteString("Answer again with the whole corrected JSON object and nothing else.")
	return b.String()
}
