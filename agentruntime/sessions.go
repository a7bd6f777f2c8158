package agentruntime

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/workspace"
)

// Errors of Sessions.
var (
	// ErrInUse tells that a runtime serves the tree.
	ErrInUse = errInUse
	// ErrNoSession tells that there is no session with that id.
	ErrNoSession = errors.New("there is no such session")
	// ErrExists tells that an import would overwrite something, or pass a quota; nothing was stored.
	ErrExists = errors.New("not imported")
	// ErrInput tells that what was given is not what is taken; nothing was stored.
	ErrInput = errors.New("bad input")
)

// Sessions are the sessions of a tree that no runtime serves; while they are open none can. What it
// writes are JSON lines, which docs/runtime.md describes. It is for one goroutine.
type Sessions struct {
	root  string
	store *store
}

// OpenSessions opens the sessions of the tree below root. The error wraps ErrInUse where a runtime
// serves it, and ErrConfig where root is no tree. Turns that a killed runtime left are marked
// interrupted. The caller closes them.
func OpenSessions(ctx context.Context, root string) (*Sessions, error) {
	if root == "" {
		return nil, fmt.Errorf("%w: no tree; give --root DIR", ErrConfig)
	}
	dir := filepath.Join(root, filepath.FromSlash(workspace.VarLibDir))
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s is no agent's tree: %s is not there", ErrConfig, root, workspace.VarLibDir)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%w: %s is no agent's tree: %s is no folder", ErrConfig, root, workspace.VarLibDir)
	}
	st, err := openStore(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("sessions: %w", crammed(err))
	}
	return &Sessions{root: root, store: st}, nil
}

// Warnings tell what of an interrupted answer could not be read.
func (s *Sessions) Warnings() []string { return s.store.damage }

// Close lets a runtime serve the tree again.
func (s *Sessions) Close() error { return s.store.close() }

// SessionLine is a line of List.
type SessionLine struct {
	ID       string `json:"id"`
	Messages int32  `json:"messages"`
	// LastActive is in unix seconds.
	LastActive int64 `json:"last_active"`
}

// List writes a SessionLine for each session, the newest first, at most 10000.
func (s *Sessions) List(ctx context.Context, w io.Writer) error {
	list, err := s.store.sessions(ctx)
	if err != nil {
		return err
	}
	out := newLines(w)
	for _, i := range list {
		if err := out.write(SessionLine{ID: i.id, Messages: i.messages, LastActive: i.lastActive}); err != nil {
			return err
		}
	}
	return out.flush()
}

// MessageLine is a line of Show, with the fields of the runtime contract's SessionMessage.
type MessageLine struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	// CreatedAt is in unix seconds.
	CreatedAt    int64  `json:"created_at"`
	BranchesJSON string `json:"branches_json,omitempty"`
	ActiveBranch int32  `json:"active_branch,omitempty"`
}

// Show writes a MessageLine for each of the newest limit messages of a session, oldest first; a limit
// of 0 is 100, and 1000 the most. Memory does not grow with their number.
func (s *Sessions) Show(ctx context.Context, w io.Writer, id string, limit int) error {
	switch {
	case limit < 0 || limit > maxListMessages:
		return fmt.Errorf("%w: limit: want 0 to %d", ErrInput, maxListMessages)
	case limit == 0:
		limit = defaultListMessages
	}
	if err := s.exists(ctx, id); err != nil {
		return err
	}
	prompts, err := s.prompts(ctx, id, limit)
	if err != nil {
		return err
	}
	// The newest first, to find where to begin.
	first, skip, found := 0, 0, 0
	for i := len(prompts) - 1; i >= 0 && found < limit; i-- {
		messages, err := s.messages(ctx, id, prompts[i])
		if err != nil {
			return err
		}
		found += len(messages)
		first, skip = i, max(0, found-limit)
	}
	out := newLines(w)
	for _, p := range prompts[min(first, len(prompts)):] {
		messages, err := s.messages(ctx, id, p)
		if err != nil {
			return err
		}
		for _, m := range messages[skip:] {
			if err := out.write(m); err != nil {
				return err
			}
		}
		skip = 0
	}
	return out.flush()
}

// prompts are the newest limit prompts of a session, oldest first.
func (s *Sessions) prompts(ctx context.Context, id string, limit int) ([]int64, error) {
	rows, err := s.store.db.QueryContext(ctx, `SELECT prompt FROM
		(SELECT DISTINCT prompt FROM turns WHERE session = ? ORDER BY prompt DESC LIMIT ?) ORDER BY prompt`, id, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []int64
	for rows.Next() {
		var p int64
		if err := rows.Scan(&p); err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, rows.Err()
}

// messages are what came of one prompt.
func (s *Sessions) messages(ctx context.Context, id string, prompt int64) ([]MessageLine, error) {
	rows, err := s.store.query(ctx, turnColumns+`
		FROM turns t JOIN messages m ON m.turn = t.id WHERE t.session = ? AND t.prompt = ? ORDER BY t.id, m.seq`, id, prompt)
	turns, err := scanTurns(rows, err, shown)
	if err != nil {
		return nil, err
	}
	list, err := transcript(turns)
	if err != nil {
		return nil, err
	}
	var out []MessageLine
	for _, m := range list {
		out = append(out, MessageLine{m.GetRole(), m.GetContent(), m.GetCreatedAt(), m.GetBranchesJson(), m.GetActiveBranch()})
	}
	return out, nil
}

// Remove drops sessions, all of those given or none. The error wraps ErrNoSession.
func (s *Sessions) Remove(ctx context.Context, ids ...string) error {
	for _, id := range ids {
		if err := s.exists(ctx, id); err != nil {
			return err
		}
	}
	return crammed(s.store.write(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE id = ?", id); err != nil {
				return err
			}
		}
		return nil
	}))
}

// crammed adds to an error of what found no room what to do.
func crammed(err error) error {
	if err != nil && full(err) {
		return fmt.Errorf("%s: %w", noRoom, err)
	}
	return err
}

// exists is nil where there is a session of that id.
func (s *Sessions) exists(ctx context.Context, id string) error {
	if err := checkSession(id); err != nil {
		return fmt.Errorf("%w: %s", ErrInput, status.Convert(err).Message())
	}
	var is bool
	if err := s.store.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?)", id).Scan(&is); err != nil {
		return err
	}
	if !is {
		return fmt.Errorf("session %s: %w", id, ErrNoSession)
	}
	return nil
}

// lines writes values as JSON, one a line.
type lines struct {
	buf *bufio.Writer
	enc *json.Encoder
}

func newLines(w io.Writer) lines {
	buf := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	return lines{buf, enc}
}

func (l lines) write(v any) error { return l.enc.Encode(v) }

func (l lines) flush() error { return l.buf.Flush() }
