package agentruntime

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
)

// The format of an export, which docs/runtime.md describes. It is JSON lines: a header; of each session
// its line, its turns in the order they began, each with its messages, and its summaries; the notes;
// and an end, without which an export is not whole. A reader takes no other version and no other field.
const (
	exportName    = "otters.sessions"
	exportVersion = 1
	// maxExportLine bounds a line, and so a message, in bytes.
	maxExportLine = 64 << 20
)

// What a line is, in its first field.
const (
	headerLine  = "header"
	sessionLine = "session"
	turnLine    = "turn"
	messageLine = "message"
	summaryLine = "summary"
	noteLine    = "note"
	endLine     = "end"
)

type exportHeader struct {
	Type    string `json:"type"`
	Format  string `json:"format"`
	Version int    `json:"version"`
}

type exportSession struct {
	Type       string `json:"type"`
	ID         string `json:"id"`
	LastActive int64  `json:"last_active"`
}

// exportTurn has turns by their number in the session, from 1: its own, and that of the first turn that
// answered the same prompt.
type exportTurn struct {
	Type         string `json:"type"`
	Turn         int    `json:"turn"`
	Prompt       int    `json:"prompt"`
	Active       bool   `json:"active"`
	Run          string `json:"run"`
	Reason       string `json:"reason"`
	StartedAt    int64  `json:"started_at"`
	FinishedAt   int64  `json:"finished_at"`
	InputTokens  int64  `json:"input_tokens"`
	OutputTokens int64  `json:"output_tokens"`
}

// exportMessage is a message as it is stored.
type exportMessage struct {
	Type      string          `json:"type"`
	CreatedAt int64           `json:"created_at"`
	Body      json.RawMessage `json:"body"`
}

// exportSummary stands for the prompts up to the turn Upto.
type exportSummary struct {
	Type      string `json:"type"`
	Upto      int    `json:"upto"`
	CreatedAt int64  `json:"created_at"`
	Text      string `json:"text"`
}

type exportNote struct {
	Type      string `json:"type"`
	Key       string `json:"key"`
	Content   string `json:"content"`
	InContext bool   `json:"in_context"`
	CreatedAt int64  `json:"created_at"`
	UpdatedAt int64  `json:"updated_at"`
}

// Counts is how much an export holds, on its last line, and what Import has stored.
type Counts struct {
	Sessions  int `json:"sessions"`
	Turns     int `json:"turns"`
	Messages  int `json:"messages"`
	Summaries int `json:"summaries"`
	Notes     int `json:"notes"`
}

type exportEnd struct {
	Type string `json:"type"`
	Counts
}

// ExportOptions say what to export: all sessions where there are no IDs.
type ExportOptions struct {
	IDs []string
	// Notes adds the agent's notes.
	Notes bool
}

// Export writes sessions with all their branches and summaries. The same sessions give the same bytes,
// in whatever tree they are. The error wraps ErrNoSession; what was written then is not whole, and no
// Import takes it. Memory does not grow with the number of messages.
func (s *Sessions) Export(ctx context.Context, w io.Writer, opts ExportOptions) error {
	for _, id := range opts.IDs {
		if err := s.exists(ctx, id); err != nil {
			return err
		}
	}
	e := exporter{store: s.store, out: newLines(w)}
	if err := e.out.write(exportHeader{headerLine, exportName, exportVersion}); err != nil {
		return err
	}
	if err := e.sessions(ctx, opts.IDs); err != nil {
		return err
	}
	if opts.Notes {
		if err := e.notes(ctx); err != nil {
			return err
		}
	}
	if err := e.out.write(exportEnd{endLine, e.counts}); err != nil {
		return err
	}
	return e.out.flush()
}

type exporter struct {
	store  *store
	out    lines
	counts Counts
}

// sessions writes those of ids in their order, or all by id.
func (e *exporter) sessions(ctx context.Context, ids []string) error {
	seen := make(map[string]bool)
	for _, id := range ids {
		if seen[id] {
			continue
		}
		seen[id] = true
		if err := e.session(ctx, id); err != nil {
			return err
		}
	}
	if len(ids) > 0 {
		return nil
	}
	for last := ""; ; {
		err := e.store.db.QueryRowContext(ctx, "SELECT id FROM sessions WHERE id > ? ORDER BY id LIMIT 1", last).Scan(&last)
		if err == sql.ErrNoRows {
			return nil
		}
		if err != nil {
			return err
		}
		if err := e.session(ctx, last); err != nil {
			return err
		}
	}
}

func (e *exporter) session(ctx context.Context, id string) error {
	line := exportSession{Type: sessionLine, ID: id}
	if err := e.store.db.QueryRowContext(ctx, "SELECT last_active FROM sessions WHERE id = ?", id).Scan(&line.LastActive); err != nil {
		return err
	}
	if err := e.out.write(line); err != nil {
		return err
	}
	numbers, err := e.turns(ctx, id)
	if err == nil {
		err = e.summaries(ctx, id, numbers)
	}
	if err != nil {
		return fmt.Errorf("session %s: %w", id, err)
	}
	e.counts.Sessions++
	return nil
}

// turns writes the turns with their messages, and returns their numbers.
func (e *exporter) turns(ctx context.Context, session string) (map[int64]int, error) {
	rows, err := e.store.db.QueryContext(ctx, `
		SELECT t.id, t.prompt, t.active, t.run, t.reason, t.started_at, t.finished_at, t.input_tokens, t.output_tokens, m.created_at, m.body
		FROM turns t JOIN messages m ON m.turn = t.id WHERE t.session = ? ORDER BY t.id, m.seq`, session)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	numbers := make(map[int64]int)
	for rows.Next() {
		var id, prompt int64
		t, m := exportTurn{Type: turnLine}, exportMessage{Type: messageLine}
		if err := rows.Scan(&id, &prompt, &t.Active, &t.Run, &t.Reason, &t.StartedAt, &t.FinishedAt, &t.InputTokens, &t.OutputTokens,
			&m.CreatedAt, (*[]byte)(&m.Body)); err != nil {
			return nil, err
		}
		if _, begun := numbers[id]; !begun {
			numbers[id] = len(numbers) + 1
			if t.Turn, t.Prompt = numbers[id], numbers[prompt]; t.Prompt == 0 {
				return nil, fmt.Errorf("turn %d answers turn %d, which is not there", id, prompt)
			}
			if err := e.out.write(t); err != nil {
				return nil, err
			}
			e.counts.Turns++
		}
		// What an import does not take is not exported.
		if _, err := readBody(m.Body); err != nil {
			return nil, fmt.Errorf("turn %d: %w", id, err)
		}
		if len(m.Body) > maxExportLine-1024 {
			return nil, fmt.Errorf("turn %d: a message of %d bytes is longer than an export's line may be, %d", id, len(m.Body), maxExportLine)
		}
		if err := e.out.write(m); err != nil {
			return nil, err
		}
		e.counts.Messages++
	}
	return numbers, rows.Err()
}

func (e *exporter) summaries(ctx context.Context, session string, numbers map[int64]int) error {
	rows, err := e.store.db.QueryContext(ctx, "SELECT upto, created_at, text FROM summaries WHERE session = ? ORDER BY upto", session)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var upto int64
		line := exportSummary{Type: summaryLine}
		if err := rows.Scan(&upto, &line.CreatedAt, &line.Text); err != nil {
			return err
		}
		if line.Upto = numbers[upto]; line.Upto == 0 {
			return fmt.Errorf("a summary covers turn %d, which is not there", upto)
		}
		if err := e.out.write(line); err != nil {
			return err
		}
		e.counts.Summaries++
	}
	return rows.Err()
}

func (e *exporter) notes(ctx context.Context) error {
	list, err := e.store.notes(ctx, false)
	if err != nil {
		return err
	}
	for _, n := range list {
		if err := e.out.write(exportNote{noteLine, n.key, n.content, n.pinned, n.created, n.updated}); err != nil {
			return err
		}
		e.counts.Notes++
	}
	return nil
}
