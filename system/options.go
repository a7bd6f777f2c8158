package system

import (
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/google/uuid"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
)

// ProviderOption configures a Provider.
type ProviderOption func(*Provider)

// WithAgentDefaults sets options that every created and loaded agent gets before its own.
func WithAgentDefaults(opts ...AgentOption) ProviderOption {
	return func(p *Provider) { p.defaults = append(p.defaults, opts...) }
}

// WithHostFS sets the filesystem for paths of the host: targets of mounts, a local runtime's
// program, and the log folder. The default is the host's own.
func WithHostFS(fs billy.Filesystem) ProviderOption {
	return func(p *Provider) { p.hostFS = fs }
}

// WithLocalRuntime takes the runtime's program from a path of the host and pulls none.
func WithLocalRuntime(path string) ProviderOption {
	return func(p *Provider) { p.localRuntime = path }
}

// WithLogDir keeps what each agent's runtime writes in dir/ID.log: JSON lines {t, stream, line},
// appended to. The folder must exist and be out of every agent's reach.
func WithLogDir(dir string) ProviderOption {
	return func(p *Provider) { p.logDir = dir }
}

// WithLoopbackAllocator replaces the allocator of runtime addresses. Runtimes are then given --addr.
func WithLoopbackAllocator(a LoopbackAllocator) ProviderOption {
	return func(p *Provider) { p.allocator = a }
}

// WithPuller sets where the programs of runtimes and tools come from.
func WithPuller(puller agentoci.Puller) ProviderOption {
	return func(p *Provider) { p.puller = puller }
}

// WithIdentifier sets what tells programs of different images to be the same bytes: such are pulled
// once. Without it those of one image are.
func WithIdentifier(identify agentoci.Identifier) ProviderOption {
	return func(p *Provider) { p.identify = identify }
}

// WithRegistryAddr sets the host:port of the registry's HTTP endpoint. Registry uses it for List,
// Inspect and Remove where the target can't.
func WithRegistryAddr(addr string) ProviderOption {
	return func(p *Provider) { p.registryAddr = addr }
}

// WithRegistryCreatedAt sets what ImageInfo.CreatedUnix is; without it that is 0.
func WithRegistryCreatedAt(fn CreatedAtFunc) ProviderOption {
	return func(p *Provider) { p.registryCreatedAt = fn }
}

// WithRegistryTarget sets the target behind Registry. Without it Registry answers
// executor.ErrNotImplemented.
func WithRegistryTarget(target oras.Target) ProviderOption {
	return func(p *Provider) { p.registryTarget = target }
}

// WithUsageFetcher sets where the usage text of a tool comes from whose definition has none.
// Without it such a tool has no USAGE.md.
func WithUsageFetcher(f agentoci.UsageFetcher) ProviderOption {
	return func(p *Provider) { p.usageFetcher = f }
}

// WithLabelReader sets where the labels of runtime images come from. Ours.
func WithLabelReader(r agentoci.LabelReader) ProviderOption {
	return func(p *Provider) { p.labels = r }
}

// WithSandbox asks for a level by name; an agent whose level can't be had fails. The default is the
// strongest level the host allows. Ours.
func WithSandbox(level sandbox.Level) ProviderOption {
	return func(p *Provider) { p.level = level }
}

// WithMonitor sets the path of the monitor's program; the default is otters-sandbox beside the
// running program, then in PATH. Ours.
func WithMonitor(path string) ProviderOption {
	return func(p *Provider) { p.monitor = path }
}

// WithSealKey sets the key, 32 bytes, that values given at create are sealed with in handle.json.
// The default is made once and kept in seal.key at the Provider's root. Ours.
func WithSealKey(key []byte) ProviderOption {
	return func(p *Provider) { p.sealKey = append([]byte(nil), key...) }
}

// WithLogger sets where refused status transitions and lost agents are logged; the default logs
// nothing. Ours.
func WithLogger(l *slog.Logger) ProviderOption {
	return func(p *Provider) { p.logger = l }
}

// AgentOption configures one agent. Options are applied in order, the last one wins.
type AgentOption func(*Agent)

// WithAddr sets the host:port the runtime answers on.
func WithAddr(addr string) AgentOption {
	return func(a *Agent) { a.addr = addr }
}

// WithAgentLocalRuntime takes the runtime's program from a path of the host. It is read again at
// each start.
func WithAgentLocalRuntime(path string) AgentOption {
	return func(a *Agent) { a.localRuntime = path }
}

// WithAgentPuller sets where the programs of this agent's runtime and tools come from.
func WithAgentPuller(p agentoci.Puller) AgentOption {
	// What the provider's images are the same as, another puller's need not be.
	return func(a *Agent) { a.puller, a.identify = p, nil }
}

// WithAgentToken sets what the runtime finds in OTTERS_AGENT_TOKEN. It is there only together with
// WithDaemonURL.
func WithAgentToken(token string) AgentOption {
	return func(a *Agent) { a.agentToken = token }
}

// WithAgentUsageFetcher sets where the usage text of this agent's tools comes from.
func WithAgentUsageFetcher(f agentoci.UsageFetcher) AgentOption {
	return func(a *Agent) { a.usageFetcher = f }
}

// WithCapabilities sets the tools that the runtime's image provides itself. They are listed in
// agent.yaml and AGENT.md.
func WithCapabilities(caps []executor.Capability) AgentOption {
	return func(a *Agent) { a.capabilities = caps }
}

// WithDaemonURL sets what the runtime finds in OTTERSD_URL. It is there only together with
// WithAgentToken.
func WithDaemonURL(url string) AgentOption {
	return func(a *Agent) { a.daemonURL = url }
}

// WithLevel asks for a sandbox level by name for this one agent, in place of WithSandbox. Create
// refuses a level that can't be had. Ours.
func WithLevel(level sandbox.Level) AgentOption {
	return func(a *Agent) { a.level = level }
}

// WithDialer replaces how the runtime is reached.
func WithDialer(d Dialer) AgentOption {
	return func(a *Agent) { a.dialer = d }
}

// WithDigestResolver sets where the digests of the image, the runtime and the tools come from.
func WithDigestResolver(r DigestResolver) AgentOption {
	return func(a *Agent) { a.digests = r }
}

// WithImageRef sets the reference that provenance records; the default is the one of WithReference.
func WithImageRef(ref string) AgentOption {
	return func(a *Agent) { a.imageRef = ref }
}

// WithModelResolver sets where the model's address and key come from. It is asked before every
// start.
func WithModelResolver(r model.Resolver) AgentOption {
	return func(a *Agent) { a.modelResolver = r }
}

// WithMounts adds mounts of host paths. At level off a mount is a symlink, and a read-only one is
// refused, since nothing would enforce it.
func WithMounts(m []executor.Mount) AgentOption {
	return func(a *Agent) { a.mounts = append([]executor.Mount(nil), m...) }
}

// WithOverrides adds changes to the image's definition.
func WithOverrides(overrides ...spec.Override) AgentOption {
	return func(a *Agent) { a.overrides = append(a.overrides, overrides...) }
}

// WithReference sets the reference of the agent's image.
func WithReference(ref spec.Reference) AgentOption {
	return func(a *Agent) { a.ref = ref }
}

// WithSpawner replaces how the runtime's process is started.
func WithSpawner(s Spawner) AgentOption {
	return func(a *Agent) { a.spawner = s }
}

// WithStaticModelResolver answers one address and key for every model.
func WithStaticModelResolver(apiURL, apiKey string) AgentOption {
	return WithModelResolver(model.StaticResolver(apiURL, apiKey))
}

// WithStderr sets a writer for the runtime's standard error. It lives in this process, so such an
// agent can't be taken over after its death.
func WithStderr(w io.Writer) AgentOption {
	return func(a *Agent) { a.stderr = w }
}

// WithStdout sets a writer for the runtime's standard output, as WithStderr does.
func WithStdout(w io.Writer) AgentOption {
	return func(a *Agent) { a.stdout = w }
}

// WithStore sets the target that holds the agent's image.
func WithStore(s oras.ReadOnlyTarget) AgentOption {
	return func(a *Agent) { a.store = s }
}

// WithGateway hands up the listener that the agent's model endpoint is served on: before each
// start, ahead of the model resolver, and when a running agent is taken over. accept must not
// block; the agent closes the listener when the runtime has exited. Ours.
func WithGateway(accept func(net.Listener)) AgentOption {
	return func(a *Agent) { a.gateway = accept }
}

// WithStopGrace sets how long the runtime has to exit after SIGTERM before everything it started is
// killed; the default is ten seconds, and 0 kills at once. It is kept in the agent's handle. Ours.
func WithStopGrace(grace time.Duration) AgentOption {
	return func(a *Agent) { a.grace = max(grace, 0) }
}

// WithLimits bounds the memory, the processors and the processes of the agent, each BIN that Exec runs
// apart. Create refuses what nothing on this host would enforce. They are kept in the agent's handle.
// Ours.
func WithLimits(l sandbox.Limits) AgentOption {
	return func(a *Agent) { a.limits = l }
}

// AgentOptions returns the options of one agent; see Provider.LoadWithOptions.
type AgentOptions func(id uuid.UUID) []AgentOption
