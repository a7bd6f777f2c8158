package executortest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/model"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// Tiny runs agents as child processes and no more: without confinement, log or take-over.
type Tiny struct {
	Dir       string
	Store     system.StoreFor
	Pull      agentoci.Puller
	Labels    agentoci.LabelReader
	Resolve   model.Resolver
	DaemonEnv []string // OTTERSD_URL and OTTERS_AGENT_TOKEN

	mu     sync.Mutex
	agents map[uuid.UUID]*tinyAgent
}

// tinyHandle is what Load needs. Overrides are functions: what they do to nothing is what is kept.
type tinyHandle struct {
	ID     uuid.UUID
	Ref    spec.Reference
	Over   *spec.Agentfile
	Mounts []spec.Mount
	Built  bool
}

type tinyAgent struct {
	p       *Tiny
	h       tinyHandle
	ln      net.Listener
	tracker executor.StatusTracker
	prep    sync.Mutex // held by the one caller that builds the tree

	mu      sync.Mutex
	rt      *executor.Runtime
	prepErr error
	stop    context.CancelFunc // of the run in progress
	done    chan struct{}
}

func (p *Tiny) Create(_ context.Context, id uuid.UUID, ref spec.Reference, overrides ...spec.Override) (executor.Agent, error) {
	over := &spec.Agentfile{}
	for _, o := range overrides {
		o(over)
	}
	if err := over.Validate(); err != nil {
		return nil, err
	}
	a := &tinyAgent{p: p, h: tinyHandle{ID: id, Ref: ref, Over: over, Mounts: over.Mounts}}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(a.path(), 0o755); err != nil { // An id that is in use fails here.
		return nil, err
	}
	return a, errors.Join(a.save(), p.add(a))
}

// add gives an agent its address and keeps it.
func (p *Tiny) add(a *tinyAgent) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.agents == nil {
		p.agents = make(map[uuid.UUID]*tinyAgent)
	}
	p.agents[a.h.ID] = a
	a.ln, err = net.Listen("tcp", "127.0.0.1:0")
	return err
}

func (p *Tiny) Load(context.Context) ([]executor.Agent, error) {
	files, err := filepath.Glob(filepath.Join(p.Dir, "*", "handle.json"))
	var agents []executor.Agent
	for _, file := range files {
		a := &tinyAgent{p: p}
		text, readErr := os.ReadFile(file)
		if readErr = errors.Join(readErr, json.Unmarshal(text, &a.h)); readErr != nil {
			err = errors.Join(err, fmt.Errorf("load %s: %w", file, readErr))
			continue
		}
		p.mu.Lock()
		known := p.agents[a.h.ID] != nil
		p.mu.Unlock()
		if known {
			continue
		}
		if a.h.Built {
			a.tracker.Set(executor.StatusStopped)
		}
		err = errors.Join(err, p.add(a))
		agents = append(agents, a)
	}
	return agents, err
}

func (p *Tiny) Destroy(ctx context.Context) error {
	_, err := p.Load(ctx)
	p.mu.Lock()
	var agents []*tinyAgent
	for _, a := range p.agents {
		agents = append(agents, a)
	}
	p.mu.Unlock()
	for _, a := range agents {
		err = errors.Join(err, a.Remove(ctx))
	}
	return err
}

func (p *Tiny) Registry() executor.Registry { return system.NewRegistry(nil, "", nil) }

func (a *tinyAgent) path(elem ...string) string {
	return filepath.Join(append([]string{a.p.Dir, a.h.ID.String()}, elem...)...)
}

func (a *tinyAgent) save() error {
	text, err := json.Marshal(a.h)
	if err == nil {
		err = os.WriteFile(a.path("handle.new"), text, 0o600)
	}
	if err == nil {
		err = os.Rename(a.path("handle.new"), a.path("handle.json"))
	}
	return err
}

// replay applies what is kept of the overrides. A RUNTIME by way of Merge would drop the settings.
func (a *tinyAgent) replay(to *spec.Agentfile) {
	over := a.h.Over.Clone()
	over.Runtime, over.Mounts = "", a.h.Mounts
	*to = *spec.Merge(to, over)
	if a.h.Over.Runtime != "" {
		to.Runtime = a.h.Over.Runtime
	}
}

func (a *tinyAgent) UUID() uuid.UUID                                   { return a.h.ID }
func (a *tinyAgent) Addr() string                                      { return a.ln.Addr().String() }
func (a *tinyAgent) StatusTracker() *executor.StatusTracker            { return &a.tracker }
func (a *tinyAgent) Status() executor.Status                           { return a.tracker.Get() }
func (a *tinyAgent) FailureReason() executor.FailureReason             { return a.tracker.Failure() }
func (a *tinyAgent) Start(ctx context.Context) error                   { return a.Run(ctx) }
func (a *tinyAgent) SubscribeStatus() (<-chan executor.Status, func()) { return a.tracker.Subscribe() }

func (a *tinyAgent) Runtime() *executor.Runtime {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rt
}

func (a *tinyAgent) Prepare(ctx context.Context) error {
	a.prep.Lock()
	defer a.prep.Unlock()
	a.mu.Lock()
	done, err := a.rt != nil, a.prepErr
	a.mu.Unlock()
	if done || err != nil {
		return err
	}
	rt, err := a.build(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.mu.Lock()
	a.rt, a.prepErr = rt, err
	a.mu.Unlock()
	if err != nil {
		a.fail(err)
	}
	return err
}

// fail tells why the agent is failed.
func (a *tinyAgent) fail(err error) {
	for sentinel, reason := range map[error]executor.FailureReason{
		system.ErrPull: executor.FailurePull, system.ErrConfig: executor.FailureConfig, system.ErrModel: executor.FailureModel,
	} {
		if errors.Is(err, sentinel) {
			a.tracker.SetFailure(reason)
		}
	}
	a.tracker.SetUnless(executor.StatusStarting, executor.StatusFailed)
	a.tracker.SetFailure(executor.FailureInit) // Refused where a reason is set.
}

// build makes the tree: package system writes the content, and the programs are pulled here.
func (a *tinyAgent) build(ctx context.Context) (*executor.Runtime, error) {
	rt, err := system.MaterializeContent(ctx, osfs.New(a.path("root")), a.h.ID, a.Addr(), system.MaterializeOptions{
		Store: a.p.Store(a.h.Ref), Ref: a.h.Ref, Overrides: []spec.Override{a.replay}, ModelResolver: a.p.Resolve, HostFS: osfs.New("/"),
	})
	if err != nil {
		return nil, err
	}
	programs := map[string]string{system.RuntimeBin: rt.Source.Runtime}
	for _, b := range rt.Source.Bins {
		programs["usr/bin/"+b.Name] = b.Image
	}
	pulled := make(map[string]string)
	for name, image := range programs {
		_ = os.Remove(a.path("root", name)) // Of the process before this one.
		if first, ok := pulled[image]; ok {
			if err := os.Link(a.path("root", first), a.path("root", name)); err != nil {
				return nil, err
			}
			continue
		}
		pulled[image] = name
		ref, err := spec.ParseReference(image)
		var program bytes.Buffer
		if err == nil {
			err = a.p.Pull(ctx, ref, &program)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", system.ErrPull, name, err)
		}
		// A fork meanwhile would take the open file along, and a program that is open for writing
		// can't be run.
		syscall.ForkLock.RLock()
		err = os.WriteFile(a.path("root", name), program.Bytes(), 0o755)
		syscall.ForkLock.RUnlock()
		if err != nil {
			return nil, err
		}
	}
	a.h.Built = true
	return rt, a.save()
}

func (a *tinyAgent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	if a.stop != nil || a.tracker.Get() == executor.StatusRemoved {
		a.mu.Unlock()
		return errors.New("the agent runs or is removed")
	}
	done := make(chan struct{})
	a.stop, a.done = cancel, done
	if a.rt == nil {
		a.prepErr = nil
	}
	a.mu.Unlock()
	defer close(done)
	defer func() {
		a.mu.Lock()
		a.stop = nil
		a.mu.Unlock()
	}()
	if st := a.tracker.Get(); st == executor.StatusStopped || st == executor.StatusFailed {
		a.tracker.Set(executor.StatusPulling)
	}
	err := a.serve(ctx)
	if ctx.Err() != nil { // An end that was asked for.
		a.tracker.SetUnless(executor.StatusStopped, executor.StatusFailed)
		return nil
	}
	return err
}

func (a *tinyAgent) serve(ctx context.Context) error {
	if err := a.Prepare(ctx); err != nil {
		return err
	}
	ref, err := model.ParseRef(a.rt.Source.Model)
	url, key, resolveErr := a.p.Resolve(a.rt.Source.Model)
	if err = errors.Join(err, resolveErr); err != nil {
		a.tracker.SetFailure(executor.FailureModel)
		return err
	}
	a.tracker.Set(executor.StatusStarting)
	args := a.rt.Source.Exec
	if args == nil {
		args = []string{"serve"}
	}
	args = append(args[:len(args):len(args)], "--root", a.path("root"), "--model", a.rt.Source.Model, "--addr", a.Addr())
	cmd := exec.CommandContext(ctx, a.path("root", system.RuntimeBin), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = a.path("root", "workspace")
	cmd.Env = append(a.env(), a.p.DaemonEnv...)
	cmd.Env = append(cmd.Env, ref.EnvPrefix()+"_API_KEY="+key, ref.EnvPrefix()+"_API_BASE="+url)
	for _, c := range a.rt.Source.Configs {
		if c.Value != nil {
			cmd.Env = append(cmd.Env, "RUNTIME_"+strings.ToUpper(strings.ReplaceAll(c.Key, "-", "_"))+"="+*c.Value)
		}
	}
	if err = a.handDown(ctx, cmd); err == nil {
		err = cmd.Start()
	}
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	if err != nil {
		if ctx.Err() == nil {
			a.tracker.SetFailure(executor.FailureInit)
		}
		return err
	}
	err = cmd.Wait()
	reason := executor.FailureCrashed
	if cmd.ProcessState.ExitCode() == 78 && a.tracker.Get() == executor.StatusStarting {
		reason = executor.FailureConfig
	}
	if ctx.Err() == nil {
		a.tracker.SetFailure(reason)
	}
	return errors.Join(errors.New("the runtime exited"), err)
}

// handDown passes the listener to a runtime that takes it, and frees the address for any other.
func (a *tinyAgent) handDown(ctx context.Context, cmd *exec.Cmd) error {
	image, err := spec.ParseReference(a.rt.Source.Runtime)
	if err != nil {
		return err
	}
	labels, err := a.p.Labels(ctx, image)
	if err != nil {
		return err
	}
	if labels[system.ListenerLabel] != "inherit" {
		return a.ln.Close()
	}
	f, err := a.ln.(*net.TCPListener).File()
	cmd.ExtraFiles, cmd.Env = []*os.File{f}, append(cmd.Env, "LISTEN_FDS=1", "LISTEN_FDNAMES=runtime")
	return err
}

// env is what a tool gets: nothing in it is secret.
func (a *tinyAgent) env() []string {
	root := a.path("root")
	env := []string{
		"PATH=" + root + "/usr/bin", "HOME=" + root + "/home", "TMPDIR=" + root + "/tmp", "LANG=C.UTF-8", "OTTERS_AGENT_ROOT=" + root,
		"XDG_CONFIG_HOME=" + root + "/home/.config", "XDG_CACHE_HOME=" + root + "/home/.cache", "XDG_DATA_HOME=" + root + "/home/.local/share",
	}
	for _, e := range a.rt.Source.Envs {
		env = append(env, e.Key+"="+e.Value)
	}
	return env
}

func (a *tinyAgent) Stop(ctx context.Context) error {
	a.mu.Lock()
	stop, done := a.stop, a.done
	a.mu.Unlock()
	if stop == nil {
		return nil
	}
	stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *tinyAgent) Remove(context.Context) error {
	a.mu.Lock()
	running := a.stop != nil
	a.mu.Unlock()
	switch {
	case running:
		return errors.New("the agent runs; stop it first")
	case a.tracker.Get() == executor.StatusRemoved:
		return nil
	}
	a.tracker.Set(executor.StatusRemoving)
	a.ln.Close() // Closed already where the runtime binds it.
	if err := os.RemoveAll(a.path()); err != nil {
		a.tracker.SetFailure(executor.FailureInit)
		return err
	}
	a.p.mu.Lock()
	delete(a.p.agents, a.h.ID)
	a.p.mu.Unlock()
	a.tracker.Set(executor.StatusRemoved)
	return nil
}

// client reaches the running runtime; the caller closes the connection.
func (a *tinyAgent) client() (agentv1.AgentRuntimeClient, io.Closer, error) {
	a.mu.Lock()
	running := a.stop != nil
	a.mu.Unlock()
	if !running {
		return nil, nil, errors.New("the agent does not run")
	}
	conn, err := grpc.NewClient("passthrough:///"+a.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	return agentv1.NewAgentRuntimeClient(conn), conn, err
}

func (a *tinyAgent) Probe(ctx context.Context) error {
	c, conn, err := a.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	res, err := c.Ready(ctx, &agentv1.ReadyRequest{})
	if err == nil && !res.Ready {
		err = errors.New("the runtime is not ready")
	}
	return err
}

func (a *tinyAgent) PromptStream(ctx context.Context, req executor.PromptRequest, cb func(executor.PromptEvent)) error {
	c, conn, err := a.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	in := &agentv1.ChatStreamRequest{SessionId: req.SessionID, Prompt: req.Prompt, Regenerate: req.Regenerate}
	for _, f := range req.Attachments {
		in.Attachments = append(in.Attachments, &agentv1.Attachment{Name: f.Name, MediaType: f.MediaType, Data: f.Data})
	}
	stream, err := c.ChatStream(ctx, in)
	for err == nil {
		var e *agentv1.ChatStreamEvent
		if e, err = stream.Recv(); err != nil {
			break
		}
		out := executor.PromptEvent{Type: e.Type, Step: e.Step, Tool: e.Tool, Content: e.Content, ToolID: e.ToolId, DurationMs: e.DurationMs, Reason: e.Reason}
		if u := e.Usage; u != nil {
			out.Usage = &executor.Usage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, CachedTokens: u.CachedTokens, ReasoningTokens: u.ReasoningTokens}
		}
		cb(out)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (a *tinyAgent) Prompt(ctx context.Context, req executor.PromptRequest, w io.Writer) error {
	var answer strings.Builder
	err := a.PromptStream(ctx, req, func(e executor.PromptEvent) {
		switch e.Type {
		case "step.start":
			answer.Reset()
		case "text.delta":
			answer.WriteString(e.Content)
		}
	})
	if err == nil {
		_, err = io.WriteString(w, answer.String())
	}
	return err
}

func (a *tinyAgent) Exec(ctx context.Context, bin string, args []string, stdin string) executor.ExecResult {
	rt := a.Runtime()
	if rt == nil {
		return executor.ExecResult{ExitCode: -1, Err: errors.New("the agent has no workspace yet")}
	}
	known := false
	for _, b := range rt.Source.Bins {
		known = known || b.Name == bin
	}
	if !known {
		return executor.ExecResult{ExitCode: -1, Err: fmt.Errorf("no BIN %q", bin)}
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, a.path("root/usr/bin", bin), args...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = a.path("root/workspace"), a.env(), strings.NewReader(stdin), &stdout, &stderr
	// A group of its own, so that what the BIN started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	res := executor.ExecResult{Stdout: stdout.String(), Stderr: stderr.String(), ExitCode: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if ctx.Err() != nil {
		res.Err = ctx.Err()
	} else if err != nil && !errors.As(err, &exit) {
		res.Err = err
	}
	return res
}
