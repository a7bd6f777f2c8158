package registry

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/errdef"
)

// ErrCollecting says that another collection is under way.
var ErrCollecting = errors.New("another collection is under way")

// DefaultGrace is the grace of a collection that nobody set another for.
const DefaultGrace = time.Hour

// collectBatch bounds the contents removed in one transaction, so that pushes hardly wait.
const collectBatch = 64

// CollectOptions of a collection.
type CollectOptions struct {
	// Roots are kept with all they lead to, beside everything tagged. Digests that the store does not
	// hold are passed over.
	Roots []digest.Digest
	// Grace keeps what was pushed, mounted or found present by a pusher within it, between 0 and 24
	// hours: a push lasts as long from its first blob, or question for one, to its manifest. With 0
	// only what a call in flight holds is safe.
	Grace time.Duration
	// Untag are references, each "repository:tag", that are removed first. One that is not there is
	// passed over.
	Untag []string
	// DryRun removes nothing, and tells what would be.
	DryRun bool
}

// Collected tells what a collection removed.
type Collected struct {
	// Manifests and Blobs count contents, and Bytes what they held.
	Manifests, Blobs, Bytes int64
	// Orphans counts files that belonged to no content, as a crash leaves them.
	Orphans int64
	// Kept counts the contents that stay.
	Kept int64
	// Fresh counts those of them that stay for the grace alone, and FreshBytes what they hold.
	Fresh, FreshBytes int64
}

// Collect removes what neither a tag nor a root leads to: through an index, a manifest, or from a
// subject to its referrers. It may run while others push and pull; what a push in flight refers to
// stays. A second collection at the same time gives ErrCollecting. When ctx ends, what was removed
// until then is told beside its error.
func (s *Store) Collect(ctx context.Context, opts CollectOptions) (Collected, error) {
	var done Collected
	if opts.Grace < 0 || opts.Grace > leaseTime {
		return done, fmt.Errorf("collect: grace of %s: want 0 to %s", opts.Grace, leaseTime)
	}
	for _, d := range opts.Roots {
		if err := checkDigest(d); err != nil {
			return done, fmt.Errorf("collect: root: %w", err)
		}
	}
	if !s.collecting.TryLock() {
		return done, fmt.Errorf("collect: %w", ErrCollecting)
	}
	defer s.collecting.Unlock()
	c := &collection{store: s, opts: opts, since: s.opts.Now().Add(-opts.Grace).Unix(), roots: make(map[digest.Digest]bool), done: &done}
	for _, d := range opts.Roots {
		c.roots[d] = true
	}
	if err := c.run(ctx); err != nil {
		return done, fmt.Errorf("collect: %w", err)
	}
	return done, nil
}

// collection is one run. It marks in a snapshot and then removes in small steps, each of which
// checks anew, in the transaction that removes, that nothing has come to need the content.
type collection struct {
	store *Store
	opts  CollectOptions
	since int64 // content of this time or later is in its grace
	roots map[digest.Digest]bool
	done  *Collected
}

func (c *collection) run(ctx context.Context) error {
	if err := c.untag(ctx); err != nil {
		return err
	}
	dead, err := c.mark(ctx)
	if err != nil {
		return err
	}
	if c.opts.DryRun {
		orphans, err := c.store.orphans(ctx)
		c.done.Orphans = int64(len(orphans))
		return errors.Join(err, c.count(ctx, c.done.Manifests+c.done.Blobs, c.done.Bytes))
	}
	order, err := c.order(ctx, dead)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(order, collectBatch) {
		if err := c.remove(ctx, batch); err != nil {
			return err
		}
	}
	if err := c.removeOrphans(ctx); err != nil {
		return err
	}
	return c.count(ctx, 0, 0)
}

func (c *collection) untag(ctx context.Context) error {
	for _, ref := range c.opts.Untag {
		name, tag, _, err := splitReference(ref)
		switch {
		case err != nil:
			return err
		case tag == "":
			return fmt.Errorf("reference %q: want repository:tag: %w", abbreviate(ref), errdef.ErrInvalidReference)
		case c.opts.DryRun:
			continue
		}
		if err := c.store.untag(ctx, name, tag); err != nil && !errors.Is(err, errdef.ErrNotFound) {
			return err
		}
	}
	return nil
}

// live finds the contents that something leads to. ?1 is a JSON list of further roots, ?2 the time
// from which on content is fresh, where ?3 bounds it: later content has a lease instead. ?4 is a JSON
// list of tags that count for nothing.
const live = `WITH RECURSIVE live(id) AS (
	SELECT t.content FROM tags t JOIN repositories r ON r.id = t.repository
		WHERE r.name || ':' || t.name NOT IN (SELECT value FROM json_each(?4))
	UNION SELECT id FROM contents WHERE created >= ?2 AND created <= ?3
	UNION SELECT c.id FROM json_each(?1) j JOIN contents c ON c.digest = j.value
	UNION SELECT c.id FROM live l JOIN edges e ON e.parent = l.id AND e.kind <> 2 JOIN contents c ON c.digest = e.child
	UNION SELECT m.content FROM live l JOIN contents c ON c.id = l.id JOIN manifests m ON m.subject = c.digest
)`

const (
	selectDead = live + " SELECT c.id, c.size, EXISTS (SELECT 1 FROM manifests m WHERE m.content = c.id) FROM contents c WHERE c.id NOT IN live"
	sumDead    = live + " SELECT count(*), coalesce(sum(size), 0) FROM contents WHERE id NOT IN live"
)

// lists are the arguments ?1 and ?4 of live.
func (c *collection) lists(more []digest.Digest) (roots, untagged string, err error) {
	for d := range c.roots {
		more = append(more, d)
	}
	list, err := json.Marshal(append([]digest.Digest{}, more...))
	if err != nil {
		return "", "", err
	}
	tags, err := json.Marshal(append([]string{}, c.opts.Untag...))
	return string(list), string(tags), err
}

// mark lists the contents that may go; a dry run counts them as removed.
func (c *collection) mark(ctx context.Context) (map[int64]int, error) {
	roots, untagged, err := c.lists(c.store.leases.since(c.since))
	if err != nil {
		return nil, err
	}
	dead := make(map[int64]int)
	err = c.store.rows(ctx, selectDead, []any{roots, c.since, c.store.opened, untagged}, func(rows *sql.Rows) error {
		var id, size int64
		var isManifest bool
		err := rows.Scan(&id, &size, &isManifest)
		dead[id] = 0
		if c.opts.DryRun {
			c.done.add(size, isManifest)
		}
		return err
	})
	return dead, err
}

func (d *Collected) add(size int64, isManifest bool) {
	if isManifest {
		d.Manifests++
	} else {
		d.Blobs++
	}
	d.Bytes += size
}

// count counts what stays, where contents and bytes of the store are to be removed yet.
func (c *collection) count(ctx context.Context, contents, bytes int64) error {
	roots, untagged, err := c.lists(nil)
	if err != nil {
		return err
	}
	// No content is of this time, so there is no grace.
	const never = math.MaxInt64
	if err := c.store.row(ctx, sumDead, []any{roots, int64(never), c.store.opened, untagged}, []any{&c.done.Fresh, &c.done.FreshBytes}); err != nil {
		return err
	}
	c.done.Fresh, c.done.FreshBytes = max(0, c.done.Fresh-contents), max(0, c.done.FreshBytes-bytes)
	err = c.store.row(ctx, "SELECT count(*) FROM contents", nil, []any{&c.done.Kept})
	c.done.Kept = max(0, c.done.Kept-contents)
	return err
}

// order puts what needs before what is needed: a manifest before its blobs, a subject before its
// referrers. Digests make cycles impossible.
func (c *collection) order(ctx context.Context, dead map[int64]int) ([]int64, error) {
	const before = "SELECT e.parent, c.id FROM edges e JOIN contents c ON c.digest = e.child WHERE e.kind <> 2" +
		" UNION SELECT c.id, m.content FROM manifests m JOIN contents c ON c.digest = m.subject"
	after := make(map[int64][]int64)
	err := c.store.rows(ctx, before, nil, func(rows *sql.Rows) error {
		var first, second int64
		if err := rows.Scan(&first, &second); err != nil {
			return err
		}
		if _, ok := dead[first]; !ok {
			return nil
		}
		if _, ok := dead[second]; ok {
			dead[second]++
			after[first] = append(after[first], second)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var order []int64
	for id, waits := range dead {
		if waits == 0 {
			order = append(order, id)
		}
	}
	slices.Sort(order)
	for i := 0; i < len(order); i++ {
		for _, id := range after[order[i]] {
			if dead[id]--; dead[id] == 0 {
				order = append(order, id)
			}
		}
	}
	return order, nil
}

// remove removes a batch in one transaction, and then its files. Whoever asks whether content is
// present waits meanwhile, so that no answer is out of date when it is given.
func (c *collection) remove(ctx context.Context, batch []int64) error {
	var files []string
	var done Collected
	c.store.sweep.Lock()
	err := c.store.write(ctx, 0, func(w *writer) error {
		for _, id := range batch {
			file, err := w.collect(id, c, &done)
			if err != nil {
				return err
			}
			if file != "" {
				files = append(files, file)
			}
		}
		return nil
	})
	c.store.sweep.Unlock()
	if err != nil {
		return err
	}
	for _, file := range files {
		c.store.removeFile(file)
	}
	c.done.Manifests += done.Manifests
	c.done.Blobs += done.Blobs
	c.done.Bytes += done.Bytes
	return nil
}

// collect removes one content unless something has come to need it since it was marked.
func (w *writer) collect(id int64, c *collection, done *Collected) (file string, err error) {
	const needed = "SELECT c.digest, c.size, c.created, EXISTS (SELECT 1 FROM manifests m WHERE m.content = c.id)," +
		" EXISTS (SELECT 1 FROM tags t WHERE t.content = c.id)" +
		" OR EXISTS (SELECT 1 FROM edges e WHERE e.child = c.digest AND e.kind <> 2)" +
		" OR EXISTS (SELECT 1 FROM manifests m JOIN contents s ON s.digest = m.subject WHERE m.content = c.id)" +
		" FROM contents c WHERE c.id = ?"
	var d string
	var size, created int64
	var isManifest, isNeeded bool
	err = w.row(needed, []any{id}, []any{&d, &size, &created, &isManifest, &isNeeded})
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil // deleted since
	}
	if err != nil {
		return "", err
	}
	fresh := created >= c.since && created <= c.store.opened
	if isNeeded || fresh || c.roots[digest.Digest(d)] || c.store.leases.held(digest.Digest(d), c.since) {
		return "", nil
	}
	file, err = w.removeContent(digest.Digest(d))
	if errors.Is(err, errdef.ErrNotFound) || err != nil {
		return "", err
	}
	done.add(size, isManifest)
	return file, nil
}

// removeOrphans removes the files that no row names: what a crash left between a rename and its
// commit, or between a commit and the removal of a file.
func (c *collection) removeOrphans(ctx context.Context) error {
	orphans, err := c.store.orphans(ctx)
	for _, name := range orphans {
		if err := c.store.opts.disk.remove(filepath.Join(c.store.blobsPath(), name)); err == nil {
			c.done.Orphans++
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// orphans lists the files below blobs/ that belong to no content. A file is listed before it is
// asked whether its push is under way, and that before its row is looked for, so a file that is
// about to belong is never among them.
func (s *Store) orphans(ctx context.Context) ([]string, error) {
	dir, err := os.Open(s.blobsPath())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var orphans []string
	for _, name := range names {
		if s.leases.isPlacing(name) {
			continue
		}
		var has bool
		if err := s.row(ctx, "SELECT EXISTS (SELECT 1 FROM contents WHERE digest = ?1 AND file = ?2)", []any{digestOfFile(name), name}, []any{&has}); err != nil {
			return orphans, err
		}
		if !has {
			orphans = append(orphans, name)
		}
	}
	return orphans, nil
}
