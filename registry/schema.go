package registry

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"

	_ "modernc.org/sqlite" // the database driver "sqlite"
)

// readers bounds the connections that read; each costs up to 1 MiB of page cache.
const readers = 4

// migrations bring the schema from version i to i+1. A step that was released is never edited.
var migrations = []string{schema1}

// In schema1:
//   - contents are bytes by digest: either data or the name of a file below blobs/ is set. The file's
//     name is the row's own, so a push that repeats a digest never meets the file of a row that goes.
//   - manifests are the contents pushed as manifests, with what the listings need.
//   - edges lead from a manifest to what it refers to, present or not; kind is one of the edge
//     constants.
//   - members say which contents a repository may show, as a blob (manifest = 0) or as a
//     manifest (1) of a media type. The same bytes may be both.
const schema1 = `
CREATE TABLE contents (
	id      INTEGER PRIMARY KEY,
	digest  TEXT NOT NULL UNIQUE,
	size    INTEGER NOT NULL,
	created INTEGER NOT NULL,
	data    BLOB,
	file    TEXT,
	CHECK ((data IS NULL) <> (file IS NULL))
);
CREATE TABLE manifests (
	content       INTEGER PRIMARY KEY REFERENCES contents(id),
	media_type    TEXT NOT NULL,
	artifact_type TEXT NOT NULL,
	annotations   TEXT NOT NULL,
	subject       TEXT
);
CREATE INDEX manifests_subject ON manifests(subject) WHERE subject IS NOT NULL;
CREATE TABLE edges (
	parent INTEGER NOT NULL REFERENCES manifests(content),
	child  TEXT NOT NULL,
	kind   INTEGER NOT NULL,
	PRIMARY KEY (parent, child, kind)
) WITHOUT ROWID;
CREATE INDEX edges_child ON edges(child);
CREATE TABLE repositories (
	id   INTEGER PRIMARY KEY,
	name TEXT NOT NULL UNIQUE
);
CREATE TABLE members (
	repository INTEGER NOT NULL REFERENCES repositories(id),
	content    INTEGER NOT NULL REFERENCES contents(id),
	manifest   INTEGER NOT NULL,
	media_type TEXT,
	PRIMARY KEY (repository, content, manifest)
) WITHOUT ROWID;
CREATE INDEX members_content ON members(content);
CREATE TABLE tags (
	repository INTEGER NOT NULL REFERENCES repositories(id),
	name       TEXT NOT NULL,
	content    INTEGER NOT NULL REFERENCES contents(id),
	created    INTEGER NOT NULL,
	PRIMARY KEY (repository, name)
) WITHOUT ROWID;
CREATE INDEX tags_order ON tags(repository, name COLLATE NOCASE, name);
CREATE INDEX tags_content ON tags(content);
`

// openDatabase opens the file with one connection; extra is a further query parameter. A commit
// returns after its sync. The journal of a group's savepoints is in memory: it is bounded by
// groupBytes.
func openDatabase(path, extra string) (*sql.DB, error) {
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)" +
		"&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=cache_size(-1024)" +
		"&_pragma=temp_store(2)&_pragma=journal_size_limit(67108864)&" + extra}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

// migrate brings the database to the newest version, one transaction per step.
func migrate(ctx context.Context, db *sql.DB) error {
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if version > len(migrations) {
		return fmt.Errorf("database: %w %d, newest known is %d: use the newer program", ErrSchema, version, len(migrations))
	}
	for ; version < len(migrations); version++ {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return fmt.Errorf("database: %w", err)
		}
		_, err = tx.ExecContext(ctx, migrations[version]+fmt.Sprintf(";PRAGMA user_version = %d", version+1))
		if err == nil {
			err = tx.Commit()
		} else {
			_ = tx.Rollback()
		}
		if err != nil {
			return fmt.Errorf("database: migrate to version %d: %w", version+1, err)
		}
	}
	return nil
}
