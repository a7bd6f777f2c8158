package daemon

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"

	_ "modernc.org/sqlite" // registers the driver "sqlite"
)

// ErrNewerSchema is wrapped when the database was written by a newer daemon.
var ErrNewerSchema = errors.New("database of a newer version")

// migrations[i] brings a database from schema i to i+1, each in one transaction. They are only ever
// added to.
var migrations = []string{
	`CREATE TABLE agents (
		id         TEXT PRIMARY KEY,
		name       TEXT NOT NULL UNIQUE,
		image      TEXT NOT NULL,
		digest     TEXT NOT NULL,
		model      TEXT NOT NULL,
		created_ms INTEGER NOT NULL,
		started_ms INTEGER NOT NULL DEFAULT 0,
		wanted     TEXT NOT NULL CHECK (wanted IN ('running', 'stopped')),
		status     TEXT NOT NULL,
		reason     TEXT NOT NULL DEFAULT '',
		message    TEXT NOT NULL DEFAULT '',
		token_hash BLOB NOT NULL DEFAULT x''
	) STRICT;
	CREATE TABLE programs (
		name  TEXT PRIMARY KEY,
		stamp TEXT NOT NULL
	) STRICT;`,
	`ALTER TABLE agents ADD COLUMN restart TEXT NOT NULL DEFAULT 'no';
	ALTER TABLE agents ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE agents ADD COLUMN next_ms INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE agents ADD COLUMN last_failure TEXT NOT NULL DEFAULT '';`,
}

// maxBatch bounds how many writes share a commit.
const maxBatch = 256

// write is one statement and where its outcome goes.
type write struct {
	query string
	args  []any
	rows  int64
	done  chan error
}

// database is otters.db. Every write goes through one goroutine, which puts those that wait into
// one commit; a write is on disk when exec returns.
type database struct {
	db     *sql.DB
	writes chan *write
	closed chan struct{}
	// stopped is closed when the writing goroutine has returned.
	stopped chan struct{}
	once    sync.Once
}

// openDatabase opens or makes the database and brings its schema up to date. A database with a
// schema that this version does not know is refused and left as it is.
func openDatabase(ctx context.Context, path string) (*database, error) {
	// SQLite gives its -wal and -shm files the mode of the database.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	dsn := (&url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"}).String()
	conn, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	conn.SetMaxOpenConns(1)
	if err := migrate(ctx, conn); err != nil {
		return nil, errors.Join(fmt.Errorf("database %s: %w", path, err), conn.Close())
	}
	d := &database{db: conn, writes: make(chan *write, maxBatch), closed: make(chan struct{}), stopped: make(chan struct{})}
	go d.run()
	return d, nil
}

func schemaVersion(ctx context.Context, conn *sql.DB) (int, error) {
	var v int
	err := conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v)
	return v, err
}

func migrate(ctx context.Context, conn *sql.DB) error {
	have, err := schemaVersion(ctx, conn)
	if err != nil {
		return err
	}
	if have > len(migrations) {
		return fmt.Errorf("%w: schema %d, and this ottersd knows schema %d; use the newer ottersd or another OTTERS_HOME", ErrNewerSchema, have, len(migrations))
	}
	for v := have; v < len(migrations); v++ {
		tx, err := conn.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, migrations[v]+fmt.Sprintf("\nPRAGMA user_version = %d;", v+1))
		if err != nil {
			return errors.Join(fmt.Errorf("migrate to schema %d: %w", v+1, err), tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("migrate to schema %d: %w", v+1, err)
		}
	}
	return nil
}

// exec runs one statement and returns once it is on disk, with the number of rows it changed. The
// statement may still happen when ctx ends before that.
func (d *database) exec(ctx context.Context, query string, args ...any) (int64, error) {
	w := &write{query: query, args: args, done: make(chan error, 1)}
	select {
	case d.writes <- w:
	case <-d.closed:
		return 0, errClosed
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case err := <-w.done:
		return w.rows, err
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-d.stopped:
	}
	select {
	case err := <-w.done:
		return w.rows, err
	default:
		return 0, errClosed
	}
}

var errClosed = errors.New("the daemon is shutting down")

func (d *database) run() {
	defer close(d.stopped)
	for {
		select {
		case w := <-d.writes:
			d.commit(d.gather(w))
		case <-d.closed:
			for {
				select {
				case w := <-d.writes:
					d.commit(d.gather(w))
				default:
					return
				}
			}
		}
	}
}

// gather takes what waits already; it never waits itself.
func (d *database) gather(first *write) []*write {
	batch := []*write{first}
	for len(batch) < maxBatch {
		select {
		case w := <-d.writes:
			batch = append(batch, w)
		default:
			return batch
		}
	}
	return batch
}

// commit runs the batch in one transaction. A statement that fails undoes itself alone.
func (d *database) commit(batch []*write) {
	errs := make([]error, len(batch))
	err := func() error {
		tx, err := d.db.Begin()
		if err != nil {
			return err
		}
		for i, w := range batch {
			var res sql.Result
			if res, errs[i] = tx.Exec(w.query, w.args...); errs[i] == nil {
				w.rows, _ = res.RowsAffected()
			}
		}
		return tx.Commit()
	}()
	for i, w := range batch {
		if err != nil {
			errs[i] = err
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("database: %w", errs[i])
		}
		w.done <- errs[i]
	}
}

// close writes what waits and closes the file.
func (d *database) close() error {
	var err error
	d.once.Do(func() {
		close(d.closed)
		<-d.stopped
		err = d.db.Close()
	})
	return err
}
