// Package loop runs a model and its tools until the answer is there: the bounded agent loop as a
// library, without daemon, image, workspace or store.
//
// Invariants: a turn ends, for one of the reasons of Reason; its last event is TurnFinish; what it
// returns and records is a consistent history (see Message) at whatever instant it was cancelled; and
// when Run returns no goroutine and no tool of the turn is left.
package loop

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"time"
)

// Bounds used where Config has none.
const (
	DefaultMaxIterations = 20
	DefaultMaxTokens     = 4096
	// DefaultTimeout leaves room for twenty slow answers and is still an end.
	DefaultTimeout     = 30 * time.Minute
	DefaultToolTimeout = 2 * time.Minute
	// DefaultRepeatLimit lets a model try again once and then once more.
	DefaultRepeatLimit = 3
	// DefaultMaxTurnTokens is a full context of a large model.
	DefaultMaxTurnTokens = 1_000_000
	// DefaultMaxOutput is about 16,000 tokens of a tool's output, in bytes.
	DefaultMaxOutput = 64 << 10
)

// Model answers requests. It is called from one goroutine per turn, and from several at once when
// turns overlap.
type Model interface {
	// Stream sends the request and yields the answer as it arrives, ending with a delta of kind
	// DeltaFinish. An error is yielded once and last; a *CallError says more about it. When ctx ends
	// the stream ends soon after.
	Stream(ctx context.Context, req Request) iter.Seq2[Delta, error]
}

// Tool is something the model may call. It is called from several goroutines at once.
type Tool interface {
	// Spec describes the tool to the model; it always returns the same.
	Spec() ToolSpec
	// Call runs the tool and returns its output. An error is told to the model, unless it is an
	// *EndError. When ctx ends Call returns soon after and leaves nothing running.
	Call(ctx context.Context, call Call) (string, error)
}

// Recorder keeps the messages of a turn, each once and when it is complete: the prompt, every answer
// before its calls run, and the results of those. The context outlives a cancelled turn. An error
// ends the turn.
type Recorder interface {
	Record(ctx context.Context, m Message) error
}

// ToolSpec is what a model is told about a tool.
type ToolSpec struct {
	Name        string
	Description string
	// Parameters is a JSON Schema of an object.
	Parameters json.RawMessage
}

// Call is a model's wish to use a tool.
type Call struct {
	ID   string
	Name string
	// Args is a JSON object.
	Args json.RawMessage
	// Metadata is the turn's.
	Metadata map[string]string
}

// Params tune an answer; nil leaves a choice to the provider.
type Params struct {
	Temperature      *float64
	TopP             *float64
	TopK             *int
	PresencePenalty  *float64
	FrequencyPenalty *float64
}

// Request is what a model is asked.
type Request struct {
	System   string
	Messages []Message
	Tools    []ToolSpec
	// MaxTokens bounds the answer.
	MaxTokens int
	Params    Params
	// Object is the form that the answer is to have, nil for any; only an ObjectModel gets one.
	Object *ObjectFormat
	// Metadata is the turn's, to be sent along as headers where the transport has some.
	Metadata map[string]string
}

// DeltaKind says what a delta is.
type DeltaKind int

// The kinds of deltas.
const (
	DeltaText DeltaKind = iota
	// DeltaReasoning is a piece of reasoning; one with Opaque is its last.
	DeltaReasoning
	// DeltaCall is a piece of the call number Index: ID and Name come once, Text is a piece of the
	// arguments.
	DeltaCall
	DeltaUsage
	DeltaFinish
)

// Finish is why a model ended its answer.
type Finish int

// The ways an answer ends. Calls are run after FinishStop too, where there are some.
const (
	FinishStop Finish = iota
	// FinishLength is an answer cut at MaxTokens.
	FinishLength
	// FinishFiltered is an answer that the provider withheld.
	FinishFiltered
	// FinishRefused is an answer in which the model says that it will not.
	FinishRefused
)

// Delta is a piece of an answer; Kind says which fields count.
type Delta struct {
	Kind     DeltaKind
	Text     string
	Index    int
	ID, Name string
	Opaque   string
	Usage    Usage
	Finish   Finish
}

// CallError is a model's refusal to answer, or what came between.
type CallError struct {
	// Status is the HTTP status; 0 where there was no answer.
	Status int
	// Code is the provider's own code, such as context_length_exceeded; often empty.
	Code string
	// Message is one line for a person. It holds no key.
	Message string
	Err     error
}

// Error is the message.
func (e *CallError) Error() string { return e.Message }

// Unwrap is Err.
func (e *CallError) Unwrap() error { return e.Err }

// Config is what a loop runs with. Only Model is required; zero bounds mean the defaults above.
type Config struct {
	Model  Model
	Tools  []Tool
	System string
	Params Params
	// MaxIterations bounds the steps of a turn, MaxTokens each answer.
	MaxIterations int
	MaxTokens     int
	// MaxTurnTokens bounds the tokens of a turn, in and out, as the model reports them: past it no
	// more calls are run.
	MaxTurnTokens int
	// Timeout ends a turn. From SoftTimeout on the model is told to finish; where that is not below
	// Timeout, it is five sixths of it.
	Timeout     time.Duration
	SoftTimeout time.Duration
	// ToolTimeout bounds each call, and MaxOutput the bytes of its output that the model gets: of a
	// longer one its head and its tail.
	ToolTimeout time.Duration
	MaxOutput   int
	// Keep stores an output that is longer and says where the model finds it; nil keeps none. It is
	// called from several goroutines at once.
	Keep func(ctx context.Context, call Call, output string) (where string, err error)
	// RepeatLimit is how many steps in a row may make the same calls with the same results.
	RepeatLimit int
	// ObjectTries is how many answers Object takes until one fits its schema.
	ObjectTries int
	// Approver is asked before each call; where nil all calls run.
	Approver Approver
	// Clock is the system's where nil.
	Clock Clock
}

// Turn is one prompt and what it builds on.
type Turn struct {
	// System is the turn's system prompt; where empty, it is Config's.
	System  string
	History []Message
	Prompt  string
	// Attachments are parts of KindFile and KindImage that come with the prompt.
	Attachments []Part
	// Metadata goes along with every request and call of the turn.
	Metadata map[string]string
	// Observe gets the turn's events, one at a time; while it runs the turn waits. May be nil.
	Observe func(Event)
	// Recorder may be nil.
	Recorder Recorder
	// Store has the history in place of History; may be nil.
	Store Store
	// Compact gives a shorter history where the model's context is too small for this one; the request
	// is then sent once more. Where nil the older half of the history is left out. An *EndError ends the
	// turn; with any other the model's refusal stands.
	Compact func(ctx context.Context) ([]Message, error)
	// Steerer says more to the model while the turn runs; nil says nothing.
	Steerer Steerer
}

// Outcome is what a turn came to.
type Outcome struct {
	Reason Reason
	// Text is the text of the last answer.
	Text string
	// Messages are the turn's, the prompt first: what a next turn appends to its history.
	Messages []Message
	Steps    int
	Usage    Usage
}

// ErrNoModel is returned by Run of a loop without a model.
var ErrNoModel = errors.New("loop has no model")

// Loop runs turns. It is safe for use by several goroutines at once and keeps nothing between turns.
type Loop struct {
	cfg   Config
	tools map[string]Tool
	specs []ToolSpec
}

// New makes a loop. Of two tools with one name the first is used.
func New(cfg Config) *Loop {
	setDefault(&cfg.MaxIterations, DefaultMaxIterations)
	setDefault(&cfg.MaxTokens, DefaultMaxTokens)
	setDefault(&cfg.Timeout, DefaultTimeout)
	setDefault(&cfg.ToolTimeout, DefaultToolTimeout)
	setDefault(&cfg.MaxTurnTokens, DefaultMaxTurnTokens)
	setDefault(&cfg.MaxOutput, DefaultMaxOutput)
	if cfg.SoftTimeout <= 0 || cfg.SoftTimeout >= cfg.Timeout {
		cfg.SoftTimeout = cfg.Timeout / 6 * 5
	}
	setDefault(&cfg.RepeatLimit, DefaultRepeatLimit)
	setDefault(&cfg.ObjectTries, DefaultObjectTries)
	if cfg.Clock == nil {
		cfg.Clock = systemClock{}
	}
	l := &Loop{cfg: cfg, tools: make(map[string]Tool, len(cfg.Tools))}
	for _, t := range cfg.Tools {
		spec := t.Spec()
		if _, taken := l.tools[spec.Name]; taken {
			continue
		}
		l.tools[spec.Name] = t
		l.specs = append(l.specs, spec)
	}
	return l
}

func setDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Run takes one turn. The outcome is valid whatever the error; the error is nil where the turn ended
// by itself (Done, MaxIterations, MaxTokens, Repeat) and otherwise says what ended it. A panic in Stream of
// the Model, and in whatever else the host brings to a turn, is such an error too and names that part; in a
// Tool it is the call's result. Only in a Clock, and in what tells about a part (Spec, TakesImages and
// TakesObjects), it is the caller's.
func (l *Loop) Run(ctx context.Context, turn Turn) (Outcome, error) {
	if l.cfg.Model == nil {
		return Outcome{Reason: ModelError}, ErrNoModel
	}
	started := l.cfg.Clock.Now()
	limit := &EndError{Reason: Timeout, Err: errors.New("turn took longer than its limit of " + l.cfg.Timeout.String())}
	ctx, cancel := l.within(ctx, l.cfg.Timeout, limit)
	defer cancel()

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &run{Loop: l, turn: turn, started: started, stop: stop, seen: make(map[string]bool)}
	reason, err := r.steps(ctx)
	var end *EndError
	if err != nil && ctx.Err() != nil && !errors.As(err, &end) {
		reason, err = ended(context.Cause(ctx))
	}
	r.out.Reason = reason
	if r.out.Text != "" {
		r.emit(Event{Type: MessageCreate, Content: r.out.Text})
	}
	if err != nil && reason != Cancelled {
		r.emit(Event{Type: Error, Content: strings.ToValidUTF8(err.Error(), "\uFFFD")})
	}
	r.emit(Event{Type: TurnFinish, Reason: reason, Duration: l.since(started), Usage: r.out.Usage})
	if err == nil && r.broken != nil { // by the last events
		r.out.Reason, err = Interrupted, r.broken
	}
	return r.out, err
}

// ended turns what stopped a turn into its reason.
func ended(err error) (Reason, error) {
	var end *EndError
	switch {
	case errors.As(err, &end) && end.Reason.Known():
		return end.Reason, err
	case end != nil:
		return Interrupted, err
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout, err
	case errors.Is(err, context.Canceled):
		return Cancelled, err
	}
	return ModelError, err
}
