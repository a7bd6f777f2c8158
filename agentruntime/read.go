package agentruntime

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/otters-sh/otters/loop"
)

// storedTurn is a turn with its messages.
type storedTurn struct {
	id       int64
	prompt   int64 // the first turn of the same prompt
	active   bool  // the answer that the session goes on with
	reason   loop.Reason
	started  int64
	messages []loop.Message
	answered int64 // when its last message was stored
}

const turnColumns = `SELECT t.id, t.prompt, t.active, t.reason, t.started_at, m.body, m.created_at`

// turns are all turns of the newest limit prompts of a session, oldest first, with the parts that keep
// takes, or all where it is nil.
func (s *store) turns(ctx context.Context, session string, limit int, keep func(loop.Part) bool) ([]storedTurn, error) {
	// The limit stands in the text: SQLite parses a statement again for each value given apart.
	rows, err := s.query(ctx, turnColumns+`
		FROM (SELECT DISTINCT prompt FROM turns WHERE session = ? ORDER BY prompt DESC LIMIT `+strconv.Itoa(limit)+`) p
		JOIN turns t ON t.session = ? AND t.prompt = p.prompt JOIN messages m ON m.turn = t.id ORDER BY t.prompt, t.id, m.seq`, session, session)
	return scanTurns(rows, err, keep)
}

// activeTurns are the newest limit turns that the session goes on with, of prompts between two, oldest
// first.
func (s *store) activeTurns(ctx context.Context, session string, after, before int64, limit int) ([]storedTurn, error) {
	rows, err := s.query(ctx, turnColumns+`
		FROM (SELECT * FROM turns WHERE session = ? AND active AND prompt > ? AND prompt < ? ORDER BY prompt DESC LIMIT `+strconv.Itoa(limit)+`) t
		JOIN messages m ON m.turn = t.id ORDER BY t.prompt, m.seq`, session, after, before)
	return scanTurns(rows, err, nil)
}

// shown tells whether a part is one that lists of messages show. Files and images may be far longer
// than all else.
func shown(p loop.Part) bool {
	return p.Kind == loop.KindText || p.Kind == loop.KindCall || p.Kind == loop.KindResult
}

func scanTurns(rows *sql.Rows, err error, keep func(loop.Part) bool) ([]storedTurn, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var turns []storedTurn
	for rows.Next() {
		var t storedTurn
		var body string
		if err := rows.Scan(&t.id, &t.prompt, &t.active, &t.reason, &t.started, &body, &t.answered); err != nil {
			return nil, err
		}
		var m loop.Message
		if err := json.Unmarshal([]byte(body), &m); err != nil {
			return nil, fmt.Errorf("message of turn %d: %w", t.id, err)
		}
		if keep != nil {
			m.Parts = slices.DeleteFunc(m.Parts, func(p loop.Part) bool { return !keep(p) })
		}
		if n := len(turns); n == 0 || turns[n-1].id != t.id {
			turns = append(turns, t)
		}
		last := &turns[len(turns)-1]
		last.messages, last.answered = append(last.messages, m), t.answered
	}
	return turns, rows.Err()
}

// summary stands for a session's prompts up to one.
type summary struct {
	upto int64
	text string
}

// summary is the newest of a session below a prompt; the zero summary where there is none.
func (s *store) summary(ctx context.Context, session string, before int64) (sum summary, err error) {
	rows, err := s.query(ctx, `SELECT upto, text FROM summaries WHERE session = ? AND upto < ? ORDER BY upto DESC LIMIT 1`, session, before)
	if err != nil {
		return sum, err
	}
	defer rows.Close()
	if rows.Next() {
		err = rows.Scan(&sum.upto, &sum.text)
	}
	return sum, err
}

func (s *store) saveSummary(ctx context.Context, session string, sum summary, now int64) error {
	_, err := s.apply(ctx, step{
		`INSERT INTO summaries (session, upto, text, created_at) VALUES (?, ?, ?, ?) ON CONFLICT (session, upto) DO UPDATE SET text = excluded.text`,
		[]any{session, sum.upto, sum.text, now},
	})
	return err
}

// lastPrompt is the newest prompt of a session and what it said; 0 where there is none.
func (s *store) lastPrompt(ctx context.Context, session string) (int64, loop.Message, error) {
	turns, err := s.turns(ctx, session, 1, nil)
	if err != nil || len(turns) == 0 {
		return 0, loop.Message{}, err
	}
	return turns[0].prompt, turns[0].messages[0], nil
}
