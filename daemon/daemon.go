package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/egress"
	"github.com/otters-sh/otters/gateway"
	"github.com/otters-sh/otters/internal/flow"
	"github.com/otters-sh/otters/internal/gate"
	"github.com/otters-sh/otters/internal/rootfs"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/system"
)

const (
	// maxRequestBytes bounds one message of a client: a prompt with what is attached to it. A build
	// folder comes in many.
	maxRequestBytes = 16 << 20
	// maxHeaderBytes bounds the headers of a call.
	maxHeaderBytes = 64 << 10
	// maxStreams bounds the calls in flight on one connection.
	maxStreams = 256
	// closeTimeout is how long calls in flight have to end when the daemon closes.
	closeTimeout = 5 * time.Second
)

// Config tells a daemon where it lives. Home and Socket must be set.
type Config struct {
	// Home is the absolute path of the state folder; it is made where it is missing.
	Home string
	// Socket is the path of the API's unix socket.
	Socket string
	// Programs is the folder of otters-runtime, otters-tools and otters-sandbox; empty is the
	// running program's own.
	Programs string
	// Version is what Info tells.
	Version string
	// Logger hears what happens; nil means nobody does. It never gets a prompt, a token or a key.
	Logger *slog.Logger

	// backoff replaces the pauses between restarts in tests.
	backoff backoff
	// resolver replaces the system's for what agents reach.
	resolver egress.Resolver
	// closeTimeout replaces the usual one in tests.
	closeTimeout time.Duration
}

// Daemon is an open home with its agents. Open makes one, Serve answers calls, Close lets go.
type Daemon struct {
	home     *home
	db       *database
	images   *imageRegistry
	agents   *rootfs.FS
	sup      *supervisor
	service  *service
	listener net.Listener
	split    *splitter
	grpc     *grpc.Server
	http     *http.Server
	logger   *slog.Logger
	// closeTimeout is how long Close waits for what runs yet.
	closeTimeout time.Duration

	// end makes the calls in flight end.
	end       context.CancelFunc
	closeOnce sync.Once
	closeErr  error
}

// Open takes the home, brings its database up to date, stores the programs where they are new, takes
// over the agents that run, and listens on the socket. It answers no call yet. Errors wrap
// ErrHomeInUse, ErrNewerSchema or a cause of the parts; nothing is left open then.
func Open(ctx context.Context, cfg Config) (_ *Daemon, err error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Programs == "" {
		if cfg.Programs, err = programsDir(); err != nil {
			return nil, err
		}
	}
	if cfg.backoff.random == nil {
		cfg.backoff = backoff{first: firstPause, max: maxPause, random: rand.Float64}
	}
	d := &Daemon{logger: cfg.Logger, closeTimeout: cmp.Or(cfg.closeTimeout, closeTimeout)}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.home, err = openHome(cfg.Home); err != nil {
		return nil, err
	}
	set, err := readSettings(d.home.path("config.yaml"))
	if err != nil {
		return nil, err
	}
	if d.db, err = openDatabase(ctx, d.home.path("otters.db")); err != nil {
		return nil, err
	}
	if d.images, err = openRegistry(d.home, set.registryPort, d.logger); err != nil {
		return nil, err
	}
	d.images.upstreams = set.upstreams
	p := &programs{dir: cfg.Programs, images: d.images, db: d.db, logger: d.logger}
	if err := p.install(ctx); err != nil {
		return nil, err
	}
	providers, err := gateway.LoadProviders(d.home.path("providers.yaml"))
	if err != nil {
		return nil, err
	}
	if err := d.supervise(ctx, cfg, set, providers); err != nil {
		return nil, err
	}
	return d, d.listen(cfg, providers)
}

// programsDir is the folder of this program, links followed.
func programsDir() (string, error) {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return "", fmt.Errorf("find the programs beside ottersd: %w", err)
	}
	return filepath.Dir(exe), nil
}

// supervise makes the executor and brings the agents back.
func (d *Daemon) supervise(ctx context.Context, cfg Config, set settings, providers *gateway.Providers) error {
	var err error
	if d.agents, err = rootfs.Open(d.home.path("agents")); err != nil {
		return fmt.Errorf("home: %w", err)
	}
	programs := agentoci.NewPrograms(d.images.opener, agentoci.BinOptions{})
	provider := system.NewProvider(d.agents,
		d.images.target,
		system.WithPuller(programs.Pull),
		system.WithIdentifier(programs.Identify),
		system.WithUsageFetcher(programs.Usage),
		system.WithLabelReader(programs.Labels),
		system.WithAgentDefaults(system.WithDigestResolver(d.images.digest)),
		system.WithRegistryTarget(d.images.store),
		system.WithRegistryAddr(d.images.addr),
		system.WithRegistryCreatedAt(d.images.store.CreatedAt),
		system.WithLogDir(d.home.path("logs")),
		system.WithLogLimit(logLimitFactor*set.logMaxSize),
		system.WithSandbox(set.sandbox),
		system.WithMonitor(filepath.Join(cfg.Programs, monitorProgram)),
		system.WithLogger(d.logger),
	)
	over, letGo := context.WithCancel(context.Background())
	connections := newConnectionLog(d.logger)
	d.sup = &supervisor{
		home: d.home, db: d.db, images: d.images, provider: provider, settings: set, logger: d.logger,
		backoff: cfg.backoff,
		gateway: gateway.New(gateway.Options{Providers: providers, Logger: d.logger}),
		egress:  egress.New(egress.Options{Resolver: cfg.resolver, Reporter: connections, Logger: d.logger}), connections: connections,
		starts: newStartQueue(set.maxStarts), over: over, letGo: letGo,
		agents: make(map[uuid.UUID]*supervised), names: make(map[string]bool),
	}
	if err := provider.Warm(); err != nil {
		return fmt.Errorf("%w; put %s beside ottersd", err, monitorProgram)
	}
	d.sup.logs = newLogWatch(d.sup)
	if err := d.sup.load(ctx); err != nil {
		return err
	}
	d.sup.logs.start()
	return nil
}

// listen opens the socket and makes the two servers behind it.
func (d *Daemon) listen(cfg Config, providers *gateway.Providers) error {
	l, err := gate.UnixConfig{Logger: d.logger}.Listen(cfg.Socket)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	d.listener = l
	ending, end := context.WithCancel(context.Background())
	d.end = end
	d.service = &service{
		sup: d.sup, providers: providers, socket: cfg.Socket, version: cfg.Version,
		startedAt: time.Now(), logger: d.logger, ending: ending, shutdown: make(chan struct{}),
	}
	hosts := gate.LoopbackHosts(l.Addr())
	d.split = newSplitter(l, operator)
	d.grpc = newGRPC(d.service, hosts)
	d.http = newHTTP(d.service, hosts, d.logger)
	return nil
}

func newGRPC(impl daemonv1.DaemonServiceServer, hosts []string) *grpc.Server {
	s := grpc.NewServer(append(flow.Serve(),
		grpc.Creds(socketCredentials{}),
		grpc.UnaryInterceptor(grpcUnary(hosts)),
		grpc.StreamInterceptor(grpcStream(hosts)),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(firstBytesTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		// Stop returns when no handler runs any more, so nothing is closed under one.
		grpc.WaitForHandlers(true),
	)...)
	daemonv1.RegisterDaemonServiceServer(s, impl)
	if r, ok := impl.(registryKeeper); ok {
		daemonv1.RegisterRegistryServiceServer(s, r.registryAPI())
	}
	if own, ok := impl.(withImages); ok {
		daemonv1.RegisterImageServiceServer(s, own.images())
	}
	if own, ok := impl.(withConversations); ok {
		daemonv1.RegisterConversationServiceServer(s, own.conversations())
	}
	return s
}

// gated is the API over HTTP/1.1 behind its check.
func gated(impl daemonv1.DaemonServiceServer, hosts []string) http.Handler {
	return gate.HTTP(httpHandler(impl), gate.HTTPOptions{Hosts: hosts, RefuseSimpleTypes: true})
}

func newHTTP(impl daemonv1.DaemonServiceServer, hosts []string, logger *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           patient(gated(impl, hosts), bodyTimeout),
		Protocols:         protocols,
		ConnContext:       withPrincipal,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// Registry is the host:port of the embedded registry.
func (d *Daemon) Registry() string { return d.images.addr }

// Serve answers calls until ctx is done or a client shuts the daemon down, and then closes it.
// Agents run on, unless the client asked otherwise. It is called once.
func (d *Daemon) Serve(ctx context.Context) error {
	failed := make(chan error, 3)
	var servers sync.WaitGroup
	for _, serve := range []func() error{
		d.split.run,
		func() error { return d.grpc.Serve(d.split.http2) },
		func() error { return d.http.Serve(d.split.http1) },
	} {
		servers.Go(func() {
			if err := serve(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				failed <- err
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
	case <-d.service.shutdown:
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	err = errors.Join(err, d.Close())
	servers.Wait()
	return err
}

// Close ends calls in flight with a clear error, lets go of the agents, which run on, and closes
// everything in the reverse order of Open. It may be called more than once.
func (d *Daemon) Close() error {
	d.closeOnce.Do(func() { d.closeErr = d.close() })
	return d.closeErr
}

func (d *Daemon) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), d.closeTimeout)
	defer cancel()
	var errs []error
	if d.listener != nil {
		if err := d.split.close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
		d.end()
		errs = append(errs, d.endServers(ctx))
	}
	if d.sup != nil {
		errs = append(errs, d.sup.close(ctx, d.closeTimeout))
	}
	if d.agents != nil {
		errs = append(errs, d.agents.Close())
	}
	if d.images != nil {
		errs = append(errs, d.images.close(ctx))
	}
	if d.db != nil {
		errs = append(errs, d.db.close())
	}
	if d.home != nil {
		errs = append(errs, d.home.release())
	}
	return errors.Join(errs...)
}

// endServers waits for calls in flight, and cuts off those that do not end in time.
func (d *Daemon) endServers(ctx context.Context) error {
	graceful := make(chan struct{})
	go func() {
		d.grpc.GracefulStop()
		close(graceful)
	}()
	err := d.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = d.http.Close()
	}
	select {
	case <-graceful:
	case <-ctx.Done():
		d.grpc.Stop()
		<-graceful
	}
	return err
}
