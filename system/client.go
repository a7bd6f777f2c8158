package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/executor"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// serveTokenKey is the metadata by which a caller proves that it is the daemon.
const serveTokenKey = "otters-serve-token"

// maxMessage bounds a message to or from a runtime, in bytes.
const maxMessage = 16 << 20

// dialLoopback reaches a runtime on this machine. A runtime that binds its own address is not there
// at once, so a refused connection is tried again soon.
func dialLoopback(_ context.Context, addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 2 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond},
			MinConnectTimeout: 20 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	)
}

// client is the connection to the running runtime, opened on first use in a run and closed with it.
// The context it returns carries the serve token.
func (a *Agent) client(ctx context.Context) (agentv1.AgentRuntimeClient, context.Context, error) {
	a.mu.Lock()
	conn, addr, token := a.conn, a.addr, a.serveToken
	idle := a.monitored && a.run == nil
	a.mu.Unlock()
	switch {
	case addr == "":
		return nil, nil, errors.New("the agent has no address")
	case idle:
		// The reserved listener would take the connection and nobody would answer.
		return nil, nil, fmt.Errorf("%w; start it", ErrNotRunning)
	}
	if conn == nil {
		fresh, err := a.dialer.Dial(ctx, addr)
		if err != nil {
			return nil, nil, fmt.Errorf("dial runtime at %s: %w", addr, err)
		}
		if conn = a.keepConn(fresh, addr); conn != fresh {
			_ = fresh.Close()
		}
		if conn == nil {
			return nil, nil, fmt.Errorf("%w; it ends, or begins at another address", ErrNotRunning)
		}
	}
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, serveTokenKey, token)
	}
	return agentv1.NewAgentRuntimeClient(conn), ctx, nil
}

// keepConn keeps the first connection of those that concurrent callers dialled, and none for a run
// that has ended, or got another address, meanwhile.
func (a *Agent) keepConn(conn *grpc.ClientConn, addr string) *grpc.ClientConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil && a.addr == addr && !(a.monitored && a.run == nil) {
		a.conn = conn
	}
	return a.conn
}

func (a *Agent) closeConn() {
	a.mu.Lock()
	conn := a.conn
	a.conn = nil
	a.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// callError names the call, and gives a status the sentinel of the contract.
func (a *Agent) callError(call string, err error) error {
	switch status.Code(err) {
	case codes.Unimplemented:
		err = fmt.Errorf("%w: %w", executor.ErrNotImplemented, err)
	case codes.NotFound:
		err = fmt.Errorf("%w: %w", executor.ErrNoteNotFound, err)
	}
	return fmt.Errorf("%s on agent %s: %w", call, a.id, err)
}

// Probe calls Ready once and returns nil when the runtime answered true. A runtime that inherited
// its listener answers as soon as it can; one that binds its address refuses until then.
func (a *Agent) Probe(ctx context.Context) error {
	// Before that the address and the token may still be those of an earlier run.
	if err := a.awaitLaunched(ctx); err != nil {
		return err
	}
	c, ctx, err := a.client(ctx)
	if err != nil {
		return fmt.Errorf("probe agent %s: %w", a.id, err)
	}
	res, err := c.Ready(ctx, &agentv1.ReadyRequest{})
	if err != nil {
		return fmt.Errorf("probe agent %s: %w", a.id, err)
	}
	if !res.GetReady() {
		return fmt.Errorf("probe agent %s: the runtime says that it is not ready", a.id)
	}
	return nil
}

// awaitLaunched waits until the start of a run, where there is one, has come to its process.
func (a *Agent) awaitLaunched(ctx context.Context) error {
	a.mu.Lock()
	r := a.run
	a.mu.Unlock()
	if r == nil {
		return nil
	}
	select {
	case <-r.launched:
		return nil
	case <-r.done:
		return fmt.Errorf("probe agent %s: %w", a.id, ErrNotRunning)
	case <-ctx.Done():
		return fmt.Errorf("probe agent %s: %w", a.id, ctx.Err())
	}
}

// ChecksCallers tells whether the running runtime refuses a caller without the serve token, by
// calling it without. One that does not is open to every local user. Ours.
func (a *Agent) ChecksCallers(ctx context.Context) (bool, error) {
	c, _, err := a.client(ctx)
	if err != nil {
		return false, err
	}
	_, err = c.Ready(ctx, &agentv1.ReadyRequest{})
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return true, nil
	case codes.OK:
		return false, nil
	}
	return false, fmt.Errorf("probe agent %s without a token: %w", a.id, err)
}

// PromptStream runs one turn and calls cb, one call at a time, for every event. It returns when the
// turn has ended, when ctx has, or with the error of the stream. Outgoing metadata of ctx goes to
// the runtime.
func (a *Agent) PromptStream(ctx context.Context, req executor.PromptRequest, cb func(executor.PromptEvent)) error {
	ctx, cancel := context.WithCancel(ctx)
	// Ends the stream on the runtime's side too, whatever way this returns.
	defer cancel()
	c, ctx, err := a.client(ctx)
	if err != nil {
		return a.callError("prompt", err)
	}
	out := &agentv1.ChatStreamRequest{SessionId: req.SessionID, Prompt: req.Prompt, Regenerate: req.Regenerate}
	for _, at := range req.Attachments {
		out.Attachments = append(out.Attachments, &agentv1.Attachment{Name: at.Name, MediaType: at.MediaType, Data: at.Data})
	}
	stream, err := c.ChatStream(ctx, out)
	if err != nil {
		return a.callError("prompt", err)
	}
	var ev agentv1.ChatStreamEvent
	for {
		if err := stream.RecvMsg(&ev); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return a.callError("prompt", err)
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
func (a *Agent) Prompt(ctx context.Context, req executor.PromptRequest, w io.Writer) error {
	var text strings.Builder
	var message, failure string
	err := a.PromptStream(ctx, req, func(ev executor.PromptEvent) {
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
		return fmt.Errorf("prompt on agent %s: %s", a.id, failure)
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
func (a *Agent) PromptObject(ctx context.Context, req executor.ObjectPromptRequest) ([]byte, error) {
	c, ctx, err := a.client(ctx)
	if err != nil {
		return nil, a.callError("prompt for an object", err)
	}
	res, err := c.PromptObject(ctx, &agentv1.PromptObjectRequest{
		Prompt: req.Prompt, SchemaJson: req.Schema, SchemaName: req.SchemaName, SchemaDesc: req.SchemaDescription,
	})
	if err != nil {
		return nil, a.callError("prompt for an object", err)
	}
	return res.ObjectJson, nil
}

// ListSessions lists every session the runtime keeps.
func (a *Agent) ListSessions(ctx context.Context) ([]executor.SessionInfo, error) {
	c, ctx, err := a.client(ctx)
	if err != nil {
		return nil, a.callError("list sessions", err)
	}
	res, err := c.ListSessions(ctx, &agentv1.ListSessionsRequest{})
	if err != nil {
		return nil, a.callError("list sessions", err)
	}
	infos := make([]executor.SessionInfo, len(res.Sessions))
	for i, s := range res.Sessions {
		infos[i] = executor.SessionInfo{ID: s.Id, MessageCount: s.MessageCount, LastActive: s.LastActive}
	}
	return infos, nil
}

// DeleteSession drops a session; one that does not exist is no error.
func (a *Agent) DeleteSession(ctx context.Context, sessionID string) error {
	c, ctx, err := a.client(ctx)
	if err != nil {
		return a.callError("delete session", err)
	}
	if _, err := c.DeleteSession(ctx, &agentv1.DeleteSessionRequest{SessionId: sessionID}); err != nil {
		return a.callError("delete session", err)
	}
	return nil
}

// ListSessionMessages returns the newest messages of a session, oldest first. A limit of 0 is the
// runtime's default.
func (a *Agent) ListSessionMessages(ctx context.Context, sessionID string, limit int) ([]executor.SessionMessage, error) {
	if limit < 0 || limit > 1<<31-1 {
		return nil, a.callError("list messages", fmt.Errorf("limit %d is not between 0 and %d", limit, 1<<31-1))
	}
	c, ctx, err := a.client(ctx)
	if err != nil {
		return nil, a.callError("list messages", err)
	}
	res, err := c.ListSessionMessages(ctx, &agentv1.ListSessionMessagesRequest{SessionId: sessionID, Limit: int32(limit)})
	if err != nil {
		return nil, a.callError("list messages", err)
	}
	msgs := make([]executor.SessionMessage, len(res.Messages))
	for i, m := range res.Messages {
		msgs[i] = executor.SessionMessage{Role: m.Role, Content: m.Content, CreatedAt: m.CreatedAt, BranchesJSON: m.BranchesJson, ActiveBranch: m.ActiveBranch}
	}
	return msgs, nil
}
