package loop

import (
	"errors"
	"slices"
	"time"
)

// EventType says what happened.
type EventType string

// The types of events. TurnFinish is always a turn's last one.
const (
	// StepStart opens a step: one request to the model and the calls it asks for.
	StepStart EventType = "step.start"
	// TextDelta carries a piece of the answer the moment it arrives.
	TextDelta EventType = "text.delta"
	// ReasoningDelta carries a piece of the model's reasoning.
	ReasoningDelta EventType = "reasoning.delta"
	// ToolCall carries a call's arguments, before it runs.
	ToolCall EventType = "tool.call"
	// ApprovalRequest carries the arguments of a call that an Approver is asked about, and ApprovalResult
	// "approved", or why it may not run.
	ApprovalRequest EventType = "approval.request"
	ApprovalResult  EventType = "approval.result"
	// ToolResult carries a call's output; results come in the order of the calls.
	ToolResult EventType = "tool.result"
	// StepFinish closes a step with its duration and usage.
	StepFinish EventType = "step.finish"
	// MessageCreate carries the text of the turn's last answer once it is recorded.
	MessageCreate EventType = "message.create"
	// Error carries one line that says why the turn cannot go on.
	Error EventType = "error"
	// TurnFinish carries the reason the turn ended, its duration and its usage.
	TurnFinish EventType = "turn.finish"
)

// Event is something that happened in a turn; Type says which fields count.
type Event struct {
	Type EventType
	// Step counts from 1.
	Step int
	// Tool and ToolID name the tool and the call, on tool events.
	Tool, ToolID string
	// Content is text, arguments as JSON, output, or an error's line.
	Content string
	// Failed marks a tool result that is an error, and a call that may not run.
	Failed   bool
	Duration time.Duration
	Usage    Usage
	Reason   Reason
}

// Usage counts tokens as the provider reports them; a provider that reports none leaves zeros.
type Usage struct {
	InputTokens  int64
	OutputTokens int64
	// CachedTokens are the part of InputTokens that the provider had cached.
	CachedTokens int64
	// ReasoningTokens are the part of OutputTokens that was reasoning.
	ReasoningTokens int64
}

func (u *Usage) add(v Usage) {
	u.InputTokens += v.InputTokens
	u.OutputTokens += v.OutputTokens
	u.CachedTokens += v.CachedTokens
	u.ReasoningTokens += v.ReasoningTokens
}

// Reason is why a turn ended.
type Reason string

// The reasons there are; no turn ends with another.
const (
	Done          Reason = "done"
	MaxIterations Reason = "max_iterations"
	MaxTokens     Reason = "max_tokens"
	Timeout       Reason = "timeout"
	Repeat        Reason = "repeat"
	Cancelled     Reason = "cancelled"
	Denied        Reason = "denied"
	Budget        Reason = "budget"
	ModelError    Reason = "model_error"
	Interrupted   Reason = "interrupted"
)

// Known tells whether r is one of these.
func (r Reason) Known() bool { return slices.Contains(reasons, r) }

var reasons = []Reason{Done, MaxIterations, MaxTokens, Timeout, Repeat, Cancelled, Denied, Budget, ModelError, Interrupted}

// EndError ends a turn with a reason of its own. A model or a tool returns it (Denied, Budget), and a
// host gives it as the cause when it cancels a turn's context (Interrupted). A Reason that there is not
// counts as Interrupted.
type EndError struct {
	Reason Reason
	Err    error
}

// Error is the text of Err.
func (e *EndError) Error() string { return e.Err.Error() }

// Unwrap is Err.
func (e *EndError) Unwrap() error { return e.Err }

// End makes an EndError with a text.
func End(reason Reason, text string) error {
	return &EndError{Reason: reason, Err: errors.New(text)}
}
