package registry

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
)

// found is one content; exactly one of data and file is set where the query asked for data.
type found struct {
	digest    digest.Digest
	size      int64
	mediaType string
	data      []byte
	file      sql.NullString
}

func (f *found) descriptor() ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: f.mediaType, Digest: f.digest, Size: f.size}
}

// Queries for found. Their first argument tells whether the data is wanted; without it no page of
// it is read.
const (
	selectFound = "SELECT c.digest, c.size, coalesce(%s, ''), CASE WHEN ?1 THEN c.data END, c.file FROM contents c "

	inRepository = " JOIN members m ON m.content = c.id JOIN repositories r ON r.id = m.repository"
)

var (
	findInStore    = fmt.Sprintf(selectFound, "NULL") + "WHERE c.digest = ?2"
	findMember     = fmt.Sprintf(selectFound, "m.media_type") + inRepository + " WHERE r.name = ?2 AND c.digest = ?3 ORDER BY m.manifest DESC LIMIT 1"
	findBlob       = fmt.Sprintf(selectFound, "NULL") + inRepository + " WHERE r.name = ?2 AND c.digest = ?3 AND m.manifest = 0"
	findManifest   = fmt.Sprintf(selectFound, "m.media_type") + inRepository + " WHERE r.name = ?2 AND c.digest = ?3 AND m.manifest = 1"
	findTag        = fmt.Sprintf(selectFound, "m.media_type") + inRepository + " JOIN tags t ON t.repository = r.id AND t.content = c.id WHERE r.name = ?2 AND t.name = ?3 AND m.manifest = 1"
	findStoredType = fmt.Sprintf(selectFound, "m.media_type") + "JOIN manifests m ON m.content = c.id WHERE c.digest = ?2"
)

// find runs one of the queries above; nothing found wraps errdef.ErrNotFound.
func (s *Store) find(ctx context.Context, query string, withData bool, args ...any) (*found, error) {
	f := &found{}
	var d string
	err := s.row(ctx, query, append([]any{withData}, args...), []any{&d, &f.size, &f.mediaType, &f.data, &f.file})
	if err != nil {
		return nil, err
	}
	f.digest = digest.Digest(d)
	return f, nil
}

// blobReader reads one content; it can seek.
type blobReader interface {
	io.ReadSeekCloser
}

type rowReader struct{ *bytes.Reader }

func (rowReader) Close() error { return nil }

// open reads a content found with its data, unless it is known to be damaged.
func (s *Store) open(ctx context.Context, f *found) (blobReader, error) {
	if s.damage.has(f) {
		return nil, fmt.Errorf("%s: %w", f.digest, errDamaged)
	}
	r, err := s.openKept(f)
	for errors.Is(err, fs.ErrNotExist) {
		// It was deleted, or pushed again, and so has another file.
		again, findErr := s.find(ctx, findInStore, true, string(f.digest))
		switch {
		case errors.Is(findErr, errdef.ErrNotFound):
			return nil, fmt.Errorf("%s was deleted: %w", f.digest, errdef.ErrNotFound)
		case findErr != nil:
			return nil, findErr
		case again.file == f.file:
			return nil, fmt.Errorf("%s: %w", f.digest, err)
		}
		f = again
		r, err = s.openKept(f)
	}
	return r, err
}

// openKept reads a content as it is kept; a file that is not there wraps fs.ErrNotExist.
func (s *Store) openKept(f *found) (blobReader, error) {
	if !f.file.Valid {
		return rowReader{bytes.NewReader(f.data)}, nil
	}
	file, err := os.Open(filepath.Join(s.blobsPath(), f.file.String))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: its file %s is missing: %w", errDamaged, f.file.String, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	// A file that lost its end must not be taken for the whole.
	info, err := file.Stat()
	if err == nil && info.Size() != f.size {
		err = fmt.Errorf("%w: has %d bytes, %d are noted", errDamaged, info.Size(), f.size)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// stmt prepares a query once for all readers.
func (s *Store) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if st, ok := s.stmts.Load(query); ok {
		return st.(*sql.Stmt), nil
	}
	st, err := s.db.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if first, loaded := s.stmts.LoadOrStore(query, st); loaded {
		return first.(*sql.Stmt), st.Close()
	}
	return st, nil
}

func (s *Store) row(ctx context.Context, query string, args, dest []any) error {
	st, err := s.stmt(ctx, query)
	if err == nil {
		err = st.QueryRowContext(ctx, args...).Scan(dest...)
	}
	return s.readError(err)
}

// rows calls scan for each row.
func (s *Store) rows(ctx context.Context, query string, args []any, scan func(*sql.Rows) error) error {
	st, err := s.stmt(ctx, query)
	if err != nil {
		return s.readError(err)
	}
	rows, err := st.QueryContext(ctx, args...)
	if err != nil {
		return s.readError(err)
	}
	for rows.Next() {
		if err := scan(rows); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return s.readError(errors.Join(rows.Err(), rows.Close()))
}

func (s *Store) readError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrNoRows):
		return errdef.ErrNotFound
	case s.closed.Load():
		return ErrClosed
	}
	return err
}

// tagPage lists up to limit tags after last, in the specification's order: without regard to case.
func (s *Store) tagPage(ctx context.Context, repository, last string, limit int) ([]string, error) {
	tags := []string{}
	// The row value is spelled out: the two columns compare by different collations.
	err := s.rows(ctx, "SELECT t.name FROM tags t WHERE t.repository = (SELECT id FROM repositories WHERE name = ?1)"+
		" AND t.name COLLATE NOCASE >= ?2 AND (t.name COLLATE NOCASE > ?2 OR t.name > ?2)"+
		" ORDER BY t.name COLLATE NOCASE, t.name LIMIT ?3", []any{repository, last, limit}, func(rows *sql.Rows) error {
		var tag string
		err := rows.Scan(&tag)
		tags = append(tags, tag)
		return err
	})
	return tags, err
}

// repositoryPage lists up to limit repositories that hold anything, after last.
func (s *Store) repositoryPage(ctx context.Context, last string, limit int) ([]string, error) {
	names := []string{}
	err := s.rows(ctx, "SELECT name FROM repositories r WHERE name > ? AND EXISTS (SELECT 1 FROM members WHERE repository = r.id)"+
		" ORDER BY name LIMIT ?", []any{last, limit}, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	})
	return names, err
}

// hasRepository tells whether the repository holds anything.
func (s *Store) hasRepository(ctx context.Context, name string) (bool, error) {
	var has bool
	err := s.row(ctx, "SELECT EXISTS (SELECT 1 FROM members m JOIN repositories r ON r.id = m.repository WHERE r.name = ?)",
		[]any{name}, []any{&has})
	return has, err
}

// A page of referrers ends at referrerCount descriptors or referrerBytes of annotations: clients
// cap the answer at 4 MiB.
const (
	referrerCount = 1000
	referrerBytes = 2 << 20
)

// referrerPage lists referrers of d after the cursor, in the order they were stored; next is 0 on
// the last page.
func (s *Store) referrerPage(ctx context.Context, repository string, d digest.Digest, artifactType string, cursor int64) (
	page []ocispec.Descriptor, next int64, err error,
) {
	page = []ocispec.Descriptor{}
	size, last, full := 0, int64(0), false
	err = s.rows(ctx, "SELECT c.id, b.media_type, c.digest, c.size, m.artifact_type, m.annotations FROM manifests m"+
		" JOIN contents c ON c.id = m.content JOIN members b ON b.content = m.content AND b.manifest = 1"+
		" WHERE m.subject = ?1 AND b.repository = (SELECT id FROM repositories WHERE name = ?2)"+
		" AND (?3 = '' OR m.artifact_type = ?3) AND c.id > ?4 ORDER BY c.id LIMIT ?5",
		[]any{string(d), repository, artifactType, cursor, referrerCount + 1}, func(rows *sql.Rows) error {
			var id int64
			var desc ocispec.Descriptor
			var annotations string
			if err := rows.Scan(&id, &desc.MediaType, &desc.Digest, &desc.Size, &desc.ArtifactType, &annotations); err != nil {
				return err
			}
			size += len(annotations)
			if full = full || len(page) == referrerCount || len(page) > 0 && size > referrerBytes; full {
				next = last
				return nil
			}
			if annotations != "" {
				if err := json.Unmarshal([]byte(annotations), &desc.Annotations); err != nil {
					return err
				}
			}
			page, last = append(page, desc), id
			return nil
		})
	return page, next, err
}

// predecessors lists the manifests that lead to d: those of one repository, or all for "".
func (s *Store) predecessors(ctx context.Context, repository string, d digest.Digest) ([]ocispec.Descriptor, error) {
	query := "SELECT DISTINCT c.id, m.media_type, c.digest, c.size FROM edges e JOIN contents c ON c.id = e.parent" +
		" JOIN manifests m ON m.content = e.parent WHERE e.child = ? ORDER BY c.id"
	args := []any{string(d)}
	if repository != "" {
		query = "SELECT DISTINCT c.id, m.media_type, c.digest, c.size FROM edges e JOIN contents c ON c.id = e.parent" +
			" JOIN members m ON m.content = e.parent AND m.manifest = 1 JOIN repositories r ON r.id = m.repository" +
			" WHERE e.child = ? AND r.name = ? ORDER BY c.id"
		args = append(args, repository)
	}
	var list []ocispec.Descriptor
	err := s.rows(ctx, query, args, func(rows *sql.Rows) error {
		var id int64
		var desc ocispec.Descriptor
		err := rows.Scan(&id, &desc.MediaType, &desc.Digest, &desc.Size)
		list = append(list, desc)
		return err
	})
	return list, err
}
