package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
)

// A group ends at groupOps calls or groupBytes of content, so that one slow sync never holds an
// unbounded transaction.
const (
	groupOps   = 256
	groupBytes = 8 << 20
)

// errCommit says that a transaction was written but not confirmed.
var errCommit = errors.New("commit")

// committer owns the only connection that writes. Calls that arrive while a group is being synced
// wait together and become the next group.
type committer struct {
	db   *sql.DB
	tx   *writer
	done chan struct{}

	mu      sync.Mutex
	arrived *sync.Cond
	waiting []*commit
	closed  bool
}

type commit struct {
	size   int
	op     func(*writer) error
	err    error
	result chan error
}

// writer is the writing connection inside a transaction; only the committer's goroutine uses it.
type writer struct {
	disk  disk
	conn  *sql.Conn
	stmts map[string]*sql.Stmt // by text; all of them constants
}

// startCommitter migrates db and starts the goroutine that owns it until close.
func startCommitter(db *sql.DB, d disk) (*committer, error) {
	ctx := context.Background()
	if err := migrate(ctx, db); err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	c := &committer{
		db:   db,
		tx:   &writer{disk: d, conn: conn, stmts: make(map[string]*sql.Stmt)},
		done: make(chan struct{}),
	}
	c.arrived = sync.NewCond(&c.mu)
	go c.run()
	return c, nil
}

// do runs op in a group transaction and returns when that is durable. size is roughly the number of
// bytes op writes.
func (c *committer) do(size int, op func(*writer) error) error {
	w := &commit{size: size, op: op, result: make(chan error, 1)}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.waiting = append(c.waiting, w)
	c.arrived.Signal()
	c.mu.Unlock()
	return <-w.result
}

// close lets the calls already waiting finish.
func (c *committer) close() error {
	c.mu.Lock()
	c.closed = true
	c.arrived.Signal()
	c.mu.Unlock()
	<-c.done
	return errors.Join(c.tx.close(), c.db.Close())
}

func (c *committer) run() {
	defer close(c.done)
	for {
		group := c.next()
		if group == nil {
			return
		}
		err := c.tx.commit(group)
		for _, w := range group {
			if err != nil {
				w.err = err
			}
			w.result <- w.err
		}
	}
}

// next waits for calls and takes up to one group; nil means closed and empty.
func (c *committer) next() []*commit {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) == 0 {
		if c.closed {
			return nil
		}
		c.arrived.Wait()
	}
	n, size := 0, 0
	for n < len(c.waiting) && n < groupOps && (n == 0 || size+c.waiting[n].size <= groupBytes) {
		size += c.waiting[n].size
		n++
	}
	group := c.waiting[:n:n]
	c.waiting = c.waiting[n:]
	return group
}

// commit returns an error only when nothing of the group is stored; an op's own error stays with it.
func (w *writer) commit(group []*commit) error {
	if err := w.exec("BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	for _, g := range group {
		if err := w.run(g); err != nil {
			w.rollback()
			return err
		}
	}
	if err := w.disk.commit(func() error { return w.exec("COMMIT") }); err != nil {
		w.rollback()
		return fmt.Errorf("%w: %w", errCommit, err)
	}
	return nil
}

// rollback may find that the database has already undone the transaction, as it does on a full disk.
func (w *writer) rollback() { _ = w.exec("ROLLBACK") }

// run undoes a failed op alone. The error it returns ends the whole group.
func (w *writer) run(g *commit) error {
	if err := w.exec("SAVEPOINT op"); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	if g.err = g.op(w); g.err != nil {
		if err := w.exec("ROLLBACK TO op"); err != nil {
			return fmt.Errorf("undo: %w", errors.Join(g.err, err))
		}
	}
	if err := w.exec("RELEASE op"); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

func (w *writer) stmt(query string) (*sql.Stmt, error) {
	if s := w.stmts[query]; s != nil {
		return s, nil
	}
	s, err := w.conn.PrepareContext(context.Background(), query)
	if err == nil {
		w.stmts[query] = s
	}
	return s, err
}

func (w *writer) exec(query string, args ...any) error {
	_, err := w.changed(query, args...)
	return err
}

// changed runs query and tells how many rows it changed.
func (w *writer) changed(query string, args ...any) (int64, error) {
	s, err := w.stmt(query)
	if err != nil {
		return 0, err
	}
	res, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// row scans the one row of query into dest; none gives sql.ErrNoRows.
func (w *writer) row(query string, args, dest []any) error {
	s, err := w.stmt(query)
	if err != nil {
		return err
	}
	return s.QueryRowContext(context.Background(), args...).Scan(dest...)
}

func (w *writer) close() error {
	var errs []error
	for _, s := range w.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}
