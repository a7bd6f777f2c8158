package daemon

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// runHeader carries the id of the run to the runtime, and from there onto its calls.
	runHeader = "otters-run"
	// traceHeader carries the caller's place in a trace (W3C Trace Context) the same way.
	traceHeader = "traceparent"
	// maxSessionID bounds the id of a session.
	maxSessionID = 128
)

type (
	promptStream = grpc.ServerStreamingServer[daemonv1.PromptResponse]
	watchStream  = grpc.ServerStreamingServer[daemonv1.WatchAgentResponse]
	logStream    = grpc.ServerStreamingServer[daemonv1.LogsResponse]
	buildStream  = grpc.ClientStreamingServer[daemonv1.BuildRequest, daemonv1.BuildResponse]
)

// Prompt relays a turn's events one by one. Nothing is buffered: a client that does not read holds
// its own turn and no other.
func (s *service) Prompt(req *daemonv1.PromptRequest, out promptStream) error {
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return err
	}
	if req.GetText() == "" {
		return fail(codes.InvalidArgument, "", "prompt to agent %s: the text is empty", a.name)
	}
	if len(req.GetSessionId()) > maxSessionID {
		return fail(codes.InvalidArgument, "", "prompt to agent %s: the session's id is longer than %d bytes", a.name, maxSessionID)
	}
	r, err := a.begin()
	if err != nil {
		return err
	}
	defer a.finish(r)
	prompter, ok := a.unit.(executor.StreamPrompter)
	if !ok {
		return fail(codes.Unimplemented, "", "prompt to agent %s: its executor takes no prompts", a.name)
	}
	runID, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("run id: %w", err)
	}
	session := req.GetSessionId()
	if session == "" {
		session = uuid.NewString()
	}
	md := metadata.Pairs(runHeader, runID.String())
	if parent := traceParent(out.Context()); parent != "" {
		md.Set(traceHeader, parent)
	}
	ctx, cancel := context.WithCancelCause(metadata.NewOutgoingContext(out.Context(), md))
	defer cancel(nil)
	defer context.AfterFunc(s.ending, func() { cancel(errClosed) })()

	relay := &relay{out: out, cancel: cancel, run: runID.String(), session: session}
	err = prompter.PromptStream(ctx, executor.PromptRequest{SessionID: session, Prompt: req.GetText()}, relay.event)
	return a.promptError(ctx, out.Context(), relay, err)
}

// traceForm is a traceparent of version 00, or what a later version keeps of it.
var traceForm = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[0-9a-f-]{1,64})?$`)

// traceParent is the caller's; one that is given twice or is none is passed over, as the standard
// has it.
func traceParent(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	given := md.Get(traceHeader)
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		given = append(given, info.RequestHeader().Values(traceHeader)...)
	}
	if len(given) != 1 || !traceForm.MatchString(given[0]) {
		return ""
	}
	return given[0]
}

// relay sends events on; the first carries the ids.
type relay struct {
	out     promptStream
	cancel  context.CancelCauseFunc
	run     string
	session string
	err     error
}

func (r *relay) event(ev executor.PromptEvent) {
	if r.err != nil {
		return
	}
	m := &daemonv1.PromptResponse{
		RunId: r.run, SessionId: r.session,
		Type: ev.Type, Step: ev.Step, Tool: ev.Tool, Content: ev.Content, ToolId: ev.ToolID,
		DurationMs: ev.DurationMs, Reason: ev.Reason,
	}
	r.run, r.session = "", ""
	if u := ev.Usage; u != nil {
		m.Usage = &daemonv1.Usage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, CachedTokens: u.CachedTokens, ReasoningTokens: u.ReasoningTokens}
	}
	if r.err = r.out.Send(m); r.err != nil {
		r.cancel(r.err)
	}
}

// promptError says why a turn ended early: the client, the daemon or the runtime.
func (a *supervised) promptError(ctx, client context.Context, r *relay, err error) error {
	switch {
	case err == nil:
		return nil
	case client.Err() != nil:
		return client.Err()
	case errors.Is(context.Cause(ctx), errClosed):
		return fail(codes.Unavailable, "", "prompt to agent %s: %w", a.name, errClosed)
	case r.err != nil:
		return r.err
	}
	code := codeOf(err)
	if code == codes.Internal || code == codes.Unknown || code == codes.Canceled {
		code = codes.Unavailable
	}
	// What the runtime said is for a person; how it came here is not.
	var own interface{ GRPCStatus() *status.Status }
	if errors.As(err, &own) {
		err = errors.New(own.GRPCStatus().Message())
	}
	return &failure{
		code: code, hint: "see `otters logs " + a.name + "`",
		err: fmt.Errorf("prompt to agent %s: %w", a.name, err),
	}
}
