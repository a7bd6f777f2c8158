package system

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-git/go-billy/v5"
	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/workspace"
)

// Load returns the agents whose handles lie in the folder, with everything that Create was given;
// functions and live values come from the provider's options. Agents that run are found by
// Attach. An agent that can't be restored is left out and named in the error, which joins one per agent
// and wraps ErrHandle where its handle or tree is to blame; the others are returned all the same. Agents that
// this Provider has already are left out without one. What removals and writes of handles left behind that were
// cut short is removed.
func (p *Provider) Load(ctx context.Context) ([]executor.Agent, error) {
	return p.LoadWithOptions(ctx, nil)
}

// LoadWithOptions is Load with options for each agent, applied after the defaults and before what
// its handle holds. Ours.
func (p *Provider) LoadWithOptions(_ context.Context, options AgentOptions) ([]executor.Agent, error) {
	if err := p.setup(); err != nil {
		return nil, fmt.Errorf("load agents: %w", err)
	}
	entries, err := p.root.ReadDir("")
	if err != nil {
		return nil, fmt.Errorf("load agents: %w", err)
	}
	var agents []executor.Agent
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), trashPrefix) {
			if err := removeAll(p.root, e.Name()); err != nil {
				errs = append(errs, fmt.Errorf("finish removal of %s: %w", e.Name(), err))
			}
			continue
		}
		id, err := uuid.Parse(e.Name())
		if err != nil || id.String() != e.Name() {
			continue
		}
		a, err := p.load(id, options)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("load agent %s: %w", id, err))
		case a != nil:
			agents = append(agents, a)
		}
	}
	return agents, errors.Join(errs...)
}

// load restores one agent; nil where this Provider has it already.
func (p *Provider) load(id uuid.UUID, options AgentOptions) (*Agent, error) {
	p.mu.Lock()
	_, have := p.agents[id]
	p.mu.Unlock()
	if have {
		return nil, nil
	}
	home, err := p.agentHome(id)
	if err != nil {
		return nil, err
	}
	h, err := readHandle(home, id)
	if err != nil {
		return nil, err
	}
	if err := sweepHandles(home); err != nil {
		return nil, err
	}
	restored, err := h.options(p.sealer)
	if err != nil {
		return nil, err
	}
	var opts []AgentOption
	if options != nil {
		opts = options(id)
	}
	// The overrides of the defaults were recorded with the agent's own.
	forget := func(a *Agent) { a.overrides = nil }
	a := p.newAgent(id, append(append([]AgentOption{WithReference(h.Ref)}, opts...), append([]AgentOption{forget}, restored...)...))
	a.home, a.handle, a.uid, a.unseen = home, h, h.UID, true
	if err := a.restore(); err != nil {
		return nil, err
	}
	if err := a.letIn(); err != nil {
		p.logger.Warn("the agent's own user may be kept out of its folder", "agent", id, "user", a.uid, "error", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, have := p.agents[id]; have {
		return nil, nil
	}
	p.agents[id] = a
	return a, nil
}

// Destroy removes the trees of all agents, those that Load would find and those that it could not
// restore too. Agents that run are an error that wraps ErrRunning, and are left. The folder itself, its program
// store and its seal key stay.
func (p *Provider) Destroy(ctx context.Context) error {
	// What can't be loaded is removed by its folder below.
	_, _ = p.Load(ctx)
	if err := p.setup(); err != nil {
		return fmt.Errorf("destroy agents: %w", err)
	}
	p.mu.Lock()
	agents := make([]*Agent, 0, len(p.agents))
	for _, a := range p.agents {
		agents = append(agents, a)
	}
	p.mu.Unlock()
	var errs []error
	for _, a := range agents {
		errs = append(errs, a.Remove(ctx))
	}
	return errors.Join(append(errs, p.destroyRest(ctx))...)
}

// destroyRest removes the folders of agents that no Agent stands for, for want of a usable handle.
func (p *Provider) destroyRest(ctx context.Context) error {
	entries, err := p.root.ReadDir("")
	if err != nil {
		return fmt.Errorf("destroy agents: %w", err)
	}
	var errs []error
	for _, e := range entries {
		id, err := uuid.Parse(e.Name())
		p.mu.Lock()
		_, have := p.agents[id]
		p.mu.Unlock()
		if err != nil || have || id.String() != e.Name() {
			continue
		}
		if p.disk {
			err = noMonitor(ctx, hostPath(p.root, e.Name(), stateDir))
		}
		if err == nil && p.disk {
			p.sweepState(e.Name())
		}
		if err == nil {
			err = removeAll(p.root, e.Name())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("destroy agent %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// letIn opens to the agent's own user what an earlier daemon, with a tight umask, made without it.
func (a *Agent) letIn() error {
	if a.uid < 0 || !a.disk {
		return nil
	}
	if err := hasMode(a.provider.root, a.id.String(), a.provider.passMode()); err != nil {
		return err
	}
	c, ok := a.fs.(billy.Change)
	if a.runtime == nil || !ok {
		return nil
	}
	return readable(a.fs, c)
}

// restore makes a loaded agent what it was. Whether it runs is for Attach to find out.
func (a *Agent) restore() error {
	h := a.handle
	if !h.Prepared {
		return nil
	}
	if info, err := a.home.Lstat(treeDir); err != nil {
		return fmt.Errorf("%w: the agent's tree is not there: %w", ErrHandle, err)
	} else if !info.IsDir() {
		return fmt.Errorf("%w: the agent's tree %s is not a folder", ErrHandle, treeDir)
	}
	if err := a.sweepExecs(); err != nil {
		return err
	}
	fs, err := a.home.Chroot(treeDir)
	if err != nil {
		return fmt.Errorf("tree: %w", err)
	}
	config, err := workspace.ReadConfig(strings.NewReader(h.AgentYAML))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrHandle, err)
	}
	if h.Source == nil {
		return fmt.Errorf("%w: it has no source", ErrHandle)
	}
	source := h.Source.Clone()
	// An Agentfile's JSON form has no syntax; a definition of one that is not known was never prepared.
	source.Syntax = spec.DefaultSyntax
	if source.HasSkills() {
		source.Syntax = spec.SkillSyntax
	}
	if err := h.openEnvs(a.provider.sealer, source); err != nil {
		return err
	}
	source.Mounts = append(append([]spec.Mount(nil), h.OverrideMounts...), h.Mounts...)
	token, err := h.openSecret(a.provider.sealer, "serve token", h.SealedServeToken)
	if err != nil {
		return err
	}
	a.fs, a.ways, a.serveToken = fs, ways{inherit: h.Inherit, sessions: h.OfflineSessions}, token
	a.runtime = &executor.Runtime{ID: a.id, Source: source, Config: config}
	return a.restoreStatus()
}
