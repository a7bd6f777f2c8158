package executor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/uuid"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/workspace"
)

// The tables of the contract, each name with its stated type. That this compiles is the test; a
// name that changes breaks executors that others have written.

type (
	provider interface {
		Create(ctx context.Context, id uuid.UUID, ref spec.Reference, overrides ...spec.Override) (executor.Agent, error)
		Load(ctx context.Context) ([]executor.Agent, error)
		Destroy(ctx context.Context) error
		Registry() executor.Registry
	}
	agent interface {
		UUID() uuid.UUID
		Runtime() *executor.Runtime
		Prepare(ctx context.Context) error
		Run(ctx context.Context) error
		Start(ctx context.Context) error
		Stop(ctx context.Context) error
		Remove(ctx context.Context) error
		Probe(ctx context.Context) error
		Addr() string
		Exec(ctx context.Context, bin string, args []string, stdin string) executor.ExecResult
		StatusTracker() *executor.StatusTracker
		observer
	}
	observer interface {
		Status() executor.Status
		FailureReason() executor.FailureReason
		SubscribeStatus() (<-chan executor.Status, func())
	}
	images interface {
		List(ctx context.Context) ([]string, error)
		Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error)
		Inspect(ctx context.Context, ref string) (executor.ImageInfo, error)
		Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error)
		Tag(ctx context.Context, src, dst string) error
		Remove(ctx context.Context, ref string) error
		PullRemote(ctx context.Context, remoteRef string) error
		PushRemote(ctx context.Context, localRef, remoteRef string) error
		BuildTarget() oras.Target
	}
	notes interface {
		ListNotes(ctx context.Context, onlyInContext bool) ([]executor.Note, error)
		GetNote(ctx context.Context, key string) (executor.Note, error)
		SaveNote(ctx context.Context, key, content string, maxBytes, maxCount int32) (executor.SaveResult, error)
		DeleteNote(ctx context.Context, key string) (bool, error)
		SetNoteInContext(ctx context.Context, key string, inContext bool) (executor.Note, error)
	}
)

// Each interface is assigned in both directions: it has these methods and no other.
var (
	_ provider                = executor.Provider(nil)
	_ executor.Provider       = provider(nil)
	_ agent                   = executor.Agent(nil)
	_ executor.Agent          = agent(nil)
	_ observer                = executor.StatusObserver(nil)
	_ executor.StatusObserver = observer(nil)
	_ images                  = executor.Registry(nil)
	_ executor.Registry       = images(nil)
	_ notes                   = executor.NotesAPI(nil)
	_ executor.NotesAPI       = notes(nil)

	_ interface {
		Prompt(ctx context.Context, req executor.PromptRequest, w io.Writer) error
	} = executor.Prompter(nil)
	_ interface {
		PromptStream(ctx context.Context, req executor.PromptRequest, cb func(executor.PromptEvent)) error
	} = executor.StreamPrompter(nil)
	_ interface {
		PromptObject(ctx context.Context, req executor.ObjectPromptRequest) ([]byte, error)
	} = executor.ObjectPrompter(nil)
	_ interface {
		ListSessionMessages(ctx context.Context, sessionID string, limit int) ([]executor.SessionMessage, error)
	} = executor.SessionReader(nil)
	_ interface {
		ListSessions(ctx context.Context) ([]executor.SessionInfo, error)
	} = executor.SessionLister(nil)
	_ interface {
		DeleteSession(ctx context.Context, sessionID string) error
	} = executor.SessionDeleter(nil)
	_ interface {
		ExecStream(ctx context.Context, bin string, args []string, stdin io.Reader, stdout, stderr io.Writer) executor.ExecResult
	} = executor.StreamExecer(nil)
	_ interface {
		ExecSession(ctx context.Context, verb string, args []string, stdin io.Reader, stdout, stderr io.Writer) executor.ExecResult
	} = executor.SessionExecer(nil)
	_ interface {
		Attach(ctx context.Context) (bool, error)
	} = executor.Attacher(nil)
	_ interface{ Features() executor.Features } = executor.FeatureReporter(nil)
)

var (
	_ []error = []error{executor.ErrRefNotFound, executor.ErrNotImplemented, executor.ErrNoteNotFound, executor.ErrStatusClosed}

	// StatusTracker's methods.
	_ func(*executor.StatusTracker) executor.Status                                               = (*executor.StatusTracker).Get
	_ func(*executor.StatusTracker) executor.FailureReason                                        = (*executor.StatusTracker).Failure
	_ func(*executor.StatusTracker, executor.Status) bool                                         = (*executor.StatusTracker).Set
	_ func(*executor.StatusTracker, executor.FailureReason) bool                                  = (*executor.StatusTracker).SetFailure
	_ func(*executor.StatusTracker, executor.Status, ...executor.Status) bool                     = (*executor.StatusTracker).SetUnless
	_ func(*executor.StatusTracker) (<-chan executor.Status, func())                              = (*executor.StatusTracker).Subscribe
	_ func(context.Context, executor.StatusObserver, ...executor.Status) (executor.Status, error) = executor.WaitForStatus
	_ fmt.Stringer                                                                                = executor.StatusPulling
	_ executor.Mount                                                                              = spec.Mount{Host: "", Target: "", Description: "", ReadOnly: false}
	_ executor.Capability                                                                         = workspace.Capability{Name: "", Description: ""}
	_ executor.WorkspaceView                                                                      = workspace.View{Root: "", WorkspaceDir: "", BinDirs: []string{}, RuntimeBin: "", Isolated: false}
	_ executor.ExecResult                                                                         = executor.ExecResult{Stdout: "", Stderr: "", ExitCode: 0, Err: error(nil), Handle: ""}
	_ executor.ImageInfo                                                                          = executor.ImageInfo{Ref: "", Digest: "", MediaType: "", Size: int64(0), CreatedUnix: int64(0), Description: "", Source: "", Labels: map[string]string{}, Annotations: map[string]string{}}
	_ executor.Runtime                                                                            = executor.Runtime{ID: uuid.UUID{}, Source: (*spec.Agentfile)(nil), Config: (*workspace.Config)(nil)}
	_ executor.PromptRequest                                                                      = executor.PromptRequest{SessionID: "", Prompt: "", Regenerate: false, Attachments: []executor.Attachment{{Name: "", MediaType: "", Data: []byte{}}}}
	_ executor.PromptEvent                                                                        = executor.PromptEvent{Type: "", Step: int32(0), Tool: "", Content: "", ToolID: "", DurationMs: int64(0), Usage: &executor.Usage{}, Reason: ""}
	_ executor.ObjectPromptRequest                                                                = executor.ObjectPromptRequest{Prompt: "", Schema: []byte{}, SchemaName: "", SchemaDescription: ""}
	_ executor.SessionInfo                                                                        = executor.SessionInfo{ID: "", MessageCount: int32(0), LastActive: int64(0)}
	_ executor.SessionMessage                                                                     = executor.SessionMessage{Role: "", Content: "", CreatedAt: int64(0), BranchesJSON: "", ActiveBranch: int32(0)}
	_ executor.Note                                                                               = executor.Note{Key: "", Content: "", Preview: "", InContext: false, CreatedAt: int64(0), UpdatedAt: int64(0)}
	_ executor.SaveResult                                                                         = executor.SaveResult{Note: executor.Note{}, Overwrote: false}
)

func TestStatusesAndReasonsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	for s, want := range map[executor.Status]string{
		executor.StatusPulling: "pulling", executor.StatusStarting: "starting", executor.StatusReady: "ready",
		executor.StatusWorking: "working", executor.StatusStopped: "stopped", executor.StatusFailed: "failed",
		executor.StatusRemoving: "removing", executor.StatusRemoved: "removed",
	} {
		if s.String() != want {
			t.Errorf("status %d is %q, want %q", int(s), s, want)
		}
	}
	for r, want := range map[executor.FailureReason]string{
		executor.FailureNone: "", executor.FailurePull: "pull", executor.FailureInit: "init", executor.FailureConfig: "config",
		executor.FailureModel: "model", executor.FailureReadinessTimeout: "readiness_timeout", executor.FailureCrashed: "crashed",
	} {
		if string(r) != want {
			t.Errorf("reason %q, want %q", r, want)
		}
	}
}

func TestSentinelsAreToldApart(t *testing.T) {
	t.Parallel()
	all := []error{executor.ErrRefNotFound, executor.ErrNotImplemented, executor.ErrNoteNotFound, executor.ErrStatusClosed}
	for i, a := range all {
		for j, b := range all {
			if errors.Is(fmt.Errorf("call: %w", a), b) != (i == j) {
				t.Errorf("%v and %v", a, b)
			}
		}
	}
}
