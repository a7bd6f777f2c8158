package executor

import (
	"context"
	"io"
)

// Prompter is an agent that answers prompts.
type Prompter interface {
	// Prompt runs one turn and writes the final answer, the text of its last step, to w, which it does not
	// keep. Cancelling ctx ends the turn in the runtime too. A turn that
	// ends without an answer because of an error is that error.
	Prompt(ctx context.Context, req PromptRequest, w io.Writer) error
}

// StreamPrompter is an agent that tells the events of a turn.
type StreamPrompter interface {
	// PromptStream runs one turn and calls cb for every event, in order, one call at a time, in the
	// caller's goroutine; a cb that takes long holds up the runtime. It returns nil when the turn has
	// ended, whatever its reason, an error when ctx is done, which ends the turn in the runtime too, or
	// the error of the stream. cb is not called after it has returned.
	PromptStream(ctx context.Context, req PromptRequest, cb func(PromptEvent)) error
}

// ObjectPrompter is an agent that answers with JSON.
type ObjectPrompter interface {
	// PromptObject asks the model for one JSON object that fits req.Schema. It is no turn: no session
	// has it, and no tool is called.
	PromptObject(ctx context.Context, req ObjectPromptRequest) ([]byte, error)
}

// SessionReader is an agent whose sessions can be read.
type SessionReader interface {
	// ListSessionMessages returns the newest messages of a session, oldest first: at most limit, or the
	// runtime's default where that is 0. A negative one is an error. A session that does not exist has
	// none, or is an error, as the runtime has it.
	ListSessionMessages(ctx context.Context, sessionID string, limit int) ([]SessionMessage, error)
}

// SessionLister is an agent whose sessions can be listed.
type SessionLister interface {
	// ListSessions lists every session that the runtime keeps, in the runtime's order.
	ListSessions(ctx context.Context) ([]SessionInfo, error)
}

// SessionDeleter is an agent whose sessions can be dropped.
type SessionDeleter interface {
	// DeleteSession drops a session with its messages, for good; one that does not exist is no error.
	DeleteSession(ctx context.Context, sessionID string) error
}

// NotesAPI is an agent whose notes can be read and written. A key that is not there wraps
// ErrNoteNotFound.
type NotesAPI interface {
	// ListNotes lists the notes, or those that are shown to the model alone, without their contents.
	ListNotes(ctx context.Context, onlyInContext bool) ([]Note, error)
	// GetNote returns the note with its content.
	GetNote(ctx context.Context, key string) (Note, error)
	// SaveNote writes a note, over the one of that key where there is one. The limits, in bytes of a
	// note and in notes, are the runtime's own where they are 0; what is over them is an error, and
	// nothing is written. Keys are 1 to 64 characters of a-z, 0-9, - and _, and begin with none of
	// the last two.
	SaveNote(ctx context.Context, key, content string, maxBytes, maxCount int32) (SaveResult, error)
	// DeleteNote tells whether there was a note.
	DeleteNote(ctx context.Context, key string) (bool, error)
	// SetNoteInContext pins a note into the model's context or takes it out.
	SetNoteInContext(ctx context.Context, key string, inContext bool) (Note, error)
}

// StreamExecer is an agent that runs BINs with input and output of any length.
type StreamExecer interface {
	// ExecStream is Agent.Exec with readers and writers instead of strings. Nil streams are empty input
	// and dropped output. The result carries no output; what it says of the exit is what Exec says.
	// stdout and stderr may be written to at once, each by one goroutine. Once ExecStream has returned
	// nothing is written any more, and stdin is not read any more but for a Read that was under way when
	// the BIN ended, which is not waited for. Writers and reader stay the caller's to close.
	ExecStream(ctx context.Context, bin string, args []string, stdin io.Reader, stdout, stderr io.Writer) ExecResult
}

// SessionExecer is an agent whose sessions can be reached while it does not run.
type SessionExecer interface {
	// ExecSession runs the session command of the agent's own runtime, as docs/runtime.md has it, in a
	// sandbox of the agent without network, ENV, key and token: verb is ls, show, rm, export or import,
	// and args are what follows --root. Streams and result are those of StreamExecer. An agent that runs
	// is an error; one whose runtime's image does not say that it has the command wraps
	// ErrNotImplemented.
	ExecSession(ctx context.Context, verb string, args []string, stdin io.Reader, stdout, stderr io.Writer) ExecResult
}

// Attacher is an agent that can be taken over, from its handle and after Load, by a process that did
// not start it.
type Attacher interface {
	// Attach reports whether the agent runs and was taken over. It then blocks nobody: a
	// goroutine of the agent watches the runtime, and Stop and SubscribeStatus work as if this
	// process had started it. An agent that ended while nobody watched comes out as stopped or
	// failed with the recorded exit, and Attach answers false without an error. On an agent that this
	// process runs it is an error. ctx bounds the take-over and not the run.
	Attach(ctx context.Context) (bool, error)
}

// Features is what a provider really enforces, for a person to read and a program to show.
type Features struct {
	// Level is the name of the sandbox level in force.
	Level string
	// OwnUser tells whether each agent runs under a user id of its own.
	OwnUser bool
	// Enforced and Open are sentences for a person: what the level enforces, what it leaves open.
	Enforced []string
	Open     []string
}

// FeatureReporter is a provider that tells what it enforces.
type FeatureReporter interface {
	// Features are read back from the host and not assumed. They are those of an agent that names no
	// level of its own.
	Features() Features
}
