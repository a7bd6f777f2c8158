package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/egress"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/gateway"
	"github.com/otters-sh/otters/system"
)

// maxTakeOvers bounds how many agents are taken over at the same time.
const maxTakeOvers = 16

// supervisor keeps the agents of one daemon.
type supervisor struct {
	home    *home
	db      *database
	images  *imageRegistry
	gateway *gateway.Gateway
	egress  *egress.Proxy
	// connections is told of every connection through egress.
	connections *connectionLog
	provider    *system.Provider
	settings    settings
	backoff     backoff
	logger      *slog.Logger
	logs        *logWatch

	starts *startQueue

	// over is done when the daemon lets go of its agents.
	over  context.Context
	letGo context.CancelFunc
	// work counts every goroutine of an agent.
	work sync.WaitGroup

	mu     sync.Mutex
	agents map[uuid.UUID]*supervised
	// names holds those of agents and of agents being created.
	names map[string]bool
	// draining refuses creates and starts.
	draining bool
}

// list returns the agents, oldest first.
func (s *supervisor) list() []*supervised {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*supervised, 0, len(s.agents))
	for _, a := range s.agents {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *supervised) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id.String(), b.id.String()))
	})
	return out
}

// byID is nil for an agent that is not here.
func (s *supervisor) byID(id uuid.UUID) *supervised {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agents[id]
}

func (s *supervisor) add(a *supervised) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agents[a.id] = a
	s.names[a.name] = true
}

func (s *supervisor) forget(a *supervised) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.agents, a.id)
	delete(s.names, a.name)
}

func (s *supervisor) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

func (s *supervisor) setDraining(v bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = v
}

// adopt gives a its unit and starts to follow it.
func (a *supervised) adopt(unit executor.Agent) {
	a.unit = unit
	a.observed = make(chan struct{})
	a.sup.work.Go(a.observe)
}

// options are what the executor needs of the daemon for one agent, at create and at load.
func (a *supervised) options() []system.AgentOption {
	return []system.AgentOption{system.WithModelResolver(a.door.resolve), system.WithGateway(a.door.accept), system.WithEgress(a.acceptProxy)}
}

// load restores every agent of the database and takes those over that run.
func (s *supervisor) load(ctx context.Context) error {
	records, err := s.db.agents(ctx)
	if err != nil {
		return err
	}
	known := make(map[uuid.UUID]*supervised, len(records))
	for _, r := range records {
		known[r.id] = newSupervised(s, r)
	}
	units, err := s.provider.LoadWithOptions(ctx, func(id uuid.UUID) []system.AgentOption {
		if a, ok := known[id]; ok {
			return a.options()
		}
		return nil
	})
	if err != nil {
		s.logger.Error("agents not restored", "error", err)
	}
	byID := make(map[uuid.UUID]executor.Agent, len(units))
	for _, u := range units {
		byID[u.UUID()] = u
		switch {
		case known[u.UUID()] != nil:
		case u.Runtime() == nil:
			// Its creation was cut short and never acknowledged.
			if err := u.Remove(ctx); err != nil {
				s.logger.Error("folder of an agent that was never created not removed", "agent", u.UUID(), "error", err)
			}
		default:
			s.logger.Warn("folder of an agent that the database does not have; left as it is", "folder", s.home.path("agents", u.UUID().String()))
		}
	}
	slots := make(chan struct{}, maxTakeOvers)
	var restored sync.WaitGroup
	for _, r := range records {
		slots <- struct{}{}
		restored.Go(func() {
			defer func() { <-slots }()
			s.restore(ctx, known[r.id], r, byID[r.id])
		})
	}
	restored.Wait()
	return ctx.Err()
}

// restore brings one agent back: running on, ended meanwhile, or as it was.
func (s *supervisor) restore(ctx context.Context, a *supervised, r record, unit executor.Agent) {
	if unit == nil {
		s.restoreWithout(ctx, a, r)
		return
	}
	a.door.restore(r.tokenHash)
	if r.state.status == executor.StatusRemoving {
		s.add(a)
		a.adopt(unit)
		if err := a.erase(ctx); err != nil {
			s.logger.Error("removal not finished", "agent", a.id, "error", err)
		}
		return
	}
	running, err := attach(ctx, unit)
	if err != nil {
		s.logger.Error("agent not taken over", "agent", a.id, "error", err)
	}
	if !running {
		a.unit = unit
		a.told = a.outcome(r.state, err)
		settle(unit.StatusTracker(), a.told)
	}
	s.add(a)
	a.adopt(unit)
	switch {
	case running:
		a.takeOver(r.state.status == executor.StatusReady || r.state.status == executor.StatusWorking)
	case err == nil:
		a.resume(ctx, r)
	}
	a.publish()
}

func attach(ctx context.Context, unit executor.Agent) (bool, error) {
	if at, ok := unit.(executor.Attacher); ok {
		return at.Attach(ctx)
	}
	return false, nil
}

// outcome is how an agent stands that does not run: as it was recorded, or, if it ran or was being
// started when the last daemon ended, as its exit tells.
func (a *supervised) outcome(was state, attach error) state {
	exit := a.process().LastExit
	known := exit != nil && !exit.At.Before(a.started)
	failed := func(reason executor.FailureReason, message string) state {
		return state{status: executor.StatusFailed, reason: reason, message: flatten(message)}
	}
	switch {
	case attach != nil:
		return failed(executor.FailureInit, "not taken over: "+attach.Error())
	case terminal(was.status):
		return was
	case known && exit.Asked:
		return state{status: executor.StatusStopped}
	case known:
		return failed(executor.FailureCrashed, a.explain(nil))
	case was.status == executor.StatusPulling || was.status == executor.StatusStarting:
		return failed(executor.FailureInit, "interrupted: the daemon ended while the agent was being started; start it again with `otters start "+a.name+"`")
	default:
		return failed(executor.FailureCrashed, "the runtime ended while no daemon ran, and nothing tells how")
	}
}

// settle brings a fresh tracker to a recorded end.
func settle(t *executor.StatusTracker, st state) {
	if now, reason := t.Snapshot(); now == st.status && reason == st.reason {
		return
	}
	if terminal(t.Get()) {
		t.Set(executor.StatusPulling)
	}
	if st.status == executor.StatusFailed {
		t.SetFailure(st.reason)
		return
	}
	t.Set(st.status)
}

// restoreWithout deals with a row whose agent the executor could not restore: one whose create was
// cut short is dropped, and any other is shown as failed until it is removed.
func (s *supervisor) restoreWithout(ctx context.Context, a *supervised, r record) {
	_, err := os.Lstat(s.home.path("agents", a.id.String()))
	gone := errors.Is(err, fs.ErrNotExist)
	if gone && (r.state.status == executor.StatusRemoving || r.state.status == executor.StatusPulling && r.started.IsZero()) {
		if err := s.db.deleteAgent(ctx, a.id); err != nil {
			s.logger.Error("half-made agent not dropped", "agent", a.id, "error", err)
		}
		return
	}
	why := "its handle can't be read; see the daemon's log"
	if gone {
		why = "its folder is gone"
	}
	a.told = state{status: executor.StatusFailed, reason: executor.FailureInit, message: "not restored: " + why}
	s.add(a)
	if err := s.db.setState(ctx, a.id, a.told, a.started); err != nil {
		s.logger.Error("status not stored", "agent", a.id, "error", err)
	}
}

// stopAll stops every agent that runs, leaves what the operator wants of each as it is, and returns
// how many there were.
func (s *supervisor) stopAll(ctx context.Context) (int, error) {
	var mu sync.Mutex
	var errs []error
	stopped := 0
	var all sync.WaitGroup
	for _, a := range s.list() {
		if !a.running() {
			continue
		}
		all.Go(func() {
			err := a.halt(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			stopped++
		})
	}
	all.Wait()
	return stopped, errors.Join(errs...)
}

// countRunning is how many agents run.
func (s *supervisor) countRunning() int {
	n := 0
	for _, a := range s.list() {
		if a.running() {
			n++
		}
	}
	return n
}

// close lets go of the agents, within timeout: those with a monitor run on.
func (s *supervisor) close(ctx context.Context, timeout time.Duration) error {
	s.letGo()
	s.egress.Close()
	err := s.gateway.Close(ctx)
	err = errors.Join(err, s.provider.Close())
	finished := make(chan struct{})
	go func() {
		s.work.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(timeout):
		err = errors.Join(err, fmt.Errorf("agents not let go within %s", timeout))
	}
	return err
}
