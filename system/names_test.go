package system_test

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/go-git/go-billy/v5"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// Every exported name of the contract's page of package system, assigned to a variable of its stated
// type. That this compiles is the test: programs were written against these.

// Errors and paths.
var (
	_ error  = system.ErrModel
	_ error  = system.ErrPull
	_ string = system.RuntimeBin
)

// Functions.
var (
	_ func(context.Context, billy.Filesystem, uuid.UUID, string, system.MaterializeOptions) (*executor.Runtime, error) = system.MaterializeContent
	_ func(oras.Target, string, system.CreatedAtFunc) executor.Registry                                                = system.NewRegistry
	_ func(uuid.UUID, billy.Filesystem, ...system.AgentOption) *system.Agent                                           = system.NewAgent
	_ func(billy.Filesystem, system.StoreFor, ...system.ProviderOption) *system.Provider                               = system.NewProvider
)

// Methods of *Agent.
var (
	_ func(*system.Agent) string                                                                      = (*system.Agent).Addr
	_ func(*system.Agent, context.Context, string) (bool, error)                                      = (*system.Agent).DeleteNote
	_ func(*system.Agent, context.Context, string) error                                              = (*system.Agent).DeleteSession
	_ func(*system.Agent, context.Context, string, []string, string) executor.ExecResult              = (*system.Agent).Exec
	_ func(*system.Agent) executor.FailureReason                                                      = (*system.Agent).FailureReason
	_ func(*system.Agent, context.Context, string) (executor.Note, error)                             = (*system.Agent).GetNote
	_ func(*system.Agent, context.Context, bool) ([]executor.Note, error)                             = (*system.Agent).ListNotes
	_ func(*system.Agent, context.Context, string, int) ([]executor.SessionMessage, error)            = (*system.Agent).ListSessionMessages
	_ func(*system.Agent, context.Context) ([]executor.SessionInfo, error)                            = (*system.Agent).ListSessions
	_ func(*system.Agent, context.Context) error                                                      = (*system.Agent).Prepare
	_ func(*system.Agent, context.Context) error                                                      = (*system.Agent).Probe
	_ func(*system.Agent, context.Context, executor.PromptRequest, io.Writer) error                   = (*system.Agent).Prompt
	_ func(*system.Agent, context.Context, executor.ObjectPromptRequest) ([]byte, error)              = (*system.Agent).PromptObject
	_ func(*system.Agent, context.Context, executor.PromptRequest, func(executor.PromptEvent)) error  = (*system.Agent).PromptStream
	_ func(*system.Agent) error                                                                       = (*system.Agent).ReapplyMounts
	_ func(*system.Agent, context.Context) error                                                      = (*system.Agent).Remove
	_ func(*system.Agent, context.Context) error                                                      = (*system.Agent).Run
	_ func(*system.Agent) *executor.Runtime                                                           = (*system.Agent).Runtime
	_ func(*system.Agent, context.Context, string, string, int32, int32) (executor.SaveResult, error) = (*system.Agent).SaveNote
	_ func(*system.Agent, string)                                                                     = (*system.Agent).SetAgentToken
	_ func(*system.Agent, context.Context, string, bool) (executor.Note, error)                       = (*system.Agent).SetNoteInContext
	_ func(*system.Agent, context.Context) error                                                      = (*system.Agent).Start
	_ func(*system.Agent) executor.Status                                                             = (*system.Agent).Status
	_ func(*system.Agent) *executor.StatusTracker                                                     = (*system.Agent).StatusTracker
	_ func(*system.Agent, context.Context) error                                                      = (*system.Agent).Stop
	_ func(*system.Agent) (<-chan executor.Status, func())                                            = (*system.Agent).SubscribeStatus
	_ func(*system.Agent) uuid.UUID                                                                   = (*system.Agent).UUID
)

// Options of an agent.
var (
	_ func(*system.Agent)                            = system.AgentOption(nil)
	_ func(string) system.AgentOption                = system.WithAddr
	_ func(string) system.AgentOption                = system.WithAgentLocalRuntime
	_ func(agentoci.Puller) system.AgentOption       = system.WithAgentPuller
	_ func(string) system.AgentOption                = system.WithAgentToken
	_ func(agentoci.UsageFetcher) system.AgentOption = system.WithAgentUsageFetcher
	_ func([]executor.Capability) system.AgentOption = system.WithCapabilities
	_ func(string) system.AgentOption                = system.WithDaemonURL
	_ func(system.Dialer) system.AgentOption         = system.WithDialer
	_ func(system.DigestResolver) system.AgentOption = system.WithDigestResolver
	_ func(string) system.AgentOption                = system.WithImageRef
	_ func(model.Resolver) system.AgentOption        = system.WithModelResolver
	_ func([]executor.Mount) system.AgentOption      = system.WithMounts
	_ func(...spec.Override) system.AgentOption      = system.WithOverrides
	_ func(spec.Reference) system.AgentOption        = system.WithReference
	_ func(system.Spawner) system.AgentOption        = system.WithSpawner
	_ func(string, string) system.AgentOption        = system.WithStaticModelResolver
	_ func(io.Writer) system.AgentOption             = system.WithStderr
	_ func(io.Writer) system.AgentOption             = system.WithStdout
	_ func(oras.ReadOnlyTarget) system.AgentOption   = system.WithStore
)

// The provider and its options.
var (
	_ func(*system.Provider, context.Context, uuid.UUID, spec.Reference, ...spec.Override) (executor.Agent, error)                       = (*system.Provider).Create
	_ func(*system.Provider, context.Context, uuid.UUID, spec.Reference, []system.AgentOption, ...spec.Override) (executor.Agent, error) = (*system.Provider).CreateWithOptions
	_ func(*system.Provider, context.Context) error                                                                                      = (*system.Provider).Destroy
	_ func(*system.Provider, context.Context) ([]executor.Agent, error)                                                                  = (*system.Provider).Load
	_ func(*system.Provider) executor.Registry                                                                                           = (*system.Provider).Registry

	_ func(*system.Provider)                               = system.ProviderOption(nil)
	_ func(...system.AgentOption) system.ProviderOption    = system.WithAgentDefaults
	_ func(billy.Filesystem) system.ProviderOption         = system.WithHostFS
	_ func(string) system.ProviderOption                   = system.WithLocalRuntime
	_ func(string) system.ProviderOption                   = system.WithLogDir
	_ func(system.LoopbackAllocator) system.ProviderOption = system.WithLoopbackAllocator
	_ func(agentoci.Puller) system.ProviderOption          = system.WithPuller
	_ func(string) system.ProviderOption                   = system.WithRegistryAddr
	_ func(system.CreatedAtFunc) system.ProviderOption     = system.WithRegistryCreatedAt
	_ func(oras.Target) system.ProviderOption              = system.WithRegistryTarget
	_ func(agentoci.UsageFetcher) system.ProviderOption    = system.WithUsageFetcher
)

// The remaining types, interfaces in both directions.
type (
	pageCmd interface {
		Start() error
		Wait() error
		Signal(sig os.Signal) error
		SetStdout(w io.Writer)
		SetStderr(w io.Writer)
		SetEnv(env []string)
		SetDir(dir string)
	}
	pageDialer interface {
		Dial(ctx context.Context, addr string) (*grpc.ClientConn, error)
	}
	pageAllocator interface{ Reserve() (string, error) }
	pageSpawner   interface {
		Command(name string, args ...string) system.Cmd
	}
)

var (
	_ pageCmd                  = system.Cmd(nil)
	_ system.Cmd               = pageCmd(nil)
	_ pageDialer               = system.Dialer(nil)
	_ system.Dialer            = pageDialer(nil)
	_ pageAllocator            = system.LoopbackAllocator(nil)
	_ system.LoopbackAllocator = pageAllocator(nil)
	_ pageSpawner              = system.Spawner(nil)
	_ system.Spawner           = pageSpawner(nil)

	_ func(repo, tag string) int64                                               = system.CreatedAtFunc(nil)
	_ func(ctx context.Context, addr string) (*grpc.ClientConn, error)           = system.DialerFunc(nil)
	_ func(system.DialerFunc, context.Context, string) (*grpc.ClientConn, error) = system.DialerFunc.Dial
	_ func(ref string) string                                                    = system.DigestResolver(nil)
	_ func(ref spec.Reference) oras.ReadOnlyTarget                               = system.StoreFor(nil)

	_ = system.MaterializeOptions{
		Store: oras.ReadOnlyTarget(nil), Ref: spec.Reference{}, Overrides: []spec.Override(nil),
		OCIPuller: agentoci.Puller(nil), UsageFetcher: agentoci.UsageFetcher(nil), ModelResolver: model.Resolver(nil),
		DigestResolver: system.DigestResolver(nil), ImageRef: "", LocalRuntime: "", Mounts: []executor.Mount(nil),
		HostFS: billy.Filesystem(nil), ToolBinaryPath: func(string) string { return "" },
		SymlinkBinAt: func(string) (string, bool) { return "", false }, Capabilities: []executor.Capability(nil),
		View: executor.WorkspaceView{}, ViewBinDirsForTools: func([]string) []string { return nil },
	}
)

// The packages that the page leans on.
var (
	_ spec.Reference                                                   = spec.Reference{Name: "", Tag: "", Digest: ""}
	_ func(*spec.Agentfile)                                            = spec.Override(nil)
	_ func(string) spec.Override                                       = spec.WithRuntime
	_ func(string) spec.Override                                       = spec.WithModel
	_ func(string, string) spec.Override                               = spec.WithConfig
	_ func(...spec.Env) spec.Override                                  = spec.WithExtraEnvs
	_ func(...spec.Mount) spec.Override                                = spec.WithMounts
	_ func(string) (apiURL, apiKey string, err error)                  = model.Resolver(nil)
	_ func(apiURL, apiKey string) model.Resolver                       = model.StaticResolver
	_ func(ctx context.Context, ref spec.Reference, w io.Writer) error = agentoci.Puller(nil)
	_ func(ctx context.Context, ref spec.Reference) (string, error)    = agentoci.UsageFetcher(nil)
)

// The system's own path and error texts are facts too.
func TestThePagesConstantsHaveTheirValues(t *testing.T) {
	t.Parallel()
	if system.RuntimeBin != "usr/local/bin/runtime" {
		t.Errorf("RuntimeBin is %s", system.RuntimeBin)
	}
	if system.ErrModel.Error() != "model resolve error" || system.ErrPull.Error() != "agent pull error" {
		t.Errorf("errors read %q and %q", system.ErrModel, system.ErrPull)
	}
	if got := (spec.Reference{Name: "n", Tag: "t", Digest: "sha256:" + zeros}).String(); got != "n:t@sha256:"+zeros {
		t.Errorf("a reference prints %s", got)
	}
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"
