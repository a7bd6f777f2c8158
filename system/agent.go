package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/spec"
)

// stopGrace is how long a runtime has to exit after SIGTERM before everything it started is killed,
// where no other time was given.
const stopGrace = 10 * time.Second

// Agent implements executor.Agent, and every optional interface of an agent, over a process of this machine. It
// is safe for concurrent use and must not be copied. Errors name the call and the agent.
//
// Calls of the runtime, from Prompt to SetNoteInContext, end with their context, wrap ErrNotRunning at once where no
// runtime runs, and executor.ErrNotImplemented where the runtime has no such call; outgoing metadata of the context
// goes to the runtime, with the serve token. What they return is the caller's.
type Agent struct {
	id      uuid.UUID
	tracker executor.StatusTracker

	// What the options set; it does not change after NewAgent but for agentToken.
	ref           spec.Reference
	overrides     []spec.Override
	store         oras.ReadOnlyTarget
	puller        agentoci.Puller
	identify      agentoci.Identifier
	usageFetcher  agentoci.UsageFetcher
	labels        agentoci.LabelReader
	digests       DigestResolver
	modelResolver model.Resolver
	imageRef      string
	localRuntime  string
	mounts        []executor.Mount
	capabilities  []executor.Capability
	daemonURL     string
	spawner       Spawner // nil is the monitor, or osSpawner without a Provider
	dialer        Dialer  // nil is DialLoopback
	stdout        io.Writer
	stderr        io.Writer
	gateway       func(net.Listener)
	allowNet      []string
	egress        func(Egress, net.Listener)
	level         sandbox.Level
	hostFS        billy.Filesystem
	grace         time.Duration
	limits        sandbox.Limits

	// What the provider sets: nil or zero for an agent made by NewAgent alone.
	provider *Provider
	programs *programs
	// home is the agent's folder, which the tree lies in.
	home billy.Filesystem
	// disk tells that the tree is on the host's disk, monitored that the runtime has a monitor.
	disk, monitored bool
	// uid is the agent's own user id, -1 where it has none.
	uid int

	// prep has room for the one caller that makes the workspace.
	prep chan struct{}

	// mu guards what follows.
	mu         sync.Mutex
	agentToken string
	addr       string
	fs         billy.Filesystem
	handle     *handle
	// blank tells that the folders of an empty tree are there.
	blank    bool
	runtime  *executor.Runtime
	prepErr  error
	creds    credentials
	ways     ways
	listener net.Listener
	// open are the listeners of outlets, by name.
	open       map[string]net.Listener
	serveToken string
	// proxyToken is what the next runtime presents to the proxy.
	proxyToken string
	// authorities tells that they are in the tree.
	authorities bool
	run         *activeRun
	conn        *grpc.ClientConn
	lastExit    *sandbox.Exit
	removed     bool
	// unseen tells that Load found the agent and nobody has looked yet whether it runs.
	unseen bool
}

// activeRun is one Run, Start or Attach in progress.
type activeRun struct {
	// cancel asks for the end, and with it for stopped as the outcome.
	cancel context.CancelFunc
	// letGo is closed to leave the runtime running and return.
	letGo chan struct{}
	// launched is closed when proc is set.
	launched chan struct{}
	// done is closed when the run has ended and its status is set.
	done chan struct{}
	// proc is the runtime's process once it was started; guarded by the agent's mu.
	proc    process
	started time.Time
	// kill is set, under the agent's mu, for an end without grace.
	kill bool
}

var (
	_ executor.Agent          = (*Agent)(nil)
	_ executor.Attacher       = (*Agent)(nil)
	_ executor.StreamExecer   = (*Agent)(nil)
	_ executor.Prompter       = (*Agent)(nil)
	_ executor.StreamPrompter = (*Agent)(nil)
	_ executor.ObjectPrompter = (*Agent)(nil)
	_ executor.SessionReader  = (*Agent)(nil)
	_ executor.SessionLister  = (*Agent)(nil)
	_ executor.SessionDeleter = (*Agent)(nil)
	_ executor.NotesAPI       = (*Agent)(nil)
)

// NewAgent creates an agent whose tree is fs, which stays the caller's; Remove empties it. It has no handle, so
// no later process finds it, and without a Provider no monitor and no address of its own: it is started by
// os/exec, at sandbox level off and in a process group that is killed as a whole, or by the Spawner of
// WithSpawner, which a tree in memory needs, and answers on the address of WithAddr. Most callers want
// Provider.Create.
func NewAgent(id uuid.UUID, fs billy.Filesystem, opts ...AgentOption) *Agent {
	a := newAgent(id)
	a.fs = fs
	a.hostFS = osfs.New("/")
	for _, o := range opts {
		o(a)
	}
	if a.disk = onDisk(fs); !a.disk {
		a.fs = serial{fs, new(sync.Mutex)}
	} else if b, _, err := bound(fs, a.disk); err == nil {
		a.fs = b
	}
	return a
}

func newAgent(id uuid.UUID) *Agent {
	return &Agent{id: id, uid: -1, grace: stopGrace, prep: make(chan struct{}, 1)}
}

// UUID returns the agent's identifier, which never changes.
func (a *Agent) UUID() uuid.UUID { return a.id }

// Runtime returns the resolved definition, nil before Prepare has succeeded and the same value ever after. The
// caller must not change it.
func (a *Agent) Runtime() *executor.Runtime {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runtime
}

// Addr returns the host:port the runtime answers on. It is reserved at Create and stays the same from start to
// start, unless another program has taken it between two; it is never changed while the runtime runs. It is empty
// for an agent that was made without one.
func (a *Agent) Addr() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.addr
}

// Status returns the current status; it never blocks.
func (a *Agent) Status() executor.Status { return a.tracker.Get() }

// FailureReason returns why the agent failed, FailureNone in every other status.
func (a *Agent) FailureReason() executor.FailureReason { return a.tracker.Failure() }

// SubscribeStatus returns a channel with the status now and after each change, and a function that
// ends the subscription, which must be called. A slow reader finds the latest status and holds nobody up. The channel
// is closed by the function and after removal.
func (a *Agent) SubscribeStatus() (<-chan executor.Status, func()) { return a.tracker.Subscribe() }

// StatusTracker is the tracker itself, for the supervisor that owns ready, working and
// readiness_timeout.
func (a *Agent) StatusTracker() *executor.StatusTracker { return &a.tracker }

// SetAgentToken replaces what the runtime finds in OTTERS_AGENT_TOKEN, from the next start on; a running one
// keeps what it has. It is kept in the agent's handle, sealed; where that can't be written it is logged, and the
// token holds for this process.
func (a *Agent) SetAgentToken(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.agentToken = token
	if a.handle == nil {
		return
	}
	a.handle.SealedToken = a.handle.sealSecret(a.provider.sealer, "agent token", token)
	if err := a.handle.write(a.home, true); err != nil {
		a.provider.logger.Error("agent token not stored", "agent", a.id, "error", err)
	}
}

// Process describes the agent's process.
type Process struct {
	// PID and MonitorPID are 0 where nothing runs, or nothing with a monitor.
	PID, MonitorPID int
	// UID is the user id the runtime has.
	UID int
	// StartedAt is when the runtime was last started; zero where it never was by this process.
	StartedAt time.Time
	// LastExit is how the last run ended; nil where none did.
	LastExit *sandbox.Exit
	// Confinement is what is in force, or would be at the next start.
	Confinement sandbox.Confinement
	// AllowNet are the destinations that a proxy opens to it.
	AllowNet []string
}

// Process tells what is known of the agent's process now, without asking it. Ours.
func (a *Agent) Process() Process {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := Process{UID: a.user(), LastExit: a.lastExit, AllowNet: slices.Clone(a.allowNet)}
	var m *sandbox.Process
	if a.run != nil && a.run.proc != nil {
		p.StartedAt = a.run.started
		switch proc := a.run.proc.(type) {
		case *sandbox.Process:
			m = proc
		case *teed:
			m = proc.Process
		}
	}
	if m == nil {
		p.Confinement = a.withDestinations(a.expected())
		return p
	}
	p.PID, p.MonitorPID, p.StartedAt = m.PID(), m.MonitorPID(), m.StartedAt()
	p.Confinement = a.withDestinations(m.Confinement())
	return p
}

// proc is what runs; nil where nothing does, or not yet.
func (a *Agent) proc() process {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.run == nil {
		return nil
	}
	return a.run.proc
}

// begin claims the agent for one run. The context it returns ends when the caller's does or when
// Stop asks.
func (a *Agent) begin(ctx context.Context) (*activeRun, context.Context, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.removed:
		return nil, nil, ErrRemoved
	case a.run != nil:
		return nil, nil, ErrRunning
	case a.provider != nil && a.provider.isClosed():
		return nil, nil, errClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &activeRun{cancel: cancel, letGo: make(chan struct{}), launched: make(chan struct{}), done: make(chan struct{})}
	a.run = r
	return r, ctx, nil
}

// end lets the next run begin.
func (a *Agent) end(r *activeRun) {
	r.cancel()
	// Both under one lock, so that no call keeps a connection to a run that is over.
	a.mu.Lock()
	conn := a.conn
	a.conn, a.run = nil, nil
	a.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	close(r.done)
}

// Run prepares the workspace if needed, starts the runtime and blocks until it exits. The status
// goes from pulling to starting, and from there the supervisor takes it to ready; after the exit it
// is stopped if the exit was asked for, by Stop or by the end of ctx, and failed otherwise.
//
// Run returns nil after Stop, ctx's error after its end, ErrDetached after Provider.Close, and
// otherwise what went wrong: an error that wraps ErrPull, ErrConfig, ErrModel, ErrCrashed,
// ErrRunning or ErrRemoved, or one of the workspace.
func (a *Agent) Run(ctx context.Context) error {
	r, runCtx, err := a.begin(ctx)
	if err != nil {
		return fmt.Errorf("run agent %s: %w", a.id, err)
	}
	defer a.end(r)
	if err := a.serve(ctx, runCtx, r); err != nil {
		return fmt.Errorf("run agent %s: %w", a.id, err)
	}
	return nil
}

// Start runs a stopped or failed agent again on its workspace and blocks as Run does. The model is
// resolved anew, so a changed key or address takes effect, and a local runtime's program is read
// again. On an agent that never ran, Start behaves as Run. Errors are
// those of Run.
func (a *Agent) Start(ctx context.Context) error { return a.Run(ctx) }

// Stop ends the runtime: SIGTERM, and after the grace of WithStopGrace SIGKILL to everything it ever started. It
// blocks until Run has returned, or until ctx is done, whose error it then returns while the stop
// goes on. It is a no-op on an agent that is not running.
func (a *Agent) Stop(ctx context.Context) error {
	a.mu.Lock()
	r := a.run
	a.mu.Unlock()
	if r == nil {
		return nil
	}
	r.cancel()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop agent %s: %w", a.id, ctx.Err())
	}
}

// StopGrace is how long the runtime has to exit after SIGTERM. Ours.
func (a *Agent) StopGrace() time.Duration { return a.grace }

// Kill ends the runtime as Stop does, but without a grace: SIGKILL to everything it ever started, also
// while a Stop waits. The agent is then stopped. It blocks until Run has returned or ctx is done, and is a no-op on
// an agent that is not running. Ours.
func (a *Agent) Kill(ctx context.Context) error {
	a.mu.Lock()
	r := a.run
	var proc process
	if r != nil {
		r.kill, proc = true, r.proc
	}
	a.mu.Unlock()
	if r == nil {
		return nil
	}
	r.cancel()
	if proc != nil {
		if err := proc.Stop(ctx, 0); err != nil && !errors.Is(err, sandbox.ErrNotRunning) {
			return fmt.Errorf("kill agent %s: %w", a.id, err)
		}
	}
	return a.Stop(ctx)
}

// Signal sends sig to the runtime alone. An exit that comes of it is one that nobody asked for. The
// error wraps ErrNotRunning where no runtime runs. Ours.
func (a *Agent) Signal(ctx context.Context, sig os.Signal) error {
	proc := a.proc()
	if proc == nil {
		return fmt.Errorf("signal agent %s: %w", a.id, ErrNotRunning)
	}
	err := proc.Signal(ctx, sig)
	if errors.Is(err, sandbox.ErrNotRunning) {
		err = ErrNotRunning
	}
	if err != nil {
		return fmt.Errorf("signal agent %s: %w", a.id, err)
	}
	return nil
}

// Remove deletes the agent's folder. A running agent is an error that wraps ErrRunning, one that Load
// found and Attach did not take over too; a removed one is no error. When it fails half-way the agent is failed, and Remove may be called again; it
// is no agent for Load any more.
func (a *Agent) Remove(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("remove agent %s: %w", a.id, err)
	}
	a.mu.Lock()
	switch {
	case a.removed:
		a.mu.Unlock()
		return nil
	case a.run != nil:
		a.mu.Unlock()
		return fmt.Errorf("remove agent %s: %w: stop it first", a.id, ErrRunning)
	}
	a.removed = true
	a.mu.Unlock()
	if err := a.mustNotRun(ctx); err != nil {
		a.mu.Lock()
		a.removed = false
		a.mu.Unlock()
		return fmt.Errorf("remove agent %s: %w", a.id, err)
	}
	a.tracker.Set(executor.StatusRemoving)
	if err := a.removeFiles(); err != nil {
		a.mu.Lock()
		a.removed = false
		a.mu.Unlock()
		a.tracker.SetFailure(executor.FailureInit)
		return fmt.Errorf("remove agent %s: %w", a.id, err)
	}
	a.dropListener()
	a.closeConn()
	a.closeOutlets()
	if a.provider != nil {
		a.provider.release(a)
	}
	a.tracker.Set(executor.StatusRemoved)
	return nil
}

// removeFiles takes the agent's folder out of sight first, so that a crash leaves no half of one.
func (a *Agent) removeFiles() error {
	if a.provider == nil {
		return emptyFolder(a.fs)
	}
	root, name := a.provider.root, a.id.String()
	if a.monitored {
		a.provider.sweepState(name)
	}
	trash := trashPrefix + name
	if _, err := root.Lstat(name); err == nil {
		if err := root.Rename(name, trash); err != nil {
			return err
		}
	}
	return removeAll(root, trash)
}

// emptyFolder removes everything in fs, whose own folder is the caller's.
func emptyFolder(fs billy.Filesystem) error {
	entries, err := fs.ReadDir("")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, removeAll(fs, e.Name()))
	}
	return errors.Join(errs...)
}

// FailureOf is the reason that an error of MaterializeContent or of a start stands for: that of ErrPull,
// ErrConfig, ErrModel or ErrCrashed where it wraps one, and executor.FailureInit otherwise. Other executors
// set their status by it. Ours.
func FailureOf(err error) executor.FailureReason {
	switch {
	case errors.Is(err, ErrPull):
		return executor.FailurePull
	case errors.Is(err, ErrConfig):
		return executor.FailureConfig
	case errors.Is(err, ErrModel):
		return executor.FailureModel
	case errors.Is(err, ErrCrashed):
		return executor.FailureCrashed
	default:
		return executor.FailureInit
	}
}
