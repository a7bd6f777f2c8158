package agentruntime

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/otters-sh/otters/loop"
)

// maxPrepared bounds the queries that are kept; their texts differ by limits that callers choose.
const maxPrepared = 64

// full tells whether there was no room for a write.
func full(err error) bool {
	var db *sqlite.Error
	if !errors.As(err, &db) {
		return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
	}
	switch db.Code() {
	// A write beyond a limit on file size is an I/O error to SQLite.
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE:
		return true
	}
	return false
}

// stmt is the statement of a text, prepared once: to parse it again would cost more than to run it.
func (s *store) stmt(text string) (*sql.Stmt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.prepared[text]; st != nil {
		return st, nil
	}
	st, err := s.db.Prepare(text)
	if err != nil {
		return nil, err
	}
	if s.prepared == nil {
		s.prepared = make(map[string]*sql.Stmt)
	}
	s.prepared[text] = st
	return st, nil
}

// crowded tells that a query of this text is not to be kept.
func (s *store) crowded(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.prepared) >= maxPrepared && s.prepared[text] == nil
}

// query runs a statement whose answer is short. The context is looked at once: to watch it costs a
// goroutine each time.
func (s *store) query(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.crowded(text) {
		return s.db.QueryContext(context.WithoutCancel(ctx), text, args...)
	}
	st, err := s.stmt(text)
	if err != nil {
		return nil, err
	}
	return st.QueryContext(context.WithoutCancel(ctx), args...)
}

// step is a statement of a transaction.
type step struct {
	text string
	args []any
}

// apply runs steps in one transaction and returns the last row number that they gave, which tables
// without row numbers leave as it is.
func (s *store) apply(ctx context.Context, steps ...step) (last int64, err error) {
	// All are prepared before the connection is taken, since there is but one.
	stmts := make([]*sql.Stmt, len(steps))
	for i, step := range steps {
		if stmts[i], err = s.stmt(step.text); err != nil {
			return 0, err
		}
	}
	ctx = context.WithoutCancel(ctx)
	err = s.write(ctx, func(tx *sql.Tx) error {
		for i, step := range steps {
			res, err := tx.StmtContext(ctx, stmts[i]).ExecContext(ctx, step.args...)
			if err != nil {
				return err
			}
			if last, err = res.LastInsertId(); err != nil {
				return err
			}
		}
		return nil
	})
	return last, err
}

// write runs f in a transaction.
func (s *store) write(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

const (
	touchSession = `INSERT INTO sessions (id, last_active) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET last_active = excluded.last_active`
	insertTurn   = `INSERT INTO turns (id, prompt, session, run, started_at) SELECT n, n, ?, ?, ? FROM (SELECT coalesce(max(id), 0) + 1 AS n FROM turns)`
	// insertBranch is a turn that is not active before it has an answer.
	insertBranch = `INSERT INTO turns (session, run, started_at, prompt, active) VALUES (?, ?, ?, ?, 0)`
	activate     = `UPDATE turns SET active = (id = ?) WHERE session = ? AND prompt = ?`
	// insertFirst is for the turn that the statement before it inserted; messages have no row number.
	insertFirst   = `INSERT INTO messages (turn, seq, role, body, created_at) VALUES (last_insert_rowid(), ?, ?, ?, ?)`
	insertMessage = `INSERT INTO messages (turn, seq, role, body, created_at) VALUES (?, ?, ?, ?, ?)`
	finishTurn    = `UPDATE turns SET reason = ?, finished_at = ?, input_tokens = ?, output_tokens = ? WHERE id = ?`
)

// turn is one that is being recorded. It is a loop.Recorder, and hears the turn's events; the turn is
// made with its first message.
// An answer without calls is the turn's last message, and is stored together with the turn's end.
type turn struct {
	store   *store
	session string
	run     string
	prompt  int64 // the prompt that is answered again; 0 for a new one
	id      int64
	seq     int
	answers bool // something was answered
	pending *step
	draft   draft
	failed  bool // the message at hand could not be stored
}

var _ loop.Recorder = (*turn)(nil)

// Record is loop.Recorder's.
func (t *turn) Record(ctx context.Context, m loop.Message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	now := time.Now().Unix()
	t.seq++
	t.answers = t.answers || m.Role == loop.RoleAssistant
	if t.id == 0 {
		begin := step{insertTurn, []any{t.session, t.run, now}}
		if t.prompt != 0 {
			begin = step{insertBranch, []any{t.session, t.run, now, t.prompt}}
		}
		t.id, err = t.store.apply(ctx,
			step{touchSession, []any{t.session, now}}, begin,
			step{insertFirst, []any{t.seq, string(m.Role), string(body), now}})
	} else {
		message := step{insertMessage, []any{t.id, t.seq, string(m.Role), string(body), now}}
		if m.Role == loop.RoleAssistant && !hasCalls(m) {
			t.pending = &message
			return nil
		}
		_, err = t.store.apply(ctx, append(t.left(), message)...)
	}
	if err != nil {
		t.failed = true
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	t.pending, t.draft = nil, draft{}
	return nil
}

func hasCalls(m loop.Message) bool {
	for _, p := range m.Parts {
		if p.Kind == loop.KindCall {
			return true
		}
	}
	return false
}

// left are the steps that are left, and go before.
func (t *turn) left() (steps []step) {
	if t.draft.stored > 0 {
		steps = append(steps, step{dropPieces, []any{t.id}})
	}
	if t.pending != nil {
		steps = append(steps, *t.pending)
	}
	return steps
}

// finish stores what is left, why the turn ended and what it used.
func (t *turn) finish(ctx context.Context, out loop.Outcome) error {
	if t.id == 0 {
		return nil
	}
	if t.failed && t.draft.stored > 0 {
		// What was heard of the message stands for it.
		err := t.store.write(ctx, func(tx *sql.Tx) error {
			_, err := restoreMessage(tx, t.id, int64(t.seq))
			return err
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errRecord, err)
		}
		t.draft = draft{}
	}
	now := time.Now().Unix()
	steps := append(t.left(),
		step{touchSession, []any{t.session, now}},
		step{finishTurn, []any{string(out.Reason), now, out.Usage.InputTokens, out.Usage.OutputTokens, t.id}})
	if t.prompt != 0 && t.answers {
		steps = append(steps, step{activate, []any{t.id, t.session, t.prompt}})
	}
	if _, err := t.store.apply(ctx, steps...); err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	return nil
}
