package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/proto/otters/daemon/v1/daemonv1connect"
)

const (
	// maxSessions bounds a list of sessions, and maxNamedSessions how many one call may name.
	maxSessions      = 10000
	maxNamedSessions = 1000
	// maxKeptSessionID bounds the id of a session that a runtime has; it may be longer than one that
	// a prompt begins.
	maxKeptSessionID = 256
	// maxMessages bounds the messages of a session that are shown, defaultMessages is 0.
	maxMessages     = 1000
	defaultMessages = 100
	// maxNoteBytes bounds the content of a note; the runtime's own bound may be lower.
	maxNoteBytes = 1 << 20
	// maxNotes bounds a list of notes.
	maxNotes = 10000
)

// conversationService implements the API's part about what agents remember.
type conversationService struct {
	daemonv1.UnimplementedConversationServiceServer
	*service
}

var _ daemonv1.ConversationServiceServer = conversationService{}

// withConversations is a service that has the part about what agents remember too.
type withConversations interface {
	conversations() daemonv1.ConversationServiceServer
}

func (s *service) conversations() daemonv1.ConversationServiceServer {
	return conversationService{service: s}
}

// remembering is an agent whose sessions can be reached: by its running runtime, or while it does not
// run.
func (s conversationService) remembering(name string) (a *supervised, runs bool, err error) {
	if a, err = s.sup.lookup(name); err != nil {
		return nil, false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unit == nil || a.removing {
		return nil, false, a.notReady()
	}
	if a.run == nil || a.run.ended {
		return a, false, nil
	}
	if st := a.unit.Status(); st != executor.StatusReady && st != executor.StatusWorking {
		return nil, false, a.notReady()
	}
	return a, true, nil
}

// runtimeCall is a call of a running runtime: its context, which ends with the daemon, and what it is
// about.
type runtimeCall struct {
	ctx  context.Context
	what string
}

func (s conversationService) call(ctx context.Context, what string, a *supervised) (runtimeCall, func()) {
	ctx, expire := context.WithTimeout(ctx, offlineTime)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ending, func() { cancel(errClosed) })
	return runtimeCall{ctx, what + " of agent " + a.name}, func() { stop(); cancel(nil); expire() }
}

// lacks says that an agent's runtime has no such call.
func (c runtimeCall) lacks() error {
	return fail(codes.Unimplemented, "use another runtime for it", "%s: its runtime has no such call", c.what)
}

// fails is the answer for an error of the runtime.
func (c runtimeCall) fails(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(c.ctx), errClosed):
		return fail(codes.Unavailable, "", "%s: %w", c.what, errClosed)
	case c.ctx.Err() != nil:
		return c.ctx.Err()
	case errors.Is(err, executor.ErrNotImplemented):
		return c.lacks()
	}
	code, said := runtimeSaid(err)
	hint := ""
	if code == codes.ResourceExhausted {
		hint = "ask for less, with --limit"
	}
	return fail(code, hint, "%s: %w", c.what, said)
}

// checkKeptSession checks the id of a session that is to be there.
func checkKeptSession(id string) error {
	if id == "" || len(id) > maxKeptSessionID {
		return fail(codes.InvalidArgument, "", "session: an id has 1 to %d bytes, this one %d", maxKeptSessionID, len(id))
	}
	if strings.ContainsFunc(id, unicode.IsControl) {
		return fail(codes.InvalidArgument, "", "session: an id has no control characters")
	}
	return nil
}

func noSession(a *supervised, id string) error {
	return fail(codes.NotFound, "`otters session ls "+a.name+"` lists the sessions there are", "session %s of agent %s: there is no such session", id, a.name)
}

// ListSessions lists the newest sessions first.
func (s conversationService) ListSessions(ctx context.Context, req *daemonv1.ListSessionsRequest) (*daemonv1.ListSessionsResponse, error) {
	a, runs, err := s.remembering(req.GetAgent())
	if err != nil {
		return nil, err
	}
	out := &daemonv1.ListSessionsResponse{}
	if !runs {
		err := a.offlineLines(ctx, s.ending, maxSessions, "ls", nil, func(line []byte) error {
			var l struct {
				ID         string `json:"id"`
				Messages   int32  `json:"messages"`
				LastActive int64  `json:"last_active"`
			}
			if err := json.Unmarshal(line, &l); err != nil || checkKeptSession(l.ID) != nil {
				return errNoLine
			}
			out.Sessions = append(out.Sessions, &daemonv1.Session{Id: l.ID, Messages: l.Messages, LastActive: l.LastActive})
			return nil
		})
		return out, err
	}
	c, done := s.call(ctx, "sessions", a)
	defer done()
	lister, ok := a.unit.(executor.SessionLister)
	if !ok {
		return nil, c.lacks()
	}
	list, err := lister.ListSessions(c.ctx)
	if err != nil {
		return nil, c.fails(err)
	}
	for _, i := range list[:min(len(list), maxSessions)] {
		if checkKeptSession(i.ID) == nil {
			out.Sessions = append(out.Sessions, &daemonv1.Session{Id: i.ID, Messages: i.MessageCount, LastActive: i.LastActive})
		}
	}
	return out, nil
}

var errNoLine = fail(codes.Internal, "", "the agent's runtime gave what docs/runtime.md does not have")

// offlineLines runs a command of which each line of output is given to take.
func (a *supervised) offlineLines(ctx, ending context.Context, most int, verb string, args []string, take func([]byte) error) error {
	ctx, stop := context.WithTimeout(ctx, offlineTime)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lines := &lineReader{take: take, most: most, cancel: cancel}
	return a.offline(ctx, ending, offlineCall{verb: verb, args: args, stdout: lines})
}

type showStream = grpc.ServerStreamingServer[daemonv1.ShowSessionResponse]

// ShowSession sends the newest messages of a session, oldest first.
func (s conversationService) ShowSession(req *daemonv1.ShowSessionRequest, out showStream) error {
	a, runs, err := s.remembering(req.GetAgent())
	if err != nil {
		return err
	}
	limit := int(req.GetLimit())
	switch {
	case limit < 0 || limit > maxMessages:
		return fail(codes.InvalidArgument, "", "session of agent %s: limit: want 0 to %d", a.name, maxMessages)
	case limit == 0:
		limit = defaultMessages
	}
	if err := checkKeptSession(req.GetSessionId()); err != nil {
		return err
	}
	if !runs {
		args := []string{"--limit", strconv.Itoa(limit), "--", req.GetSessionId()}
		return a.offlineLines(out.Context(), s.ending, limit, "show", args, func(line []byte) error {
			var m struct {
				Role         string `json:"role"`
				Content      string `json:"content"`
				CreatedAt    int64  `json:"created_at"`
				BranchesJSON string `json:"branches_json"`
				ActiveBranch int32  `json:"active_branch"`
			}
			if err := json.Unmarshal(line, &m); err != nil {
				return errNoLine
			}
			return out.Send(&daemonv1.ShowSessionResponse{Role: m.Role, Content: m.Content, CreatedAt: m.CreatedAt, BranchesJson: m.BranchesJSON, ActiveBranch: m.ActiveBranch})
		})
	}
	c, done := s.call(out.Context(), "session "+req.GetSessionId(), a)
	defer done()
	list, err := readSession(c, a, req.GetSessionId(), limit)
	if err != nil {
		return err
	}
	for _, m := range list[max(0, len(list)-limit):] {
		if err := out.Send(&daemonv1.ShowSessionResponse{Role: m.Role, Content: m.Content, CreatedAt: m.CreatedAt, BranchesJson: m.BranchesJSON, ActiveBranch: m.ActiveBranch}); err != nil {
			return err
		}
	}
	return nil
}

// readSession reads a session of a running agent; one without messages is not there.
func readSession(c runtimeCall, a *supervised, id string, limit int) ([]executor.SessionMessage, error) {
	reader, ok := a.unit.(executor.SessionReader)
	if !ok {
		return nil, c.lacks()
	}
	list, err := reader.ListSessionMessages(c.ctx, id, limit)
	if err == nil && len(list) == 0 {
		return nil, noSession(a, id)
	}
	return list, c.fails(err)
}

// RemoveSession removes one session.
func (s conversationService) RemoveSession(ctx context.Context, req *daemonv1.RemoveSessionRequest) (*daemonv1.RemoveSessionResponse, error) {
	a, runs, err := s.remembering(req.GetAgent())
	if err != nil {
		return nil, err
	}
	if err := checkKeptSession(req.GetSessionId()); err != nil {
		return nil, err
	}
	if !runs {
		err := a.offlineLines(ctx, s.ending, 0, "rm", []string{"--", req.GetSessionId()}, func([]byte) error { return nil })
		return &daemonv1.RemoveSessionResponse{}, err
	}
	c, done := s.call(ctx, "session "+req.GetSessionId(), a)
	defer done()
	deleter, ok := a.unit.(executor.SessionDeleter)
	if !ok {
		return nil, c.lacks()
	}
	if _, err := readSession(c, a, req.GetSessionId(), 1); err != nil {
		return nil, err
	}
	return &daemonv1.RemoveSessionResponse{}, c.fails(deleter.DeleteSession(c.ctx, req.GetSessionId()))
}

// noteKey is the form of a note's key.
var noteKey = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// notes is the running agent whose notes are meant.
func (s conversationService) notes(ctx context.Context, agent string, keys ...string) (executor.NotesAPI, runtimeCall, func(), error) {
	a, runs, err := s.remembering(agent)
	if err == nil && !runs {
		a.mu.Lock()
		err = a.notReady()
		a.mu.Unlock()
	}
	if err != nil {
		return nil, runtimeCall{}, nil, err
	}
	what := "notes"
	for _, key := range keys {
		if !noteKey.MatchString(key) {
			return nil, runtimeCall{}, nil, fail(codes.InvalidArgument, "", "note %q: want 1 to 64 letters a to z, digits, - and _, a letter or digit first", clip(key))
		}
		what = "note " + key
	}
	c, done := s.call(ctx, what, a)
	api, ok := a.unit.(executor.NotesAPI)
	if !ok {
		done()
		return nil, c, nil, c.lacks()
	}
	return api, c, done, nil
}

func wireNote(n executor.Note) *daemonv1.Note {
	return &daemonv1.Note{Key: n.Key, Content: n.Content, Preview: n.Preview, Pinned: n.InContext, CreatedAt: n.CreatedAt, UpdatedAt: n.UpdatedAt}
}

// noteError is the answer for an error of a note.
func (c runtimeCall) noteError(err error) error {
	if errors.Is(err, executor.ErrNoteNotFound) {
		return fail(codes.NotFound, "`otters note ls` lists the notes there are", "%s: there is no such note", c.what)
	}
	return c.fails(err)
}

// ListNotes lists notes without their contents.
func (s conversationService) ListNotes(ctx context.Context, req *daemonv1.ListNotesRequest) (*daemonv1.ListNotesResponse, error) {
	api, c, done, err := s.notes(ctx, req.GetAgent())
	if err != nil {
		return nil, err
	}
	defer done()
	list, err := api.ListNotes(c.ctx, req.GetOnlyPinned())
	if err != nil {
		return nil, c.noteError(err)
	}
	out := &daemonv1.ListNotesResponse{}
	for _, n := range list[:min(len(list), maxNotes)] {
		n.Content = ""
		out.Notes = append(out.Notes, wireNote(n))
	}
	return out, nil
}

// GetNote returns one note.
func (s conversationService) GetNote(ctx context.Context, req *daemonv1.GetNoteRequest) (*daemonv1.GetNoteResponse, error) {
	api, c, done, err := s.notes(ctx, req.GetAgent(), req.GetKey())
	if err != nil {
		return nil, err
	}
	defer done()
	n, err := api.GetNote(c.ctx, req.GetKey())
	if err != nil {
		return nil, c.noteError(err)
	}
	return &daemonv1.GetNoteResponse{Note: wireNote(n)}, nil
}

// SetNote writes a note.
func (s conversationService) SetNote(ctx context.Context, req *daemonv1.SetNoteRequest) (*daemonv1.SetNoteResponse, error) {
	api, c, done, err := s.notes(ctx, req.GetAgent(), req.GetKey())
	if err != nil {
		return nil, err
	}
	defer done()
	if n := len(req.GetContent()); n > maxNoteBytes {
		return nil, fail(codes.InvalidArgument, "", "%s: %d bytes, at most %d are taken", c.what, n, maxNoteBytes)
	}
	r, err := api.SaveNote(c.ctx, req.GetKey(), req.GetContent(), 0, 0)
	if err != nil {
		return nil, c.noteError(err)
	}
	return &daemonv1.SetNoteResponse{Note: wireNote(r.Note), Overwrote: r.Overwrote}, nil
}

// RemoveNote removes a note.
func (s conversationService) RemoveNote(ctx context.Context, req *daemonv1.RemoveNoteRequest) (*daemonv1.RemoveNoteResponse, error) {
	api, c, done, err := s.notes(ctx, req.GetAgent(), req.GetKey())
	if err != nil {
		return nil, err
	}
	defer done()
	deleted, err := api.DeleteNote(c.ctx, req.GetKey())
	if err == nil && !deleted {
		err = executor.ErrNoteNotFound
	}
	return &daemonv1.RemoveNoteResponse{}, c.noteError(err)
}

// PinNote puts a note into the model's context, or takes it out.
func (s conversationService) PinNote(ctx context.Context, req *daemonv1.PinNoteRequest) (*daemonv1.PinNoteResponse, error) {
	api, c, done, err := s.notes(ctx, req.GetAgent(), req.GetKey())
	if err != nil {
		return nil, err
	}
	defer done()
	n, err := api.SetNoteInContext(c.ctx, req.GetKey(), !req.GetUnpin())
	if err != nil {
		return nil, c.noteError(err)
	}
	return &daemonv1.PinNoteResponse{Note: wireNote(n)}, nil
}

// conversationsHandler serves the same implementation as gRPC-Web and JSON.
func conversationsHandler(impl daemonv1.ConversationServiceServer, opts ...connect.HandlerOption) (string, http.Handler) {
	return daemonv1connect.NewConversationServiceHandler(connectConversations{impl}, opts...)
}

// connectConversations adapts the streams.
type connectConversations struct {
	daemonv1.ConversationServiceServer
}

var _ daemonv1connect.ConversationServiceHandler = connectConversations{}

func (s connectConversations) ShowSession(ctx context.Context, req *daemonv1.ShowSessionRequest, out *connect.ServerStream[daemonv1.ShowSessionResponse]) error {
	return s.ConversationServiceServer.ShowSession(req, download[daemonv1.ShowSessionResponse]{connectStream{ctx}, out})
}

func (s connectConversations) ExportSessions(ctx context.Context, req *daemonv1.ExportSessionsRequest, out *connect.ServerStream[daemonv1.ExportSessionsResponse]) error {
	return s.ConversationServiceServer.ExportSessions(req, download[daemonv1.ExportSessionsResponse]{connectStream{ctx}, out})
}

func (s connectConversations) ImportSessions(ctx context.Context, in *connect.ClientStream[daemonv1.ImportSessionsRequest]) (*daemonv1.ImportSessionsResponse, error) {
	up := &received[daemonv1.ImportSessionsRequest, daemonv1.ImportSessionsResponse]{connectStream: connectStream{ctx}, in: in}
	err := s.ConversationServiceServer.ImportSessions(up)
	return up.answer, err
}
