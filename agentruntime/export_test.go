package agentruntime

import (
	"context"
	"errors"
	"io"
	"reflect"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// KnownKeys are the CONFIG keys.
var KnownKeys = knownKeys

// EndsSentence tells whether a text is stored at once.
var EndsSentence = endsSentence

// SameSettings tells whether configs change nothing.
func SameSettings(configs map[string]string) (bool, error) {
	s, err := readSettings(configs)
	def, derr := readSettings(nil)
	if err == nil {
		err = derr
	}
	return reflect.DeepEqual(s, def), err
}

// Attachments are how many files and images are read of a session for a list of its messages, and how
// many there are.
func (s *Sessions) Attachments(ctx context.Context, session string) (listed, all int, err error) {
	turns, err := s.store.turns(ctx, session, maxListMessages, shown)
	for _, t := range turns {
		listed += len(t.messages[0].Attachments())
	}
	if err == nil {
		turns, err = s.store.turns(ctx, session, maxListMessages, nil)
	}
	for _, t := range turns {
		all += len(t.messages[0].Attachments())
	}
	return listed, all, err
}

// lost is a stream to a caller that went away, whose context has not ended yet.
type lost struct {
	agentv1.AgentRuntime_ChatStreamServer
	ctx context.Context
}

func (l lost) Context() context.Context { return l.ctx }

func (lost) Send(*agentv1.ChatStreamEvent) error {
	return status.Error(codes.Unavailable, "transport is closing")
}

// PromptLost prompts a session for a caller to whom nothing can be sent, and returns why its turn ended.
func PromptLost(ctx context.Context, opts Options, session string) (reason string, err error) {
	svc, err := newService(&opts, context.Background())
	if err != nil {
		return "", err
	}
	svc.store = startStore(ctx, opts.Root)
	defer func() { err = errors.Join(err, svc.store.close()) }()
	if err := svc.ChatStream(&agentv1.ChatStreamRequest{SessionId: session, Prompt: "x"}, lost{ctx: ctx}); err != nil {
		return "", err
	}
	turns, err := svc.store.store.turns(ctx, session, 1, nil)
	if err != nil || len(turns) == 0 {
		return "", err
	}
	return string(turns[0].reason), nil
}

// WatchUnopened is what Serve watches of sessions that could not be opened.
func WatchUnopened(ctx context.Context, err error) error {
	store := &opening{done: make(chan struct{}), err: err}
	close(store.done)
	return watch(ctx, &service{store: store}, nil, io.Discard)
}
