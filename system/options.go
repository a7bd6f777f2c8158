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

// ProviderOption configures a Provider. Options are applied in order, the last one wins, and only NewProvider
// takes them.
type ProviderOption func(*Provider)

// WithAgentDefaults adds options that every created and loaded agent gets before its own. Their overrides and
// mounts are recorded with the agent at Create, and not applied again at Load.
func WithAgentDefaults(opts ...AgentOption) ProviderOption {
	return func(p *Provider) { p.defaults = append(p.defaults, opts...) }
}

// WithHostFS sets the filesystem for paths of the host: targets of mounts, a local runtime's
// program, and the log folder of agents without a monitor. The default is the host's own.
func WithHostFS(fs billy.Filesystem) ProviderOption {
	return func(p *Provider) { p.hostFS = fs }
}

// WithLocalRuntime takes the runtime's program of every agent from a path of the host and pulls none. It is
// read again at each start, and must be a regular file that is executable; one that is not fails the start with
// executor.FailureInit.
func WithLocalRuntime(path string) ProviderOption {
	return func(p *Provider) { p.localRuntime = path }
}

// WithLogDir keeps what each agent's runtime writes in dir/ID.log: JSON lines {t, stream, line},
// appended to, mode 0600; t is a time in RFC 3339, stream is stdout or stderr. The folder must exist and be out
// of every agent's reach. Without it what a runtime writes is kept by nobody but the writers of WithStdout and
// WithStderr.
func WithLogDir(dir string) ProviderOption {
	return func(p *Provider) { p.logDir = dir }
}

// WithLogLimit sets the size in bytes from which on a log takes no more, whether this process still runs or
// not: a runtime waits in its writes for Agent.RotateLog, which has to come below that size. No file is
// larger by more than 1 MiB; what a runtime that ends says last and that has no room is counted in a line of
// stream "monitor". 0, the default, is no limit. A runtime without a monitor has none.
func WithLogLimit(bytes int64) ProviderOption {
	return func(p *Provider) { p.logLimit = bytes }
}

// WithLoopbackAllocator replaces the allocator of runtime addresses. Runtimes are then given --addr. The default
// binds a port of 127.0.0.1 and keeps it bound until the runtime has it.
func WithLoopbackAllocator(a LoopbackAllocator) ProviderOption {
	return func(p *Provider) { p.allocator = a }
}

// WithPuller sets where the programs of runtimes and tools come from. It is called at Prepare, from several
// goroutines at once; what it wrote for a digest is kept for all agents. Without one an image that has to be
// pulled fails with ErrPull.
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

// WithRegistryTarget sets the target behind Registry, which stays the caller's to close. Without it every method
// of Registry answers executor.ErrNotImplemented.
func WithRegistryTarget(target oras.Target) ProviderOption {
	return func(p *Provider) { p.registryTarget = target }
}

// WithUsageFetcher sets where the usage text of a tool comes from whose definition has none. Without it such a
// tool has no USAGE.md; agent.yaml names the path all the same. Its error fails Prepare with ErrPull.
func WithUsageFetcher(f agentoci.UsageFetcher) ProviderOption {
	return func(p *Provider) { p.usageFetcher = f }
}

// WithLabelReader sets where the labels of images come from: ListenerLabel of runtimes, and descriptions of tools
// whose definition has none. Without it runtimes are given --addr. Ours.
func WithLabelReader(r agentoci.LabelReader) ProviderOption {
	return func(p *Provider) { p.labels = r }
}

// WithSandbox asks for a level by name; Create refuses an agent whose level can't be had, with what is missing,
// and never weakens it. The default is the strongest level the host allows. Ours.
func WithSandbox(level sandbox.Level) ProviderOption {
	return func(p *Provider) { p.level = level }
}

// WithMonitor sets the path of the monitor's program; the default is otters-sandbox beside the
// running program, then in PATH. One that is not there fails the first start, or Warm. Ours.
func WithMonitor(path string) ProviderOption {
	return func(p *Provider) { p.monitor = path }
}

// WithSealKey sets the key, 32 bytes, that values given at create are sealed with in handle.json.
// The default is made once and kept in seal.key, mode 0600, at the Provider's root. A key of another size fails
// Create and Load; agents sealed with another key can't be loaded. Ours.
func WithSealKey(key []byte) ProviderOption {
	return func(p *Provider) { p.sealKey = append([]byte(nil), key...) }
}

// WithLogger sets where refused status transitions, tokens that could not be stored and trouble with monitors are
// logged; the default logs nothing. No secret is. Ours.
func WithLogger(l *slog.Logger) ProviderOption {
	return func(p *Provider) { p.logger = l }
}

// AgentOption configures one agent. Options are applied in order, and the last one wins but where it says that it
// adds. What is a function or lives in this process is not in the agent's handle: Load takes it from the provider's
// options again.
type AgentOption func(*Agent)

// WithAddr sets the host:port the runtime answers on, which a Provider reserves otherwise.
func WithAddr(addr string) AgentOption {
	return func(a *Agent) { a.addr = addr }
}

// WithAgentLocalRuntime is WithLocalRuntime for one agent. It is kept in the agent's handle.
func WithAgentLocalRuntime(path string) AgentOption {
	return func(a *Agent) { a.localRuntime = path }
}

// WithAgentPuller is WithPuller for one agent.
func WithAgentPuller(p agentoci.Puller) AgentOption {
	// What the provider's images are the same as, another puller's need not be.
	return func(a *Agent) { a.puller, a.identify = p, nil }
}

// WithAgentToken sets what the runtime, and no tool, finds in OTTERS_AGENT_TOKEN. It is there only together with
// WithDaemonURL, and kept in the agent's handle, sealed. Empty is none.
func WithAgentToken(token string) AgentOption {
	return func(a *Agent) { a.agentToken = token }
}

// WithAgentUsageFetcher is WithUsageFetcher for one agent.
func WithAgentUsageFetcher(f agentoci.UsageFetcher) AgentOption {
	return func(a *Agent) { a.usageFetcher = f }
}

// WithCapabilities sets the tools that the runtime's image provides itself, with what the model is told of them.
// They are listed in agent.yaml and AGENT.md, and kept in the agent's handle. The slice must not be changed
// afterwards.
func WithCapabilities(caps []executor.Capability) AgentOption {
	return func(a *Agent) { a.capabilities = caps }
}

// WithDaemonURL sets what the runtime, and no tool, finds in OTTERSD_URL. It is there only together with
// WithAgentToken, and kept in the agent's handle. Empty is none.
func WithDaemonURL(url string) AgentOption {
	return func(a *Agent) { a.daemonURL = url }
}

// WithLevel asks for a sandbox level by name for this one agent, in place of WithSandbox. Create refuses a level
// that can't be had. It is kept in the agent's handle. Ours.
func WithLevel(level sandbox.Level) AgentOption {
	return func(a *Agent) { a.level = level }
}

// WithDialer replaces how the runtime is reached; the default is DialLoopback.
func WithDialer(d Dialer) AgentOption {
	return func(a *Agent) { a.dialer = d }
}

// WithDigestResolver sets where the digests of the image of WithImageRef, of the runtime and of the tools come
// from. They are recorded in agent.yaml, and a program that has one is pulled by it and only once.
func WithDigestResolver(r DigestResolver) AgentOption {
	return func(a *Agent) { a.digests = r }
}

// WithImageRef sets the reference that agent.yaml records as the image's; the default is the one of WithReference.
// The digest in provenance is the DigestResolver's answer for it, and without one that of the manifest that was
// loaded.
func WithImageRef(ref string) AgentOption {
	return func(a *Agent) { a.imageRef = ref }
}

// WithModelResolver sets where the model's address and key come from. It is asked before every start, so that
// another key takes effect then; its error fails the start with ErrModel. What it answers is in the runtime's
// environment and nowhere else. Without one the runtime is told neither.
func WithModelResolver(r model.Resolver) AgentOption {
	return func(a *Agent) { a.modelResolver = r }
}

// WithMounts sets mounts of host paths, beside those of the overrides. At level strict a mount is a bind mount, at
// the others a symlink; a read-only one is enforced by the kernel at strict and limited, and refused at off, where
// nothing would enforce it. A host path that is not there, or a target out of the agent's own folders, fails
// Prepare with ErrConfig.
func WithMounts(m []executor.Mount) AgentOption {
	return func(a *Agent) { a.mounts = append([]executor.Mount(nil), m...) }
}

// WithOverrides adds changes to the image's definition. Create checks them like the file. What they do to an empty
// definition is kept in the agent's handle, values of ENV sealed.
func WithOverrides(overrides ...spec.Override) AgentOption {
	return func(a *Agent) { a.overrides = append(a.overrides, overrides...) }
}

// WithReference sets the reference of the agent's image; Create sets the one it is given.
func WithReference(ref spec.Reference) AgentOption {
	return func(a *Agent) { a.ref = ref }
}

// WithSpawner replaces how the runtime's process is started; see Spawner.
func WithSpawner(s Spawner) AgentOption {
	return func(a *Agent) { a.spawner = s }
}

// WithStaticModelResolver answers one address and key for every model.
func WithStaticModelResolver(apiURL, apiKey string) AgentOption {
	return WithModelResolver(model.StaticResolver(apiURL, apiKey))
}

// WithStderr sets a writer for the runtime's standard error, beside the log of WithLogDir. It is written to by one
// goroutine until Run or Start returns, and stays the caller's. It lives in this process, so such an agent can't be
// taken over after its death.
func WithStderr(w io.Writer) AgentOption {
	return func(a *Agent) { a.stderr = w }
}

// WithStdout sets a writer for the runtime's standard output, as WithStderr does; one writer for both is written to
// by two goroutines at once.
func WithStdout(w io.Writer) AgentOption {
	return func(a *Agent) { a.stdout = w }
}

// WithStore sets the target that holds the agent's image, in place of StoreFor's. It stays the caller's.
func WithStore(s oras.ReadOnlyTarget) AgentOption {
	return func(a *Agent) { a.store = s }
}

// WithGateway hands up the listener that the agent's model endpoint is served on: before each
// start, ahead of the model resolver, and when a running agent is taken over. accept must not
// block; the agent closes the listener when the runtime has exited. Ours.
func WithGateway(accept func(net.Listener)) AgentOption {
	return func(a *Agent) { a.gateway = accept }
}

// WithAllowNet opens destinations to the agent through a proxy that whoever is named by WithEgress
// serves: host[:port] as that reads them. They are kept in the agent's handle. Ours.
func WithAllowNet(destinations []string) AgentOption {
	return func(a *Agent) { a.allowNet = append([]string(nil), destinations...) }
}

// Egress is what a proxy serves an agent with.
type Egress struct {
	// Destinations are those of WithAllowNet.
	Destinations []string
	// TokenHash is gate.TokenHash of the password that the agent presents, for the user "agent".
	TokenHash [32]byte
}

// WithEgress hands up the listener that the agent's proxy is served on, an HTTP proxy with
// CONNECT, where WithAllowNet names destinations: before each start, and when a running agent is
// taken over. The runtime finds it in HTTP_PROXY and HTTPS_PROXY; a BIN that is run by Exec does
// not. accept must not block; the agent closes the listener when the runtime has exited. Ours.
func WithEgress(accept func(Egress, net.Listener)) AgentOption {
	return func(a *Agent) { a.egress = accept }
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

// AgentOptions returns the options of one agent; see Provider.LoadWithOptions, which calls it once for each.
type AgentOptions func(id uuid.UUID) []AgentOption
