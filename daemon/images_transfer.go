package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/spec"
)

const (
	// transfersAtOnce is how many blobs of an image move at the same time.
	transfersAtOnce = 4
	// maxRemoteManifest and maxRemoteParts bound what another registry says an image is made of.
	maxRemoteManifest = 4 << 20
	maxRemoteParts    = 10_000
	// maxRemoteBlob is what the embedded registry takes, and maxRemoteBytes bounds a whole image that
	// another one offers.
	maxRemoteBlob  = 16 << 30
	maxRemoteBytes = 16 << 30
	// maxMountedFrom is how many repositories are asked for a blob before it is sent.
	maxMountedFrom = 3
	// pushTries is how often a push is gone on with after its connection broke.
	pushTries = 3
	// reportEvery is how far apart the reports of one blob are.
	reportEvery = 100 * time.Millisecond
)

// progress tells somebody how a transfer goes on. Its methods may be called by several goroutines; a
// nil one tells nobody.
type progress struct {
	mu   sync.Mutex
	tell func(*daemonv1.Transfer) error
	err  error
}

func (p *progress) report(d ocispec.Descriptor, state string, done int64) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = p.tell(&daemonv1.Transfer{
			Digest: d.Digest.String(), MediaType: d.MediaType, Title: d.Annotations[ocispec.AnnotationTitle],
			Size: d.Size, Done: done, State: state,
		})
	}
	return p.err
}

// counted reports what was read of a blob.
type counted struct {
	io.ReadCloser
	p    *progress
	desc ocispec.Descriptor
	done int64
	last time.Time
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.done += int64(n)
	if now := time.Now(); c.p != nil && n > 0 && now.Sub(c.last) >= reportEvery {
		c.last = now
		if told := c.p.report(c.desc, "moving", c.done); told != nil {
			return n, told
		}
	}
	return n, err
}

// hooks are the options of a copy of at most most bytes that reports to p.
func (p *progress) hooks(most int64) oras.CopyGraphOptions {
	var mu sync.Mutex
	parts, bytes := 0, int64(0)
	return oras.CopyGraphOptions{
		Concurrency: transfersAtOnce, MaxMetadataBytes: maxRemoteManifest,
		PostCopy: func(_ context.Context, d ocispec.Descriptor) error { return p.report(d, "done", d.Size) },
		OnCopySkipped: func(_ context.Context, d ocispec.Descriptor) error {
			return p.report(d, "exists", d.Size)
		},
		OnMounted: func(_ context.Context, d ocispec.Descriptor) error { return p.report(d, "mounted", d.Size) },
		FindSuccessors: func(ctx context.Context, f content.Fetcher, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			list, err := content.Successors(ctx, f, d)
			mu.Lock()
			defer mu.Unlock()
			if parts += len(list); parts > maxRemoteParts {
				return nil, fail(codes.FailedPrecondition, "", "%s: the image has more than %d parts", d.Digest, maxRemoteParts)
			}
			for _, s := range list {
				if s.Size < 0 || s.Size > maxRemoteBlob {
					return nil, fail(codes.FailedPrecondition, "", "%s: a part of %d bytes, more than %d", s.Digest, s.Size, int64(maxRemoteBlob))
				}
				if bytes += s.Size; bytes > most {
					return nil, fail(codes.FailedPrecondition, "", "%s: the image has more than %d bytes", d.Digest, most)
				}
			}
			return list, err
		},
	}
}

// flights keep a blob from being fetched twice at once.
type flights struct {
	mu   sync.Mutex
	open map[string]chan struct{}
}

// enter waits until nobody else fetches key. The caller calls the function that it returns.
func (f *flights) enter(ctx context.Context, key string) (func(), error) {
	for {
		f.mu.Lock()
		if f.open == nil {
			f.open = map[string]chan struct{}{}
		}
		other, busy := f.open[key]
		if !busy {
			mine := make(chan struct{})
			f.open[key] = mine
			f.mu.Unlock()
			return func() {
				f.mu.Lock()
				delete(f.open, key)
				f.mu.Unlock()
				close(mine)
			}, nil
		}
		f.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// arrival is the store as the destination of a pull.
type arrival struct{ r *imageRegistry }

func (a arrival) Exists(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	return a.r.store.Exists(ctx, d)
}

func (a arrival) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	return a.r.store.Fetch(ctx, d)
}

// Push stores a blob unless another pull has meanwhile; the content is read only where it is needed.
func (a arrival) Push(ctx context.Context, d ocispec.Descriptor, r io.Reader) error {
	leave, err := a.r.flights.enter(ctx, d.Digest.String())
	if err != nil {
		return err
	}
	defer leave()
	switch exists, err := a.r.store.Exists(ctx, d); {
	case err != nil:
		return err
	case exists:
		return errdef.ErrAlreadyExists
	}
	return a.r.store.Push(ctx, d, r)
}

// departure is another registry's repository as the source of a pull.
type departure struct {
	repo *remote.Repository
	p    *progress
}

func (s departure) Exists(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	return s.repo.Exists(ctx, d)
}

func (s departure) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	return &counted{ReadCloser: &resumer{ctx: ctx, fetch: s.repo.Fetch, desc: d}, p: s.p, desc: d}, nil
}

// pull copies what ref names at another registry. It is tagged only when it is whole; blobs that
// arrived before an error are kept for the next try and seen by nobody.
func (r *imageRegistry) pull(ctx context.Context, ref spec.Reference, p *progress) (ocispec.Descriptor, error) {
	desc, err := r.pullOnce(ctx, ref, p)
	if err != nil {
		return desc, remoteError(ctx, "pull", ref, err)
	}
	return desc, nil
}

func (r *imageRegistry) pullOnce(ctx context.Context, ref spec.Reference, p *progress) (ocispec.Descriptor, error) {
	repo, done, err := r.remote(ref)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer done()
	desc, err := repo.Resolve(ctx, ref.Identifier())
	if err != nil {
		return desc, err
	}
	if ref.Digest != "" && ref.Digest != desc.Digest.String() {
		return desc, fmt.Errorf("the registry answered %s", desc.Digest)
	}
	if desc.Size > maxRemoteManifest {
		return desc, fmt.Errorf("a manifest of %d bytes, more than %d", desc.Size, maxRemoteManifest)
	}
	if err := oras.CopyGraph(ctx, departure{repo, p}, arrival{r}, desc, p.hooks(maxRemoteBytes)); err != nil {
		return desc, err
	}
	return desc, r.store.Tag(ctx, desc, keptName(ref))
}

// ensure pulls what ref names where it names another registry and, as the policy of that one has it,
// is not here yet or may have moved.
func (r *imageRegistry) ensure(ctx context.Context, ref spec.Reference, p *progress) error {
	if ref.Host() == "" {
		return nil
	}
	leave, err := r.flights.enter(ctx, "pull "+storeName(ref))
	if err != nil {
		return err
	}
	defer leave()
	u := r.upstreamOf(ref.Host())
	desc, err := r.store.Resolve(ctx, storeName(ref))
	switch {
	case err == nil && ref.Digest != "" && ref.Tag == "":
		// It came under a tag that may move.
		return r.store.Tag(ctx, desc, keptName(ref))
	case err == nil && (ref.Digest != "" || u.policy != policyAlways):
		return nil
	case err != nil && !errors.Is(err, errdef.ErrNotFound):
		return err
	case u.policy == policyNever:
		return fail(codes.NotFound, "`otters image pull "+ref.String()+"` gets it", "%s: not in the registry, and the policy of %s is never", ref, u.host)
	}
	_, err = r.pull(ctx, ref, p)
	return err
}

// shelf is the store as the source of a push.
type shelf struct {
	r *imageRegistry
	p *progress
}

func (s shelf) Exists(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	return s.r.store.Exists(ctx, d)
}

func (s shelf) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	rc, err := s.r.store.Fetch(ctx, d)
	if err != nil {
		return nil, err
	}
	return &counted{ReadCloser: rc, p: s.p, desc: d}, nil
}

// push copies src of the embedded registry to where to says. What is there, or in another repository
// of that registry, is not sent; after a connection broke it is gone on with.
func (r *imageRegistry) push(ctx context.Context, src, to spec.Reference, p *progress) (ocispec.Descriptor, error) {
	desc, err := r.store.Resolve(ctx, storeName(src))
	if err != nil {
		return desc, fmt.Errorf("push %s: %w", src, err)
	}
	repo, done, err := r.remote(to)
	if err != nil {
		return desc, err
	}
	defer done()
	opts := p.hooks(math.MaxInt64)
	known := sync.OnceValues(func() ([]spec.Reference, error) { return r.repositoriesAt(ctx, to) })
	opts.MountFrom = func(ctx context.Context, d ocispec.Descriptor) ([]string, error) {
		repositories, err := known()
		return r.mountable(ctx, repositories, d), err
	}
	for try := 1; ; try++ {
		err = oras.CopyGraph(ctx, shelf{r, p}, repo, desc, opts)
		if err == nil || try == pushTries || ctx.Err() != nil || !transient(err) {
			break
		}
		select {
		case <-time.After(time.Duration(try) * 200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if err == nil && to.Digest == "" {
		err = repo.Tag(ctx, desc, to.Identifier())
	}
	if err != nil {
		return desc, remoteError(ctx, "push", to, err)
	}
	return desc, nil
}

// repositoriesAt are the repositories of the registry of to that the store has something of, without
// that of to: what was pulled from there.
func (r *imageRegistry) repositoriesAt(ctx context.Context, to spec.Reference) ([]spec.Reference, error) {
	refs, err := r.store.References(ctx)
	if err != nil {
		return nil, err
	}
	var out []spec.Reference
	seen := map[string]bool{storedRepository(to): true}
	for _, stored := range refs {
		ref, err := spec.ParseReference(shownName(stored))
		if err == nil && ref.Host() == to.Host() && !seen[storedRepository(ref)] {
			seen[storedRepository(ref)] = true
			out = append(out, ref)
		}
	}
	return out, nil
}

// mountable names those of the repositories that are known to have a blob.
func (r *imageRegistry) mountable(ctx context.Context, repositories []spec.Reference, d ocispec.Descriptor) []string {
	var out []string
	for _, ref := range repositories {
		repo, err := r.store.Repository(storedRepository(ref))
		if err != nil {
			continue
		}
		if has, err := repo.Exists(ctx, d); err != nil || !has {
			continue
		}
		if out = append(out, ref.Repository()); len(out) == maxMountedFrom {
			break
		}
	}
	return out
}
