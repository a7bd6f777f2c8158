package system

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
)

// restoreStatus gives a loaded agent the status its last run ended with. One that runs still is
// stopped until Attach has found it.
func (a *Agent) restoreStatus() error {
	if !a.monitored {
		a.tracker.Set(executor.StatusStopped)
		return nil
	}
	if err := sandbox.Sweep(hostPath(a.home, stateDir)); err != nil {
		a.provider.logger.Warn("what an earlier run left was not cleared up", "agent", a.id, "error", err)
	}
	exit, ok, err := sandbox.ReadExit(hostPath(a.home, stateDir))
	if err != nil {
		return fmt.Errorf("last exit: %w", err)
	}
	if !ok {
		a.tracker.Set(executor.StatusStopped)
		return nil
	}
	a.recordExit(exit)
	return nil
}

func (a *Agent) recordExit(exit sandbox.Exit) {
	a.mu.Lock()
	a.lastExit = &exit
	a.mu.Unlock()
	switch {
	case exit.Asked:
		a.tracker.Set(executor.StatusStopped)
	default:
		a.tracker.SetFailure(executor.FailureCrashed)
	}
}

// Attach takes over the agent's running runtime from its monitor, after Load. It reports whether it
// runs; its status is then starting until the supervisor's probe, and Stop, Prompt and
// SubscribeStatus work as if this process had started it. No call returns when that run ends: after its last
// status Stop waits for what is left of it, and then the agent may be run again. An agent that ended meanwhile comes out
// as stopped or failed with the recorded exit, and Attach answers false without an error.
func (a *Agent) Attach(ctx context.Context) (bool, error) {
	if !a.monitored || a.Runtime() == nil {
		return false, nil
	}
	// The run belongs to nobody's call: it ends with the runtime, by Stop, or by Provider.Close.
	r, runCtx, err := a.begin(context.WithoutCancel(ctx))
	if err != nil {
		return false, fmt.Errorf("attach agent %s: %w", a.id, err)
	}
	proc, err := sandbox.Attach(ctx, hostPath(a.home, stateDir))
	if err != nil {
		a.end(r)
		if errors.Is(err, sandbox.ErrNotRunning) {
			a.mu.Lock()
			a.unseen = false
			a.mu.Unlock()
			return false, a.recheckExit()
		}
		return false, fmt.Errorf("attach agent %s: %w", a.id, err)
	}
	if err := a.regain(ctx, proc); err != nil {
		err = errors.Join(err, proc.Close())
		a.closeOutlets()
		a.end(r)
		return false, fmt.Errorf("attach agent %s: %w", a.id, err)
	}
	a.mu.Lock()
	r.proc, r.started, a.unseen = proc, proc.StartedAt(), false
	a.mu.Unlock()
	close(r.launched)
	a.resumeLog(ctx, proc)
	a.tracker.Set(executor.StatusStarting)
	go func() {
		defer a.end(r)
		// What the run came to is in the status and the exit record; there is no caller to tell.
		_ = a.watch(context.WithoutCancel(ctx), runCtx, r)
	}()
	return true, nil
}

// recheckExit looks again for a record, which may have been written after Load looked.
func (a *Agent) recheckExit() error {
	exit, ok, err := sandbox.ReadExit(hostPath(a.home, stateDir))
	if err != nil {
		return fmt.Errorf("attach agent %s: %w", a.id, err)
	}
	if ok && a.tracker.Get() == executor.StatusStopped && !exit.Asked {
		a.tracker.Set(executor.StatusStarting)
		a.recordExit(exit)
	}
	return nil
}

// regain gets back the listeners that the monitor holds.
func (a *Agent) regain(ctx context.Context, proc *sandbox.Process) error {
	files, err := proc.Files(ctx)
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	runtime, err := asListener(files[runtimeFile])
	if err != nil {
		return fmt.Errorf("runtime's listener: %w", err)
	}
	a.mu.Lock()
	a.listener = runtime
	a.mu.Unlock()
	for _, o := range a.outlets() {
		ln, err := asListener(files[o.name])
		if err != nil {
			a.dropListener()
			return fmt.Errorf("listener %s: %w", o.name, err)
		}
		// A monitor of before the agent had it has none.
		if ln != nil {
			a.keep(o.name, ln)
			o.accept(ln)
		}
	}
	return nil
}

// asListener is nil for a descriptor that is not there.
func asListener(f *os.File) (net.Listener, error) {
	if f == nil {
		return nil, nil
	}
	return net.FileListener(f)
}

// mustNotRun answers ErrRunning for an agent whose runtime an earlier process left running. ctx
// bounds how long its monitor may take to answer.
func (a *Agent) mustNotRun(ctx context.Context) error {
	a.mu.Lock()
	unseen := a.unseen
	a.mu.Unlock()
	if !a.monitored || !unseen {
		return nil
	}
	return noMonitor(ctx, hostPath(a.home, stateDir))
}

// noMonitor answers ErrRunning where a monitor answers in the state folder.
func noMonitor(ctx context.Context, state string) error {
	proc, err := sandbox.Attach(ctx, state)
	switch {
	case errors.Is(err, sandbox.ErrNotRunning):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(fmt.Errorf("%w: attach and stop it first", ErrRunning), proc.Close())
}

// detach lets go of a running agent; see Provider.Close.
func (a *Agent) detach() error {
	a.mu.Lock()
	r := a.run
	a.mu.Unlock()
	if r == nil {
		a.dropListener()
		return nil
	}
	close(r.letGo)
	a.mu.Lock()
	started := r.proc != nil
	a.mu.Unlock()
	if !started {
		// Nothing runs yet that could live on.
		r.cancel()
	}
	<-r.done
	a.dropListener()
	return nil
}

func (p *Provider) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}
