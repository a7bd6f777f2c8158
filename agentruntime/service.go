package agentruntime

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/loop"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// Bounds on what a caller sends, in bytes; a whole message is bounded by maxMessage.
const (
	maxSessionID    = 256
	maxUserPrompt   = 4 << 20
	maxHeaderValue  = 256
	maxListMessages = 1000
	// defaultListMessages is the limit 0 of ListSessionMessages.
	defaultListMessages = 100
)

// copied is the metadata of a prompt that goes along with every call of its turn.
var copied = []string{"otters-run", "traceparent"}

// service answers the calls of AgentRuntime. What it does not have is UNIMPLEMENTED.
type service struct {
	agentv1.UnimplementedAgentRuntimeServer

	name    string
	model   string
	system  systemText
	section string
	budget  int // bytes of the system prompt
	// warnings are what was found at the start.
	warnings []string
	limits   noteLimits
	memory   memory
	client   loop.Model
	loop     *loop.Loop
	store    *opening
	queue    queue
	stopped  context.Context // cancelled when the runtime stops

	sending, sent atomic.Int64 // events that are being sent, and that were

	mu      sync.Mutex
	closing bool
	turns   sync.WaitGroup // added to under mu and while not closing
}

// prompt is a checked request for a turn.
type prompt struct {
	session    string
	text       string
	regenerate bool // answer the session's newest prompt again
	attached   []loop.Part
	refuse     bool // do not wait for the session's turn in progress
	metadata   map[string]string
}

func checkPrompt(ctx context.Context, session, text string, regenerate bool, attachments []*agentv1.Attachment) (prompt, error) {
	if err := checkSession(session); err != nil {
		return prompt{}, err
	}
	switch {
	case regenerate && len(attachments) > 0:
		return prompt{}, status.Error(codes.InvalidArgument, "attachments: with regenerate the session's last prompt is answered again with its own; send none")
	case regenerate && text != "":
		return prompt{}, status.Error(codes.InvalidArgument, "prompt: with regenerate the session's last one is answered again; leave it empty")
	case !regenerate && strings.TrimSpace(text) == "":
		return prompt{}, status.Error(codes.InvalidArgument, "prompt: it is empty")
	case len(text) > maxUserPrompt:
		return prompt{}, status.Errorf(codes.InvalidArgument, "prompt: %d bytes are over the limit of %d", len(text), maxUserPrompt)
	}
	attached, err := checkAttachments(attachments)
	if err != nil {
		return prompt{}, err
	}
	md, err := copiedMetadata(ctx)
	if err != nil {
		return prompt{}, err
	}
	refuse, err := refusesBusy(ctx)
	if err != nil {
		return prompt{}, err
	}
	return prompt{session: session, text: text, regenerate: regenerate, attached: attached, refuse: refuse, metadata: md}, nil
}

// busyKey is the metadata by which a caller says what is to become of its prompt while the session is
// busy with another.
const busyKey = "otters-busy"

// refusesBusy tells whether the caller wants to be refused in place of waiting.
func refusesBusy(ctx context.Context) (bool, error) {
	switch values := metadata.ValueFromIncomingContext(ctx, busyKey); {
	case len(values) == 0, len(values) == 1 && values[0] == "wait":
		return false, nil
	case len(values) == 1 && values[0] == "refuse":
		return true, nil
	}
	return false, status.Errorf(codes.InvalidArgument, "metadata %s: want wait or refuse", busyKey)
}

// copiedMetadata is what of a caller's metadata goes along with every call of its turn.
func copiedMetadata(ctx context.Context) (map[string]string, error) {
	out := make(map[string]string)
	for _, key := range copied {
		values := metadata.ValueFromIncomingContext(ctx, key)
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 || len(values[0]) > maxHeaderValue {
			return nil, status.Errorf(codes.InvalidArgument, "metadata %s: want one value of at most %d bytes", key, maxHeaderValue)
		}
		out[key] = values[0]
	}
	return out, nil
}

// checkSession bounds a session's id: 1 to 256 bytes without blanks and control characters.
func checkSession(id string) error {
	switch {
	case id == "":
		return status.Error(codes.InvalidArgument, "session_id: it is empty")
	case len(id) > maxSessionID:
		return status.Errorf(codes.InvalidArgument, "session_id: %d bytes are over the limit of %d", len(id), maxSessionID)
	case strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || 0x7f <= r && r <= 0xa0 }):
		return status.Error(codes.InvalidArgument, "session_id: it has blanks or control characters")
	}
	return nil
}

// enter counts a turn in, unless the runtime is stopping, and has it end when the runtime does. The
// caller calls leave.
func (s *service) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, nil, status.Error(codes.Unavailable, "the runtime is stopping")
	}
	s.turns.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.stopped, func() { cancel(context.Cause(s.stopped)) })
	return ctx, func() {
		stop()
		cancel(nil)
		s.turns.Done()
	}, nil
}

// drain refuses new turns and waits for those in flight, which the caller has cancelled.
func (s *service) drain() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.turns.Wait()
}

// errRecord wraps what the store says where a turn cannot be kept.
var errRecord = errors.New("sessions cannot be stored")

// take runs one turn and records it. The error is a gRPC status where the turn did not start, and the
// turn's own error otherwise.
func (s *service) take(ctx context.Context, p prompt, observe func(loop.Event)) (out loop.Outcome, started bool, err error) {
	ctx, end, err := s.enter(ctx)
	if err != nil {
		return out, false, err
	}
	defer end()
	leave, err := s.queue.enter(ctx, p.session, !p.refuse)
	if err != nil {
		return out, false, err
	}
	defer leave()
	st, err := s.store.wait(ctx)
	if err != nil {
		return out, false, storeStatus(ctx, err)
	}
	rec := &turn{store: st, session: p.session, run: p.metadata["otters-run"]}
	if p.regenerate {
		var last loop.Message
		if rec.prompt, last, err = st.lastPrompt(ctx, p.session); err != nil {
			return out, false, storeStatus(ctx, err)
		}
		if rec.prompt == 0 {
			return out, false, status.Errorf(codes.FailedPrecondition, "session %s: there is no prompt yet that could be answered again; send one", p.session)
		}
		p.text, p.attached = last.Text(), last.Attachments()
	}
	conv := &conversation{store: st, model: s.client, memory: s.memory, session: p.session, turn: rec, metadata: p.metadata}
	system, err := s.systemPrompt(ctx, st)
	if err != nil {
		return out, false, storeStatus(ctx, err)
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var held []loop.Event
	out, err = s.loop.Run(running, loop.Turn{
		System: system,
		Store:  conv, Prompt: p.text, Attachments: p.attached, Metadata: p.metadata, Recorder: rec, Compact: conv.overflow,
		Observe: func(e loop.Event) {
			// The end is stored before it is told, so that a caller who saw it finds it.
			if rec.pending != nil || e.Type == loop.MessageCreate || e.Type == loop.Error || e.Type == loop.TurnFinish {
				held = append(held, e)
				return
			}
			if err := rec.hear(ctx, e); err != nil {
				stop(&loop.EndError{Reason: loop.Interrupted, Err: err})
			}
			observe(e)
		},
	})
	if ferr := rec.finish(context.WithoutCancel(ctx), out); ferr != nil {
		held, err = unstored(held, ferr), errors.Join(err, ferr)
		out.Reason = loop.Interrupted
	}
	for _, e := range held {
		observe(e)
	}
	return out, true, err
}

// unstored are the events of an end that could not be stored.
func unstored(events []loop.Event, err error) []loop.Event {
	var told []loop.Event
	for _, e := range events {
		switch e.Type {
		case loop.MessageCreate, loop.Error:
			continue
		case loop.TurnFinish:
			told = append(told, loop.Event{Type: loop.Error, Step: e.Step, Content: err.Error()})
			e.Reason = loop.Interrupted
		}
		told = append(told, e)
	}
	return told
}

// storeStatus is the status of an error of the store.
func storeStatus(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return recordStatus(err)
}

// noRoom is what is said where a write found no room.
const noRoom = "the disk is full, or a file is at its size limit; make room"

// recordStatus is the status of what cannot be read or stored: RESOURCE_EXHAUSTED where there is no
// room for it.
func recordStatus(err error) error {
	text := err.Error()
	if _, after, ok := strings.Cut(text, errRecord.Error()+": "); ok {
		text = after
	}
	text, _, _ = strings.Cut(text, "\n") // of several errors the first
	if full(err) {
		return status.Error(codes.ResourceExhausted, errRecord.Error()+": "+noRoom+": "+text)
	}
	return status.Error(codes.Internal, errRecord.Error()+": "+text)
}

// Chat runs a turn and answers its last text.
func (s *service) Chat(ctx context.Context, req *agentv1.ChatRequest) (*agentv1.ChatResponse, error) {
	p, err := checkPrompt(ctx, req.GetSessionId(), req.GetPrompt(), false, req.GetAttachments())
	if err != nil {
		return nil, err
	}
	out, started, err := s.take(ctx, p, func(loop.Event) {})
	if err != nil {
		switch {
		case errors.Is(err, errRecord):
			err = recordStatus(err)
		case started:
			err = turnStatus(out.Reason, err)
		}
		return nil, err
	}
	return &agentv1.ChatResponse{Response: out.Text}, nil
}

// turnStatus is the status of a turn that did not end by itself.
func turnStatus(reason loop.Reason, err error) error {
	code := codes.Internal
	var call *loop.CallError
	switch reason {
	case loop.ModelError:
		code = codes.Unavailable
		if errors.As(err, &call) {
			code = modelCode(call.Status)
		}
	case loop.Cancelled:
		code = codes.Canceled
	case loop.Timeout:
		code = codes.DeadlineExceeded
	case loop.Denied:
		code = codes.PermissionDenied
	case loop.Budget, loop.MaxTokens:
		code = codes.ResourceExhausted
	case loop.Interrupted:
		code = codes.Aborted
	}
	return status.Error(code, string(reason)+": "+err.Error())
}

func modelCode(httpStatus int) codes.Code {
	switch {
	case httpStatus == http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case httpStatus >= 400 && httpStatus < 500:
		return codes.FailedPrecondition
	}
	return codes.Unavailable
}

// ChatStream runs a turn and sends its events. Once a turn has begun its end is told by turn.finish
// and, where there is one, by error; the status then is OK unless the turn could not be stored.
func (s *service) ChatStream(req *agentv1.ChatStreamRequest, stream agentv1.AgentRuntime_ChatStreamServer) error {
	p, err := checkPrompt(stream.Context(), req.GetSessionId(), req.GetPrompt(), req.GetRegenerate(), req.GetAttachments())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	_, started, err := s.take(ctx, p, func(e loop.Event) {
		s.sending.Add(1)
		err := stream.Send(wireEvent(e))
		s.sending.Add(-1)
		s.sent.Add(1)
		if err != nil {
			// The caller is gone, though its context may end only just after.
			cancel(fmt.Errorf("%w: %w", context.Canceled, err))
		}
	})
	if errors.Is(err, errRecord) {
		return recordStatus(err)
	}
	if !started {
		return err
	}
	return stream.Context().Err()
}

func wireEvent(e loop.Event) *agentv1.ChatStreamEvent {
	w := &agentv1.ChatStreamEvent{
		Type: string(e.Type), Step: int32(e.Step), Tool: e.Tool, Content: e.Content, ToolId: e.ToolID,
		DurationMs: e.Duration.Milliseconds(), Reason: string(e.Reason),
	}
	if e.Type == loop.StepFinish || e.Type == loop.TurnFinish {
		w.Usage = &agentv1.Usage{
			InputTokens: e.Usage.InputTokens, OutputTokens: e.Usage.OutputTokens,
			CachedTokens: e.Usage.CachedTokens, ReasoningTokens: e.Usage.ReasoningTokens,
		}
	}
	return w
}

// ListSessions lists the newest sessions first.
func (s *service) ListSessions(ctx context.Context, _ *agentv1.ListSessionsRequest) (*agentv1.ListSessionsResponse, error) {
	st, err := s.store.wait(ctx)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	list, err := st.sessions(ctx)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	resp := &agentv1.ListSessionsResponse{}
	for _, i := range list {
		resp.Sessions = append(resp.Sessions, &agentv1.Session{Id: i.id, MessageCount: i.messages, LastActive: i.lastActive})
	}
	return resp, nil
}

// DeleteSession waits for the session's turn, then drops it.
func (s *service) DeleteSession(ctx context.Context, req *agentv1.DeleteSessionRequest) (*agentv1.DeleteSessionResponse, error) {
	if err := checkSession(req.GetSessionId()); err != nil {
		return nil, err
	}
	leave, err := s.queue.enter(ctx, req.GetSessionId(), true)
	if err != nil {
		return nil, err
	}
	defer leave()
	st, err := s.store.wait(ctx)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	if err := st.delete(ctx, req.GetSessionId()); err != nil {
		return nil, storeStatus(ctx, err)
	}
	return &agentv1.DeleteSessionResponse{}, nil
}

// ListSessionMessages lists the newest messages, oldest first; a session that is not there has none.
func (s *service) ListSessionMessages(ctx context.Context, req *agentv1.ListSessionMessagesRequest) (*agentv1.ListSessionMessagesResponse, error) {
	if err := checkSession(req.GetSessionId()); err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	switch {
	case limit < 0 || limit > maxListMessages:
		return nil, status.Errorf(codes.InvalidArgument, "limit: want 0 to %d", maxListMessages)
	case limit == 0:
		limit = defaultListMessages
	}
	st, err := s.store.wait(ctx)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	turns, err := st.turns(ctx, req.GetSessionId(), limit, shown)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	list, err := transcript(turns)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	return &agentv1.ListSessionMessagesResponse{Messages: list[max(0, len(list)-limit):]}, nil
}

// Health tells who serves, and what is to be known of it.
func (s *service) Health(ctx context.Context, _ *agentv1.HealthRequest) (*agentv1.HealthResponse, error) {
	warnings, err := s.currentWarnings(ctx)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	return &agentv1.HealthResponse{Status: "ok", AgentName: s.name, Model: s.model, Warnings: warnings}, nil
}

// Ready answers true once the sessions that there are can be read, the last thing that a prompt needs.
func (s *service) Ready(ctx context.Context, _ *agentv1.ReadyRequest) (*agentv1.ReadyResponse, error) {
	if err := s.store.ready(ctx); err != nil {
		return nil, storeStatus(ctx, err)
	}
	return &agentv1.ReadyResponse{Ready: true}, nil
}
