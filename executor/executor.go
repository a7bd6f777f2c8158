// Package executor is the contract between whoever wants agents to run and whoever runs them. An
// executor for a new kind of place is written against this package alone; executor/executortest
// tells whether it keeps the contract.
//
// A Provider makes agents and finds them again; an Agent is one instance of an image, with a life that is
// told by its Status. What more an agent or a provider can do it tells by optional interfaces, which callers
// find by assertion: Prompter, StreamPrompter, ObjectPrompter, SessionReader, SessionLister, SessionDeleter
// and NotesAPI are calls of a running runtime, StreamExecer and Attacher are an agent's, FeatureReporter is a
// provider's. All methods of all interfaces may be called from several goroutines at once. Those that take a
// context end with it and then return its error, wrapped. Those that call the runtime fail at once on an
// agent that does not run, and wrap ErrNotImplemented where the runtime has no such call; outgoing gRPC
// metadata of their context goes with the call.
//
// What a method returns is the caller's, unless its comment says otherwise. Errors are for a person, and
// wrap the sentinels here where one fits.
//
// The package has no behaviour but StatusTracker's.
package executor

import (
	"context"
	"errors"
	"io"

	"github.com/google/uuid"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/workspace"
)

// Errors that callers match with errors.Is. Implementations wrap them.
var (
	// ErrRefNotFound tells that a reference names nothing.
	ErrRefNotFound = errors.New("reference not found")
	// ErrNotImplemented tells that this executor, registry or runtime has no such function.
	ErrNotImplemented = errors.New("not implemented")
	// ErrNoteNotFound tells that there is no note with that key.
	ErrNoteNotFound = errors.New("note not found")
	// ErrStatusClosed tells that a subscription ended before the awaited status came.
	ErrStatusClosed = errors.New("status subscription closed")
)

// Provider creates agents and finds them again. Its methods may be called from several goroutines
// at once.
type Provider interface {
	// Create records a new agent of the image ref. It does not pull and does not start; the
	// agent's first Prepare or Run does. An invalid override or an id that is in use is an error,
	// and then nothing is left behind.
	Create(ctx context.Context, id uuid.UUID, ref spec.Reference, overrides ...spec.Override) (Agent, error)
	// Load returns the agents that earlier processes created. Agents that can't be restored are
	// left out and named in the error, which then joins one error per agent; the others are
	// returned all the same.
	Load(ctx context.Context) ([]Agent, error)
	// Destroy removes every agent's tree. Agents must have been stopped.
	Destroy(ctx context.Context) error
	// Registry is where this provider's images are. It is never nil; what it can't do answers
	// ErrNotImplemented.
	Registry() Registry
}

// Agent is one instance of an image. Its methods may be called from several goroutines at once.
type Agent interface {
	// UUID is the id it was created with; it never changes.
	UUID() uuid.UUID
	// Runtime is the resolved definition; nil before Prepare succeeded. The caller must not
	// change it; it is the same value until the agent is prepared again.
	Runtime() *Runtime
	// Prepare materialises the workspace. It is idempotent, and concurrent callers see one result.
	// A failure moves the agent to StatusFailed with its reason, and later callers see the same error
	// until it is started again; the end of ctx leaves it as it was, and returns ctx's error.
	Prepare(ctx context.Context) error
	// Run prepares if needed, starts the runtime and blocks until it exits. Cancelling ctx stops
	// the runtime. It returns nil for an exit that was asked for by Stop, nil or ctx's error for one
	// by ctx, and an error that says why for any other; the status is set before it returns. It fails
	// while a Run or Start is in progress, and after removal.
	Run(ctx context.Context) error
	// Start runs a stopped or failed agent again on its workspace and blocks as Run does. On an
	// agent that never ran it behaves as Run. It fails while a Run or Start is in progress, and
	// after removal.
	Start(ctx context.Context) error
	// Stop ends the runtime and blocks until Run has returned, or until ctx is done, whose error
	// it then returns. It is a no-op on an agent that is not running.
	Stop(ctx context.Context) error
	// Remove deletes the workspace and whatever else the agent has, and moves it to StatusRemoved.
	// A running agent is an error and stays as it is, a removed one is no error. Where it fails
	// half-way the agent is failed, and Remove may be called again.
	Remove(ctx context.Context) error
	// Probe calls Ready once. It returns nil when the runtime answered true, and an error at once for
	// an agent that does not run. It changes no status.
	Probe(ctx context.Context) error
	// Addr is the address the runtime answers on, empty where there is none yet.
	Addr() string
	// Exec runs a declared BIN to its end with the agent's environment, less every token and key, in
	// its working folder. Cancelling ctx kills everything the BIN started. The workspace must have
	// been prepared; an undeclared BIN never runs. How much output is kept is the executor's to say.
	Exec(ctx context.Context, bin string, args []string, stdin string) ExecResult
	// StatusTracker is the agent's status, for the supervisor that owns ready, working and
	// readiness_timeout.
	StatusTracker() *StatusTracker
	StatusObserver
}

// StatusObserver tells an agent's status.
type StatusObserver interface {
	// Status is the status now.
	Status() Status
	// FailureReason is FailureNone in every status but StatusFailed.
	FailureReason() FailureReason
	// SubscribeStatus returns a channel that yields the status now and after each change, and a
	// function that ends the subscription and must be called. A slow reader never misses the
	// latest status; it may miss one in between. The channel is closed by cancel and after
	// StatusRemoved.
	SubscribeStatus() (<-chan Status, func())
}

// Registry lists, inspects and moves the images an executor runs. References are repository:tag or
// repository@digest. What is not there wraps ErrRefNotFound, what this registry can't do
// ErrNotImplemented. Its methods may be called from several goroutines at once.
type Registry interface {
	// List returns every repository:tag, sorted.
	List(ctx context.Context) ([]string, error)
	// Resolve returns the descriptor of the manifest that ref names.
	Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error)
	// Inspect describes the image by its manifest; it reads no layer.
	Inspect(ctx context.Context, ref string) (ImageInfo, error)
	// Fetch returns the content of desc; the reader verifies nothing, the caller closes it.
	Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error)
	// Tag makes dst name what src names.
	Tag(ctx context.Context, src, dst string) error
	// Remove takes the tag away; content that nothing else names is freed later.
	Remove(ctx context.Context, ref string) error
	// PullRemote copies remoteRef, which has a host, into this registry under its whole name.
	PullRemote(ctx context.Context, remoteRef string) error
	// PushRemote copies what localRef names to remoteRef, which has a host.
	PushRemote(ctx context.Context, localRef, remoteRef string) error
	// BuildTarget is where a build writes its blobs and tags; nil where there is none. The registry
	// keeps it.
	BuildTarget() oras.Target
}

// ImageInfo describes an image.
type ImageInfo struct {
	// Ref is the reference that was asked for, Digest and MediaType are the manifest's.
	Ref       string
	Digest    string
	MediaType string
	// Size is in bytes: the manifest and everything it names.
	Size int64
	// CreatedUnix is when the manifest was first stored, in seconds; 0 where that is not known.
	CreatedUnix int64
	// Description and Source are the annotations org.opencontainers.image.description and .source.
	Description string
	Source      string
	// Labels and Annotations may be one map, which the caller must not change.
	Labels      map[string]string
	Annotations map[string]string
}

// Mount is a host path that an agent sees.
type Mount = spec.Mount

// Capability is a tool that the runtime provides to the model.
type Capability = workspace.Capability

// WorkspaceView is the tree as the agent sees it.
type WorkspaceView = workspace.View

// Runtime is an agent's resolved definition.
type Runtime struct {
	// ID is the agent's.
	ID uuid.UUID
	// Source is the image's definition with the overrides applied.
	Source *spec.Agentfile
	// Config is what agent.yaml holds.
	Config *workspace.Config
}

// ExecResult is what came of running a BIN.
type ExecResult struct {
	// Stdout and Stderr are what was kept of the output.
	Stdout string
	Stderr string
	// ExitCode is the program's own; -1 where it never ran or a signal ended it.
	ExitCode int
	// Err is a spawn failure or the cancellation; nil when the BIN ran, whatever its code.
	Err error
	// Handle names the record of this execution; empty where none is kept.
	Handle string
}

// PromptRequest is one prompt of a session. Outgoing gRPC metadata of the context is passed on to
// the runtime.
type PromptRequest struct {
	// SessionID names the conversation; the runtime begins one that it does not have.
	SessionID string
	// Prompt is the user's text.
	Prompt string
	// Regenerate asks for another answer to the last prompt; the one there was stays as a branch.
	Regenerate bool
	// Attachments are for this turn.
	Attachments []Attachment
}

// Attachment is a file given with a prompt.
type Attachment struct {
	// Name is the file's, without folders.
	Name string
	// MediaType is Data's, such as image/png.
	MediaType string
	// Data is the whole file; it is not changed and not kept.
	Data []byte
}

// PromptEvent is one event of a turn; see docs/runtime.md for the types.
type PromptEvent struct {
	// Type is step.start, text.delta, reasoning.delta, tool.call, tool.result, approval.request,
	// approval.result, step.finish, message.create, error or turn.finish. A reader ignores others.
	Type string
	// Step counts the turn's model calls, from 1.
	Step int32
	// Tool is the tool's name, and ToolID ties a result to its call.
	Tool string
	// Content is text of the answer or the reasoning, a call's arguments, a tool's result, a message's
	// parts in JSON, or an error's text.
	Content string
	ToolID  string
	// DurationMs is how long the tool ran, in milliseconds.
	DurationMs int64
	// Usage is nil on events that carry none.
	Usage *Usage
	// Reason is why the turn ended, on turn.finish.
	Reason string
}

// Usage counts tokens. Cached is a part of Input, Reasoning a part of Output.
type Usage struct {
	// All are counts of tokens, 0 where the model did not tell.
	InputTokens     int64
	OutputTokens    int64
	CachedTokens    int64
	ReasoningTokens int64
}

// ObjectPromptRequest asks for one JSON object.
type ObjectPromptRequest struct {
	// Prompt is the user's text.
	Prompt string
	// Schema is a JSON Schema, which the object fits; name and description are for the model.
	Schema            []byte
	SchemaName        string
	SchemaDescription string
}

// SessionInfo describes a session.
type SessionInfo struct {
	// ID is the one that prompts name.
	ID string
	// MessageCount counts prompts and answers, an answer with branches once.
	MessageCount int32
	// LastActive is in unix seconds.
	LastActive int64
}

// SessionMessage is one message of a session.
type SessionMessage struct {
	// Role is user or assistant.
	Role string
	// Content is the user's text, or an assistant's parts: a JSON array of {kind: "text"|"tool", …}.
	Content string
	// CreatedAt is in unix seconds.
	CreatedAt int64
	// BranchesJSON is a JSON array of all answers there were, empty where there was one; ActiveBranch
	// is the index of the one that counts.
	BranchesJSON string
	ActiveBranch int32
}

// Note is a durable fact the runtime keeps.
type Note struct {
	// Key is its name; see NotesAPI.SaveNote.
	Key string
	// Content is empty in lists.
	Content string
	// Preview is the first 80 runes.
	Preview string
	// InContext tells that the runtime shows it to the model.
	InContext bool
	// CreatedAt and UpdatedAt are in unix seconds.
	CreatedAt int64
	UpdatedAt int64
}

// SaveResult is what came of saving a note.
type SaveResult struct {
	// Note is what was saved.
	Note Note
	// Overwrote tells that there was one with that key.
	Overwrote bool
}
