package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-billy/v5/util"
	"github.com/google/uuid"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/workspace"
)

// Names in the provider's folder and in an agent's.
const (
	treeDir  = "root"
	newTree  = "root.new"
	stateDir = "state"
	// trashPrefix marks what is being deleted; it is not an agent, and the next Load ends the job.
	trashPrefix = ".trash-"
)

// Provider implements executor.Provider over processes of this machine. It prepares the folders of
// agents and does not materialise them; see Agent. It is safe for concurrent use. Close lets go of
// its agents.
type Provider struct {
	root     billy.Filesystem
	storeFor StoreFor

	defaults          []AgentOption
	hostFS            billy.Filesystem
	localRuntime      string
	logDir            string
	logLimit          int64
	allocator         LoopbackAllocator
	puller            agentoci.Puller
	identify          agentoci.Identifier
	usageFetcher      agentoci.UsageFetcher
	labels            agentoci.LabelReader
	registryAddr      string
	registryCreatedAt CreatedAtFunc
	registryTarget    oras.Target
	level             sandbox.Level
	monitor           string
	sealKey           []byte
	logger            *slog.Logger

	registryOnce sync.Once
	registry     executor.Registry

	// setupOnce fills the fields below on first use, so that making a Provider can't fail.
	setupOnce sync.Once
	setupErr  error
	disk      bool
	// rootCloser closes root where it was opened here.
	rootCloser io.Closer
	launcher   *sandbox.Launcher
	sealer     *sealer
	programs   *programs
	// blanks is nil where the folder is not on disk.
	blanks *blanks

	mu     sync.Mutex
	agents map[uuid.UUID]*Agent
	closed bool
}

var (
	_ executor.Provider        = (*Provider)(nil)
	_ executor.FeatureReporter = (*Provider)(nil)
)

// NewProvider creates a Provider in the folder root. storeFor is called once per Create for the
// target that holds the agent's image. A root on disk whose filesystem can't change owners, as billy's
// own can't, is used by a descriptor of its folder. Nothing is read or written before the first agent; what is
// wrong with the folder or the monitor is told then.
func NewProvider(root billy.Filesystem, storeFor StoreFor, opts ...ProviderOption) *Provider {
	p := &Provider{
		root: root, storeFor: storeFor, agents: make(map[uuid.UUID]*Agent),
		hostFS: osfs.New("/"), allocator: loopback{}, logger: slog.New(slog.DiscardHandler),
	}
	for _, o := range opts {
		o(p)
	}
	return p
}

// setup finds out what the folder is, and makes what all agents share.
func (p *Provider) setup() error {
	p.setupOnce.Do(func() { p.setupErr = p.doSetup() })
	return p.setupErr
}

func (p *Provider) doSetup() error {
	if err := p.root.MkdirAll("", 0o711); err != nil {
		return fmt.Errorf("agents folder: %w", err)
	}
	var err error
	if p.disk = onDisk(p.root); !p.disk {
		p.root = serial{p.root, new(sync.Mutex)}
	} else if p.root, p.rootCloser, err = bound(p.root, p.disk); err != nil {
		return fmt.Errorf("agents folder: %w", err)
	}
	if p.sealKey == nil {
		key, err := readSealKey(p.root)
		if err != nil {
			return err
		}
		p.sealKey = key
	}
	if p.sealer, err = newSealer(p.sealKey); err != nil {
		return err
	}
	if p.programs, err = newPrograms(p.root, p.disk); err != nil {
		return err
	}
	if p.disk {
		if p.blanks, err = newBlanks(p.root, p.passMode()); err != nil {
			return fmt.Errorf("agents folder: %w", err)
		}
	}
	if !p.disk && p.level != "" && p.level != sandbox.Off {
		return fmt.Errorf("sandbox level %s: %w: the agents' folder is not on disk; leave the level out or name off", p.level, sandbox.ErrUnsupported)
	}
	return nil
}

// launch is the launcher shared by all agents; it is made when the first agent needs one.
func (p *Provider) launch() (*sandbox.Launcher, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if p.launcher == nil {
		l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: p.monitor, Level: p.level, Logger: p.logger})
		if err != nil {
			return nil, err
		}
		p.launcher = l
	}
	return p.launcher, nil
}

// Warm finds the monitor's program and starts a monitor ahead, so that the first agent finds it
// ready and a missing program is told now. Calling it is optional. Ours.
func (p *Provider) Warm() error {
	if err := p.setup(); err != nil {
		return err
	}
	if !p.disk {
		return nil
	}
	l, err := p.launch()
	if err != nil || p.level == "" {
		return err
	}
	return l.Lacks(p.level)
}

// sandboxLevel is the level agents run at; monitored tells whether they have a monitor.
func (p *Provider) sandboxLevel(monitored bool) sandbox.Level {
	switch {
	case !monitored:
		return sandbox.Off
	case p.level != "":
		return p.level
	}
	level, err := p.strongest()
	if err != nil && !errors.Is(err, sandbox.ErrUnsupported) {
		// Nothing starts, and the start tells why; if the next one can it shall not be the weaker for that.
		return sandbox.Strict
	}
	return level
}

// strongest is the strongest level of the host; off beside an error. The launcher keeps what its trials
// came to, and makes those again that came to nothing.
func (p *Provider) strongest() (sandbox.Level, error) {
	l, err := p.launch()
	if err != nil {
		return sandbox.Off, err
	}
	return l.Strongest(), nil
}

// Features tells what confines the agents of this Provider that name no level of their own, as the host
// lets it. It may start the monitor's program for a moment.
func (p *Provider) Features() executor.Features {
	disk := p.setup() == nil && p.disk
	c := sandbox.Describe(p.sandboxLevel(disk), disk && os.Geteuid() == 0)
	return executor.Features{Level: string(c.Level), OwnUser: c.OwnUser, Enforced: c.Enforced, Open: c.Open}
}

// Create records a new agent and reserves its address and, under root, its user id. Options of
// WithAgentDefaults apply. The agent materialises itself on first Run; nothing is pulled before. What was
// given is on disk when Create returns. Errors wrap ErrExists, ErrConfig or ErrNoAddress where one fits, and
// leave nothing behind.
func (p *Provider) Create(ctx context.Context, id uuid.UUID, ref spec.Reference, opts ...spec.Override) (executor.Agent, error) {
	return p.CreateWithOptions(ctx, id, ref, nil, opts...)
}

// CreateWithOptions is Create with options for this one agent, applied after the defaults. It is no part of
// executor.Provider, since only this provider knows its options. The agent, an *Agent, stays the provider's,
// which lets go of it at Close.
func (p *Provider) CreateWithOptions(
	_ context.Context, id uuid.UUID, ref spec.Reference, extra []AgentOption, overrides ...spec.Override,
) (executor.Agent, error) {
	a, err := p.create(id, ref, extra, overrides)
	if err != nil {
		return nil, fmt.Errorf("create agent %s: %w", id, err)
	}
	return a, nil
}

func (p *Provider) create(id uuid.UUID, ref spec.Reference, extra []AgentOption, overrides []spec.Override) (_ *Agent, err error) {
	if err := p.setup(); err != nil {
		return nil, err
	}
	a := p.newAgent(id, append([]AgentOption{WithReference(ref), WithOverrides(overrides...)}, extra...))
	rec, err := spec.Record(a.overrides...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if len(a.overrides) == 0 {
		rec = nil
	}
	if err := p.checkLevel(a); err != nil {
		return nil, err
	}
	if err := a.checkLimits(); err != nil {
		return nil, err
	}
	if err := a.checkAllowNet(); err != nil {
		return nil, err
	}
	if err := p.claim(a); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.release(a)
		}
	}()
	if _, err := p.root.Lstat(id.String()); err == nil {
		return nil, ErrExists
	}
	if err := a.reserve(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.dropListener()
			_ = removeAll(p.root, id.String())
		}
	}()
	if a.blank = p.blanks.take(id.String()); !a.blank {
		if err := p.makeHome(id); err != nil {
			return nil, err
		}
	}
	if a.home, err = p.agentHome(id); err != nil {
		return nil, err
	}
	// Side by side, for each waits for the disk.
	synced := make(chan error, 1)
	go func() { synced <- workspace.SyncDir(p.root, "") }()
	a.handle = &handle{Version: handleVersion, ID: id, CreatedAt: time.Now().UTC(), UID: a.uid}
	a.fillHandle(rec)
	err = a.handle.write(a.home, true)
	if unsynced := <-synced; unsynced != nil && err == nil {
		err = fmt.Errorf("agent folder: %w", unsynced)
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// checkLevel refuses a level asked for by name that can't be had, with what is missing.
func (p *Provider) checkLevel(a *Agent) error {
	level := a.level
	if level == "" {
		level = p.level
	}
	if level == "" || level == sandbox.Off {
		return nil
	}
	if !a.monitored {
		return fmt.Errorf("%w: level %s: %w: the agent has no monitor, which confines it", ErrConfig, level, sandbox.ErrUnsupported)
	}
	l, err := p.launch()
	if err != nil {
		return err
	}
	if err := l.Lacks(level); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

// newAgent applies the provider's settings, the defaults and the agent's own options.
func (p *Provider) newAgent(id uuid.UUID, opts []AgentOption) *Agent {
	a := newAgent(id)
	a.provider = p
	a.hostFS, a.puller, a.identify, a.usageFetcher, a.labels = p.hostFS, p.puller, p.identify, p.usageFetcher, p.labels
	a.localRuntime = p.localRuntime
	a.tracker.Refused = func(from, to executor.Status) {
		p.logger.Warn("status transition refused", "agent", id, "from", from, "to", to)
	}
	for _, o := range p.defaults {
		o(a)
	}
	for _, o := range opts {
		o(a)
	}
	if a.store == nil && p.storeFor != nil {
		a.store = p.storeFor(a.ref)
	}
	a.monitored = p.disk && a.spawner == nil
	a.disk, a.programs = p.disk, p.programs
	return a
}

// claim takes the id, and under root a user id that no other agent has.
func (p *Provider) claim(a *Agent) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	if _, ok := p.agents[a.id]; ok {
		return ErrExists
	}
	a.uid = -1
	if a.monitored && os.Geteuid() == 0 {
		taken := make(map[int]bool, len(p.agents))
		for _, other := range p.agents {
			taken[other.uid] = true
		}
		uid, err := freeUser(taken)
		if err != nil {
			return err
		}
		a.uid = uid
	}
	p.agents[a.id] = a
	return nil
}

func (p *Provider) release(a *Agent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.agents[a.id] == a {
		delete(p.agents, a.id)
	}
}

// makeHome makes the folder of agent id: open to nobody but the owner, and for passing through to
// the agent's own user.
func (p *Provider) makeHome(id uuid.UUID) error {
	name := id.String()
	if err := makeFolder(p.root, name, p.passMode()); err != nil {
		return fmt.Errorf("agent folder: %w", err)
	}
	if err := p.root.MkdirAll(p.root.Join(name, stateDir), 0o700); err != nil {
		return fmt.Errorf("agent folder: %w", err)
	}
	return nil
}

// makeFolder makes a folder with a mode of which a tight umask of the daemon takes nothing: an agent's own
// user passes through it.
func makeFolder(fs billy.Filesystem, name string, mode os.FileMode) error {
	if err := fs.MkdirAll(name, mode); err != nil {
		return err
	}
	if c, ok := fs.(billy.Change); ok {
		return c.Chmod(name, mode)
	}
	return nil
}

// hasMode gives a folder the mode that it should have, where it has another.
func hasMode(fs billy.Filesystem, name string, mode os.FileMode) error {
	info, err := fs.Lstat(name)
	if err != nil || info.Mode().Perm() == mode {
		return err
	}
	if c, ok := fs.(billy.Change); ok {
		return c.Chmod(name, mode)
	}
	return nil
}

func (p *Provider) agentHome(id uuid.UUID) (billy.Filesystem, error) {
	home, err := p.root.Chroot(id.String())
	if err != nil {
		return nil, fmt.Errorf("agent folder: %w", err)
	}
	return home, nil
}

// passMode lets an agent's own user pass through a folder, not list it.
func (p *Provider) passMode() os.FileMode {
	if os.Geteuid() == 0 {
		return 0o711
	}
	return 0o700
}

// Registry is the façade over the target of WithRegistryTarget, made on first call and the same for ever.
// The target stays the caller's.
func (p *Provider) Registry() executor.Registry {
	p.registryOnce.Do(func() {
		p.registry = NewRegistry(p.registryTarget, p.registryAddr, p.registryCreatedAt)
	})
	return p.registry
}

// Close lets go of every running agent without stopping it: their Run and Start return
// ErrDetached, and the next Provider's Load and Attach find them. Agents without a monitor can't
// outlive this process; they are stopped. No agent can be created or started afterwards. Ours.
func (p *Provider) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	// From here on what was not set up never is.
	p.setupOnce.Do(func() { p.setupErr = errClosed })
	launcher, root := p.launcher, p.rootCloser
	agents := make([]*Agent, 0, len(p.agents))
	for _, a := range p.agents {
		agents = append(agents, a)
	}
	p.mu.Unlock()
	var errs []error
	for _, a := range agents {
		errs = append(errs, a.detach())
	}
	if launcher != nil {
		errs = append(errs, launcher.Close())
	}
	p.blanks.close()
	if root != nil {
		errs = append(errs, root.Close())
	}
	return errors.Join(errs...)
}

// removeAll removes a folder below fs, through its descriptor where fs has one.
func removeAll(fs billy.Filesystem, name string) error {
	if r, ok := fs.(interface{ RemoveAll(string) error }); ok {
		return r.RemoveAll(name)
	}
	return util.RemoveAll(fs, name)
}

// hostPath is where a path of fs lies on the host.
func hostPath(fs billy.Filesystem, elem ...string) string {
	return filepath.Join(append([]string{fs.Root()}, elem...)...)
}
