package agentruntime

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/loop"
)

const (
	// maxImport bounds what is read of an export, in bytes.
	maxImport = 4 << 30
	// maxTurnMessages bounds the messages of one turn: 1000 steps have two each.
	maxTurnMessages = 10000
	// maxSummary bounds the text of a summary, in bytes.
	maxSummary = 16 << 20
)

// ImportOptions say how to import.
type ImportOptions struct {
	// Replace lets the import take the place of sessions and notes that are there.
	Replace bool
}

// Import stores what Export wrote: all of it, or nothing and an error. A session or note that is there
// already, and notes over the quotas of agent.yaml, wrap ErrExists; anything but a whole export wraps
// ErrInput and names the line.
func (s *Sessions) Import(ctx context.Context, r io.Reader, opts ImportOptions) (Counts, error) {
	// What is told to be stored survives a power loss.
	if _, err := s.store.db.ExecContext(ctx, "PRAGMA synchronous = FULL"); err != nil {
		return Counts{}, err
	}
	im := importer{ctx: ctx, in: bufio.NewReaderSize(io.LimitReader(r, maxImport+1), 64<<10), replace: opts.Replace, root: s.root}
	err := s.store.write(ctx, im.run)
	if err != nil {
		return Counts{}, crammed(err)
	}
	return im.counts, nil
}

// importer reads an export into one transaction.
type importer struct {
	ctx     context.Context
	in      *bufio.Reader
	replace bool
	root    string

	stmts  map[string]*sql.Stmt
	tx     *sql.Tx
	number int   // of the line at hand
	size   int64 // bytes read
	last   int64 // the newest turn there is
	counts Counts

	seen     map[string]bool // what there was already, by the type of its line and its name
	session  string
	turns    []importTurn // of the session
	messages int          // of the newest of them
	noted    bool
}

// importTurn is a turn of the session at hand: its row, its prompt's number, and how many of the prompt's
// turns are active, counted at the first.
type importTurn struct {
	row    int64
	prompt int
	active int
}

func (im *importer) run(tx *sql.Tx) error {
	im.tx, im.stmts, im.seen = tx, make(map[string]*sql.Stmt), make(map[string]bool)
	defer func() {
		for _, st := range im.stmts {
			_ = st.Close()
		}
	}()
	if err := tx.QueryRowContext(im.ctx, "SELECT coalesce(max(id), 0) FROM turns").Scan(&im.last); err != nil {
		return err
	}
	ended := false
	for !ended {
		line, err := im.line()
		if err == nil {
			ended, err = im.take(line)
		}
		if err != nil {
			return im.wrap(err)
		}
	}
	if _, err := im.in.ReadByte(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = fmt.Errorf("%w: something follows the end", ErrInput)
		}
		return im.wrap(err)
	}
	return im.quota()
}

// wrap names the line where the input is at fault.
func (im *importer) wrap(err error) error {
	if errors.Is(err, ErrInput) {
		return fmt.Errorf("line %d: %w", im.number, err)
	}
	return err
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInput, fmt.Errorf(format, args...))
}

// line is the next line without its newline; it is valid until the next call.
func (im *importer) line() ([]byte, error) {
	if err := im.ctx.Err(); err != nil {
		return nil, err
	}
	im.number++
	var line []byte
	for {
		part, err := im.in.ReadSlice('\n')
		if im.size += int64(len(part)); im.size > maxImport {
			return nil, bad("more than %d bytes", int64(maxImport))
		}
		if len(line)+len(part) > maxExportLine {
			return nil, bad("the line is longer than %d bytes", maxExportLine)
		}
		switch {
		case err == nil && line == nil:
			return part, checkText(part)
		case err == nil:
			line = append(line, part...)
			return line, checkText(line)
		case errors.Is(err, bufio.ErrBufferFull):
			line = append(line, part...)
		case errors.Is(err, io.EOF):
			return nil, bad("it ends before its end line; it was cut")
		default:
			return nil, fmt.Errorf("read: %w", err)
		}
	}
}

func checkText(line []byte) error {
	if !utf8.Valid(line) {
		return bad("it is no valid UTF-8")
	}
	return nil
}

// decode reads a line into v, which has every field that it may have.
func decode(line []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return bad("%w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad("more than one value")
	}
	return nil
}

// take stores a line, and tells whether it was the last.
func (im *importer) take(line []byte) (ended bool, err error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(line, &kind); err != nil {
		return false, bad("%w", err)
	}
	if (im.number == 1) != (kind.Type == headerLine) {
		return false, bad("want a %s line first and once; this is no export of sessions", headerLine)
	}
	if kind.Type != turnLine && kind.Type != messageLine && kind.Type != summaryLine {
		if err := im.endSession(); err != nil {
			return false, err
		}
	}
	switch kind.Type {
	case headerLine:
		return false, im.header(line)
	case sessionLine:
		return false, im.beginSession(line)
	case turnLine:
		return false, im.turn(line)
	case messageLine:
		return false, im.message(line)
	case summaryLine:
		return false, im.summary(line)
	case noteLine:
		return false, im.note(line)
	case endLine:
		return true, im.end(line)
	}
	return false, bad("unknown type %q", start(kind.Type, 64))
}

func (im *importer) header(line []byte) error {
	var h exportHeader
	if err := decode(line, &h); err != nil {
		return err
	}
	if h.Format != exportName || h.Version != exportVersion {
		return bad("format %q version %d; this runtime takes %q version %d", start(h.Format, 64), h.Version, exportName, exportVersion)
	}
	return nil
}

func (im *importer) beginSession(line []byte) error {
	var l exportSession
	if err := decode(line, &l); err != nil {
		return err
	}
	switch {
	case im.noted:
		return bad("sessions come before notes")
	case im.counts.Sessions >= maxSessions:
		return bad("more than %d sessions", maxSessions)
	}
	if err := checkSession(l.ID); err != nil {
		return bad("%s", status.Convert(err).Message())
	}
	if err := notNegative(l.LastActive); err != nil {
		return err
	}
	if err := im.once(sessionLine, l.ID); err != nil {
		return err
	}
	var there bool
	if err := im.tx.QueryRowContext(im.ctx, "SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?)", l.ID).Scan(&there); err != nil {
		return err
	}
	if there {
		if !im.replace {
			return fmt.Errorf("session %s: %w: there is one already; have it replaced, or remove it first", l.ID, ErrExists)
		}
		if err := im.exec("DELETE FROM sessions WHERE id = ?", l.ID); err != nil {
			return err
		}
	}
	im.session, im.turns, im.messages = l.ID, im.turns[:0], 0
	im.counts.Sessions++
	return im.exec("INSERT INTO sessions (id, last_active) VALUES (?, ?)", l.ID, l.LastActive)
}

// once refuses what is there twice.
func (im *importer) once(kind, name string) error {
	if key := kind + " " + name; !im.seen[key] {
		im.seen[key] = true
		return nil
	}
	return bad("%s %s is there twice", kind, name)
}

// endSession checks what only a whole session shows.
func (im *importer) endSession() error {
	if im.session == "" {
		return nil
	}
	if err := im.endTurn(); err != nil {
		return err
	}
	for i, t := range im.turns {
		if t.prompt == i+1 && t.active != 1 {
			return bad("session %s: of the turns that answer turn %d, %d are active, not one", im.session, i+1, t.active)
		}
	}
	im.session = ""
	return nil
}

func (im *importer) endTurn() error {
	if len(im.turns) > 0 && im.messages == 0 {
		return bad("turn %d has no message", len(im.turns))
	}
	return nil
}

func (im *importer) turn(line []byte) error {
	var l exportTurn
	if err := decode(line, &l); err != nil {
		return err
	}
	if im.session == "" {
		return bad("a turn outside of a session")
	}
	if err := im.endTurn(); err != nil {
		return err
	}
	n := len(im.turns) + 1
	switch {
	case l.Turn != n:
		return bad("turn %d where turn %d should be", l.Turn, n)
	case l.Prompt < 1 || l.Prompt > n || l.Prompt < n && im.turns[l.Prompt-1].prompt != l.Prompt:
		return bad("turn %d answers turn %d, which is no prompt's first", n, l.Prompt)
	case !loop.Reason(l.Reason).Known():
		return bad("turn %d: unknown reason %q", n, start(l.Reason, 64))
	case len(l.Run) > maxHeaderValue:
		return bad("turn %d: the run's id is longer than %d bytes", n, maxHeaderValue)
	}
	if err := notNegative(l.StartedAt, l.FinishedAt, l.InputTokens, l.OutputTokens); err != nil {
		return err
	}
	im.last++
	im.turns = append(im.turns, importTurn{row: im.last, prompt: l.Prompt})
	im.messages = 0
	if l.Active {
		im.turns[l.Prompt-1].active++
	}
	im.counts.Turns++
	return im.exec(`INSERT INTO turns (id, session, run, reason, started_at, finished_at, input_tokens, output_tokens, prompt, active)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, im.last, im.session, l.Run, l.Reason, l.StartedAt, l.FinishedAt, l.InputTokens, l.OutputTokens,
		im.turns[l.Prompt-1].row, l.Active)
}

// readBody checks a stored message.
func readBody(body []byte) (loop.Message, error) {
	var m loop.Message
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("message: %w", err)
	}
	switch m.Role {
	case loop.RoleUser, loop.RoleAssistant, loop.RoleTool:
	default:
		return m, fmt.Errorf("message: unknown role %q", start(string(m.Role), 64))
	}
	for _, p := range m.Parts {
		if p.Kind == "" {
			return m, errors.New("message: a part without a kind")
		}
	}
	return m, nil
}

func (im *importer) message(line []byte) error {
	var l exportMessage
	if err := decode(line, &l); err != nil {
		return err
	}
	if im.session == "" || len(im.turns) == 0 {
		return bad("a message outside of a turn")
	}
	m, err := readBody(l.Body)
	switch {
	case err != nil:
		return bad("%w", err)
	case im.messages == 0 && m.Role != loop.RoleUser:
		return bad("turn %d does not begin with a message of the user", len(im.turns))
	case im.messages >= maxTurnMessages:
		return bad("turn %d has more than %d messages", len(im.turns), maxTurnMessages)
	}
	if err := notNegative(l.CreatedAt); err != nil {
		return err
	}
	im.messages++
	im.counts.Messages++
	return im.exec(insertMessage, im.turns[len(im.turns)-1].row, im.messages, string(m.Role), string(l.Body), l.CreatedAt)
}

func (im *importer) summary(line []byte) error {
	var l exportSummary
	if err := decode(line, &l); err != nil {
		return err
	}
	switch {
	case im.session == "":
		return bad("a summary outside of a session")
	case l.Upto < 1 || l.Upto > len(im.turns) || im.turns[l.Upto-1].prompt != l.Upto:
		return bad("a summary covers turn %d, which is no prompt's first", l.Upto)
	case len(l.Text) > maxSummary:
		return bad("a summary is longer than %d bytes", maxSummary)
	}
	if err := notNegative(l.CreatedAt); err != nil {
		return err
	}
	im.counts.Summaries++
	return im.unique("a second summary up to turn "+fmt.Sprint(l.Upto), "INSERT INTO summaries (session, upto, text, created_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
		im.session, im.turns[l.Upto-1].row, l.Text, l.CreatedAt)
}

// end compares what was stored with what there should be.
func (im *importer) end(line []byte) error {
	var l exportEnd
	if err := decode(line, &l); err != nil {
		return err
	}
	if l.Counts != im.counts {
		return bad("it should hold %+v, and holds %+v", l.Counts, im.counts)
	}
	return nil
}

// exec runs a statement, which is prepared once.
func (im *importer) exec(text string, args ...any) error {
	_, err := im.affect(text, args...)
	return err
}

// unique is exec where a row must come of it.
func (im *importer) unique(what, text string, args ...any) error {
	n, err := im.affect(text, args...)
	if err == nil && n == 0 {
		err = bad("%s", what)
	}
	return err
}

func (im *importer) affect(text string, args ...any) (int64, error) {
	st := im.stmts[text]
	if st == nil {
		var err error
		if st, err = im.tx.PrepareContext(im.ctx, text); err != nil {
			return 0, err
		}
		im.stmts[text] = st
	}
	res, err := st.ExecContext(im.ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func notNegative(values ...int64) error {
	for _, v := range values {
		if v < 0 {
			return bad("%d is negative", v)
		}
	}
	return nil
}
