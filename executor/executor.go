// Package executor is the contract between whoever wants agents to run and whoever runs them. An
// executor for a new kind of place is written against this package alone; executor/executortest
// tells whether it keeps the contract.
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
	UUID() uuid.UUID
	// Runtime is the resolved definition; nil before Prepare succeeded. The caller must not
	// change it.
	Runtime() *Runtime
	// Prepare materialises the workspace. It is idempotent, and concurrent callers see one result.
	Prepare(ctx context.Context) error
	// Run prepares if needed, starts the runtime and blocks until it exits. Cancelling ctx stops
	// the runtime. It returns nil for an exit that was asked for.
	Run(ctx context.Context) error
	// Start runs a stopped or failed agent again on its workspace and blocks as Run does. On an
	// agent that never ran it behaves as Run. It fails while a Run or Start is in progress, and
	// after removal.
	Start(ctx context.Context) error
	// Stop ends the runtime and blocks until Run has returned, or until ctx is done, whose error
	// it then returns. It is a no-op on an agent that is not running.
	Stop(ctx context.Context) error
	// Remove deletes the workspace. The agent must have been stopped.
	Remove(ctx context.Context) error
	// Probe calls Ready once. It returns nil when the runtime answered true.
	Probe(ctx context.Context) error
	// Addr is the address the runtime answers on, empty where there is none yet.
	Addr() string
	// Exec runs a declared BIN with the agent's environment, less every token and key. Cancelling
	// ctx kills everything the BIN started.
	Exec(ctx context.Context, bin string, args []string, stdin string) ExecResult
	// StatusTracker is the agent's status, for the supervisor that owns ready, working and
	// readiness_timeout.
	StatusTracker() *StatusTracker
	StatusObserver
}

// StatusObserver tells an agent's status.
type StatusObserver interface {
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
// repository@digest. What is not there wraps ErrRefNotFound.
type Registry interface {
	// List returns every repository:tag, sorted.
	List(ctx context.Context) ([]string, error)
	Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error)
	Inspect(ctx context.Context, ref string) (ImageInfo, error)
	// Fetch returns the content of desc; the reader verifies nothing, the caller closes it.
	Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error)
	// Tag makes dst name what src names.
	Tag(ctx context.Context, src, dst string) error
	// Remove takes the tag away; content that nothing else names is freed later.
	Remove(ctx context.Context, ref string) error
	PullRemote(ctx context.Context, remoteRef string) error
	PushRemote(ctx context.Context, localRef, remoteRef string) error
	// BuildTarget is where a build writes its blobs and tags.
	BuildTarget() oras.Target
}

// ImageInfo describes an image.
type ImageInfo struct {
	Ref       string
	Digest    string
	MediaType string
	// Size is in bytes: the manifest and everything it names.
	Size int64
	// CreatedUnix is when the manifest was first stored, in seconds; 0 where that is not known.
	CreatedUnix int64
	Description string
	Source      string
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
	ID uuid.UUID
	// Source is the image's definition with the overrides applied.
	Source *spec.Agentfile
	// Config is what agent.yaml holds.
	Config *workspace.Config
}

// ExecResult is what came of running a BIN.
type ExecResult struct {
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
	SessionID   string
	Prompt      string
	Regenerate  bool
	Attachments []Attachment
}

// Attachment is a file given with a prompt.
type Attachment struct {
	Name      string
	MediaType string
	Data      []byte
}

// PromptEvent is one event of a turn; see docs/runtime.md for the types.
type PromptEvent struct {
	Type       string
	Step       int32
	Tool       string
	Content    string
	ToolID     string
	DurationMs int64
	// Usage is nil on events that carry none.
	Usage  *Usage
	Reason string
}

// Usage counts tokens. Cached is a part of Input, Reasoning a part of Output.
type Usage struct {
	InputTokens     int64
	OutputTokens    int64
	CachedTokens    int64
	ReasoningTokens int64
}

// ObjectPromptRequest asks for one JSON object.
type ObjectPromptRequest struct {
	Prompt string
	// Schema is a JSON Schema.
	Schema            []byte
	SchemaName        string
	SchemaDescription string
}

// SessionInfo describes a session.
type SessionInfo struct {
	ID           string
	MessageCount int32
	// LastActive is in unix seconds.
	LastActive int64
}

// SessionMessage is one message of a session.
type SessionMessage struct {
	// Role is user or assistant.
	Role    string
	Content string
	// CreatedAt is in unix seconds.
	CreatedAt    int64
	BranchesJSON string
	ActiveBranch int32
}

// Note is a durable fact the runtime keeps.
type Note struct {
	Key string
	// Content is empty in lists.
	Content string
	// Preview is the first 80 runes.
	Preview   string
	InContext bool
	// CreatedAt and UpdatedAt are in unix seconds.
	CreatedAt int64
	UpdatedAt int64
}

// SaveResult is what came of saving a note.
type SaveResult struct {
	Note      Note
	Overwrote bool
}
