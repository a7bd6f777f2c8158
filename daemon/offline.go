package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/system"
)

const (
	// offlineTime bounds what lists, shows or changes, whoever answers; a transfer is as long as its client takes.
	offlineTime = 2 * time.Minute
	// maxTransfer bounds an export and what is read of one, in bytes; it is the runtime's bound too.
	maxTransfer = 4 << 30
	// maxOfflineLine bounds a line of output that is read here, in bytes: a message has to fit into an
	// answer.
	maxOfflineLine = 15 << 20
	// maxComplaint bounds what is kept of standard error, in bytes.
	maxComplaint = 8 << 10
)

// Exit codes of the session command; docs/runtime.md has them.
const (
	exitNoSession = 3
	exitRefused   = 4
	exitInput     = 5
)

var errAgentStarts = errors.New("the agent is being started")

// offlineCall is a session command of an agent that does not run.
type offlineCall struct {
	verb   string
	args   []string
	stdin  io.Reader
	stdout io.Writer
}

// offline runs the agent's own runtime on the sessions, one call at a time. The database is never
// opened here: the agent can write it. What the command says is written by the caller's goroutine: a
// client that does not read holds its own call up, and not the end of the command.
func (a *supervised) offline(ctx, ending context.Context, c offlineCall) error {
	unit, ok := a.unit.(executor.SessionExecer)
	if !ok {
		return fail(codes.Unimplemented, "start the agent first", "session %s of agent %s: its executor reaches sessions only while the agent runs", c.verb, a.name)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ending, func() { cancel(errClosed) })()
	select {
	case a.offlineSlot <- struct{}{}:
	case <-ctx.Done():
		return a.offlineError(ctx, c, executor.ExecResult{Err: ctx.Err()}, "")
	}
	e, err := a.enlist(cancel, true)
	if err != nil {
		<-a.offlineSlot
		return err
	}
	errs := &complaint{}
	said, says := io.Pipe()
	defer context.AfterFunc(ctx, func() { _ = said.CloseWithError(context.Cause(ctx)) })()
	done := make(chan executor.ExecResult, 1)
	a.sup.work.Go(func() {
		res := unit.ExecSession(ctx, c.verb, c.args, c.stdin, says, errs)
		_ = says.Close()
		a.discharge(e)
		<-a.offlineSlot
		done <- res
	})
	if _, err := io.Copy(c.stdout, said); err != nil {
		cancel(err)
	}
	return a.offlineError(ctx, c, <-done, errs.line())
}

// endOffline ends the session commands of an agent that starts, and waits for their end.
func (a *supervised) endOffline() {
	a.endExecsOf(errAgentStarts, func(e *execution) bool { return e.offline })
}

// offlineError says what came of a call.
func (a *supervised) offlineError(ctx context.Context, c offlineCall, res executor.ExecResult, said string) error {
	what := "session " + c.verb + " of agent " + a.name
	switch cause := context.Cause(ctx); {
	case cause != nil && (errors.Is(cause, errClosed) || errors.Is(cause, errAgentEnds) || errors.Is(cause, errAgentStarts)):
		return fail(codes.Unavailable, "", "%s: %w", what, cause)
	case errors.As(cause, new(*failure)):
		return cause // what came out was not what is taken
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(res.Err, executor.ErrNotImplemented):
		why, hint := "the agent does not run, and its runtime works on sessions only while it does", "start it with `otters start "+a.name+"`; its sessions are reached while it runs"
		if c.verb == "export" || c.verb == "import" {
			why, hint = "its runtime can't do that", "`otters session show` prints sessions while the agent runs"
		}
		return fail(codes.FailedPrecondition, hint, "%s: %s: its image does not have the label %s=offline", what, why, system.SessionsLabel)
	case res.Err != nil:
		why := res.Err
		if cause := errors.Unwrap(why); cause != nil {
			why = cause
		}
		return fail(codes.FailedPrecondition, "", "%s: %w", what, why)
	case res.ExitCode == 0:
		return nil
	}
	code, hint := codes.Internal, ""
	switch res.ExitCode {
	case exitNoSession:
		code, hint = codes.NotFound, "`otters session ls "+a.name+"` lists the sessions there are"
	case exitRefused:
		code = codes.FailedPrecondition
	case exitInput:
		code = codes.InvalidArgument
		if c.verb == "import" {
			hint = "give what `otters session export` wrote"
		}
	}
	if said == "" {
		said = "its runtime ended with an error and said nothing"
	}
	return fail(code, hint, "%s: %s", what, said)
}

// complaint keeps the last line of standard error.
type complaint struct{ b []byte }

// Write keeps the end of what is written.
func (c *complaint) Write(p []byte) (int, error) {
	c.b = append(c.b, p[max(0, len(p)-maxComplaint):]...)
	c.b = c.b[max(0, len(c.b)-maxComplaint):]
	return len(p), nil
}

func (c *complaint) line() string {
	text := strings.TrimRight(string(c.b), "\r\n")
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return strings.ToValidUTF8(strings.TrimPrefix(text, "otters-runtime: "), "\uFFFD")
}

// lineReader calls take for each line that is written, at most most of them. An error of take, and
// more or longer lines, end the call.
type lineReader struct {
	take   func([]byte) error
	most   int
	cancel func(error)
	rest   []byte
	failed bool
}

// Write never blocks once there was an error.
func (l *lineReader) Write(p []byte) (int, error) {
	n := len(p)
	for !l.failed && len(p) > 0 {
		part, after, whole := bytes.Cut(p, []byte{'\n'})
		p = after
		if len(l.rest)+len(part) > maxOfflineLine {
			l.fail(fail(codes.FailedPrecondition, "", "the agent's runtime gave a line of more than %d bytes; export the session instead", maxOfflineLine))
			break
		}
		l.rest = append(l.rest, part...)
		if !whole {
			break
		}
		if l.most--; l.most < 0 {
			l.fail(fail(codes.Internal, "", "the agent's runtime gave more than was asked for"))
			break
		}
		if err := l.take(l.rest); err != nil {
			l.fail(err)
		}
		l.rest = l.rest[:0]
	}
	return n, nil
}

func (l *lineReader) fail(err error) {
	l.failed = true
	l.cancel(err)
}
