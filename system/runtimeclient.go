package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/executor"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// RuntimeClient calls an agent's runtime: each call of the runtime contract as the optional interfaces
// of package executor have it. An agent of another executor has them all by embedding one. Errors name
// the call and the agent; a call that the runtime has not wraps executor.ErrNotImplemented, a note that
// is not there executor.ErrNoteNotFound. It is safe for concurrent use where Connect is. Ours.
type RuntimeClient struct {
	// Agent is the id that errors name.
	Agent uuid.UUID
	// Connect returns the connection to the running runtime, which stays Connect's, and the context of
	// the call, with what the runtime wants of its callers in the outgoing metadata. Its error ends the
	// call. It is required.
	Connect func(ctx context.Context) (grpc.ClientConnInterface, context.Context, error)
}

var (
	_ executor.Prompter       = RuntimeClient{}
	_ executor.StreamPrompter = RuntimeClient{}
	_ executor.ObjectPrompter = RuntimeClient{}
	_ executor.SessionReader  = RuntimeClient{}
	_ executor.SessionLister  = RuntimeClient{}
	_ executor.SessionDeleter = RuntimeClient{}
	_ executor.NotesAPI       = RuntimeClient{}
)

func (r RuntimeClient) client(ctx context.Context) (agentv1.AgentRuntimeClient, context.Context, error) {
	conn, ctx, err := r.Connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	return agentv1.NewAgentRuntimeClient(conn), ctx, nil
}

// failed names the call, and gives a status the sentinel of the contract.
func (r RuntimeClient) failed(call string, err error) error {
	if status.Code(err) == codes.Unimplemented {
		err = fmt.Errorf("%w: %w", executor.ErrNotImplemented, err)
	}
	return fmt.Errorf("%s on agent %s: %w", call, r.Agent, err)
}

func (r RuntimeClient) noteFailed(call string, err error) error {
	if status.Code(err) == codes.NotFound {
		err = fmt.Errorf("%w: %w", executor.ErrNoteNotFound, err)
	}
	return r.failed(call, err)
}

// Probe calls Ready once and returns nil when the runtime answered true.
func (r RuntimeClient) Probe(ctx context.Context) error {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return r.failed("probe", err)
	}
	res, err := c.Ready(ctx, &agentv1.ReadyRequest{})
	if err != nil {
		return r.failed("probe", err)
	}
	if !res.GetReady() {
		return r.failed("probe", errors.New("the runtime says that it is not ready"))
	}
	return nil
}

// Warnings returns what the running runtime says in Health that is to be known, a line each. Ours.
func (r RuntimeClient) Warnings(ctx context.Context) ([]string, error) {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return nil, r.failed("health", err)
	}
	res, err := c.Health(ctx, &agentv1.HealthRequest{})
	if err != nil {
		return nil, r.failed("health", err)
	}
	return res.GetWarnings(), nil
}

// PromptStream runs one turn and calls cb, one call at a time, for every event. It returns when the
// turn has ended, when ctx has, or with the error of the stream. Outgoing metadata of ctx goes to
// the runtime.
func (r RuntimeClient) PromptStream(ctx context.Context, req executor.PromptRequest, cb func(executor.PromptEvent)) error {
	ctx, cancel := context.WithCancel(ctx)
	// Ends the stream on the runtime's side too, whatever way this returns.
	defer cancel()
	c, ctx, err := r.client(ctx)
	if err != nil {
		return r.failed("prompt", err)
	}
	out := &agentv1.ChatStreamRequest{SessionId: req.SessionID, Prompt: req.Prompt, Regenerate: req.Regenerate}
	for _, at := range req.Attachments {
		out.Attachments = append(out.Attachments, &agentv1.Attachment{Name: at.Name, MediaType: at.MediaType, Data: at.Data})
	}
	stream, err := c.ChatStream(ctx, out)
	if err != nil {
		return r.failed("prompt", err)
	}
	var ev agentv1.ChatStreamEvent
	for {
		if err := stream.RecvMsg(&ev); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return r.failed("prompt", err)
		}
		cb(promptEvent(&ev))
	}
}

func promptEvent(ev *agentv1.ChatStreamEvent) executor.PromptEvent {
	out := executor.PromptEvent{
		Type: ev.Type, Step: ev.Step, Tool: ev.Tool, Content: ev.Content,
		ToolID: ev.ToolId, DurationMs: ev.DurationMs, Reason: ev.Reason,
	}
	if u := ev.Usage; u != nil {
		out.Usage = &executor.Usage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, CachedTokens: u.CachedTokens, ReasoningTokens: u.ReasoningTokens}
	}
	return out
}

// Prompt runs one turn and writes the final answer, the text of the last step, to w. A turn that
// ends with an error event and no text is an error.
func (r RuntimeClient) Prompt(ctx context.Context, req executor.PromptRequest, w io.Writer) error {
	var text strings.Builder
	var message, failure string
	err := r.PromptStream(ctx, req, func(ev executor.PromptEvent) {
		switch ev.Type {
		case "step.start":
			text.Reset()
		case "text.delta":
			text.WriteString(ev.Content)
		case "message.create":
			message = messageText(ev.Content)
		case "error":
			failure = ev.Content
		}
	})
	if err != nil {
		return err
	}
	answer := text.String()
	if answer == "" {
		answer = message
	}
	if answer == "" && failure != "" {
		return r.failed("prompt", errors.New(failure))
	}
	_, err = io.WriteString(w, answer)
	return err
}

// messageText is the text of a message's content: a JSON array of parts, or plain text.
func messageText(content string) string {
	var parts []struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
	}
	if json.Unmarshal([]byte(content), &parts) != nil {
		return content
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Kind == "text" {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// PromptObject asks the model for one JSON object that fits the schema, without session and tools.
func (r RuntimeClient) PromptObject(ctx context.Context, req executor.ObjectPromptRequest) ([]byte, error) {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return nil, r.failed("prompt for an object", err)
	}
	res, err := c.PromptObject(ctx, &agentv1.PromptObjectRequest{
		Prompt: req.Prompt, SchemaJson: req.Schema, SchemaName: req.SchemaName, SchemaDesc: req.SchemaDescription,
	})
	if err != nil {
		return nil, r.failed("prompt for an object", err)
	}
	return res.ObjectJson, nil
}

// ListSessions lists every session the runtime keeps.
func (r RuntimeClient) ListSessions(ctx context.Context) ([]executor.SessionInfo, error) {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return nil, r.failed("list sessions", err)
	}
	res, err := c.ListSessions(ctx, &agentv1.ListSessionsRequest{})
	if err != nil {
		return nil, r.failed("list sessions", err)
	}
	infos := make([]executor.SessionInfo, len(res.Sessions))
	for i, s := range res.Sessions {
		infos[i] = executor.SessionInfo{ID: s.Id, MessageCount: s.MessageCount, LastActive: s.LastActive}
	}
	return infos, nil
}

// DeleteSession drops a session; one that does not exist is no error.
func (r RuntimeClient) DeleteSession(ctx context.Context, sessionID string) error {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return r.failed("delete session", err)
	}
	if _, err := c.DeleteSession(ctx, &agentv1.DeleteSessionRequest{SessionId: sessionID}); err != nil && status.Code(err) != codes.NotFound {
		return r.failed("delete session", err)
	}
	return nil
}

// ListSessionMessages returns the newest messages of a session, oldest first. A limit of 0 is the
// runtime's default.
func (r RuntimeClient) ListSessionMessages(ctx context.Context, sessionID string, limit int) ([]executor.SessionMessage, error) {
	if limit < 0 || limit > 1<<31-1 {
		return nil, r.failed("list messages", fmt.Errorf("limit %d is not between 0 and %d", limit, 1<<31-1))
	}
	c, ctx, err := r.client(ctx)
	if err != nil {
		return nil, r.failed("list messages", err)
	}
	res, err := c.ListSessionMessages(ctx, &agentv1.ListSessionMessagesRequest{SessionId: sessionID, Limit: int32(limit)})
	if err != nil {
		return nil, r.failed("list messages", err)
	}
	msgs := make([]executor.SessionMessage, len(res.Messages))
	for i, m := range res.Messages {
		msgs[i] = executor.SessionMessage{Role: m.Role, Content: m.Content, CreatedAt: m.CreatedAt, BranchesJSON: m.BranchesJson, ActiveBranch: m.ActiveBranch}
	}
	return msgs, nil
}

func note(n *agentv1.Note) executor.Note {
	return executor.Note{
		Key: n.GetKey(), Content: n.GetContent(), Preview: n.GetPreview(), InContext: n.GetInContext(),
		CreatedAt: n.GetCreatedAt(), UpdatedAt: n.GetUpdatedAt(),
	}
}

// ListNotes lists the runtime's notes without their contents.
func (r RuntimeClient) ListNotes(ctx context.Context, onlyInContext bool) ([]executor.Note, error) {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return nil, r.failed("list notes", err)
	}
	res, err := c.ListNotes(ctx, &agentv1.ListNotesRequest{OnlyInContext: onlyInContext})
	if err != nil {
		return nil, r.failed("list notes", err)
	}
	notes := make([]executor.Note, len(res.Notes))
	for i, n := range res.Notes {
		notes[i] = note(n)
	}
	return notes, nil
}

// GetNote returns one note. The error wraps executor.ErrNoteNotFound where there is none.
func (r RuntimeClient) GetNote(ctx context.Context, key string) (executor.Note, error) {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return executor.Note{}, r.failed("get note", err)
	}
	res, err := c.GetNote(ctx, &agentv1.GetNoteRequest{Key: key})
	if err != nil {
		return executor.Note{}, r.noteFailed("get note", err)
	}
	return note(res.Note), nil
}

// SaveNote writes a note. Limits of 0 are the runtime's own.
func (r RuntimeClient) SaveNote(ctx context.Context, key, content string, maxBytes, maxCount int32) (executor.SaveResult, error) {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return executor.SaveResult{}, r.failed("save note", err)
	}
	res, err := c.SaveNote(ctx, &agentv1.SaveNoteRequest{Key: key, Content: content, MaxBytes: maxBytes, MaxCount: maxCount})
	if err != nil {
		return executor.SaveResult{}, r.failed("save note", err)
	}
	return executor.SaveResult{Note: note(res.Note), Overwrote: res.Overwrote}, nil
}

// DeleteNote deletes a note and tells whether there was one.
func (r RuntimeClient) DeleteNote(ctx context.Context, key string) (bool, error) {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return false, r.failed("delete note", err)
	}
	res, err := c.DeleteNote(ctx, &agentv1.DeleteNoteRequest{Key: key})
	if err != nil {
		return false, r.failed("delete note", err)
	}
	return res.Deleted, nil
}

// SetNoteInContext pins a note into the context or takes it out. The error wraps
// executor.ErrNoteNotFound where there is none.
func (r RuntimeClient) SetNoteInContext(ctx context.Context, key string, inContext bool) (executor.Note, error) {
	c, ctx, err := r.client(ctx)
	if err != nil {
		return executor.Note{}, r.failed("pin note", err)
	}
	res, err := c.SetNoteInContext(ctx, &agentv1.SetNoteInContextRequest{Key: key, InContext: inContext})
	if err != nil {
		return executor.Note{}, r.noteFailed("pin note", err)
	}
	return note(res.Note), nil
}
