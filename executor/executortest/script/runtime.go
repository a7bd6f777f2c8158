package script

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// Runtime serves every call of the runtime contract. Its zero value is ready, checks no caller and
// keeps what it is told in memory. Its fields must not change once it serves.
type Runtime struct {
	agentv1.UnimplementedAgentRuntimeServer

	// Root is the agent's tree; sessions and notes are kept in its var/lib, or in memory where Root
	// is empty.
	Root string
	// Model is what Health tells.
	Model string
	// Token is what callers must present as metadata otters-serve-token; empty checks nobody.
	Token string
	// Deaf answers Ready with false.
	Deaf bool
	// Args and Env are what the prompts "args" and "env" are answered with.
	Args, Env []string

	mu    sync.Mutex
	read  bool
	state state
}

// state is what survives a restart.
type state struct {
	Sessions []*session `json:"sessions,omitempty"`
	Notes    []*note    `json:"notes,omitempty"`
}

type session struct {
	ID       string    `json:"id"`
	Active   int64     `json:"active"`
	Messages []message `json:"messages"`
}

// message keeps every answer that was given; the last branch is the active one.
type message struct {
	Role     string   `json:"role"`
	Branches []string `json:"branches"`
	At       int64    `json:"at"`
}

type note struct {
	Key, Content     string
	InContext        bool
	Created, Updated int64
}

const stateFile = "/var/lib/script.json"

// lock gives f the state, and keeps it where keep says so.
func (r *Runtime) lock(keep bool, f func(*state) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.read && r.Root != "" {
		if text, err := os.ReadFile(r.Root + stateFile); err == nil {
			if err := json.Unmarshal(text, &r.state); err != nil {
				return status.Errorf(codes.DataLoss, "%s: %v", stateFile, err)
			}
		}
	}
	r.read = true
	if err := f(&r.state); err != nil || !keep || r.Root == "" {
		return err
	}
	text, err := json.Marshal(&r.state)
	if err == nil {
		err = os.WriteFile(r.Root+stateFile, text, 0o600)
	}
	if err != nil {
		return status.Errorf(codes.Internal, "%s: %v", stateFile, err)
	}
	return nil
}

func (r *Runtime) check(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get("otters-serve-token"); r.Token != "" && (len(got) != 1 || got[0] != r.Token) {
		return status.Error(codes.Unauthenticated, "wrong serve token")
	}
	return nil
}

func (r *Runtime) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := r.check(ctx); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (r *Runtime) stream(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := r.check(s.Context()); err != nil {
		return err
	}
	return next(srv, s)
}

// Ready tells that it is ready, unless it is deaf.
func (r *Runtime) Ready(context.Context, *agentv1.ReadyRequest) (*agentv1.ReadyResponse, error) {
	return &agentv1.ReadyResponse{Ready: !r.Deaf}, nil
}

// Health tells the model.
func (r *Runtime) Health(context.Context, *agentv1.HealthRequest) (*agentv1.HealthResponse, error) {
	return &agentv1.HealthResponse{Status: "ok", AgentName: "scripted", Model: r.Model}, nil
}

// answer is what a prompt is answered with.
func (r *Runtime) answer(ctx context.Context, prompt string, files []*agentv1.Attachment) string {
	switch verb, arg, _ := strings.Cut(prompt, " "); verb {
	case "env":
		return strings.Join(r.Env, "\n")
	case "args":
		return strings.Join(r.Args, "\n")
	case "metadata":
		md, _ := metadata.FromIncomingContext(ctx)
		return strings.Join(md.Get(arg), " ")
	case "files":
		var words []string
		for _, f := range files {
			words = append(words, f.Name, f.MediaType, string(f.Data))
		}
		return strings.Join(words, " ")
	}
	return prompt
}

// Chat is ChatStream without the events.
func (r *Runtime) Chat(ctx context.Context, req *agentv1.ChatRequest) (*agentv1.ChatResponse, error) {
	text := r.answer(ctx, req.Prompt, req.Attachments)
	if err := r.remember(req.SessionId, req.Prompt, text, false); err != nil {
		return nil, err
	}
	return &agentv1.ChatResponse{Response: text}, nil
}

// ChatStream answers "env" and "args" with what they name, "metadata KEY" with the caller's, "files"
// with the attachments, and everything else with itself, an event a word. "hang" is answered by
// silence after the first event, and "tool" by a step with a call of a tool before the one with the
// answer.
func (r *Runtime) ChatStream(req *agentv1.ChatStreamRequest, out grpc.ServerStreamingServer[agentv1.ChatStreamEvent]) error {
	ctx := out.Context()
	text := r.answer(ctx, req.Prompt, req.Attachments)
	events := []*agentv1.ChatStreamEvent{{Type: "step.start", Step: 1}}
	if req.Prompt == "tool" {
		events = append(events,
			&agentv1.ChatStreamEvent{Type: "text.delta", Step: 1, Content: "let me see"},
			&agentv1.ChatStreamEvent{Type: "tool.call", Step: 1, Tool: "echo", ToolId: "c1", Content: `{"args":["x"]}`},
			&agentv1.ChatStreamEvent{Type: "tool.result", Step: 1, Tool: "echo", ToolId: "c1", Content: "x", DurationMs: 7},
			&agentv1.ChatStreamEvent{Type: "step.finish", Step: 1, Usage: &agentv1.Usage{InputTokens: 1, OutputTokens: 2}},
			&agentv1.ChatStreamEvent{Type: "step.start", Step: 2})
	}
	step := events[len(events)-1].Step
	for _, word := range strings.SplitAfter(text, " ") {
		events = append(events, &agentv1.ChatStreamEvent{Type: "text.delta", Step: step, Content: word})
	}
	events = append(events,
		&agentv1.ChatStreamEvent{Type: "step.finish", Step: step},
		&agentv1.ChatStreamEvent{Type: "turn.finish", Reason: "done", Usage: &agentv1.Usage{InputTokens: 3, OutputTokens: 5, CachedTokens: 2, ReasoningTokens: 1}})
	for i, ev := range events {
		if i == len(events)-1 {
			if err := r.remember(req.SessionId, req.Prompt, text, req.Regenerate); err != nil {
				return err
			}
		}
		if err := out.Send(ev); err != nil {
			return err
		}
		if req.Prompt == "hang" {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

// remember adds a turn to a session; a regenerated one is a branch of the last answer.
func (r *Runtime) remember(id, prompt, text string, again bool) error {
	return r.lock(true, func(s *state) error {
		se := s.session(id)
		if se == nil {
			se = &session{ID: id}
			s.Sessions = append(s.Sessions, se)
		}
		now := time.Now().Unix()
		se.Active = now
		if n := len(se.Messages); again && n > 0 {
			se.Messages[n-1].Branches = append(se.Messages[n-1].Branches, parts(text))
			return nil
		}
		se.Messages = append(se.Messages, message{"user", []string{prompt}, now}, message{"assistant", []string{parts(text)}, now})
		return nil
	})
}

// parts is the content of an assistant's message.
func parts(text string) string {
	// Strings always marshal.
	b, _ := json.Marshal([]map[string]string{{"kind": "text", "text": text}})
	return string(b)
}

func (s *state) session(id string) *session {
	for _, se := range s.Sessions {
		if se.ID == id {
			return se
		}
	}
	return nil
}

// PromptObject answers {"prompt":…,"schema":…} with the prompt and the schema's name.
func (r *Runtime) PromptObject(_ context.Context, req *agentv1.PromptObjectRequest) (*agentv1.PromptObjectResponse, error) {
	if !json.Valid(req.SchemaJson) {
		return nil, status.Error(codes.InvalidArgument, "the schema is not JSON")
	}
	b, err := json.Marshal(map[string]string{"prompt": req.Prompt, "schema": req.SchemaName, "description": req.SchemaDesc})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &agentv1.PromptObjectResponse{ObjectJson: b, RawText: string(b)}, nil
}

// ListSessions lists the sessions in the order they were begun.
func (r *Runtime) ListSessions(context.Context, *agentv1.ListSessionsRequest) (*agentv1.ListSessionsResponse, error) {
	res := new(agentv1.ListSessionsResponse)
	return res, r.lock(false, func(s *state) error {
		for _, se := range s.Sessions {
			res.Sessions = append(res.Sessions, &agentv1.Session{Id: se.ID, MessageCount: int32(len(se.Messages)), LastActive: se.Active})
		}
		return nil
	})
}

// DeleteSession drops a session, if there is one.
func (r *Runtime) DeleteSession(_ context.Context, req *agentv1.DeleteSessionRequest) (*agentv1.DeleteSessionResponse, error) {
	return new(agentv1.DeleteSessionResponse), r.lock(true, func(s *state) error {
		kept := s.Sessions[:0]
		for _, se := range s.Sessions {
			if se.ID != req.SessionId {
				kept = append(kept, se)
			}
		}
		s.Sessions = kept
		return nil
	})
}

// ListSessionMessages lists the newest messages of a session, oldest first; 0 is all of them.
func (r *Runtime) ListSessionMessages(_ context.Context, req *agentv1.ListSessionMessagesRequest) (*agentv1.ListSessionMessagesResponse, error) {
	res := new(agentv1.ListSessionMessagesResponse)
	return res, r.lock(false, func(s *state) error {
		se := s.session(req.SessionId)
		if se == nil {
			return nil
		}
		from := 0
		if n := int(req.Limit); n > 0 {
			from = max(0, len(se.Messages)-n)
		}
		for _, m := range se.Messages[from:] {
			last := len(m.Branches) - 1
			out := &agentv1.SessionMessage{Role: m.Role, Content: m.Branches[last], CreatedAt: m.At, ActiveBranch: int32(last)}
			if last > 0 {
				b, err := json.Marshal(m.Branches)
				if err != nil {
					return status.Error(codes.Internal, err.Error())
				}
				out.BranchesJson = string(b)
			}
			res.Messages = append(res.Messages, out)
		}
		return nil
	})
}
