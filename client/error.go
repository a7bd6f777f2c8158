package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Errors that callers match with errors.Is.
var (
	// ErrNoDaemon tells that nothing listens on the socket.
	ErrNoDaemon = errors.New("no daemon is running")
	// ErrArchive is wrapped by errors about the build folder; nothing was built.
	ErrArchive = errors.New("build folder")
	// ErrInput is wrapped by errors about a file or stream that was to be sent; nothing was stored.
	ErrInput = errors.New("input")
)

const startHint = "start one with `otters daemon start`, or `ottersd` in the foreground"

// Error is an answer of the daemon that is not success, or the reason why there is none.
// errors.Is finds ErrNoDaemon, context.Canceled and context.DeadlineExceeded in it.
type Error struct {
	Code codes.Code
	// Message says what failed and why: "what: why".
	Message string
	// Hint says what a person can do about it; empty where there is nothing to say.
	Hint string
	// Candidates are the agents that a name fits, where it fits several.
	Candidates []*daemonv1.AgentSummary

	cause error
}

// Error returns the message without the hint.
func (e *Error) Error() string { return e.Message }

// Unwrap returns what it was made of: a gRPC status or an error of the connection.
func (e *Error) Unwrap() error { return e.cause }

// Is matches the errors of a context by their code, since the daemon may have noticed first.
func (e *Error) Is(target error) bool {
	switch target {
	case context.Canceled:
		return e.Code == codes.Canceled
	case context.DeadlineExceeded:
		return e.Code == codes.DeadlineExceeded
	}
	return false
}

func dialError(ctx context.Context, socket string, err error) error {
	e := &Error{Code: codes.Unavailable, cause: err}
	switch {
	case ctx.Err() != nil:
		e.Code = status.FromContextError(ctx.Err()).Code()
		e.Message = fmt.Sprintf("socket %s: %v", socket, ctx.Err())
	case errors.Is(err, fs.ErrNotExist):
		e.cause = fmt.Errorf("%w: %w", ErrNoDaemon, err)
		e.Message = fmt.Sprintf("%v: socket %s is not there", ErrNoDaemon, socket)
		e.Hint = startHint
	case errors.Is(err, syscall.ECONNREFUSED):
		e.cause = fmt.Errorf("%w: %w", ErrNoDaemon, err)
		e.Message = fmt.Sprintf("%v: nothing listens on socket %s", ErrNoDaemon, socket)
		e.Hint = startHint
	case errors.Is(err, fs.ErrPermission):
		e.Code = codes.PermissionDenied
		e.Message = fmt.Sprintf("socket %s: permission denied", socket)
		e.Hint = "a daemon answers only its own user and root: start your own, or become that user"
	default:
		var op syscall.Errno
		why := err
		if errors.As(err, &op) {
			why = op
		}
		e.Message = fmt.Sprintf("socket %s: %v", socket, why)
		e.Hint = "name the socket with --socket, or the folder of the daemon's state with OTTERS_HOME"
	}
	return e
}

// fromCall makes an *Error of what a call returned.
func (c *Client) fromCall(ctx context.Context, err error) error {
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	st := status.Convert(err)
	e := &Error{Code: st.Code(), Message: st.Message(), cause: err}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *daemonv1.Hint:
			e.Hint = d.GetText()
		case *daemonv1.AmbiguousName:
			e.Candidates = d.GetCandidates()
		}
	}
	switch {
	case ctx.Err() != nil:
		// gRPC tells what it was doing; a person only needs to know that it was given up.
		e.Code = status.FromContextError(ctx.Err()).Code()
		e.Message = "call to the daemon: given up: " + ctx.Err().Error()
	case e.Code == codes.Unavailable && e.Hint == "":
		return c.lost(ctx, e)
	case e.Code == codes.Unimplemented && e.Hint == "":
		e.Message = "the daemon does not know this call: " + e.Message
		e.Hint = "client and daemon differ in version, see `otters version`: restart the daemon with `otters daemon stop` and `otters daemon start`"
	}
	return e
}

// lost tells a daemon that has gone from one that answers "unavailable".
func (c *Client) lost(ctx context.Context, e *Error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := connect(ctx, c.socket)
	if err == nil {
		conn.Close()
		return e
	}
	if !errors.Is(err, ErrNoDaemon) {
		return e
	}
	return &Error{
		Code:    codes.Unavailable,
		Message: "the daemon ended during the call: nothing listens on socket " + c.socket,
		Hint:    startHint,
		cause:   fmt.Errorf("%w: %w", ErrNoDaemon, e.cause),
	}
}
