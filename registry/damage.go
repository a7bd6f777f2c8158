package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/errdef"
)

// errDamaged says that content is not what its digest says, or not there, though its row is.
var errDamaged = errors.New("content is damaged: push it again")

// damage remembers contents whose bytes a check found to be others than their digests say: by the names
// of their files, which are never used twice, or by the digests of rows.
type damage struct {
	mu    sync.Mutex
	known map[string]bool
}

func keptAs(f *found) string {
	if f.file.Valid {
		return f.file.String
	}
	return string(f.digest)
}

func (d *damage) has(f *found) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known[keptAs(f)]
}

func (d *damage) add(f *found) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = make(map[string]bool)
	}
	d.known[keptAs(f)] = true
}

func (d *damage) clear(keys ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range keys {
		delete(d.known, k)
	}
}

// noteDamage remembers a content that was found to be another than its digest says. A row is looked at
// again, where no push can put it right meanwhile.
func (s *Store) noteDamage(ctx context.Context, f *found) error {
	if f.file.Valid {
		s.damage.add(f)
		return nil
	}
	return s.write(ctx, 0, func(w *writer) error {
		var data []byte
		err := w.row("SELECT data FROM contents WHERE digest = ? AND file IS NULL", []any{string(f.digest)}, []any{&data})
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil && f.digest.Algorithm().FromBytes(data) != f.digest {
			s.damage.add(f)
		}
		return err
	})
}

// whole tells of a content, without reading it, whether it may be what its digest says.
func (s *Store) whole(f *found) bool {
	if s.damage.has(f) {
		return false
	}
	if !f.file.Valid {
		return true
	}
	info, err := os.Stat(filepath.Join(s.blobsPath(), f.file.String))
	// Another error may pass, and tells nothing of the file.
	return err == nil && info.Size() == f.size || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// findWhole is find for whoever pushes what is not found: what is damaged is not.
func (s *Store) findWhole(ctx context.Context, query string, args ...any) (*found, error) {
	for seen := ""; ; {
		f, err := s.find(ctx, query, false, args...)
		if err != nil || s.whole(f) {
			return f, err
		}
		// A push may have put another file in the place of this one.
		if f.file.String == seen {
			return nil, fmt.Errorf("%w: %w", errDamaged, errdef.ErrNotFound)
		}
		seen = f.file.String
	}
}

// allWhole tells whether a manifest, and all it leads to that is here, is whole: a pusher who is told
// that a manifest is there looks at nothing below it.
func (s *Store) allWhole(ctx context.Context, d digest.Digest) (bool, error) {
	const below = "WITH RECURSIVE below(id) AS (SELECT id FROM contents WHERE digest = ?" +
		" UNION SELECT c.id FROM below b JOIN edges e ON e.parent = b.id AND e.kind <> 2 JOIN contents c ON c.digest = e.child)" +
		" SELECT c.digest, c.size, c.file FROM contents c WHERE c.id IN below"
	var suspects []digest.Digest
	err := s.rows(ctx, below, []any{string(d)}, func(rows *sql.Rows) error {
		f := &found{}
		err := rows.Scan((*string)(&f.digest), &f.size, &f.file)
		if err == nil && !s.whole(f) {
			suspects = append(suspects, f.digest)
		}
		return err
	})
	for _, d := range suspects {
		if err != nil {
			break
		}
		_, err = s.findWhole(ctx, findInStore, string(d))
	}
	if errors.Is(err, errDamaged) {
		return false, nil
	}
	return err == nil, err
}
