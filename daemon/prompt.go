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
	// busyHeader tells the runtime what to do while the session is busy.
	busyHeader = "otters-busy"
	// maxSessionID bounds the id of a session.
	maxSessionID = 128
	// maxAttachments and maxAttachedBytes bound what comes with a prompt, maxText the prompt itself.
	maxAttachments   = 16
	maxAttachedBytes = 10 << 20
	maxText          = 4 << 20
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
	if why := badPrompt(req); why != nil {
		return &failure{code: codes.InvalidArgument, err: fmt.Errorf("prompt to agent %s: %w", a.name, why)}
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
	runID, ctx, err := newRun(out.Context(), req.GetBusy())
	if err != nil {
		return err
	}
	session := req.GetSessionId()
	if session == "" {
		session = uuid.NewString()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ending, func() { cancel(errClosed) })()

	relay := &relay{out: out, cancel: cancel, run: runID, session: session}
	err = prompter.PromptStream(ctx, executor.PromptRequest{
		SessionID: session, Prompt: req.GetText(), Regenerate: req.GetRegenerate(), Attachments: attachments(req.GetAttachments()),
	}, relay.event)
	return a.promptError(ctx, out.Context(), relay, err)
}

// badPrompt says what is wrong with a request; what an attachment may be is the runtime's to say.
func badPrompt(req *daemonv1.PromptRequest) error {
	size := 0
	for _, at := range req.GetAttachments() {
		size += len(at.GetData())
	}
	switch {
	case req.GetRegenerate() && (req.GetText() != "" || len(req.GetAttachments()) > 0):
		return errors.New("with regenerate the session's last prompt is answered again; send no text and no attachments")
	case req.GetRegenerate() && req.GetSessionId() == "":
		return errors.New("regenerate needs a session")
	case !req.GetRegenerate() && req.GetText() == "":
		return errors.New("the text is empty")
	case len(req.GetText()) > maxText:
		return fmt.Errorf("the text is longer than %d bytes", maxText)
	case len(req.GetSessionId()) > maxSessionID:
		return fmt.Errorf("the session's id is longer than %d bytes", maxSessionID)
	case len(req.GetAttachments()) > maxAttachments:
		return fmt.Errorf("%d attachments are over the limit of %d", len(req.GetAttachments()), maxAttachments)
	case size > maxAttachedBytes:
		return fmt.Errorf("attachments of %d bytes together are over the limit of %d", size, maxAttachedBytes)
	case req.GetBusy() != "" && req.GetBusy() != "wait" && req.GetBusy() != "refuse":
		return fmt.Errorf("busy %q: want wait or refuse", clip(req.GetBusy()))
	}
	return nil
}

func attachments(given []*daemonv1.Attachment) []executor.Attachment {
	var out []executor.Attachment
	for _, at := range given {
		out = append(out, executor.Attachment{Name: at.GetName(), MediaType: at.GetMediaType(), Data: at.GetData()})
	}
	return out
}

// newRun makes the id of a run, and the context of its call to the runtime, with the metadata that goes
// along.
func newRun(ctx context.Context, busy string) (string, context.Context, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", nil, fmt.Errorf("run id: %w", err)
	}
	md := metadata.Pairs(runHeader, id.String())
	if busy != "" {
		md.Set(busyHeader, busy)
	}
	if parent := traceParent(ctx); parent != "" {
		md.Set(traceHeader, parent)
	}
	return id.String(), metadata.NewOutgoingContext(ctx, md), nil
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
	code, said := runtimeSaid(err)
	hint := ""
	if code == codes.Unavailable {
		hint = "see `otters logs " + a.name + "`"
	}
	return fail(code, hint, "prompt to agent %s: %w", a.name, said)
}

// runtimeSaid is what of a runtime's error goes to a client: what it said is for a person, how it came
// here is not.
func runtimeSaid(err error) (codes.Code, error) {
	code := codeOf(err)
	if code == codes.Internal || code == codes.Unknown || code == codes.Canceled {
		code = codes.Unavailable
	}
	var own interface{ GRPCStatus() *status.Status }
	if errors.As(err, &own) {
		err = errors.New(own.GRPCStatus().Message())
	}
	return code, err
}
