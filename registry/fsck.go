package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
)

// problemLimit bounds the problems that a check tells one by one.
const problemLimit = 1000

// CheckOptions of a check.
type CheckOptions struct {
	// SkipFiles leaves out reading the blobs kept as files: then only that each is there with its size
	// is checked.
	SkipFiles bool
}

// Check is what a check of a store found.
type Check struct {
	// Contents and Bytes count what was looked at.
	Contents, Bytes int64
	// Problems are what is wrong, in words: at most 1000. A store with none is consistent.
	Problems []string
	// Further counts the problems beyond those.
	Further int64
	// Orphans counts files that belong to no content. A crash leaves them; they take room and do no
	// harm, and a collection removes them.
	Orphans int64
}

func (c *Check) problem(format string, args ...any) {
	if len(c.Problems) == problemLimit {
		c.Further++
		return
	}
	c.Problems = append(c.Problems, fmt.Sprintf(format, args...))
}

// Check reads the whole store and compares: the database with its own rules, each content with its
// digest and size, what is noted of a manifest with its bytes, and all that refers with what is
// there. It changes nothing and may run while others push, pull and collect. What it finds damaged is,
// until the store is closed, not given to anybody, and whoever pushes it puts it right. The error is about
// the check; what is wrong with the store is in its result.
func (s *Store) Check(ctx context.Context, opts CheckOptions) (*Check, error) {
	c := &Check{}
	err := s.checkDatabase(ctx, c)
	for last, more := int64(0), true; err == nil && more; {
		last, more, err = s.checkContents(ctx, c, opts, last)
	}
	if err == nil {
		err = s.checkReferences(ctx, c)
	}
	if err == nil {
		var orphans []string
		orphans, err = s.orphans(ctx)
		c.Orphans = int64(len(orphans))
	}
	if err != nil {
		return c, fmt.Errorf("check: %w", err)
	}
	return c, nil
}

// checkDatabase asks SQLite for damage to the file and for rows that refer to none.
func (s *Store) checkDatabase(ctx context.Context, c *Check) error {
	err := s.rows(ctx, "PRAGMA integrity_check(100)", nil, func(rows *sql.Rows) error {
		var text string
		err := rows.Scan(&text)
		if err == nil && text != "ok" {
			c.problem("database: %s", text)
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.rows(ctx, "PRAGMA foreign_key_check", nil, func(rows *sql.Rows) error {
		var table, parent string
		var row, key sql.NullInt64
		err := rows.Scan(&table, &row, &parent, &key)
		if err == nil {
			c.problem("database: a row of %s refers to none of %s", table, parent)
		}
		return err
	})
}

// stored is one content with what is noted of it.
type stored struct {
	found

	id           int64
	manifestType sql.NullString
	artifactType sql.NullString
	annotations  sql.NullString
	subject      sql.NullString
}

// checkContents checks some contents after the id last, so that no snapshot is held for long.
func (s *Store) checkContents(ctx context.Context, c *Check, opts CheckOptions, last int64) (int64, bool, error) {
	const some = "SELECT c.id, c.digest, c.size, c.data, c.file, m.media_type, m.artifact_type, m.annotations, m.subject" +
		" FROM contents c LEFT JOIN manifests m ON m.content = c.id WHERE c.id > ? ORDER BY c.id LIMIT 32"
	var batch []*stored
	err := s.rows(ctx, some, []any{last}, func(rows *sql.Rows) error {
		f := &stored{}
		var d string
		err := rows.Scan(&f.id, &d, &f.size, &f.data, &f.file, &f.manifestType, &f.artifactType, &f.annotations, &f.subject)
		f.digest = digest.Digest(d)
		batch = append(batch, f)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	for _, f := range batch {
		c.Contents++
		c.Bytes += f.size
		err := s.checkContent(ctx, c, opts, f)
		if err == nil && f.manifestType.Valid {
			err = s.checkManifest(ctx, c, f)
		}
		if err != nil {
			return 0, false, err
		}
		last = f.id
	}
	return last, len(batch) > 0, nil
}

func (s *Store) checkContent(ctx context.Context, c *Check, opts CheckOptions, f *stored) error {
	if err := checkDigest(f.digest); err != nil {
		c.problem("%s: %v", f.digest, err)
		return nil
	}
	r, err := s.openKept(&f.found)
	if errors.Is(err, fs.ErrNotExist) {
		var still bool
		// It may have been deleted meanwhile, or pushed again.
		if err := s.row(ctx, "SELECT EXISTS (SELECT 1 FROM contents WHERE id = ? AND file = ?)", []any{f.id, f.file.String}, []any{&still}); err != nil || !still {
			return err
		}
	}
	if err != nil {
		c.problem("%s: %v", f.digest, err)
		return nil
	}
	defer r.Close()
	size, err := r.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = r.Seek(0, io.SeekStart)
	}
	switch {
	case err != nil:
		c.problem("%s: %v", f.digest, err)
	case size != f.size:
		c.problem("%s: has %d bytes, %d are noted", f.digest, size, f.size)
	case f.file.Valid && opts.SkipFiles:
	default:
		return s.verify(ctx, c, &f.found, r)
	}
	return nil
}

// verify compares content with its digest, and remembers what is damaged.
func (s *Store) verify(ctx context.Context, c *Check, f *found, r io.Reader) error {
	d := f.digest
	sum := d.Algorithm().Hash()
	_, err := copyAll(sum, contextReader{ctx, r})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	got := digest.NewDigest(d.Algorithm(), sum)
	switch {
	case err != nil:
		c.problem("%s: %v", d, err)
	case got != d:
		c.problem("%s: the content has digest %s", d, got)
	default:
		return nil
	}
	return s.noteDamage(ctx, f)
}

// checkManifest compares what is noted of a manifest with its bytes.
func (s *Store) checkManifest(ctx context.Context, c *Check, f *stored) error {
	data := f.data
	if f.file.Valid {
		var err error
		if data, err = os.ReadFile(filepath.Join(s.blobsPath(), f.file.String)); errors.Is(err, fs.ErrNotExist) {
			return nil // told already
		} else if err != nil {
			return err
		}
	}
	m, err := parseManifest(f.manifestType.String, f.digest, data)
	if err != nil {
		c.problem("manifest %s: %v", f.digest, err)
		return nil
	}
	if m.artifactType != f.artifactType.String || m.annotations != f.annotations.String || string(m.subject) != f.subject.String {
		c.problem("manifest %s: artifact type, annotations or subject are noted wrongly", f.digest)
	}
	noted := make(map[edgeKey]bool)
	err = s.rows(ctx, "SELECT child, kind FROM edges WHERE parent = ?", []any{f.id}, func(rows *sql.Rows) error {
		var child string
		var kind int
		err := rows.Scan(&child, &kind)
		noted[edgeKey{digest.Digest(child), kind}] = true
		return err
	})
	if err != nil {
		return err
	}
	var still bool
	if err := s.row(ctx, "SELECT EXISTS (SELECT 1 FROM manifests WHERE content = ?)", []any{f.id}, []any{&still}); err != nil || !still {
		return err
	}
	for _, e := range m.edges {
		if !noted[edgeKey{e.desc.Digest, e.kind}] {
			c.problem("manifest %s: that it refers to %s is not noted", f.digest, e.desc.Digest)
		}
		if !e.required {
			continue
		}
		var has bool
		// Both in one snapshot: a manifest deleted meanwhile may have taken its contents along.
		err := s.row(ctx, "SELECT EXISTS (SELECT 1 FROM contents WHERE digest = ?1 AND size = ?2) OR NOT EXISTS (SELECT 1 FROM manifests WHERE content = ?3)",
			[]any{string(e.desc.Digest), e.desc.Size, f.id}, []any{&has})
		if err != nil {
			return err
		}
		if !has {
			c.problem("manifest %s: refers to %s with %d bytes, which is missing", f.digest, e.desc.Digest, e.desc.Size)
		}
	}
	return nil
}

type edgeKey struct {
	child digest.Digest
	kind  int
}

// checkReferences looks for tags and members that name what they must not.
func (s *Store) checkReferences(ctx context.Context, c *Check) error {
	for text, query := range map[string]string{
		"tag %s names what is no manifest of its repository": "SELECT r.name || ':' || t.name FROM tags t JOIN repositories r ON r.id = t.repository" +
			" WHERE NOT EXISTS (SELECT 1 FROM members m WHERE m.repository = t.repository AND m.content = t.content AND m.manifest = 1)",
		"manifest %s of a repository is noted as none": "SELECT r.name || '@' || c.digest FROM members m JOIN repositories r ON r.id = m.repository" +
			" JOIN contents c ON c.id = m.content WHERE m.manifest = 1 AND NOT EXISTS (SELECT 1 FROM manifests x WHERE x.content = m.content)",
		"manifest %s without a media type": "SELECT r.name || '@' || c.digest FROM members m JOIN repositories r ON r.id = m.repository" +
			" JOIN contents c ON c.id = m.content WHERE m.manifest = 1 AND coalesce(m.media_type, '') = ''",
	} {
		err := s.rows(ctx, query, nil, func(rows *sql.Rows) error {
			var name string
			err := rows.Scan(&name)
			if err == nil {
				c.problem(text, name)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
