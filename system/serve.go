package system

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/workspace"
)

// exitConfig is the exit code by which a runtime says that its configuration is wrong
// (EX_CONFIG of sysexits(3)).
const exitConfig = 78

// Names of descriptors, those for the runtime and those the monitor holds.
const (
	runtimeFile    = "runtime"
	serveTokenFile = "serve-token"
	gatewayFile    = "gateway"
	proxyFile      = "proxy"
)

// process is a runtime that was started: *sandbox.Process, or a spawned one.
type process interface {
	// Done is closed after the exit, and Exit is then set.
	Done() <-chan struct{}
	Exit() sandbox.Exit
	// Signal sends a signal to the program alone.
	Signal(ctx context.Context, sig os.Signal) error
	// Stop ends it and everything it started.
	Stop(ctx context.Context, grace time.Duration) error
	// Close lets go of it; one that can't live on its own is stopped.
	Close() error
}

// serve is one run from the first status to the last. outer is the caller's context, whose end is
// reported as such.
func (a *Agent) serve(outer, ctx context.Context, r *activeRun) error {
	a.enter()
	err := a.bringUp(ctx, r)
	if err == nil {
		return a.watch(outer, ctx, r)
	}
	a.closeOutlets()
	if ctx.Err() != nil {
		a.tracker.SetUnless(executor.StatusStopped, executor.StatusFailed)
		return outer.Err()
	}
	a.tracker.SetFailure(FailureOf(err))
	return err
}

// enter moves an agent that ran before to where a run begins.
func (a *Agent) enter() {
	a.mu.Lock()
	prepared := a.runtime != nil
	if !prepared {
		a.prepErr = nil
	}
	a.mu.Unlock()
	switch a.tracker.Get() {
	case executor.StatusStopped, executor.StatusFailed:
		if prepared {
			a.tracker.Set(executor.StatusStarting)
		} else {
			a.tracker.Set(executor.StatusPulling)
		}
	}
}

// bringUp makes everything a start needs and starts the runtime.
func (a *Agent) bringUp(ctx context.Context, r *activeRun) error {
	if err := a.openOutlets(); err != nil {
		return err
	}
	var expected *sandbox.Expected
	if a.monitored {
		launcher, err := a.provider.launch()
		if err != nil {
			return err
		}
		expected = launcher.Expect(a.sandboxLevel())
		defer expected.Close()
	}
	if a.Runtime() != nil {
		if err := a.refresh(ctx); err != nil {
			return err
		}
	} else if err := a.Prepare(ctx); err != nil {
		return err
	}
	if err := a.placeAuthorities(); err != nil {
		return err
	}
	a.tracker.Set(executor.StatusStarting)
	if err := a.reserve(); err != nil {
		return err
	}
	var proc process
	var err error
	if a.monitored {
		proc, err = a.launchMonitored(ctx, expected)
	} else {
		proc, err = a.launchSpawned(ctx)
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	r.proc, r.started, a.unseen = proc, time.Now(), false
	a.mu.Unlock()
	close(r.launched)
	return nil
}

// watch waits for the exit, for a reason to cause it, or to be let go.
func (a *Agent) watch(outer, ctx context.Context, r *activeRun) error {
	select {
	case <-r.proc.Done():
	case <-r.letGo:
		a.closeOutlets()
		if err := r.proc.Close(); err != nil {
			return errors.Join(ErrDetached, err)
		}
		return ErrDetached
	case <-ctx.Done():
		// The stop must come to its end whatever becomes of the caller.
		grace := a.grace
		a.mu.Lock()
		if r.kill {
			grace = 0
		}
		a.mu.Unlock()
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+stopGrace)
		err := r.proc.Stop(stopCtx, grace)
		cancel()
		if err != nil {
			a.closeOutlets()
			a.tracker.SetFailure(executor.FailureCrashed)
			return errors.Join(fmt.Errorf("stop runtime: %w", err), r.proc.Close())
		}
		<-r.proc.Done()
	}
	return a.finish(outer, ctx.Err() != nil, r)
}

// finish gives the exit its status.
func (a *Agent) finish(outer context.Context, asked bool, r *activeRun) error {
	a.closeOutlets()
	exit := r.proc.Exit()
	_ = r.proc.Close()
	a.mu.Lock()
	a.lastExit = &exit
	a.mu.Unlock()
	if asked || exit.Asked {
		a.tracker.SetUnless(executor.StatusStopped, executor.StatusFailed)
		return outer.Err()
	}
	err := exitError(exit)
	if exit.Code == exitConfig && a.tracker.Get() == executor.StatusStarting {
		a.tracker.SetFailure(executor.FailureConfig)
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	a.tracker.SetFailure(executor.FailureCrashed)
	return err
}

// exitError says how a runtime ended that nobody asked to.
func exitError(e sandbox.Exit) error {
	how := fmt.Sprintf("exit code %d", e.Code)
	switch {
	case e.Lost:
		how = "its monitor is gone and left no record"
	case e.OutOfMemory:
		how = e.Signal + " for want of memory: it came to its limit"
	case e.Signal != "":
		how = e.Signal
	}
	if n := len(e.Stderr); n > 0 {
		how += ": " + strings.TrimSpace(e.Stderr[n-1])
	}
	return fmt.Errorf("%w: %s", ErrCrashed, how)
}

// reserve keeps the agent's address, the one it had before where there is one. When that has been
// taken meanwhile the agent gets another.
func (a *Agent) reserve() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listener != nil || a.provider == nil {
		return nil
	}
	own, ok := a.provider.allocator.(loopback)
	if !ok {
		if a.addr != "" {
			return nil
		}
		addr, err := a.provider.allocator.Reserve()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoAddress, err)
		}
		a.addr = addr
		return nil
	}
	var ln net.Listener
	err := errors.New("no address yet")
	if a.addr != "" {
		ln, err = own.listen(a.addr)
	}
	if err != nil {
		if ln, err = own.ReserveListener(); err != nil {
			return err
		}
	}
	if addr := ln.Addr().String(); addr != a.addr && a.conn != nil {
		// A probe was faster, at the address of the last run.
		_ = a.conn.Close()
		a.conn = nil
	}
	a.listener, a.addr = ln, ln.Addr().String()
	return nil
}

func (a *Agent) dropListener() {
	a.mu.Lock()
	ln := a.listener
	a.listener = nil
	a.mu.Unlock()
	if ln != nil {
		_ = ln.Close()
	}
}

// freeAddr lets the address go for a runtime that binds it. What is being started meanwhile has a copy of the
// listener until its exec has closed it, and nobody can bind the address as long.
func (a *Agent) freeAddr(ctx context.Context) {
	a.mu.Lock()
	ln := a.listener
	a.mu.Unlock()
	if ln == nil {
		return
	}
	a.dropListener()
	ctx, cancel := context.WithTimeout(ctx, busyWait)
	defer cancel()
	for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
		if err != nil {
			return
		}
		_ = c.Close()
	}
}

// launchMonitored starts the runtime under the monitor that is expected to.
func (a *Agent) launchMonitored(ctx context.Context, expected *sandbox.Expected) (process, error) {
	var files openFiles
	defer files.close()
	s := sandbox.Spec{StateDir: hostPath(a.home, stateDir)}
	if err := a.confine(&s, a.Runtime(), workspace.RuntimeBin); err != nil {
		return nil, fmt.Errorf("start runtime: %w", err)
	}
	a.mu.Lock()
	s.Args, s.Env = a.args(), a.env()
	a.mu.Unlock()
	if err := a.handDown(ctx, &s, &files); err != nil {
		return nil, err
	}
	outputs, err := a.outputs(&s, &files)
	if err != nil {
		return nil, err
	}
	if err := a.storeStart(); err != nil {
		return nil, err
	}
	proc, err := expected.Start(ctx, s)
	if err != nil {
		files.close()
		outputs.wait()
		return nil, fmt.Errorf("start runtime: %w", err)
	}
	if err := a.deliverOutlets(ctx, proc); err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopGrace)
		defer cancel()
		return nil, errors.Join(err, proc.Stop(stopCtx, 0), proc.Close())
	}
	if outputs.any() {
		return &teed{Process: proc, outputs: outputs}, nil
	}
	return proc, nil
}

// handDown prepares the descriptors: the runtime's listener and its serve token where it takes
// them, and what the monitor holds for whoever takes the agent over.
func (a *Agent) handDown(ctx context.Context, s *sandbox.Spec, files *openFiles) error {
	a.mu.Lock()
	inherit, ln := a.ways.inherit, a.listener
	a.mu.Unlock()
	if err := a.handDownOutlets(s, files); err != nil {
		return err
	}
	if !inherit || ln == nil {
		a.setServeToken("")
		return a.letBind(ctx, s, ln, files)
	}
	inherited, err := a.inherited(ln, files)
	if err != nil {
		return err
	}
	s.Files = append(s.Files, sandbox.File{Name: runtimeFile, File: inherited[0]}, sandbox.File{Name: serveTokenFile, File: inherited[1]})
	return nil
}

// inherited are the descriptors of a runtime that takes them: its listener, and the token of this start.
func (a *Agent) inherited(ln net.Listener, files *openFiles) (all [2]*os.File, err error) {
	if all[0], err = files.add(listenerFile(ln)); err != nil {
		return all, err
	}
	token := rand.Text()
	if all[1], err = files.add(secretFile(token)); err != nil {
		return all, fmt.Errorf("serve token: %w", err)
	}
	a.setServeToken(token)
	return all, nil
}

// letBind prepares for a runtime that can only bind its address itself. At strict it does so on a
// loopback of its own, and the monitor passes on what reaches the listener outside; elsewhere the
// address must be free.
func (a *Agent) letBind(ctx context.Context, s *sandbox.Spec, ln net.Listener, files *openFiles) error {
	if s.Level != sandbox.Strict || ln == nil {
		a.freeAddr(ctx)
	}
	if s.Level == sandbox.Off {
		return nil
	}
	a.mu.Lock()
	addr := a.addr
	a.mu.Unlock()
	port, err := portOf(addr)
	if err != nil {
		return err
	}
	if s.Level == sandbox.Limited {
		s.Serve = append(s.Serve, port)
		return nil
	}
	if ln == nil {
		return fmt.Errorf("the runtime can't take its listener, and without the default allocator of addresses there is none to pass on to it at sandbox level %s; name a weaker level", s.Level)
	}
	f, err := files.add(listenerFile(ln))
	if err != nil {
		return err
	}
	s.Held = append(s.Held, sandbox.File{Name: runtimeFile, File: f})
	s.Relay = append(s.Relay, sandbox.Listen{Name: runtimeFile, Port: port})
	return nil
}

func (a *Agent) setServeToken(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serveToken = token
}

// storeStart records what a later process needs to take this run over.
func (a *Agent) storeStart() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handle.Addr = a.addr
	a.handle.SealedServeToken = a.handle.sealSecret(a.provider.sealer, "serve token", a.serveToken)
	return a.handle.write(a.home, false)
}

// secretFile is a descriptor that yields secret once; nothing of it is in a name or on a disk.
func secretFile(secret string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// A pipe takes far more than a token without a reader.
	_, err = w.WriteString(secret)
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// openFiles are closed in this process once the monitor has them.
type openFiles []*os.File

func (o *openFiles) add(f *os.File, err error) (*os.File, error) {
	if err == nil {
		*o = append(*o, f)
	}
	return f, err
}

func (o *openFiles) close() {
	for _, f := range *o {
		_ = f.Close()
	}
	*o = nil
}

func (a *Agent) sandboxLevel() sandbox.Level {
	if a.provider == nil {
		return sandbox.Off
	}
	if a.monitored && a.level != "" {
		return a.level
	}
	return a.provider.sandboxLevel(a.monitored)
}

// user is the user id the runtime has.
func (a *Agent) user() int {
	if a.uid >= 0 {
		return a.uid
	}
	return os.Geteuid()
}

// args are the runtime's arguments; the caller holds mu.
func (a *Agent) args() []string { return RuntimeArgs(a.runtime, a.view().Root, a.addr) }

// env is the runtime's whole environment but for its descriptors; the caller holds mu.
func (a *Agent) env() []string {
	more := a.proxyEnv()
	if a.daemonURL != "" && a.agentToken != "" {
		more = append(more, "OTTERSD_URL="+a.daemonURL, "OTTERS_AGENT_TOKEN="+a.agentToken)
	}
	return RuntimeEnv(a.runtime, a.view().Root, a.creds.apiURL, a.creds.apiKey, more...)
}
