// Package agentruntime is the default runtime as a service: it answers the prompts of one agent over
// gRPC with the loop of package loop, runs the agent's programs as tools and keeps its sessions.
//
// Invariants: with a serve token nobody without it is answered; sessions take one turn at a time; a
// message is stored when it is complete, before its end is told, and each of its sentences before that
// one's end is; and when Serve returns, no turn and no tool is left. Whoever starts the process calls Inherit and then Serve.
package agentruntime

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/otters-sh/otters/internal/flow"
	"github.com/otters-sh/otters/loop"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// ErrConfig is wrapped by every error that the same tree, arguments and environment would bring
// again.
var ErrConfig = errors.New("bad configuration")

// ExitConfig is the exit code of a process that ends with ErrConfig; it is not to be restarted.
const ExitConfig = 78

const (
	// maxMessage bounds a request, in bytes.
	maxMessage = 16 << 20
	// maxHeaders bounds the metadata of a call, in bytes.
	maxHeaders = 64 << 10
	// maxStreams bounds the calls in flight of one connection.
	maxStreams = 1024
	// When the runtime stops, a turn may be held up for sendGrace to twice that by a caller who does not read, and
	// once all have ended callers have readGrace to be sent what there still is. Both are over sooner as a rule.
	sendGrace = 2 * time.Second
	readGrace = 5 * time.Second
)

// Options say what to serve and where. Root is required, and Listener or Addr.
type Options struct {
	// Root is the agent's tree.
	Root string
	// Model is written provider/name; where empty, agent.yaml has it.
	Model string
	// Addr is the TCP address to bind where there is no listener.
	Addr string
	Handover
	// Environ is the process's environment as os.Environ has it: the model's address and key come
	// from there, and what is no secret in it goes to tools.
	Environ []string
	// Log gets one line for each thing an operator must know; nil drops them.
	Log io.Writer
}

// Serve closes the listener when it returns. It answers until ctx ends, then cancels the turns in flight, stores them and returns nil. Any
// other return is an error; one that only a changed tree or environment would avoid wraps ErrConfig.
func Serve(ctx context.Context, opts Options) (err error) {
	if opts.Log == nil {
		opts.Log = io.Discard
	}
	if opts.Listener != nil {
		defer opts.Listener.Close()
	}
	if opts.Addr == "" && opts.Listener == nil {
		return fmt.Errorf("%w: no address; give --addr HOST:PORT or hand a listener over", ErrConfig)
	}
	stopped, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	svc, err := newService(&opts, stopped)
	if err != nil {
		return err
	}
	l, err := listen(ctx, opts)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	defer l.Close()
	svc.store = startStore(ctx, opts.Root)
	defer func() { err = errors.Join(err, svc.store.close()) }()

	srv := newServer(opts, svc)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	err = watch(ctx, svc, served, opts.Log)
	stop(loop.End(loop.Interrupted, "the runtime is stopping"))
	halt(srv, svc)
	return err
}

// watch returns nil when the runtime is to stop, and an error when it cannot go on.
func watch(ctx context.Context, svc *service, served <-chan error, log io.Writer) error {
	opened := svc.store.done
	for {
		select {
		case <-opened:
			switch err := svc.store.err; {
			case err != nil && ctx.Err() != nil:
				return nil // it was to stop before it had begun
			case err != nil:
				return err
			}
			svc.store.tell(log)
			opened = nil
		case err := <-served:
			return fmt.Errorf("serve: %w", err)
		case <-ctx.Done():
			return nil
		}
	}
}

// halt ends the server: gently, so that callers see the end of their turns, but not for long.
func halt(srv *grpc.Server, svc *service) {
	drained, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(drained)
		svc.drain()
	}()
	go func() {
		defer close(gone)
		srv.GracefulStop()
	}()
	look := time.NewTicker(sendGrace)
	defer look.Stop()
	ended, sent := drained, int64(-1)
	for {
		select {
		case <-gone:
			<-drained
			return
		case <-ended:
			ended = nil
			look.Reset(readGrace)
		case <-look.C:
			now := svc.sent.Load()
			if ended == nil || now == sent && svc.sending.Load() > 0 {
				srv.Stop()
			}
			sent = now
		}
	}
}

// listen takes the listener that was handed over or binds one, and says who may call.
func listen(ctx context.Context, opts Options) (l net.Listener, err error) {
	defer func() {
		if err == nil && opts.ServeToken == "" {
			fmt.Fprintln(opts.Log, "callers are not checked: no serve token was handed over")
		}
	}()
	if opts.Listener != nil {
		return opts.Listener, nil
	}
	var lc net.ListenConfig
	l, err = lc.Listen(ctx, "tcp", opts.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", opts.Addr, err)
	}
	fmt.Fprintf(opts.Log, "listening on %s\n", l.Addr())
	return l, nil
}

// newService reads the tree and checks all that a prompt needs but the sessions. It makes the root
// absolute.
func newService(opts *Options, stopped context.Context) (*service, error) {
	if opts.Root == "" {
		return nil, fmt.Errorf("%w: no tree; give --root DIR", ErrConfig)
	}
	var err error
	if opts.Root, err = filepath.Abs(opts.Root); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	root, err := os.OpenRoot(opts.Root)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	defer root.Close()
	def, err := readDefinition(root)
	if err != nil {
		return nil, err
	}
	ref := opts.Model
	if ref == "" {
		ref = def.config.Model
	}
	model, err := openModel(ref, def.settings, lookup(opts.Environ))
	if err != nil {
		return nil, err
	}
	tools, err := openTools(root, def.config, opts.Environ, def.settings.maxOutput)
	if err != nil {
		return nil, err
	}
	set := def.settings
	svc := &service{
		name: def.config.Name, model: ref, stopped: stopped, client: model, system: def.system, section: set.section, limits: set.notes,
		budget: set.promptBudget, warnings: def.warnings,
		memory: memory{strategy: set.strategy, window: set.maxMessages / 2, maxTokens: set.memoryTokens},
	}
	if tools, err = openCapabilities(svc, def.config.Capabilities, tools); err != nil {
		return nil, err
	}
	if tools, err = openSkills(opts.Root, def.skills, tools); err != nil {
		return nil, err
	}
	for _, w := range append(slices.Clone(svc.warnings), svc.overBudget("")...) {
		fmt.Fprintln(opts.Log, "warning: "+w)
	}
	svc.loop = loop.New(loop.Config{
		Model: model, Tools: tools, Params: set.params,
		MaxIterations: set.maxIterations, MaxTokens: set.maxTokens, MaxTurnTokens: set.maxTurnTokens,
		Timeout: set.timeout, SoftTimeout: set.softTimeout, ToolTimeout: set.toolTimeout, RepeatLimit: set.maxRepeats, ObjectTries: set.objectTries,
		// Programs bound their two streams themselves, while they run.
		MaxOutput: 2*set.maxOutput + 4096,
	})
	return svc, nil
}

// lookup finds variables in an environment; the last of a name counts.
func lookup(environ []string) func(string) string {
	return func(key string) (value string) {
		for _, kv := range environ {
			if k, v, _ := strings.Cut(kv, "="); k == key {
				value = v
			}
		}
		return value
	}
}

func newServer(opts Options, svc *service) *grpc.Server {
	sopts := append(flow.Serve(),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(10*time.Second),
	)
	if opts.ServeToken != "" {
		sopts = append(sopts, tokenCheck{sha256.Sum256([]byte(opts.ServeToken))}.options()...)
	}
	srv := grpc.NewServer(sopts...)
	agentv1.RegisterAgentRuntimeServer(srv, svc)
	h := health.NewServer()
	h.SetServingStatus(agentv1.AgentRuntime_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(srv, h)
	registerReflection(srv)
	return srv
}
