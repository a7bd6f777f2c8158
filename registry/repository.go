package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
)

// Repository is one repository of a Store as an oras target. Its references are tags and digests.
// It sees only its own content.
type Repository struct {
	store *Store
	name  string
}

// Name is the repository's name.
func (r *Repository) Name() string { return r.name }

// Fetch reads content of the repository; see Store.Fetch.
func (r *Repository) Fetch(ctx context.Context, target ocispec.Descriptor) (io.ReadCloser, error) {
	f, err := r.store.find(ctx, findMember, true, r.name, string(target.Digest))
	if err != nil {
		return nil, fmt.Errorf("fetch %s@%s: %w", r.name, target.Digest, err)
	}
	return r.store.openChecked(ctx, f, target)
}

// Push stores content in the repository. What a manifest refers to must be in the repository.
// Content that is there gives errdef.ErrAlreadyExists.
func (r *Repository) Push(ctx context.Context, expected ocispec.Descriptor, content io.Reader) error {
	return r.store.push(ctx, r.name, expected, content)
}

// Exists tells whether the repository holds the content: as a manifest, where the media type is one; see
// Store.Exists.
func (r *Repository) Exists(ctx context.Context, target ocispec.Descriptor) (bool, error) {
	return r.store.exists(ctx, r.name, target)
}

// Resolve gives the manifest that a tag or digest names.
func (r *Repository) Resolve(ctx context.Context, reference string) (ocispec.Descriptor, error) {
	tag, d, err := splitTagOrDigest(reference)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	f, err := r.store.findReference(ctx, r.name, tag, d)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("%s in %s: %w", reference, r.name, err)
	}
	return f.descriptor(), nil
}

// splitTagOrDigest parts the reference of a manifest within a repository.
func splitTagOrDigest(reference string) (tag string, d digest.Digest, err error) {
	if strings.Contains(reference, ":") {
		d = digest.Digest(reference)
		return "", d, checkDigest(d)
	}
	return reference, "", checkTag(reference)
}

// Tag points a tag at a manifest of the repository. The manifest's own digest in its place changes
// nothing.
func (r *Repository) Tag(ctx context.Context, desc ocispec.Descriptor, reference string) error {
	tag, d, err := splitTagOrDigest(reference)
	if err == nil && tag == "" && d != desc.Digest {
		err = fmt.Errorf("reference %s is not that of %s: %w", reference, desc.Digest, errdef.ErrInvalidReference)
	}
	if err != nil {
		return err
	}
	err = r.store.write(ctx, 0, func(w *writer) error {
		var repo, id int64
		err := w.row("SELECT m.repository, m.content FROM members m JOIN repositories r ON r.id = m.repository JOIN contents c ON c.id = m.content"+
			" WHERE r.name = ? AND c.digest = ? AND m.manifest = 1", []any{r.name, string(desc.Digest)}, []any{&repo, &id})
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("manifest %s: %w", desc.Digest, errdef.ErrNotFound)
		}
		if err != nil || tag == "" {
			return err
		}
		return w.tag(repo, tag, id, r.store.now())
	})
	if err != nil {
		return fmt.Errorf("tag %s:%s: %w", r.name, reference, err)
	}
	return nil
}

// Untag removes a tag and leaves what it named, and every other tag, alone. An unknown one gives
// errdef.ErrNotFound.
func (r *Repository) Untag(ctx context.Context, reference string) error {
	if err := checkTag(reference); err != nil {
		return err
	}
	return r.store.untag(ctx, r.name, reference)
}

// Delete takes content out of the repository, a manifest with its tags; the store may hold it
// further. Content that a manifest of the repository refers to gives ErrInUse.
func (r *Repository) Delete(ctx context.Context, target ocispec.Descriptor) error {
	f, err := r.store.find(ctx, findMember, false, r.name, string(target.Digest))
	if err == nil {
		asManifest := isManifest(target.MediaType) || target.MediaType != "" && f.mediaType == target.MediaType
		err = r.remove(ctx, target.Digest, asManifest)
	}
	if err != nil {
		return fmt.Errorf("delete %s@%s: %w", r.name, target.Digest, err)
	}
	return nil
}

func (r *Repository) remove(ctx context.Context, d digest.Digest, asManifest bool) error {
	return r.store.write(ctx, 0, func(w *writer) error { return w.removeMember(r.name, d, asManifest) })
}

// Predecessors lists the repository's manifests that refer to node: as config, layer, index entry
// or subject.
func (r *Repository) Predecessors(ctx context.Context, node ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	list, err := r.store.predecessors(ctx, r.name, node.Digest)
	if err != nil {
		return nil, fmt.Errorf("predecessors of %s@%s: %w", r.name, node.Digest, err)
	}
	return list, nil
}

// Tags calls fn with pages of the tags after last, sorted without regard to case. An error of fn
// ends it.
func (r *Repository) Tags(ctx context.Context, last string, fn func(tags []string) error) error {
	for {
		tags, err := r.store.tagPage(ctx, r.name, last, pageLimit)
		if err != nil {
			return fmt.Errorf("tags of %s: %w", r.name, err)
		}
		if len(tags) == 0 {
			return nil
		}
		if err := fn(tags); err != nil {
			return err
		}
		last = tags[len(tags)-1]
	}
}

// Referrers calls fn with pages of the manifests whose subject is desc, with their artifact type
// and annotations: those of artifactType, or all for "". An error of fn ends it.
func (r *Repository) Referrers(ctx context.Context, desc ocispec.Descriptor, artifactType string, fn func(referrers []ocispec.Descriptor) error) error {
	for cursor := int64(0); ; {
		page, next, err := r.store.referrerPage(ctx, r.name, desc.Digest, artifactType, cursor)
		if err != nil {
			return fmt.Errorf("referrers of %s@%s: %w", r.name, desc.Digest, err)
		}
		if len(page) > 0 {
			if err := fn(page); err != nil {
				return err
			}
		}
		if next == 0 {
			return nil
		}
		cursor = next
	}
}
