package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/errdef"
)

// ErrInUse says that a manifest still refers to the content to be deleted.
var ErrInUse = errors.New("content is in use")

// missingError names the content that a pushed manifest refers to and that isn't there.
type missingError struct {
	digest digest.Digest
	where  string
}

func (e *missingError) Error() string {
	return fmt.Sprintf("manifest refers to %s, which %s does not hold: push it first", e.digest, e.where)
}

func (e *missingError) Unwrap() error { return errdef.ErrNotFound }

// write runs op in the next group transaction and returns once it is durable. op sees the writes of
// the calls before it in the group; when it fails, only its own are undone. size is roughly the
// bytes it writes. A call once handed in is waited for, whatever becomes of ctx.
func (s *Store) write(ctx context.Context, size int, op func(*writer) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.commits.do(size, op)
}

// commitBlob makes a finished ingest visible: in the store, and in the repository unless that is
// "". It takes the ingest over. What is there already is replaced: these bytes were just verified, and
// those may have been damaged since.
func (s *Store) commitBlob(ctx context.Context, g *ingest, d digest.Digest, repository string) error {
	replaced := ""
	s.leases.take(d)
	err := s.write(ctx, len(g.row), func(w *writer) error {
		id, before, err := w.addContent(d, g.size, s.now(), g.row, g.name)
		if err != nil {
			return err
		}
		replaced = before
		if repository == "" {
			return nil
		}
		repo, err := w.repository(repository)
		if err != nil {
			return err
		}
		return w.addMember(repo, id, "")
	})
	switch {
	case err == nil:
		g.keep()
		s.removeFile(replaced)
		s.damage.clear(replaced, string(d))
	case errors.Is(err, errCommit):
		// The row may still come back with the log: its file must be there.
		g.keepUncertain()
	}
	g.discard()
	return err
}

// commitManifest makes a manifest visible in the store and, unless repository is "", there, with
// tags. All that it requires must be present, in the repository or in the store.
func (s *Store) commitManifest(ctx context.Context, m *manifest, repository string, tags []string) error {
	replaced := ""
	s.leases.take(m.digest)
	err := s.write(ctx, len(m.data), func(w *writer) error {
		var repo int64
		if repository != "" {
			var err error
			if repo, err = w.repository(repository); err != nil {
				return err
			}
		}
		if err := w.checkEdges(m, repo, repository); err != nil {
			return err
		}
		id, before, err := w.addManifest(m, s.now())
		if err != nil {
			return err
		}
		if replaced = before; repo == 0 {
			return nil
		}
		if err := w.addMember(repo, id, m.mediaType); err != nil {
			return err
		}
		for _, tag := range tags {
			if err := w.tag(repo, tag, id, s.now()); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		s.removeFile(replaced)
		s.damage.clear(replaced, string(m.digest))
	}
	return err
}

func (s *Store) now() int64 { return s.opts.Now().Unix() }

// removeFile frees the file of a row whose deletion is durable. What a crash leaves here is no
// longer referred to.
func (s *Store) removeFile(name string) {
	if name != "" {
		_ = s.opts.disk.remove(filepath.Join(s.blobsPath(), name))
	}
}

// repository gives the id of name, new or not.
func (w *writer) repository(name string) (id int64, err error) {
	err = w.row("SELECT id FROM repositories WHERE name = ?", []any{name}, []any{&id})
	if errors.Is(err, sql.ErrNoRows) {
		err = w.row("INSERT INTO repositories(name) VALUES (?) RETURNING id", []any{name}, []any{&id})
	}
	return id, err
}

// addContent gives the id of d, whose row has data or file from now on; replaced is the file it had before.
func (w *writer) addContent(d digest.Digest, size, now int64, data []byte, file string) (id int64, replaced string, err error) {
	var bytes, name any
	if file != "" {
		name = file
	} else {
		bytes = append([]byte{}, data...)
	}
	err = w.row("INSERT INTO contents(digest, size, created, data, file) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING id",
		[]any{string(d), size, now, bytes, name}, []any{&id})
	if !errors.Is(err, sql.ErrNoRows) {
		return id, "", err
	}
	var before sql.NullString
	if err = w.row("SELECT id, file FROM contents WHERE digest = ?", []any{string(d)}, []any{&id, &before}); err != nil {
		return 0, "", err
	}
	return id, before.String, w.exec("UPDATE contents SET data = ?1, file = ?2 WHERE id = ?3 AND (data IS NOT ?1 OR file IS NOT ?2)", bytes, name, id)
}

// checkEdges looks for what m requires: in the repository, or in the whole store when repo is 0.
func (w *writer) checkEdges(m *manifest, repo int64, name string) error {
	const inStore = "SELECT c.size, m.content IS NOT NULL FROM contents c LEFT JOIN manifests m ON m.content = c.id WHERE c.digest = ?"
	const inRepository = "SELECT c.size, max(m.manifest) FROM contents c JOIN members m ON m.content = c.id" +
		" WHERE c.digest = ? AND m.repository = ? GROUP BY c.id"
	where, query := "the store", inStore
	if repo != 0 {
		where, query = "repository "+name, inRepository
	}
	for _, e := range m.edges {
		if !e.required {
			continue
		}
		args := []any{string(e.desc.Digest)}
		if repo != 0 {
			args = append(args, repo)
		}
		var size int64
		var stored bool
		err := w.row(query, args, []any{&size, &stored})
		if errors.Is(err, sql.ErrNoRows) || err == nil && !stored && e.kind == edgeManifest && isManifest(e.desc.MediaType) {
			return &missingError{digest: e.desc.Digest, where: where}
		}
		if err != nil {
			return err
		}
		if size != e.desc.Size {
			return fmt.Errorf("%w: it gives %s a size of %d bytes, it has %d", errManifest, e.desc.Digest, e.desc.Size, size)
		}
	}
	return nil
}

// addManifest gives what addContent does.
func (w *writer) addManifest(m *manifest, now int64) (id int64, replaced string, err error) {
	if id, replaced, err = w.addContent(m.digest, int64(len(m.data)), now, m.data, ""); err != nil {
		return 0, "", err
	}
	var subject any
	if m.subject != "" {
		subject = string(m.subject)
	}
	err = w.exec("INSERT INTO manifests(content, media_type, artifact_type, annotations, subject) VALUES (?, ?, ?, ?, ?)"+
		" ON CONFLICT DO UPDATE SET media_type = excluded.media_type, artifact_type = excluded.artifact_type,"+
		" annotations = excluded.annotations, subject = excluded.subject WHERE media_type <> excluded.media_type",
		id, m.mediaType, m.artifactType, m.annotations, subject)
	if err != nil {
		return 0, "", err
	}
	for _, e := range m.edges {
		err := w.exec("INSERT INTO edges(parent, child, kind) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", id, string(e.desc.Digest), e.kind)
		if err != nil {
			return 0, "", err
		}
	}
	return id, replaced, nil
}

// addMember makes a content visible in a repository: as a manifest of mediaType, or as a blob
// when that is "".
func (w *writer) addMember(repo, content int64, mediaType string) error {
	if mediaType == "" {
		return w.exec("INSERT INTO members(repository, content, manifest) VALUES (?, ?, 0) ON CONFLICT DO NOTHING", repo, content)
	}
	return w.exec("INSERT INTO members(repository, content, manifest, media_type) VALUES (?, ?, 1, ?)"+
		" ON CONFLICT DO UPDATE SET media_type = excluded.media_type WHERE media_type <> excluded.media_type", repo, content, mediaType)
}

// addClosure makes a manifest and all that it leads to visible in a repository.
func (w *writer) addClosure(repo, content int64) error {
	return w.exec("WITH RECURSIVE closure(id, kind) AS (VALUES (?, 1) UNION"+
		" SELECT c.id, e.kind FROM closure k JOIN edges e ON e.parent = k.id JOIN contents c ON c.digest = e.child WHERE k.kind <> 0)"+
		" INSERT INTO members(repository, content, manifest, media_type)"+
		" SELECT ?, k.id, max(k.kind <> 0 AND m.content IS NOT NULL) AS manifest, CASE WHEN k.kind <> 0 THEN m.media_type END"+
		" FROM closure k LEFT JOIN manifests m ON m.content = k.id GROUP BY k.id, k.kind <> 0 ON CONFLICT DO NOTHING", content, repo)
}

// tag points a tag at a manifest; its creation time changes only with what it points at.
func (w *writer) tag(repo int64, name string, content, now int64) error {
	return w.exec("INSERT INTO tags(repository, name, content, created) VALUES (?, ?, ?, ?)"+
		" ON CONFLICT DO UPDATE SET content = excluded.content, created = excluded.created WHERE content <> excluded.content",
		repo, name, content, now)
}

// checkUnused refuses when a manifest of the repository, or of the store when repo is 0, leads to
// d. A subject may go before what refers to it.
func (w *writer) checkUnused(d digest.Digest, repo int64) error {
	var parent string
	err := w.row("SELECT c.digest FROM edges e JOIN contents c ON c.id = e.parent WHERE e.child = ?1 AND e.kind <> 2 AND (?2 = 0"+
		" OR EXISTS (SELECT 1 FROM members m WHERE m.content = e.parent AND m.repository = ?2 AND m.manifest = 1)) LIMIT 1",
		[]any{string(d), repo}, []any{&parent})
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: manifest %s refers to %s: delete that first", ErrInUse, parent, d)
}

// removeContent deletes a content with all that names it and gives the file to remove.
func (w *writer) removeContent(d digest.Digest) (file string, err error) {
	var id int64
	var name sql.NullString
	err = w.row("SELECT id, file FROM contents WHERE digest = ?", []any{string(d)}, []any{&id, &name})
	if errors.Is(err, sql.ErrNoRows) {
		return "", errdef.ErrNotFound
	}
	if err != nil {
		return "", err
	}
	if err := w.checkUnused(d, 0); err != nil {
		return "", err
	}
	for _, query := range []string{
		"DELETE FROM tags WHERE content = ?",
		"DELETE FROM members WHERE content = ?",
		"DELETE FROM edges WHERE parent = ?",
		"DELETE FROM manifests WHERE content = ?",
		"DELETE FROM contents WHERE id = ?",
	} {
		if err := w.exec(query, id); err != nil {
			return "", err
		}
	}
	return name.String, nil
}

// removeMember takes a content out of a repository, as a manifest with its tags or as a blob.
func (w *writer) removeMember(repository string, d digest.Digest, asManifest bool) error {
	var repo, content int64
	err := w.row("SELECT m.repository, m.content FROM members m JOIN repositories r ON r.id = m.repository JOIN contents c ON c.id = m.content"+
		" WHERE r.name = ? AND c.digest = ? AND m.manifest = ?", []any{repository, string(d), asManifest}, []any{&repo, &content})
	if errors.Is(err, sql.ErrNoRows) {
		return errdef.ErrNotFound
	}
	if err != nil {
		return err
	}
	if err := w.checkUnused(d, repo); err != nil {
		return err
	}
	if asManifest {
		if err := w.exec("DELETE FROM tags WHERE repository = ? AND content = ?", repo, content); err != nil {
			return err
		}
	}
	return w.exec("DELETE FROM members WHERE repository = ? AND content = ? AND manifest = ?", repo, content, asManifest)
}

// mount makes a blob of one repository visible in another; errdef.ErrNotFound when it has none.
func (w *writer) mount(d digest.Digest, from, to string, held *leases) error {
	var content int64
	err := w.row("SELECT m.content FROM members m JOIN repositories r ON r.id = m.repository JOIN contents c ON c.id = m.content"+
		" WHERE r.name = ? AND c.digest = ? AND m.manifest = 0", []any{from, string(d)}, []any{&content})
	if errors.Is(err, sql.ErrNoRows) {
		return errdef.ErrNotFound
	}
	if err != nil {
		return err
	}
	held.take(d)
	repo, err := w.repository(to)
	if err != nil {
		return err
	}
	return w.addMember(repo, content, "")
}
