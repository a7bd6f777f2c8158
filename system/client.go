package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/internal/flow"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// serveTokenKey is the metadata by which a caller proves that it is the daemon.
const serveTokenKey = "otters-serve-token"

// maxMessage bounds a message to or from a runtime, in bytes.
const maxMessage = 16 << 20

// DialLoopback is the Dialer that agents have by default, for a runtime on this machine: without
// encryption, and with messages of at most 16 MiB. It connects at the first call, and since a runtime that
// binds its own address is not there at once, a refused connection is tried again soon. Ours.
func DialLoopback(_ context.Context, addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, append(flow.Dial(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 2 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond},
			MinConnectTimeout: 20 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	)...)
}

// calls are the agent's calls of its runtime.
func (a *Agent) calls() RuntimeClient { return RuntimeClient{Agent: a.id, Connect: a.connect} }

// connect is the connection to the running runtime, opened on first use in a run and closed with it.
// The context it returns carries the serve token.
func (a *Agent) connect(ctx context.Context) (grpc.ClientConnInterface, context.Context, error) {
	a.mu.Lock()
	conn, addr, token := a.conn, a.addr, a.serveToken
	idle := a.idle()
	a.mu.Unlock()
	switch {
	case addr == "":
		return nil, nil, errors.New("the agent has no address")
	case idle:
		// The reserved listener would take the connection and nobody would answer.
		return nil, nil, fmt.Errorf("%w; start it", ErrNotRunning)
	}
	if conn == nil {
		dial := a.dialer
		if dial == nil {
			dial = DialerFunc(DialLoopback)
		}
		fresh, err := dial.Dial(ctx, addr)
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
	return conn, ctx, nil
}

// idle tells that nothing can answer; the caller holds mu. Where a caller's own Dialer leads is not known
// here.
func (a *Agent) idle() bool {
	return a.run == nil && (a.monitored || a.listener != nil && a.dialer == nil)
}

// keepConn keeps the first connection of those that concurrent callers dialled, and none for a run
// that has ended, or got another address, meanwhile.
func (a *Agent) keepConn(conn *grpc.ClientConn, addr string) *grpc.ClientConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil && a.addr == addr && !a.idle() {
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

// Probe calls Ready once and returns nil when the runtime answered true. A runtime that inherited
// its listener answers as soon as it can; one that binds its address refuses until then. While a start
// has not come to its process Probe waits for it. It changes no status. Errors are ErrNotRunning, wrapped,
// for an agent that does not run, that of the dialer, that of the call, or that Ready was false.
func (a *Agent) Probe(ctx context.Context) error {
	// Before that the address and the token may still be those of an earlier run.
	if err := a.awaitLaunched(ctx); err != nil {
		return err
	}
	return a.calls().Probe(ctx)
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
	conn, _, err := a.connect(ctx)
	if err != nil {
		return false, fmt.Errorf("probe agent %s without a token: %w", a.id, err)
	}
	_, err = agentv1.NewAgentRuntimeClient(conn).Ready(ctx, &agentv1.ReadyRequest{})
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied:
		return true, nil
	case codes.OK:
		return false, nil
	}
	return false, fmt.Errorf("probe agent %s without a token: %w", a.id, err)
}

// Warnings returns what the running runtime says in Health that is to be known, a line each. Ours.
func (a *Agent) Warnings(ctx context.Context) ([]string, error) { return a.calls().Warnings(ctx) }

// PromptStream runs one turn and calls cb, one call at a time, for every event. It returns when the
// turn has ended, when ctx has, or with the error of the stream. Outgoing metadata of ctx goes to
// the runtime.
func (a *Agent) PromptStream(ctx context.Context, req executor.PromptRequest, cb func(executor.PromptEvent)) error {
	return a.calls().PromptStream(ctx, req, cb)
}

// Prompt runs one turn and writes the final answer, the text of the last step, to w. A turn that
// ends with an error event and no text is an error.
func (a *Agent) Prompt(ctx context.Context, req executor.PromptRequest, w io.Writer) error {
	return a.calls().Prompt(ctx, req, w)
}

// PromptObject asks the model for one JSON object that fits the schema, without session and tools. A schema that the
// runtime does not take is its error.
func (a *Agent) PromptObject(ctx context.Context, req executor.ObjectPromptRequest) ([]byte, error) {
	return a.calls().PromptObject(ctx, req)
}

// ListSessions lists every session the runtime keeps.
func (a *Agent) ListSessions(ctx context.Context) ([]executor.SessionInfo, error) {
	return a.calls().ListSessions(ctx)
}

// DeleteSession drops a session; one that does not exist is no error.
func (a *Agent) DeleteSession(ctx context.Context, sessionID string) error {
	return a.calls().DeleteSession(ctx, sessionID)
}

// ListSessionMessages returns the newest messages of a session, oldest first. A limit of 0 is the runtime's default,
// a negative one an error.
func (a *Agent) ListSessionMessages(ctx context.Context, sessionID string, limit int) ([]executor.SessionMessage, error) {
	return a.calls().ListSessionMessages(ctx, sessionID, limit)
}

// ListNotes lists the runtime's notes without their contents.
func (a *Agent) ListNotes(ctx context.Context, onlyInContext bool) ([]executor.Note, error) {
	return a.calls().ListNotes(ctx, onlyInContext)
}

// GetNote returns one note. The error wraps executor.ErrNoteNotFound where there is none.
func (a *Agent) GetNote(ctx context.Context, key string) (executor.Note, error) {
	return a.calls().GetNote(ctx, key)
}

// SaveNote writes a note, over one of the same key. Limits of 0 are the runtime's own; what is over them is an error
// and is not written.
func (a *Agent) SaveNote(ctx context.Context, key, content string, maxBytes, maxCount int32) (executor.SaveResult, error) {
	return a.calls().SaveNote(ctx, key, content, maxBytes, maxCount)
}

// DeleteNote deletes a note and tells whether there was one.
func (a *Agent) DeleteNote(ctx context.Context, key string) (bool, error) {
	return a.calls().DeleteNote(ctx, key)
}

// SetNoteInContext pins a note into the context or takes it out. The error wraps
// executor.ErrNoteNotFound where there is none.
func (a *Agent) SetNoteInContext(ctx context.Context, key string, inContext bool) (executor.Note, error) {
	return a.calls().SetNoteInContext(ctx, key, inContext)
}
