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

// restore makes messages of the pieces that a killed runtime left. What is told of them is of those that
// cannot be read.
func restore(tx *sql.Tx) (told []string, err error) {
	for {
		var turn, seq int64
		err := tx.QueryRow("SELECT turn, seq FROM pieces ORDER BY turn, seq LIMIT 1").Scan(&turn, &seq)
		if errors.Is(err, sql.ErrNoRows) {
			return told, nil
		}
		var damage string
		if err == nil {
			damage, err = restoreMessage(tx, turn, seq)
		}
		if err != nil {
			return nil, err
		}
		if damage != "" {
			told = append(told, damage)
		}
	}
}

// restoreMessage makes a message of its pieces. One that cannot be read costs this message alone: what is
// stored is kept in it as it is, and damage tells of it.
func restoreMessage(tx *sql.Tx, turn, seq int64) (damage string, err error) {
	calls, results, err := callsBefore(tx, turn, seq)
	if err != nil {
		return "", err
	}
	parts, created, bad, err := readPieces(tx, turn, seq, calls)
	if err != nil {
		return "", err
	}
	m := loop.Message{Role: loop.RoleAssistant, Parts: joined(parts), Incomplete: true}
	if results {
		m.Role, m.Incomplete = loop.RoleTool, false
	}
	if bad > 0 {
		var session string
		if err := tx.QueryRow("SELECT session FROM turns WHERE id = ?", turn).Scan(&session); err != nil {
			return "", err
		}
		damage = fmt.Sprintf("session %s: of an interrupted answer %d stored parts cannot be read; they are in it as they are", session, bad)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	if _, err := tx.Exec(insertMessage+" ON CONFLICT DO NOTHING", turn, seq, string(m.Role), string(body), created); err != nil {
		return "", err
	}
	_, err = tx.Exec("DELETE FROM pieces WHERE turn = ? AND seq = ?", turn, seq)
	return damage, err
}

// callsBefore are the calls whose results a message has: one that follows an answer.
func callsBefore(tx *sql.Tx, turn, seq int64) (calls []loop.Part, results bool, err error) {
	var text string
	err = tx.QueryRow("SELECT body FROM messages WHERE turn = ? AND seq = ? AND role = ?", turn, seq-1, string(loop.RoleAssistant)).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	var m loop.Message
	_ = json.Unmarshal([]byte(text), &m) // who lists the session is told
	for _, p := range m.Parts {
		if p.Kind == loop.KindCall {
			calls = append(calls, p)
		}
	}
	return calls, true, nil
}

// readPieces are the parts of a message's pieces; bad is how many of these cannot be read. The result of each
// call but the last is a piece.
func readPieces(tx *sql.Tx, turn, seq int64, calls []loop.Part) (parts []loop.Part, created int64, bad int, err error) {
	rows, err := tx.Query("SELECT piece, parts, created_at FROM pieces WHERE turn = ? AND seq = ? ORDER BY piece", turn, seq)
	if err != nil {
		return nil, 0, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		var text string
		if err := rows.Scan(&n, &text, &created); err != nil {
			return nil, 0, 0, err
		}
		more, err := readPiece(text)
		if err != nil {
			bad++
			p := loop.Part{Kind: loop.KindText, Text: fmt.Sprintf("\n[cannot be read, %v: %s]\n", err, strings.ToValidUTF8(text, "\uFFFD"))}
			if 0 <= n && n < len(calls) {
				p.Kind, p.ID, p.Name, p.Failed = loop.KindResult, calls[n].ID, calls[n].Name, true
			}
			more = []loop.Part{p}
		}
		parts = append(parts, more...)
	}
	return parts, created, bad, errors.Join(rows.Err(), rows.Close())
}

func readPiece(text string) (parts []loop.Part, err error) {
	if err := json.Unmarshal([]byte(text), &parts); err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.Kind != loop.KindText && p.Kind != loop.KindReasoning && p.Kind != loop.KindResult {
			return nil, fmt.Errorf("a part of kind %q", p.Kind)
		}
	}
	return parts, nil
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
