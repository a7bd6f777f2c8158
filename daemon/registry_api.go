package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/registry"
)

// registryKeeper is an API that has the registry's beside it.
type registryKeeper interface {
	registryAPI() daemonv1.RegistryServiceServer
}

func (s *service) registryAPI() daemonv1.RegistryServiceServer {
	return &registryService{images: s.sup.images, home: s.sup.home, db: s.sup.db}
}

// registryService takes care of the embedded registry.
type registryService struct {
	daemonv1.UnimplementedRegistryServiceServer

	images *imageRegistry
	home   *home
	db     *database
}

var _ registryKeeper = (*service)(nil)

// GC removes what no tag and no agent needs.
func (s *registryService) GC(ctx context.Context, req *daemonv1.GCRequest) (*daemonv1.GCResponse, error) {
	grace := registry.DefaultGrace
	if req.GraceSeconds != nil {
		var err error
		if grace, err = parseGrace("registry gc", req.GetGraceSeconds()); err != nil {
			return nil, err
		}
	}
	return collectRegistry(ctx, s.images.store, s.home, s.db, grace)
}

// Fsck checks the store.
func (s *registryService) Fsck(ctx context.Context, req *daemonv1.FsckRequest) (*daemonv1.FsckResponse, error) {
	return checkRegistry(ctx, s.images.store, req.GetSkipFiles())
}

// Login tells where the registry is and the token for it.
func (s *registryService) Login(context.Context, *daemonv1.LoginRequest) (*daemonv1.LoginResponse, error) {
	return &daemonv1.LoginResponse{Address: s.images.addr, Username: "otters", Token: s.images.token}, nil
}

func collectRegistry(ctx context.Context, store *registry.Store, h *home, db *database, grace time.Duration) (*daemonv1.GCResponse, error) {
	roots, err := agentRoots(ctx, h, db)
	if err != nil {
		return nil, fmt.Errorf("registry gc: %w", err)
	}
	done, err := store.Collect(ctx, registry.CollectOptions{Roots: roots, Grace: grace})
	if errors.Is(err, registry.ErrCollecting) {
		return nil, fail(codes.FailedPrecondition, "wait until it has ended", "registry gc: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("registry gc: %w", err)
	}
	return &daemonv1.GCResponse{Manifests: done.Manifests, Blobs: done.Blobs, Bytes: done.Bytes, Orphans: done.Orphans, Kept: done.Kept}, nil
}

func checkRegistry(ctx context.Context, store *registry.Store, skipFiles bool) (*daemonv1.FsckResponse, error) {
	c, err := store.Check(ctx, registry.CheckOptions{SkipFiles: skipFiles})
	if err != nil {
		return nil, fmt.Errorf("registry fsck: %w", err)
	}
	return &daemonv1.FsckResponse{Contents: c.Contents, Bytes: c.Bytes, Problems: c.Problems, Further: c.Further, Orphans: c.Orphans}, nil
}

// maxHandleBytes bounds the record of an agent that is read for its digests.
const maxHandleBytes = 16 << 20

var digestPattern = regexp.MustCompile(`\b(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})\b`)

// agentRoots are the images of all agents, running or stopped, and every digest that their records
// on disk name: runtimes and tools. A record that can't be read is an error, since what it names
// would be lost.
func agentRoots(ctx context.Context, h *home, db *database) ([]digest.Digest, error) {
	records, err := db.agents(ctx)
	if err != nil {
		return nil, err
	}
	var roots []digest.Digest
	for _, r := range records {
		roots = append(roots, digest.Digest(r.digest))
	}
	entries, err := os.ReadDir(h.path("agents"))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		text, err := readRecord(filepath.Join(h.path("agents"), e.Name(), "handle.json"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, d := range digestPattern.FindAllString(text, -1) {
			roots = append(roots, digest.Digest(d))
		}
	}
	return roots, nil
}

func readRecord(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxHandleBytes+1))
	if err == nil && len(b) > maxHandleBytes {
		err = fmt.Errorf("%s: larger than %d bytes", path, maxHandleBytes)
	}
	return string(b), err
}

// withHome runs f with a home that no daemon has.
func withHome(dir string, f func(*home) error) error {
	h, err := openHome(dir)
	if err != nil {
		return err
	}
	return errors.Join(f(h), h.release())
}

// CollectRegistry does what GC of the API does, on a home that no daemon has; one in use gives
// ErrHomeInUse. Grace is from 0 to 24 hours.
func CollectRegistry(ctx context.Context, dir string, grace time.Duration) (out *daemonv1.GCResponse, err error) {
	err = withHome(dir, func(h *home) error {
		db, err := openDatabase(ctx, h.path("otters.db"))
		if err != nil {
			return err
		}
		store, err := registry.Open(h.path("registry"), registry.Options{})
		if err == nil {
			out, err = collectRegistry(ctx, store, h, db, grace)
			err = errors.Join(err, store.Close())
		}
		return errors.Join(err, db.close())
	})
	return out, err
}

// CheckRegistry does what Fsck of the API does, on a home that no daemon has; one in use gives
// ErrHomeInUse.
func CheckRegistry(ctx context.Context, dir string, skipFiles bool) (out *daemonv1.FsckResponse, err error) {
	err = withHome(dir, func(h *home) error {
		store, err := registry.Open(h.path("registry"), registry.Options{})
		if err != nil {
			return err
		}
		out, err = checkRegistry(ctx, store, skipFiles)
		return errors.Join(err, store.Close())
	})
	return out, err
}

// RegistryConfig of a registry that is served alone.
type RegistryConfig struct {
	// Home is the absolute path of the state folder.
	Home string
	// Port on the loopback; 0 is 5527, or a free one where that is taken.
	Port int
	// AnonymousPull lets callers without a token pull.
	AnonymousPull bool
	// Ready is told the address and the file with the token once requests are answered; it may be nil.
	Ready func(addr, tokenFile string)
	// Logger hears what happens; nil means nobody does.
	Logger *slog.Logger
}

// ServeRegistry serves the registry of a home alone, until ctx is done. A home in use gives
// ErrHomeInUse.
func ServeRegistry(ctx context.Context, cfg RegistryConfig) error {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return withHome(cfg.Home, func(h *home) error {
		r, err := openRegistryFor(h, cfg.Port, cfg.AnonymousPull, cfg.Logger)
		if err != nil {
			return err
		}
		if cfg.Ready != nil {
			cfg.Ready(r.addr, h.path("registry.token"))
		}
		<-ctx.Done()
		closing, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return r.close(closing)
	})
}
