package executor

import (
	"context"
	"io"
)

// The interfaces below are optional: an Agent or Provider that has the function implements them,
// and callers find out by assertion. Their methods may be called from several goroutines at once, and
// fail at once on an agent that does not run. A runtime that has no such call wraps
// ErrNotImplemented.

// Prompter runs one turn and writes the final answer, the text of its last step, to w. Cancelling ctx
// ends the turn in the runtime too.
type Prompter interface {
	Prompt(ctx context.Context, req PromptRequest, w io.Writer) error
}

// StreamPrompter runs one turn and calls cb, one call at a time, for every event. It returns when
// the turn ended, when ctx is done, or with the first error of the stream.
type StreamPrompter interface {
	PromptStream(ctx context.Context, req PromptRequest, cb func(PromptEvent)) error
}

// ObjectPrompter asks the model for one JSON object.
type ObjectPrompter interface {
	PromptObject(ctx context.Context, req ObjectPromptRequest) ([]byte, error)
}

// SessionReader returns the newest messages of a session, oldest first. A limit of 0 is the
// runtime's default.
type SessionReader interface {
	ListSessionMessages(ctx context.Context, sessionID string, limit int) ([]SessionMessage, error)
}

// SessionLister lists every session the runtime keeps.
type SessionLister interface {
	ListSessions(ctx context.Context) ([]SessionInfo, error)
}

// SessionDeleter drops a session; dropping one that does not exist is no error.
type SessionDeleter interface {
	DeleteSession(ctx context.Context, sessionID string) error
}

// NotesAPI reads and writes the runtime's notes. A key that is not there wraps ErrNoteNotFound.
type NotesAPI interface {
	// ListNotes lists the notes without their contents.
	ListNotes(ctx context.Context, onlyInContext bool) ([]Note, error)
	GetNote(ctx context.Context, key string) (Note, error)
	// SaveNote writes a note. The limits, in bytes of a note and in notes, are the runtime's own
	// where they are 0.
	SaveNote(ctx context.Context, key, content string, maxBytes, maxCount int32) (SaveResult, error)
	// DeleteNote tells whether there was a note.
	DeleteNote(ctx context.Context, key string) (bool, error)
	// SetNoteInContext pins a note into the model's context or takes it out.
	SetNoteInContext(ctx context.Context, key string, inContext bool) (Note, error)
}

// StreamExecer is Agent.Exec with readers and writers instead of strings, for input and output of any
// length. Nil streams are empty input and dropped output. The result carries no output; what it says
// of the exit is what Exec says. Once ExecStream has returned nothing is written any more, and stdin
// is not read any more but for a Read that was under way when the BIN ended, which is not waited for.
type StreamExecer interface {
	ExecStream(ctx context.Context, bin string, args []string, stdin io.Reader, stdout, stderr io.Writer) ExecResult
}

// Attacher takes over a running agent from its handle, after Load in a new process.
type Attacher interface {
	// Attach reports whether the agent runs and was taken over. It then blocks nobody: a
	// goroutine of the agent watches the runtime, and Stop and SubscribeStatus work as if this
	// process had started it. An agent that ended while nobody watched comes out as stopped or
	// failed with the recorded exit, and Attach answers false.
	Attach(ctx context.Context) (bool, error)
}

// Features is what a provider really enforces.
type Features struct {
	// Level is the name of the sandbox level in force.
	Level string
	// OwnUser tells whether each agent runs under a user id of its own.
	OwnUser bool
	// Enforced and Open are sentences for a person: what the level enforces, what it leaves open.
	Enforced []string
	Open     []string
}

// FeatureReporter tells what a provider really enforces, read back and not assumed.
type FeatureReporter interface {
	Features() Features
}
