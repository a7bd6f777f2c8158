package executortest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// Tiny runs agents as child processes and no more: without confinement, log or take-over.
type Tiny struct {
	Dir     string
	Host    string // of the agents' addresses: 127.0.0.1, or another of the loopback
	Store   system.StoreFor
	Pull    agentoci.Puller
	Labels  agentoci.LabelReader
	Resolve model.Resolver
	Env     []string // OTTERSD_URL and OTTERS_AGENT_TOKEN

	agents sync.Map // *agent by id
}

// agent is what its handle.json holds, and what lives in this process alone.
type agent struct {
	ID     uuid.UUID
	Ref    spec.Reference
	Over   *spec.Agentfile // what the overrides do to nothing
	Mounts []spec.Mount    // those of Over, whose JSON form has none
	Built  bool

	system.RuntimeClient `json:"-"` // the calls, and the optional interfaces with them

	p       *Tiny
	tracker executor.StatusTracker
	rt      atomic.Pointer[executor.Runtime]
	run     atomic.Pointer[run] // nil where nothing runs
	prep    sync.Mutex          // held by the one caller that builds the tree; guards prepErr
	prepErr error
}

// run is a Run in progress, or a removal, after which nothing runs any more.
type run struct {
	stop context.CancelFunc
	done chan struct{}
	ln   net.Listener
	conn *grpc.ClientConn
}

func (p *Tiny) agent(a *agent) *agent {
	a.p, a.RuntimeClient = p, system.RuntimeClient{Connect: a.connect}
	return a
}

func (p *Tiny) Create(_ context.Context, id uuid.UUID, ref spec.Reference, overrides ...spec.Override) (executor.Agent, error) {
	over, err := spec.Record(overrides...)
	if err != nil {
		return nil, err
	}
	a := p.agent(&agent{ID: id, Ref: ref, Over: over, Mounts: over.Mounts})
	over.Mounts = nil
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(a.path(), 0o755); err != nil { // An id that is in use fails here.
		return nil, err
	}
	p.agents.Store(id, a)
	return a, a.save()
}

func (p *Tiny) Load(context.Context) (agents []executor.Agent, err error) {
	files, err := filepath.Glob(filepath.Join(p.Dir, "*", "handle.json"))
	for _, file := range files {
		a := p.agent(new(agent))
		text, bad := os.ReadFile(file)
		if bad = errors.Join(bad, json.Unmarshal(text, a)); bad != nil { // It costs no other agent.
			err = errors.Join(err, fmt.Errorf("load %s: %w", file, bad))
			continue
		}
		if _, known := p.agents.LoadOrStore(a.ID, a); known {
			continue
		}
		if a.Built {
			a.tracker.Set(executor.StatusStopped)
		}
		agents = append(agents, a)
	}
	return agents, err
}

func (p *Tiny) Destroy(ctx context.Context) error {
	_, err := p.Load(ctx)
	p.agents.Range(func(_, a any) bool { err = errors.Join(err, a.(*agent).Remove(ctx)); return true })
	return err
}

func (p *Tiny) Registry() executor.Registry { return system.NewRegistry(nil, "", nil) }

func (a *agent) UUID() uuid.UUID                                   { return a.ID }
func (a *agent) Runtime() *executor.Runtime                        { return a.rt.Load() }
func (a *agent) StatusTracker() *executor.StatusTracker            { return &a.tracker }
func (a *agent) Status() executor.Status                           { return a.tracker.Get() }
func (a *agent) FailureReason() executor.FailureReason             { return a.tracker.Failure() }
func (a *agent) SubscribeStatus() (<-chan executor.Status, func()) { return a.tracker.Subscribe() }
func (a *agent) Start(ctx context.Context) error                   { return a.Run(ctx) }

func (a *agent) path(elem ...string) string {
	return filepath.Join(append([]string{a.p.Dir, a.ID.String()}, elem...)...)
}

// save replaces handle.json as a whole.
func (a *agent) save() error {
	text, err := json.Marshal(a)
	if err == nil {
		err = os.WriteFile(a.path("handle.new"), text, 0o600)
	}
	return errors.Join(err, os.Rename(a.path("handle.new"), a.path("handle.json")))
}

func (a *agent) Addr() string {
	if r := a.run.Load(); r != nil && r.ln != nil {
		return r.ln.Addr().String()
	}
	return ""
}

func (a *agent) connect(ctx context.Context) (grpc.ClientConnInterface, context.Context, error) {
	if r := a.run.Load(); r != nil && r.conn != nil {
		return r.conn, ctx, nil
	}
	return nil, nil, system.ErrNotRunning
}

func (a *agent) Prepare(ctx context.Context) error {
	a.prep.Lock()
	defer a.prep.Unlock()
	if a.rt.Load() != nil || a.prepErr != nil {
		return a.prepErr
	}
	rt, err := a.build(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		a.prepErr = err
		a.tracker.SetFailure(system.FailureOf(err))
	default:
		a.rt.Store(rt)
	}
	return err
}

// build makes the tree: package system writes the content, and the programs are pulled here.
func (a *agent) build(ctx context.Context) (*executor.Runtime, error) {
	rt, err := system.MaterializeContent(ctx, osfs.New(a.path("root")), a.ID, "", system.MaterializeOptions{
		Store: a.p.Store(a.Ref), Ref: a.Ref, Overrides: []spec.Override{spec.Replay(a.Over)}, Mounts: a.Mounts,
		ModelResolver: a.p.Resolve, HostFS: osfs.New("/"),
	})
	if err != nil {
		return nil, err
	}
	programs := map[string]string{system.RuntimeBin: rt.Source.Runtime}
	for _, b := range rt.Source.Bins {
		programs["usr/bin/"+b.Name] = b.Image
	}
	for name, image := range programs {
		ref, err := spec.ParseReference(image)
		if err = errors.Join(err, a.pull(ctx, ref, a.path("root", name))); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", system.ErrPull, name, err)
		}
	}
	a.Built = true
	return rt, a.save()
}

func (a *agent) pull(ctx context.Context, ref spec.Reference, path string) error {
	var program bytes.Buffer
	if err := a.p.Pull(ctx, ref, &program); err != nil {
		return err
	}
	_ = os.Remove(path)      // Of the process before this one.
	syscall.ForkLock.RLock() // A child that got it open for writing would keep it from being run.
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, program.Bytes(), 0o755)
}

// Run has one place for each end: whatever went wrong is failed, with the reason of the error, unless the
// end was asked for.
func (a *agent) Run(ctx context.Context) error {
	ln, err := net.Listen("tcp", net.JoinHostPort(a.p.Host, "0"))
	if err != nil {
		return err
	}
	defer ln.Close()
	conn, err := system.DialLoopback(ctx, ln.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{stop: cancel, done: make(chan struct{}), ln: ln, conn: conn}
	if !a.run.CompareAndSwap(nil, r) {
		return errors.New("the agent runs or is removed")
	}
	defer func() { a.run.Store(nil); close(r.done) }()
	a.prep.Lock()
	a.prepErr = nil
	a.prep.Unlock()
	a.tracker.Set(executor.StatusPulling)
	err = a.serve(ctx, r)
	if ctx.Err() != nil {
		a.tracker.SetUnless(executor.StatusStopped, executor.StatusFailed)
		return nil
	}
	a.tracker.SetFailure(system.FailureOf(err))
	return err
}

// serve is a run of the runtime; it always ends in an error.
func (a *agent) serve(ctx context.Context, r *run) error {
	if err := a.Prepare(ctx); err != nil {
		return err
	}
	rt, root := a.Runtime(), a.path("root")
	url, key, err := a.p.Resolve(rt.Source.Model)
	if err != nil {
		return fmt.Errorf("%w: %w", system.ErrModel, err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, system.RuntimeBin), system.RuntimeArgs(rt, root, a.Addr())...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir, cmd.Env = filepath.Join(root, "workspace"), system.RuntimeEnv(rt, root, url, key, a.p.Env...)
	image, err := spec.ParseReference(rt.Source.Runtime)
	if err != nil {
		return err
	}
	labels, err := a.p.Labels(ctx, image)
	if err != nil {
		return err
	}
	if labels[system.ListenerLabel] == "inherit" {
		f, err := r.ln.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.ExtraFiles, cmd.Env = []*os.File{f}, append(cmd.Env, "LISTEN_FDS=1", "LISTEN_FDNAMES=runtime")
	}
	syscall.ForkLock.RLock() // Nor does a child that is being forked keep it.
	r.ln.Close()             // Any other runtime binds the address itself.
	syscall.ForkLock.RUnlock()
	a.tracker.Set(executor.StatusStarting)
	if err = cmd.Start(); err != nil {
		return err
	}
	err = cmd.Wait()
	if cmd.ProcessState.ExitCode() == 78 && a.Status() == executor.StatusStarting {
		return fmt.Errorf("%w: %w", system.ErrConfig, err)
	}
	return errors.Join(system.ErrCrashed, err)
}

func (a *agent) Stop(ctx context.Context) error {
	r := a.run.Load()
	if r == nil {
		return nil
	}
	r.stop()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *agent) Remove(context.Context) error {
	r := &run{stop: func() {}, done: make(chan struct{})}
	defer close(r.done)
	switch {
	case a.Status() == executor.StatusRemoved:
		return nil
	case !a.run.CompareAndSwap(nil, r):
		return errors.New("the agent runs; stop it first")
	}
	a.tracker.Set(executor.StatusRemoving)
	if err := os.RemoveAll(a.path()); err != nil {
		a.tracker.SetFailure(executor.FailureInit)
		a.run.Store(nil)
		return err
	}
	a.p.agents.Delete(a.ID)
	a.tracker.Set(executor.StatusRemoved)
	return nil
}

func (a *agent) Exec(ctx context.Context, bin string, args []string, stdin string) executor.ExecResult {
	rt := a.Runtime()
	if rt == nil || !slices.ContainsFunc(rt.Source.Bins, func(b spec.Bin) bool { return b.Name == bin }) {
		return executor.ExecResult{ExitCode: -1, Err: fmt.Errorf("no BIN %q, or no workspace yet", bin)}
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, a.path("root/usr/bin", bin), args...)
	cmd.Dir, cmd.Env = a.path("root/workspace"), system.ToolEnv(rt, a.path("root"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // What the BIN started ends with it.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	res := executor.ExecResult{Stdout: stdout.String(), Stderr: stderr.String(), ExitCode: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if ctx.Err() != nil {
		res.Err = ctx.Err()
	} else if !errors.As(err, &exit) {
		res.Err = err
	}
	return res
}
