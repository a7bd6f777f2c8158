package agentruntime

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/otters-sh/otters/loop"
)

// While a message comes, what is there of it is stored in pieces; with the whole message they go. A
// runtime that is killed thus loses the sentence at hand, and the next one makes a message of the rest.
const (
	// maxPiece is how much is said, in bytes, until it is stored without the end of a sentence.
	maxPiece = 1024
	// A message has at most freePieces pieces and one more for every bytesPerPiece bytes: where sentences
	// are very short, several are stored together.
	freePieces    = 64
	bytesPerPiece = 64
)

const (
	insertPiece = `INSERT INTO pieces (turn, seq, piece, parts, created_at) VALUES (?, ?, ?, ?, unixepoch())`
	dropPieces  = `DELETE FROM pieces WHERE turn = ?`
)

// draft is what there is of the message that comes. The zero draft is an empty one.
type draft struct {
	pending []loop.Part // not stored
	size    int         // bytes of pending
	whole   bool        // pending holds the end of a sentence
	said    int         // bytes of the message
	stored  int         // pieces
	calls   int         // calls without a result
}

// hear takes an event of the turn and stores what it brings to an end.
func (t *turn) hear(ctx context.Context, e loop.Event) error {
	d := &t.draft
	switch e.Type {
	case loop.TextDelta:
		d.say(loop.KindText, e.Content)
	case loop.ReasoningDelta:
		d.say(loop.KindReasoning, e.Content)
	case loop.ToolCall:
		d.calls++
		return nil
	case loop.ToolResult:
		// The last result comes with the whole message.
		if d.calls--; d.calls > 0 {
			d.pending = append(d.pending, loop.Part{
				Kind: loop.KindResult, ID: e.ToolID, Name: e.Tool, Text: e.Content, Failed: e.Failed, DurationMS: e.Duration.Milliseconds(),
			})
			return t.storePiece(ctx)
		}
		return nil
	default:
		return nil
	}
	if d.size >= maxPiece || d.whole && d.stored < freePieces+d.said/bytesPerPiece {
		return t.storePiece(ctx)
	}
	return nil
}

func (d *draft) say(kind loop.Kind, text string) {
	if n := len(d.pending); n > 0 && d.pending[n-1].Kind == kind {
		d.pending[n-1].Text += text // no longer than a piece
	} else {
		d.pending = append(d.pending, loop.Part{Kind: kind, Text: text})
	}
	d.size, d.said, d.whole = d.size+len(text), d.said+len(text), d.whole || endsSentence(text)
}

func (t *turn) storePiece(ctx context.Context) error {
	d := &t.draft
	parts, err := json.Marshal(d.pending)
	if err != nil {
		return err
	}
	st, err := t.store.stmt(insertPiece)
	if err == nil {
		_, err = st.ExecContext(context.WithoutCancel(ctx), t.id, t.seq+1, d.stored, string(parts))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	d.stored++
	d.pending, d.size, d.whole = d.pending[:0], 0, false
	return nil
}

// endsSentence tells whether a sentence or a line ends in text, or where it ends.
func endsSentence(text string) bool {
	for i, r := range text {
		switch r {
		case '\n', '。', '！', '？':
			return true
		case '.', '!', '?', '…':
			next, size := utf8.DecodeRuneInString(text[i+utf8.RuneLen(r):])
			if size == 0 || unicode.IsSpace(next) || strings.ContainsRune(`"')]*_”’»`, next) {
				return true
			}
		}
	}
	return false
}

// restore makes messages of the pieces that a killed runtime left.
func restore(tx *sql.Tx) error {
	for {
		var turn, seq int64
		err := tx.QueryRow("SELECT turn, seq FROM pieces ORDER BY turn, seq LIMIT 1").Scan(&turn, &seq)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = restoreMessage(tx, turn, seq)
		}
		if err != nil {
			return err
		}
	}
}

func restoreMessage(tx *sql.Tx, turn, seq int64) error {
	rows, err := tx.Query("SELECT parts, created_at FROM pieces WHERE turn = ? AND seq = ? ORDER BY piece", turn, seq)
	if err != nil {
		return err
	}
	defer rows.Close()
	var parts []loop.Part
	var text string
	var created int64
	for rows.Next() {
		if err := rows.Scan(&text, &created); err != nil {
			return err
		}
		var more []loop.Part
		if err := json.Unmarshal([]byte(text), &more); err != nil {
			return fmt.Errorf("piece of turn %d: %w", turn, err)
		}
		parts = append(parts, more...)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	m := loop.Message{Role: loop.RoleAssistant, Parts: joined(parts), Incomplete: true}
	if len(parts) > 0 && parts[0].Kind == loop.KindResult {
		m.Role, m.Incomplete = loop.RoleTool, false
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(insertMessage+" ON CONFLICT DO NOTHING", turn, seq, string(m.Role), string(body), created); err != nil {
		return err
	}
	_, err = tx.Exec("DELETE FROM pieces WHERE turn = ? AND seq = ?", turn, seq)
	return err
}

// joined puts the pieces of a text together.
func joined(pieces []loop.Part) []loop.Part {
	var parts []loop.Part
	var text strings.Builder
	for i, p := range pieces {
		text.WriteString(p.Text)
		if p.Kind == loop.KindResult || i+1 == len(pieces) || pieces[i+1].Kind != p.Kind {
			p.Text = text.String()
			parts = append(parts, p)
			text.Reset()
		}
	}
	return parts
}
