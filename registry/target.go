package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
)

// Fetch reads content of any repository, or of none. The reader is also an io.Seeker and stays
// readable when the content is deleted.
func (s *Store) Fetch(ctx context.Context, target ocispec.Descriptor) (io.ReadCloser, error) {
	f, err := s.find(ctx, findInStore, true, string(target.Digest))
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", target.Digest, err)
	}
	return s.openChecked(ctx, f, target)
}

// openChecked refuses a descriptor whose size is not the content's.
func (s *Store) openChecked(ctx context.Context, f *found, target ocispec.Descriptor) (io.ReadCloser, error) {
	if f.size != target.Size {
		return nil, fmt.Errorf("fetch %s: has %d bytes, descriptor says %d: %w", target.Digest, f.size, target.Size, content.ErrMismatchedDigest)
	}
	r, err := s.open(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	return r, nil
}

// Push stores content that belongs to no repository yet; tagging what leads to it puts it into
// one. Content of a manifest's media type is checked as one, and what it refers to must be stored.
// Content that is there gives errdef.ErrAlreadyExists.
func (s *Store) Push(ctx context.Context, expected ocispec.Descriptor, r io.Reader) error {
	return s.push(ctx, "", expected, r)
}

func (s *Store) push(ctx context.Context, repository string, expected ocispec.Descriptor, r io.Reader) error {
	if err := checkDescriptor(ocispec.Descriptor{Digest: expected.Digest, Size: expected.Size}); err != nil {
		return fmt.Errorf("push: %w", err)
	}
	exists, err := s.exists(ctx, repository, expected)
	if err == nil && exists {
		err = errdef.ErrAlreadyExists
	}
	if err == nil {
		if isManifest(expected.MediaType) {
			err = s.pushManifest(ctx, repository, expected, r)
		} else {
			err = s.pushBlob(ctx, repository, expected, r)
		}
	}
	if err != nil {
		return fmt.Errorf("push %s: %w", expected.Digest, err)
	}
	return nil
}

func (s *Store) pushManifest(ctx context.Context, repository string, expected ocispec.Descriptor, r io.Reader) error {
	if expected.Size > manifestLimit {
		return fmt.Errorf("manifest of %d bytes, at most %d are allowed: %w", expected.Size, manifestLimit, errdef.ErrSizeExceedsLimit)
	}
	data, err := content.ReadAll(r, expected)
	if err != nil {
		return err
	}
	m, err := parseManifest(expected.MediaType, expected.Digest, data)
	if err != nil {
		return err
	}
	return s.commitManifest(ctx, m, repository, nil)
}

func (s *Store) pushBlob(ctx context.Context, repository string, expected ocispec.Descriptor, r io.Reader) error {
	g := s.newIngest(expected.Digest.Algorithm())
	err := g.readFrom(contextReader{ctx, io.LimitReader(r, expected.Size+1)})
	if err == nil && g.size != expected.Size {
		err = fmt.Errorf("content has %d bytes or more, descriptor says %d: %w", g.size, expected.Size, content.ErrMismatchedDigest)
	}
	if err == nil {
		err = g.finish(expected.Digest)
	}
	if err != nil {
		g.discard()
		return err
	}
	return s.commitBlob(ctx, g, expected.Digest, repository)
}

// contextReader ends with ctx between two reads.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// Exists tells whether the store holds the content: as a manifest, where the media type is one. What is
// known to be damaged, or leads to what is, it does not: pushing it again puts it right.
func (s *Store) Exists(ctx context.Context, target ocispec.Descriptor) (bool, error) {
	return s.exists(ctx, "", target)
}

func (s *Store) exists(ctx context.Context, repository string, target ocispec.Descriptor) (bool, error) {
	query, args := findInStore, []any{string(target.Digest)}
	switch manifest := isManifest(target.MediaType); {
	case repository == "" && manifest:
		query = findStoredType
	case repository != "" && manifest:
		query, args = findManifest, []any{repository, string(target.Digest)}
	case repository != "":
		query, args = findMember, []any{repository, string(target.Digest)}
	}
	f, err := s.findPresent(ctx, query, args...)
	if errors.Is(err, errdef.ErrNotFound) {
		return false, nil
	}
	if err != nil || !isManifest(target.MediaType) {
		return err == nil, err
	}
	if f.mediaType != target.MediaType {
		return false, nil
	}
	return s.allWhole(ctx, f.digest)
}

// Resolve gives the manifest that "repository:tag" or "repository@digest" names.
func (s *Store) Resolve(ctx context.Context, reference string) (ocispec.Descriptor, error) {
	name, tag, d, err := splitReference(reference)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	f, err := s.findReference(ctx, name, tag, d)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("%s: %w", reference, err)
	}
	return f.descriptor(), nil
}

// findPresent runs a query of find for somebody who may push next, and so may count on what is found.
func (s *Store) findPresent(ctx context.Context, query string, args ...any) (*found, error) {
	s.sweep.RLock()
	defer s.sweep.RUnlock()
	f, err := s.findWhole(ctx, query, args...)
	if err == nil {
		s.leases.take(f.digest)
	}
	return f, err
}

func (s *Store) findReference(ctx context.Context, name, tag string, d digest.Digest) (*found, error) {
	query, args := referenceQuery(name, tag, d)
	return s.find(ctx, query, false, args...)
}

// referenceQuery finds the manifest of a repository by tag or, where that is "", by digest.
func referenceQuery(name, tag string, d digest.Digest) (query string, args []any) {
	if tag != "" {
		return findTag, []any{name, tag}
	}
	return findManifest, []any{name, string(d)}
}

// Tag points "repository:tag" at a stored manifest and makes all that it leads to visible in the
// repository, which need not exist. "repository@digest", with the manifest's digest, makes it
// visible without a tag.
func (s *Store) Tag(ctx context.Context, desc ocispec.Descriptor, reference string) error {
	name, tag, d, err := splitReference(reference)
	if err == nil && tag == "" && d != desc.Digest {
		err = fmt.Errorf("reference %q is not that of %s: %w", reference, desc.Digest, errdef.ErrInvalidReference)
	}
	if err != nil {
		return err
	}
	err = s.write(ctx, 0, func(w *writer) error {
		var id int64
		err := w.row("SELECT m.content FROM manifests m JOIN contents c ON c.id = m.content WHERE c.digest = ?",
			[]any{string(desc.Digest)}, []any{&id})
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("manifest %s: %w", desc.Digest, errdef.ErrNotFound)
		}
		if err != nil {
			return err
		}
		repo, err := w.repository(name)
		if err != nil {
			return err
		}
		if err := w.addClosure(repo, id); err != nil || tag == "" {
			return err
		}
		return w.tag(repo, tag, id, s.now())
	})
	if err != nil {
		return fmt.Errorf("tag %s: %w", reference, err)
	}
	return nil
}

// Untag removes "repository:tag" and leaves what it named, and every other tag, alone. An unknown
// one gives errdef.ErrNotFound.
func (s *Store) Untag(ctx context.Context, reference string) error {
	name, tag, _, err := splitReference(reference)
	if err == nil && tag == "" {
		err = fmt.Errorf("reference %q: want repository:tag: %w", abbreviate(reference), errdef.ErrInvalidReference)
	}
	if err != nil {
		return err
	}
	return s.untag(ctx, name, tag)
}

func (s *Store) untag(ctx context.Context, repository, tag string) error {
	err := s.write(ctx, 0, func(w *writer) error {
		n, err := w.changed("DELETE FROM tags WHERE name = ? AND repository = (SELECT id FROM repositories WHERE name = ?)", tag, repository)
		if err == nil && n == 0 {
			err = errdef.ErrNotFound
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("untag %s:%s: %w", repository, tag, err)
	}
	return nil
}

// Delete removes content from the store and from every repository, with the tags that name it.
// Content that a manifest refers to gives ErrInUse; what it refers to itself stays.
func (s *Store) Delete(ctx context.Context, target ocispec.Descriptor) error {
	var file string
	err := s.write(ctx, 0, func(w *writer) (err error) {
		file, err = w.removeContent(target.Digest)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", target.Digest, err)
	}
	s.removeFile(file)
	return nil
}

// Predecessors lists the stored manifests that refer to node: as config, layer, index entry or
// subject.
func (s *Store) Predecessors(ctx context.Context, node ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	list, err := s.predecessors(ctx, "", node.Digest)
	if err != nil {
		return nil, fmt.Errorf("predecessors of %s: %w", node.Digest, err)
	}
	return list, nil
}

// References lists every "repository:tag", sorted.
func (s *Store) References(ctx context.Context) ([]string, error) {
	refs := []string{}
	err := s.rows(ctx, "SELECT r.name || ':' || t.name FROM tags t JOIN repositories r ON r.id = t.repository", nil, func(rows *sql.Rows) error {
		var ref string
		err := rows.Scan(&ref)
		refs = append(refs, ref)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list references: %w", err)
	}
	sort.Strings(refs)
	return refs, nil
}

// CreatedAt is the time, in seconds since 1970, at which the tag was pointed at what it now names;
// 0 means that the tag is unknown or can't be read.
func (s *Store) CreatedAt(repository, tag string) int64 {
	var created int64
	err := s.row(context.Background(), "SELECT t.created FROM tags t JOIN repositories r ON r.id = t.repository WHERE r.name = ? AND t.name = ?",
		[]any{repository, tag}, []any{&created})
	if err != nil {
		return 0
	}
	return created
}

// Repository is the target of one repository. It need not exist: the first push makes it. A name
// against the grammar gives errdef.ErrInvalidReference.
func (s *Store) Repository(name string) (*Repository, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return &Repository{store: s, name: name}, nil
}
