package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/errdef"

	"github.com/otters-sh/otters/internal/gate"
	"github.com/otters-sh/otters/registry"
	"github.com/otters-sh/otters/spec"
)

// imageRegistry is the embedded registry: the store in process, and the distribution API on
// loopback for whoever presents the token of registry.token.
type imageRegistry struct {
	store *registry.Store
	addr  string
	token string
	// upstreams by host; not changed once it serves.
	upstreams map[string]*upstream

	server *http.Server
	served sync.WaitGroup

	// stall is how long another registry may send or take nothing.
	stall   time.Duration
	flights flights
}

// openRegistry opens the store and starts serving. An explicit port that is taken is an error; the
// default one gives way to a free one.
func openRegistry(h *home, port int, logger *slog.Logger) (*imageRegistry, error) {
	return openRegistryFor(h, port, false, logger)
}

// openRegistryFor lets callers without a token pull where anonymousPull is set.
func openRegistryFor(h *home, port int, anonymousPull bool, logger *slog.Logger) (_ *imageRegistry, err error) {
	token, err := readOrMakeToken(h.path("registry.token"), "otreg_")
	if err != nil {
		return nil, fmt.Errorf("registry token: %w", err)
	}
	store, err := registry.Open(h.path("registry"), registry.Options{})
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	l, err := listenRegistry(port)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	r := &imageRegistry{store: store, addr: l.Addr().String(), token: token, stall: stallTimeout}
	api := store.Handler(registry.HandlerOptions{TokenHash: gate.TokenHash(token), AnonymousPull: anonymousPull, Log: logger})
	r.server = &http.Server{
		Handler:           gate.HTTP(api, gate.HTTPOptions{Hosts: gate.LoopbackHosts(l.Addr())}),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	r.served.Go(func() {
		if err := r.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("registry stopped serving", "error", err)
		}
	})
	return r, nil
}

func listenRegistry(port int) (net.Listener, error) {
	want := port
	if want == 0 {
		want = defaultRegistryPort
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(want)))
	switch {
	case err == nil:
		return l, nil
	case port == 0 && errors.Is(err, syscall.EADDRINUSE):
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("registry: %w; set registry-port in config.yaml to a free port", err)
	}
	return l, nil
}

// close ends serving, giving requests in flight until ctx ends, and closes the store.
func (r *imageRegistry) close(ctx context.Context) error {
	err := r.server.Shutdown(ctx)
	if err != nil {
		err = r.server.Close()
	}
	r.served.Wait()
	return errors.Join(err, r.store.Close())
}

// opener finds images for builds and agents: in the embedded registry, where what another registry
// has is pulled first, as the policy of that one has it.
func (r *imageRegistry) opener(ctx context.Context, ref spec.Reference) (oras.ReadOnlyTarget, string, error) {
	if err := r.ensure(ctx, ref, nil); err != nil {
		return nil, "", err
	}
	return r.store, storeName(ref), nil
}

// target is what an agent's image is read from: its repository and no other.
func (r *imageRegistry) target(ref spec.Reference) oras.ReadOnlyTarget {
	repo, err := r.store.Repository(storedRepository(ref))
	if err != nil {
		return noTarget{fmt.Errorf("%w: %s", errdef.ErrNotFound, ref)}
	}
	return repo
}

// noTarget has nothing.
type noTarget struct{ err error }

func (n noTarget) Fetch(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
	return nil, n.err
}
func (n noTarget) Exists(context.Context, ocispec.Descriptor) (bool, error) { return false, n.err }
func (n noTarget) Resolve(context.Context, string) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, n.err
}

// digest answers the digest of ref, empty where the registry does not have it.
func (r *imageRegistry) digest(ref string) string {
	parsed, err := spec.ParseReference(ref)
	if err != nil {
		return ""
	}
	if parsed.Digest != "" && parsed.Host() == "" {
		return parsed.Digest
	}
	desc, err := r.store.Resolve(context.Background(), storeName(parsed))
	if err != nil {
		return ""
	}
	return desc.Digest.String()
}

// readOrMakeToken reads a token that lies in a file of its own, or makes both.
func readOrMakeToken(path, prefix string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		token, err := gate.NewToken(prefix)
		if err != nil {
			return "", err
		}
		return token, gate.WriteTokenFile(path, token)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s has mode %04o, so others may have read it; delete it to get a new token", path, info.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, 257))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if len(b) > 256 || !strings.HasPrefix(token, prefix) || len(token) < len(prefix)+20 {
		return "", fmt.Errorf("%s holds no token; delete it to get a new one", path)
	}
	return token, nil
}
