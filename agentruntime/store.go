package agentruntime

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/workspace"
)

// databaseName is the file of all sessions, below var/lib.
const databaseName = "sessions.db"

// migrations lead from one schema version to the next; the version is how many have run. What has
// been released is never changed.
var migrations = []string{`
CREATE TABLE sessions (
	id          TEXT PRIMARY KEY,
	last_active INTEGER NOT NULL
) STRICT;
CREATE TABLE turns (
	id            INTEGER PRIMARY KEY,
	session       TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
	run           TEXT NOT NULL,
	reason        TEXT NOT NULL DEFAULT '', -- empty while it runs
	started_at    INTEGER NOT NULL,
	finished_at   INTEGER NOT NULL DEFAULT 0,
	input_tokens  INTEGER NOT NULL DEFAULT 0,
	output_tokens INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX turns_session ON turns (session, id);
CREATE INDEX turns_running ON turns (id) WHERE reason = '';
CREATE TABLE messages (
	turn       INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
	seq        INTEGER NOT NULL,
	role       TEXT NOT NULL,
	body       TEXT NOT NULL, -- a loop.Message as JSON
	created_at INTEGER NOT NULL,
	PRIMARY KEY (turn, seq)
) STRICT, WITHOUT ROWID;
`, `
-- The turn whose prompt this one answers, itself where it is the first; of each prompt one turn is active.
ALTER TABLE turns ADD COLUMN prompt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN active INTEGER NOT NULL DEFAULT 1;
UPDATE turns SET prompt = id;
CREATE INDEX turns_active ON turns (session, prompt) WHERE active;
-- What stands for the prompts up to one, where a model is asked again; the messages stay. An empty text
-- leaves them out.
CREATE TABLE summaries (
	session    TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
	upto       INTEGER NOT NULL,
	text       TEXT NOT NULL,
	created_at INTEGER NOT NULL,
	PRIMARY KEY (session, upto)
) STRICT;
CREATE TABLE notes (
	key        TEXT PRIMARY KEY,
	content    TEXT NOT NULL,
	in_context INTEGER NOT NULL DEFAULT 0,
	created_at INTEGER NOT NULL,
	updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
`, `
-- What there is of a message while it comes; the message takes its place.
CREATE TABLE pieces (
	turn       INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
	seq        INTEGER NOT NULL, -- the message's
	piece      INTEGER NOT NULL,
	parts      TEXT NOT NULL,    -- loop.Parts as JSON; a text goes on in the next piece
	created_at INTEGER NOT NULL,
	PRIMARY KEY (turn, seq, piece)
) STRICT, WITHOUT ROWID;
`}

// errNewerSchema is returned where a newer runtime has been at work.
var errNewerSchema = errors.New("it was written by a newer version of the runtime; use that one")

// store keeps sessions. Every message is written once when it is complete, and once in pieces until then.
type store struct {
	db   *sql.DB
	lock *os.File // the folder, locked while a runtime serves it
	// damage tells what could not be read at the start.
	damage []string

	mu       sync.Mutex
	prepared map[string]*sql.Stmt // by their text; the one connection keeps them
}

// opening is a store that is being opened while the rest starts.
type opening struct {
	fresh bool // there was none yet
	done  chan struct{}
	store *store
	err   error // of store; both are set when done is closed
}

func startStore(ctx context.Context, root string) *opening {
	o := &opening{done: make(chan struct{})}
	_, err := os.Stat(filepath.Join(root, filepath.FromSlash(workspace.VarLibDir), databaseName))
	o.fresh = errors.Is(err, fs.ErrNotExist)
	go func() {
		defer close(o.done)
		if o.store, o.err = openStore(ctx, root); o.err != nil {
			o.err = fmt.Errorf("sessions: %w", o.err)
		}
	}()
	return o
}

// ready waits until it is known that sessions can be kept. A store that is being made is not waited
// for: that is file creation alone, most of a new agent's start, and who prompts meanwhile waits.
func (o *opening) ready(ctx context.Context) error {
	select {
	case <-o.done:
		return o.err
	default:
	}
	if o.fresh {
		return nil
	}
	_, err := o.wait(ctx)
	return err
}

// wait returns the store once it is open.
func (o *opening) wait(ctx context.Context) (*store, error) {
	select {
	case <-o.done:
		return o.store, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// tell writes what could not be read of a store that is open.
func (o *opening) tell(log io.Writer) {
	for _, d := range o.store.damage {
		fmt.Fprintln(log, "warning: "+d)
	}
}

// close waits for the store and closes it.
func (o *opening) close() error {
	<-o.done
	if o.store == nil {
		return nil
	}
	return o.store.close()
}

// openStore opens or makes the sessions below the tree's root. Turns that a killed runtime left
// running are marked interrupted, with what was said until then.
func openStore(ctx context.Context, root string) (*store, error) {
	dir := filepath.Join(root, filepath.FromSlash(workspace.VarLibDir))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}
	s := &store{lock: lock}
	path := filepath.Join(dir, databaseName)
	if err := s.open(ctx, path); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), s.close())
	}
	return s, nil
}

// errInUse is returned where another runtime serves the tree: it would take this one's turns for
// interrupted ones.
var errInUse = errors.New("another runtime serves this tree; stop it first")

func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errInUse
		}
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return f, nil
}

func (s *store) open(ctx context.Context, path string) error {
	// Sessions are private; SQLite gives its side files the mode of the database.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if s.db, err = sql.Open("sqlite", dsn(path)); err != nil {
		return err
	}
	s.db.SetMaxOpenConns(1) // one writer, and reads are short
	return s.prepare(ctx)
}

func (s *store) close() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	// Closing alone would leave the lock to a tool that is just being started and has a copy.
	return errors.Join(err, unix.Flock(int(s.lock.Fd()), unix.LOCK_UN), s.lock.Close())
}

// dsn escapes what a file: URI gives a meaning. NORMAL loses nothing when the process is killed.
func dsn(path string) string {
	escaped := make([]byte, 0, len(path)+8)
	for _, c := range []byte(path) {
		switch c {
		case '%', '?', '#':
			escaped = fmt.Appendf(escaped, "%%%02X", c)
		default:
			escaped = append(escaped, c)
		}
	}
	return "file:" + string(escaped) + "?_pragma=busy_timeout(5000)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)"
}

// prepare writes nothing where there is nothing to do, since the first write of a process costs a
// sync.
func (s *store) prepare(ctx context.Context) error {
	var version int
	if err := s.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	switch {
	case version > len(migrations):
		return fmt.Errorf("schema version %d, known is %d: %w", version, len(migrations), errNewerSchema)
	case version < len(migrations):
		return s.migrate(ctx, version)
	}
	var left bool
	if err := s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM turns WHERE reason = '') OR EXISTS (SELECT 1 FROM pieces)").Scan(&left); err != nil || !left {
		return err
	}
	return s.write(ctx, s.interrupt)
}

// interrupt marks the turns that nobody runs any more. As with one that is cancelled, an answer that has
// begun is the active one of its prompt, unless a newer one is: the end of a turn may also have found no
// room, and the runtime gone on.
func (s *store) interrupt(tx *sql.Tx) error {
	damage, err := restore(tx)
	if err != nil {
		return err
	}
	s.damage = damage
	const begun = `SELECT max(id) FROM turns t WHERE reason = '' AND EXISTS
		(SELECT 1 FROM messages m WHERE m.turn = t.id AND m.role = 'assistant') AND NOT EXISTS
		(SELECT 1 FROM turns n WHERE n.session = t.session AND n.prompt = t.prompt AND n.active AND n.id > t.id) GROUP BY prompt`
	_, err = tx.Exec(`UPDATE turns SET active = id IN (` + begun + `) WHERE prompt IN (SELECT prompt FROM turns WHERE id IN (` + begun + `))`)
	if err != nil {
		return err
	}
	_, err = tx.Exec("UPDATE turns SET reason = ?, finished_at = ? WHERE reason = ''", loop.Interrupted, time.Now().Unix())
	return err
}

func (s *store) migrate(ctx context.Context, version int) error {
	if version == 0 {
		// An empty database has nothing to lose, and syncs and a journal would be most of the time
		// that a new agent takes to start.
		if _, err := s.db.ExecContext(ctx, "PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; PRAGMA journal_mode = WAL"); err != nil {
			return err
		}
	}
	err := s.write(ctx, func(tx *sql.Tx) error {
		for ; version < len(migrations); version++ {
			if _, err := tx.ExecContext(ctx, migrations[version]+"PRAGMA user_version = "+strconv.Itoa(version+1)); err != nil {
				return fmt.Errorf("migrate to version %d: %w", version+1, err)
			}
		}
		return s.interrupt(tx)
	})
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, "PRAGMA synchronous = NORMAL")
	return err
}

// sessionInfo is a session in a list.
type sessionInfo struct {
	id         string
	messages   int32
	lastActive int64
}

// maxSessions bounds a list of sessions.
const maxSessions = 10000

// sessions are the newest first. A prompt counts as a message, and what came of it as one.
func (s *store) sessions(ctx context.Context) ([]sessionInfo, error) {
	rows, err := s.db.QueryContext(ctx, `
		SELECT s.id, s.last_active, count(t.id) + coalesce(sum(t.reason NOT IN ('', 'done') OR EXISTS
			(SELECT 1 FROM messages m WHERE m.turn = t.id AND m.role = 'assistant')), 0)
		FROM sessions s LEFT JOIN turns t ON t.session = s.id AND t.active
		GROUP BY s.id ORDER BY s.last_active DESC, s.id LIMIT ?`, maxSessions)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []sessionInfo
	for rows.Next() {
		var i sessionInfo
		if err := rows.Scan(&i.id, &i.lastActive, &i.messages); err != nil {
			return nil, err
		}
		list = append(list, i)
	}
	return list, rows.Err()
}

// delete drops a session; one that does not exist is no error.
func (s *store) delete(ctx context.Context, session string) error {
	_, err := s.db.ExecContext(ctx, "DELETE FROM sessions WHERE id = ?", session)
	return err
}
