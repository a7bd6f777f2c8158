package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/registry"
)

// pruneGrace is how long content stays that a push in flight may count on, where prune was not told.
const pruneGrace = 10 * time.Minute

// PruneImages removes what has no name and no agent needs.
func (s imageService) PruneImages(ctx context.Context, req *daemonv1.PruneImagesRequest) (*daemonv1.PruneImagesResponse, error) {
	grace := pruneGrace
	if req.GraceSeconds != nil {
		var err error
		if grace, err = parseGrace("prune", req.GetGraceSeconds()); err != nil {
			return nil, err
		}
	}
	roots, err := agentRoots(ctx, s.sup.home, s.sup.db)
	if err != nil {
		return nil, fmt.Errorf("prune: %w", err)
	}
	var unused []string
	if req.GetAll() {
		if unused, err = s.sup.images.unused(ctx, roots); err != nil {
			return nil, fmt.Errorf("prune: %w", err)
		}
	}
	done, err := s.sup.images.store.Collect(ctx, registry.CollectOptions{Roots: roots, Grace: grace, Untag: unused, DryRun: req.GetDryRun()})
	if errors.Is(err, registry.ErrCollecting) {
		return nil, fail(codes.FailedPrecondition, "wait until it has ended", "prune: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("prune: %w", err)
	}
	out := &daemonv1.PruneImagesResponse{
		Manifests: done.Manifests, Blobs: done.Blobs, Bytes: done.Bytes, Fresh: done.Fresh, FreshBytes: done.FreshBytes,
	}
	for _, ref := range unused {
		out.References = append(out.References, shownName(ref))
	}
	return out, nil
}

func parseGrace(what string, seconds int64) (time.Duration, error) {
	if seconds < 0 || seconds > int64(24*time.Hour/time.Second) {
		return 0, fail(codes.InvalidArgument, "", "%s: grace of %d seconds is not from 0 to 86400", what, seconds)
	}
	return time.Duration(seconds) * time.Second, nil
}

// unused lists the names of images that no agent was created of, runs on or has tools from. The
// daemon's own runtime and tools are not among them: it stores them only when its programs change.
func (r *imageRegistry) unused(ctx context.Context, roots []digest.Digest) ([]string, error) {
	refs, err := r.store.References(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, ref := range refs {
		if strings.HasPrefix(ref, runtimeImage+":") || strings.HasPrefix(ref, toolImages) {
			continue
		}
		used, err := r.leadsTo(ctx, ref, roots)
		if errors.Is(err, errdef.ErrNotFound) {
			continue // untagged since
		}
		if err != nil {
			return nil, err
		}
		if !used {
			out = append(out, ref)
		}
	}
	return out, nil
}

// leadsTo tells whether a reference names one of the roots, or an index with one of them in it.
func (r *imageRegistry) leadsTo(ctx context.Context, ref string, roots []digest.Digest) (bool, error) {
	desc, err := r.store.Resolve(ctx, ref)
	if err != nil || slices.Contains(roots, desc.Digest) {
		return err == nil, err
	}
	list, err := content.Successors(ctx, r.store, desc)
	if err != nil {
		return false, err
	}
	for _, d := range list {
		if slices.Contains(roots, d.Digest) {
			return true, nil
		}
	}
	return false, nil
}
