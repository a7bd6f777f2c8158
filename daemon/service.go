package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/gateway"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/system"
)

const (
	// checkTimeout bounds what a runtime is asked to describe its agent.
	checkTimeout = time.Second
	// maxWarnings and maxWarning bound what it says is to be known: lines, and bytes of each.
	maxWarnings = 32
	maxWarning  = 1024
)

// service implements the API for both protocols. Its methods check what they are given and return
// errors of this package; the interceptors turn them into answers.
type service struct {
	daemonv1.UnimplementedDaemonServiceServer

	sup       *supervisor
	providers *gateway.Providers
	socket    string
	version   string
	startedAt time.Time
	logger    *slog.Logger

	// ending is done when calls in flight are to end.
	ending context.Context
	// shutdown is closed to end the daemon after the answer.
	shutdown     chan struct{}
	shutdownOnce sync.Once
}

var _ daemonv1.DaemonServiceServer = (*service)(nil)

// Info tells what the daemon is.
func (s *service) Info(ctx context.Context, _ *daemonv1.InfoRequest) (*daemonv1.InfoResponse, error) {
	names, err := s.providers.Names()
	if err != nil {
		// A broken file fails calls that need it; what else there is to tell is still told.
		s.logger.Warn("providers not listed", "error", err)
	}
	features := s.sup.provider.Features()
	return &daemonv1.InfoResponse{
		Version: s.version, Pid: int32(os.Getpid()), Home: s.sup.home.dir, Socket: s.socket,
		Registry: s.sup.images.addr, StartedAtMs: s.startedAt.UnixMilli(),
		Agents: int32(len(s.sup.list())), AgentsRunning: int32(s.sup.countRunning()),
		Confinement: &daemonv1.Confinement{Level: features.Level, OwnUser: features.OwnUser, Enforced: features.Enforced, Open: features.Open},
		Providers:   append([]string{gateway.OfflineProvider}, names...),
		Platform:    runtime.GOOS + "/" + runtime.GOARCH, SchemaVersion: int32(len(migrations)),
	}, nil
}

// Shutdown stops the agents where that is asked for, and ends the daemon once it has answered.
func (s *service) Shutdown(ctx context.Context, req *daemonv1.ShutdownRequest) (*daemonv1.ShutdownResponse, error) {
	s.sup.setDraining(true)
	stopped := 0
	if req.GetStopAgents() {
		var err error
		if stopped, err = s.sup.stopAll(ctx); err != nil {
			s.sup.setDraining(false)
			return nil, err
		}
	}
	s.shutdownOnce.Do(func() { close(s.shutdown) })
	return &daemonv1.ShutdownResponse{Stopped: int32(stopped), Running: int32(s.sup.countRunning())}, nil
}

// CreateAgent records an agent and starts it.
func (s *service) CreateAgent(ctx context.Context, req *daemonv1.CreateAgentRequest) (*daemonv1.CreateAgentResponse, error) {
	a, err := s.sup.create(ctx, req)
	if err != nil {
		return nil, err
	}
	return &daemonv1.CreateAgentResponse{Agent: a.summary()}, nil
}

// ListAgents lists agents, oldest first.
func (s *service) ListAgents(context.Context, *daemonv1.ListAgentsRequest) (*daemonv1.ListAgentsResponse, error) {
	out := &daemonv1.ListAgentsResponse{}
	for _, a := range s.sup.list() {
		out.Agents = append(out.Agents, a.summary())
	}
	return out, nil
}

// GetAgent returns everything known of one agent.
func (s *service) GetAgent(ctx context.Context, req *daemonv1.GetAgentRequest) (*daemonv1.GetAgentResponse, error) {
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return nil, err
	}
	return &daemonv1.GetAgentResponse{Agent: a.describe(ctx)}, nil
}

// WatchAgent sends the agent's state now and after each change, until it is removed.
func (s *service) WatchAgent(req *daemonv1.WatchAgentRequest, out watchStream) error {
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return err
	}
	changed, cancel := a.watch()
	defer cancel()
	for sent := (*daemonv1.AgentSummary)(nil); ; {
		sum := a.summary()
		if sent == nil || sum.GetStatus() != sent.GetStatus() || sum.GetMessage() != sent.GetMessage() || sum.GetStartedAtMs() != sent.GetStartedAtMs() || sum.GetNextTryAtMs() != sent.GetNextTryAtMs() {
			if err := out.Send(&daemonv1.WatchAgentResponse{Agent: sum}); err != nil {
				return err
			}
			sent = sum
		}
		if sum.GetStatus() == executor.StatusRemoved.String() {
			return nil
		}
		select {
		case <-changed:
		case <-out.Context().Done():
			return out.Context().Err()
		case <-s.ending.Done():
			return fail(codes.Unavailable, "", "watch agent %s: %w", a.name, errClosed)
		}
	}
}

// StartAgent starts a stopped or failed agent.
func (s *service) StartAgent(ctx context.Context, req *daemonv1.StartAgentRequest) (*daemonv1.StartAgentResponse, error) {
	if s.sup.isDraining() {
		return nil, fail(codes.Unavailable, "", "start agent: %w", errClosed)
	}
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return nil, err
	}
	if err := s.sup.db.setWanted(ctx, a.id, true); err != nil {
		return nil, err
	}
	if err := a.start(ctx); err != nil {
		return nil, err
	}
	return &daemonv1.StartAgentResponse{Agent: a.summary()}, nil
}

// StopAgent stops an agent and answers when it has stopped.
func (s *service) StopAgent(ctx context.Context, req *daemonv1.StopAgentRequest) (*daemonv1.StopAgentResponse, error) {
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return nil, err
	}
	if err := a.stop(ctx); err != nil {
		return nil, err
	}
	return &daemonv1.StopAgentResponse{Agent: a.summary()}, nil
}

// RemoveAgent removes an agent with its workspace.
func (s *service) RemoveAgent(ctx context.Context, req *daemonv1.RemoveAgentRequest) (*daemonv1.RemoveAgentResponse, error) {
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return nil, err
	}
	if err := a.remove(ctx, req.GetForce()); err != nil {
		return nil, err
	}
	return &daemonv1.RemoveAgentResponse{Id: a.id.String(), Name: a.name}, nil
}

// Logs returns what the runtime wrote.
func (s *service) Logs(req *daemonv1.LogsRequest, out logStream) error {
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return err
	}
	q := logQuery{follow: req.GetFollow(), sinceMs: req.GetSinceMs(), tail: -1}
	if req.Tail != nil {
		q.tail = int(req.GetTail())
	}
	if q.sinceMs < 0 || req.Tail != nil && q.tail < 0 {
		return fail(codes.InvalidArgument, "", "logs of agent %s: a time or a number of lines is negative", a.name)
	}
	err = a.readLogs(out.Context(), s.ending, q, out.Send)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (a *supervised) summary() *daemonv1.AgentSummary {
	st, started := a.state()
	again := a.restartsNow()
	return &daemonv1.AgentSummary{
		Id: a.id.String(), Name: a.name, Image: a.image, Digest: a.digest, Model: a.model,
		Status: st.status.String(), Reason: string(st.reason), Message: st.message,
		CreatedAtMs: milliseconds(a.created), StartedAtMs: milliseconds(started),
		Attempts: int32(again.attempts), NextTryAtMs: again.nextMs, QueuePlace: int32(a.place()),
	}
}

// process is what the executor knows of the agent's process; zero where it has none.
func (a *supervised) process() system.Process {
	if p, ok := a.unit.(interface{ Process() system.Process }); ok {
		return p.Process()
	}
	return system.Process{}
}

func (a *supervised) describe(ctx context.Context) *daemonv1.Agent {
	p := a.process()
	out := &daemonv1.Agent{
		Summary: a.summary(),
		Root:    a.sup.home.path("agents", a.id.String(), "root"),
		Pid:     int32(p.PID), MonitorPid: int32(p.MonitorPID), Uid: int64(p.UID),
		Confinement:   confinement(p.Confinement),
		LastExit:      lastExit(p.LastExit),
		LogFile:       a.sup.logPath(a.id),
		StopTimeoutMs: a.stopTimeout().Milliseconds(),
		Restart:       a.policy.String(), LastFailure: a.restartsNow().last,
		AllowNet: p.AllowNet,
	}
	for _, l := range p.Confinement.Limits {
		out.Limits = append(out.Limits, &daemonv1.Limit{Name: l.Name, Value: l.Value, Mechanism: l.Mechanism})
	}
	if a.unit == nil {
		return out
	}
	out.Address = a.unit.Addr()
	a.ask(ctx, out)
	rt := a.unit.Runtime()
	if rt == nil {
		return out
	}
	for _, m := range rt.Source.Mounts {
		out.Mounts = append(out.Mounts, &daemonv1.Mount{Host: m.Host, Target: m.Target, Description: m.Description, ReadOnly: m.ReadOnly})
	}
	if c := rt.Config; c != nil {
		out.RuntimeRef, out.RuntimeDigest, out.Configs = c.Runtime.Ref, c.Runtime.Digest, c.Configs
		for _, t := range c.Tools {
			out.Tools = append(out.Tools, &daemonv1.Tool{Name: t.Name, Description: t.Description, Ref: t.Ref, Digest: t.Digest})
		}
		for _, e := range c.Envs {
			out.Envs = append(out.Envs, e.Key)
		}
	}
	return out
}

// ask fills in what only a running runtime tells; no answer counts as no, and as nothing to say.
func (a *supervised) ask(ctx context.Context, out *daemonv1.Agent) {
	if st := a.unit.Status(); st != executor.StatusReady && st != executor.StatusWorking {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if c, ok := a.unit.(interface {
		ChecksCallers(context.Context) (bool, error)
	}); ok {
		checks, err := c.ChecksCallers(ctx)
		out.ServeTokenChecked = err == nil && checks
	}
	if w, ok := a.unit.(interface {
		Warnings(context.Context) ([]string, error)
	}); ok {
		if warnings, err := w.Warnings(ctx); err == nil {
			out.Warnings = shortened(warnings)
		}
	}
}

// shortened keeps the warnings of a runtime within their bounds, each on one line.
func shortened(warnings []string) []string {
	var out []string
	for _, w := range warnings[:min(len(warnings), maxWarnings)] {
		// On one line it may be longer than before.
		w = flatten(w[:min(len(w), maxWarning)])
		out = append(out, strings.ToValidUTF8(w[:min(len(w), maxWarning)], ""))
	}
	return out
}

func confinement(c sandbox.Confinement) *daemonv1.Confinement {
	return &daemonv1.Confinement{Level: string(c.Level), OwnUser: c.OwnUser, Enforced: c.Enforced, Open: c.Open}
}

func lastExit(e *sandbox.Exit) *daemonv1.LastExit {
	if e == nil {
		return nil
	}
	return &daemonv1.LastExit{Code: int32(e.Code), Signal: e.Signal, AtMs: milliseconds(e.At), Stderr: e.Stderr, OutOfMemory: e.OutOfMemory}
}
