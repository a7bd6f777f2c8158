package breakout

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/internal/rootfs"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

const (
	attackerFile = "FROM scratch\nRUNTIME otters/attack\nMODEL offline/otter\nNAME attacker\nBIN attack otters/attack \"attacks\"\n"
	victimFile   = "FROM scratch\nRUNTIME otters/attack\nMODEL offline/otter\nNAME victim\nEXEC [\"role-idle\"]\n"

	targetsVariable = "OTTERS_ATTACK_TARGETS"
	secretVariable  = "OTTERS_VICTIM_SECRET"

	roleRuntime = "runtime"
	roleTool    = "tool"
	// stopTime bounds the end of an agent that is not waited for otherwise.
	stopTime = 30 * time.Second
)

// Run makes the victims, runs every attack as the runtime and as a tool of an agent at the level,
// and reports in the order of the program, the runtime's reports first, then the tool's. It takes a few seconds. The
// agents belong to this process's user, as a daemon's would; under root to users of their own.
func Run(ctx context.Context, opts Options) (reports []Report, err error) {
	h := &host{opts: opts, secret: "otters-" + rand.Text(), targets: map[string]string{}}
	defer func() { err = errors.Join(err, h.close()) }()
	if err := h.open(ctx); err != nil {
		return nil, fmt.Errorf("attack: victims: %w", err)
	}
	if err := h.startAgents(ctx); err != nil {
		return nil, fmt.Errorf("attack: %w", err)
	}
	type role struct {
		name string
		run  func(context.Context) ([]byte, error)
	}
	roles := []role{{roleRuntime, h.asRuntime}, {roleTool, h.asTool}}
	if opts.Bare {
		roles = append(roles, role{Bare, h.asBare})
	}
	for _, role := range roles {
		out, err := role.run(ctx)
		if err != nil {
			return nil, fmt.Errorf("attack: as %s: %w", role.name, err)
		}
		some, err := parse(out, role.name)
		if err != nil {
			return nil, fmt.Errorf("attack: as %s: %w", role.name, err)
		}
		h.judge(some, role.name)
		reports = append(reports, some...)
	}
	return reports, nil
}

// startAgents starts the agent that is attacked and prepares the one that attacks.
func (h *host) startAgents(ctx context.Context) error {
	fs, err := rootfs.Open(h.path("home"))
	if err != nil {
		return err
	}
	h.closers = append(h.closers, fs.Close)
	store := memory.New()
	for name, text := range map[string]string{"attacker": attackerFile, "victim": victimFile} {
		res, err := agentoci.Build(ctx, store, []byte(text), agentoci.BuildOptions{})
		if err != nil {
			return err
		}
		if err := store.Tag(ctx, res.Descriptor, name); err != nil {
			return err
		}
	}
	h.provider = system.NewProvider(fs, func(spec.Reference) oras.ReadOnlyTarget { return store },
		system.WithMonitor(h.opts.Monitor), system.WithLogDir(h.path("logs")), system.WithSandbox(h.opts.Level), system.WithPuller(h.pull),
		system.WithLabelReader(func(context.Context, spec.Reference) (map[string]string, error) {
			return map[string]string{system.ListenerLabel: "inherit"}, nil
		}))
	h.closers = append(h.closers, h.provider.Close)
	if err := h.startVictim(ctx); err != nil {
		return fmt.Errorf("agent to attack: %w", err)
	}
	return nil
}

func (h *host) pull(_ context.Context, _ spec.Reference, w io.Writer) error {
	f, err := os.Open(h.opts.Attack)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// create makes an agent whose output goes to out and whose gateway this process serves.
func (h *host) create(ctx context.Context, id uuid.UUID, tag string, out io.Writer, env spec.Env) (*system.Agent, *gateway, error) {
	g := &gateway{secret: "nothing"}
	opts := []system.AgentOption{system.WithStdout(out), system.WithGateway(g.accept), system.WithModelResolver(g.resolve)}
	if tag == "victim" {
		g.secret = h.secret
		opts = append(opts, h.proxy()...)
	} else {
		opts = append(opts, system.WithLimits(h.opts.Limits))
		opts = append(opts, h.attackersProxy()...)
		g.beside = h.serveBeside
	}
	h.closers = append(h.closers, g.close)
	a, err := h.provider.CreateWithOptions(ctx, id, spec.Reference{Name: "attack", Tag: tag}, opts, spec.WithExtraEnvs(env))
	if err != nil {
		return nil, nil, err
	}
	agent := a.(*system.Agent)
	h.closers = append(h.closers, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		return errors.Join(agent.Stop(ctx), agent.Remove(ctx))
	})
	return agent, g, nil
}

func (h *host) startVictim(ctx context.Context) error {
	out := &buffer{grown: make(chan struct{}, 1)}
	agent, g, err := h.create(ctx, uuid.New(), "victim", out, spec.Env{Key: secretVariable, Value: h.secret})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	run, stop := context.WithCancel(ctx)
	h.closers = append(h.closers, func() error { stop(); <-done; return nil })
	go func() { done <- agent.Run(run); close(done) }()
	for !bytes.Contains(out.bytes(), []byte(h.secret)) {
		select {
		case <-out.grown:
		case err := <-done:
			return fmt.Errorf("it ended: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for agent.Process().MonitorPID == 0 { // it may say something before its start is noted here
		select {
		case <-time.After(time.Millisecond):
		case err := <-done:
			return fmt.Errorf("it ended: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p := agent.Process()
	home := h.path("home", agent.UUID().String())
	h.process("other", p.PID)
	h.process("monitor", p.MonitorPID)
	h.targets["dir.other"] = home
	h.targets["file.other"] = filepath.Join(home, "root", "workspace", "secret")
	h.targets["file.otherlog"] = filepath.Join(h.path("logs"), agent.UUID().String()+".log")
	h.targets["tcp.other"] = agent.Addr()
	h.targets["tcp.othergateway"] = g.address()
	h.targets["tcp.otherproxy"] = <-h.proxyAt
	return h.findStore()
}

// asRuntime runs the program in place of an agent's runtime. Its end is no crash here: it has
// nothing to serve.
func (h *host) asRuntime(ctx context.Context) ([]byte, error) {
	id := uuid.New()
	text, err := h.targetsOf(id, roleRuntime)
	if err != nil {
		return nil, err
	}
	out := &buffer{grown: make(chan struct{}, 1)}
	agent, _, err := h.create(ctx, id, "attacker", out, spec.Env{Key: targetsVariable, Value: text})
	if err != nil {
		return nil, err
	}
	err = agent.Run(ctx)
	p := agent.Process()
	if !errors.Is(err, system.ErrCrashed) || p.LastExit == nil || p.LastExit.Code != 0 || p.LastExit.Signal != "" {
		return nil, fmt.Errorf("%w: exit %+v", err, p.LastExit)
	}
	h.attacker = agent
	return out.bytes(), nil
}

// asTool runs the program as a tool of the same agent.
func (h *host) asTool(ctx context.Context) ([]byte, error) {
	text, err := h.targetsOf(h.attacker.UUID(), roleTool)
	if err != nil {
		return nil, err
	}
	res := h.attacker.Exec(ctx, "attack", []string{"run", "--targets", text}, "")
	if res.Err != nil || res.ExitCode != 0 {
		return nil, fmt.Errorf("%w: exit code %d: %s", res.Err, res.ExitCode, res.Stderr)
	}
	return []byte(res.Stdout), nil
}

// targetsOf is what an agent is told to attack.
func (h *host) targetsOf(agent uuid.UUID, role string) (string, error) {
	h.targets["dir.own"] = h.path("home", agent.String())
	h.targets["survivor"] = h.secret + role
	h.targets["mode"] = role
	h.targets["level"] = string(h.opts.Level)
	of := maps.Clone(h.targets)
	if role != roleRuntime {
		delete(of, "proxy.allowed") // it has no way out
	}
	text, err := json.Marshal(of)
	return string(text), err
}

// buffer keeps what is written and tells that there is more.
type buffer struct {
	grown chan struct{}

	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.grown <- struct{}{}:
	default:
	}
	return b.buf.Write(p)
}

func (b *buffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buf.Bytes())
}
