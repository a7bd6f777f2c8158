package agentruntime

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// Bounds of notes where CONFIG has none, and the most that CONFIG may set.
const (
	defaultNoteBytes = 4096
	defaultNoteCount = 64
	maxNoteBytes     = 1 << 20
	maxNoteCount     = 10000
	maxNoteKey       = 64
	previewRunes     = 80
)

// noteLimits are the quotas of notes.
type noteLimits struct{ bytes, count int }

// note is a fact that is kept over sessions.
type note struct {
	key, content     string
	pinned           bool
	created, updated int64
}

// Errors of notes; the text says which note and which limit.
var (
	errNoNote    = errors.New("there is none")
	errNoteQuota = errors.New("over the limit")
)

// checkKey takes ^[a-z0-9][a-z0-9_-]{0,63}$.
func checkKey(key string) error {
	ok := key != "" && len(key) <= maxNoteKey && key[0] != '-' && key[0] != '_'
	for _, c := range []byte(key) {
		ok = ok && (c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z')
	}
	if !ok {
		return fmt.Errorf("key %q: want 1 to %d letters a to z, digits, - and _, a letter or digit first", start(key, maxNoteKey), maxNoteKey)
	}
	return nil
}

// start is at most the first n characters of s.
func start(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

const noteColumns = `SELECT key, content, in_context, created_at, updated_at FROM notes `

func scanNotes(rows *sql.Rows, err error) ([]note, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var notes []note
	for rows.Next() {
		var n note
		if err := rows.Scan(&n.key, &n.content, &n.pinned, &n.created, &n.updated); err != nil {
			return nil, err
		}
		notes = append(notes, n)
	}
	return notes, rows.Err()
}

// notes are in the order of their keys, which never changes by itself.
func (s *store) notes(ctx context.Context, pinned bool) ([]note, error) {
	if pinned {
		return scanNotes(s.query(ctx, noteColumns+`WHERE in_context ORDER BY key`))
	}
	return scanNotes(s.query(ctx, noteColumns+`ORDER BY key`))
}

func (s *store) note(ctx context.Context, key string) (note, error) {
	list, err := scanNotes(s.query(ctx, noteColumns+`WHERE key = ?`, key))
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("note %s: %w", key, errNoNote)
	}
	if err != nil {
		return note{}, err
	}
	return list[0], nil
}

// saveNote writes a note within the limits, and tells whether there was one of that key.
func (s *store) saveNote(ctx context.Context, key, content string, limits noteLimits) (overwrote bool, err error) {
	if len(content) > limits.bytes {
		return false, fmt.Errorf("note %s: %w: %d bytes, at most %d are taken", key, errNoteQuota, len(content), limits.bytes)
	}
	err = s.write(context.WithoutCancel(ctx), func(tx *sql.Tx) error {
		var count int
		if err := tx.QueryRow(`SELECT count(*), coalesce(max(key = ?), 0) FROM notes`, key).Scan(&count, &overwrote); err != nil {
			return err
		}
		if !overwrote && count >= limits.count {
			return fmt.Errorf("note %s: %w: there are %d notes, at most %d are kept; delete one first", key, errNoteQuota, count, limits.count)
		}
		now := time.Now().Unix()
		_, err := tx.Exec(`INSERT INTO notes (key, content, created_at, updated_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (key) DO UPDATE SET content = excluded.content, updated_at = excluded.updated_at`, key, content, now, now)
		return err
	})
	return overwrote, err
}

// changed tells whether a statement changed a row.
func (s *store) changed(ctx context.Context, text string, args ...any) (bool, error) {
	res, err := s.db.ExecContext(context.WithoutCancel(ctx), text, args...)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

func (s *store) deleteNote(ctx context.Context, key string) (bool, error) {
	return s.changed(ctx, `DELETE FROM notes WHERE key = ?`, key)
}

func (s *store) pinNote(ctx context.Context, key string, pinned bool) error {
	ok, err := s.changed(ctx, `UPDATE notes SET in_context = ? WHERE key = ?`, pinned, key)
	if err == nil && !ok {
		err = fmt.Errorf("note %s: %w", key, errNoNote)
	}
	return err
}

// section is the pinned notes as a document; empty where there are none.
func section(notes []note) string {
	var b strings.Builder
	for _, n := range notes {
		appendDocument(&b, "note "+n.key, n.content)
	}
	return b.String()
}

func (n note) wire(whole bool) *agentv1.Note {
	w := &agentv1.Note{Key: n.key, Preview: start(n.content, previewRunes), InContext: n.pinned, CreatedAt: n.created, UpdatedAt: n.updated}
	if whole {
		w.Content = n.content
	}
	return w
}

// noteStatus is the status of an error of notes.
func noteStatus(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoNote):
		return status.Error(codes.NotFound, err.Error())
	case errors.Is(err, errNoteQuota):
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return storeStatus(ctx, err)
}

// keyed checks a key and waits for the store.
func (s *service) keyed(ctx context.Context, key string) (*store, error) {
	if err := checkKey(key); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	st, err := s.store.wait(ctx)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	return st, nil
}

// ListNotes lists notes by key, without their contents.
func (s *service) ListNotes(ctx context.Context, req *agentv1.ListNotesRequest) (*agentv1.ListNotesResponse, error) {
	st, err := s.store.wait(ctx)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	list, err := st.notes(ctx, req.GetOnlyInContext())
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	resp := &agentv1.ListNotesResponse{}
	for _, n := range list {
		resp.Notes = append(resp.Notes, n.wire(false))
	}
	return resp, nil
}

// GetNote returns a note with its content.
func (s *service) GetNote(ctx context.Context, req *agentv1.GetNoteRequest) (*agentv1.GetNoteResponse, error) {
	st, err := s.keyed(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	n, err := st.note(ctx, req.GetKey())
	if err != nil {
		return nil, noteStatus(ctx, err)
	}
	return &agentv1.GetNoteResponse{Note: n.wire(true)}, nil
}

// SaveNote writes a note. The caller's limits count where they are below the runtime's own.
func (s *service) SaveNote(ctx context.Context, req *agentv1.SaveNoteRequest) (*agentv1.SaveNoteResponse, error) {
	limits := s.limits
	switch {
	case req.GetMaxBytes() < 0 || req.GetMaxCount() < 0:
		return nil, status.Error(codes.InvalidArgument, "max_bytes and max_count: want 0 or more")
	case !utf8.ValidString(req.GetContent()):
		return nil, status.Error(codes.InvalidArgument, "content: it is no valid UTF-8")
	}
	if n := int(req.GetMaxBytes()); n > 0 {
		limits.bytes = min(limits.bytes, n)
	}
	if n := int(req.GetMaxCount()); n > 0 {
		limits.count = min(limits.count, n)
	}
	st, err := s.keyed(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	overwrote, err := st.saveNote(ctx, req.GetKey(), req.GetContent(), limits)
	if err != nil {
		return nil, noteStatus(ctx, err)
	}
	n, err := st.note(ctx, req.GetKey())
	if err != nil {
		return nil, noteStatus(ctx, err)
	}
	return &agentv1.SaveNoteResponse{Note: n.wire(true), Overwrote: overwrote}, nil
}

// DeleteNote deletes a note and tells whether there was one.
func (s *service) DeleteNote(ctx context.Context, req *agentv1.DeleteNoteRequest) (*agentv1.DeleteNoteResponse, error) {
	st, err := s.keyed(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	deleted, err := st.deleteNote(ctx, req.GetKey())
	if err != nil {
		return nil, noteStatus(ctx, err)
	}
	return &agentv1.DeleteNoteResponse{Deleted: deleted}, nil
}

// SetNoteInContext pins a note into the system prompt, or takes it out.
func (s *service) SetNoteInContext(ctx context.Context, req *agentv1.SetNoteInContextRequest) (*agentv1.SetNoteInContextResponse, error) {
	st, err := s.keyed(ctx, req.GetKey())
	if err != nil {
		return nil, err
	}
	if err := st.pinNote(ctx, req.GetKey(), req.GetInContext()); err != nil {
		return nil, noteStatus(ctx, err)
	}
	n, err := st.note(ctx, req.GetKey())
	if err != nil {
		return nil, noteStatus(ctx, err)
	}
	return &agentv1.SetNoteInContextResponse{Note: n.wire(true)}, nil
}
