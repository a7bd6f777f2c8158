package daemon

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// maxExecArgs and maxExecArgBytes bound the arguments of a BIN.
	maxExecArgs     = 10_000
	maxExecArgBytes = 1 << 20
	// execTime is how long a BIN may run where the caller does not say, and maxExecTime bounds what
	// the caller may say.
	execTime    = 10 * time.Minute
	maxExecTime = 24 * time.Hour
	// execOutput and maxExecOutput are the same of what it may write, in bytes of both streams.
	execOutput    = 1 << 30
	maxExecOutput = 1 << 40
)

type execServer = grpc.BidiStreamingServer[daemonv1.ExecRequest, daemonv1.ExecResponse]

// execution is a BIN that runs for the operator; done is closed when it has ended.
type execution struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	// offline tells that it works on the sessions, so that it ends when the agent starts too.
	offline bool
}

var (
	errAgentEnds  = errors.New("the agent is being stopped")
	errExecTime   = errors.New("it ran for too long")
	errExecOutput = errors.New("it wrote too much")
)

// Exec runs a declared BIN and passes its streams on, both ways and unbuffered.
func (s *service) Exec(stream execServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return fail(codes.InvalidArgument, "", "exec: the first message does not say what to run")
	}
	a, err := s.sup.lookup(start.GetAgent())
	if err != nil {
		return err
	}
	bounds, err := checkExec(start)
	if err != nil {
		return err
	}
	unit, ok := a.unit.(executor.StreamExecer)
	if !ok {
		return fail(codes.Unimplemented, "", "exec in agent %s: its executor can't", a.name)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.ending, func() { cancel(errClosed) })()
	e, err := a.enlist(cancel, false)
	if err != nil {
		return err
	}
	defer a.discharge(e)
	return a.exec(ctx, unit, start, bounds, stream)
}

// execBounds are how long a BIN may run and how many bytes it may write.
type execBounds struct {
	time   time.Duration
	output int64
}

func checkExec(start *daemonv1.ExecStart) (execBounds, error) {
	size := 0
	for _, arg := range start.GetArgs() {
		size += len(arg) + 1
	}
	bounds := execBounds{execTime, execOutput}
	if len(start.GetArgs()) > maxExecArgs || size > maxExecArgBytes {
		return bounds, fail(codes.InvalidArgument, "give the rest on standard input", "exec: more than %d arguments or %d bytes of them", maxExecArgs, maxExecArgBytes)
	}
	if start.TimeoutMs != nil {
		ms := start.GetTimeoutMs()
		if ms < 1 || ms > maxExecTime.Milliseconds() {
			return bounds, fail(codes.InvalidArgument, "", "exec: a timeout of %d ms: want 1 ms to %s", ms, maxExecTime)
		}
		bounds.time = time.Duration(ms) * time.Millisecond
	}
	if start.MaxOutput != nil {
		if bounds.output = start.GetMaxOutput(); bounds.output < 1 || bounds.output > maxExecOutput {
			return bounds, fail(codes.InvalidArgument, "", "exec: at most %d bytes of output: want 1 to %d", bounds.output, int64(maxExecOutput))
		}
	}
	return bounds, nil
}

func (a *supervised) exec(ctx context.Context, unit executor.StreamExecer, start *daemonv1.ExecStart, bounds execBounds, stream execServer) error {
	ctx, expire := context.WithTimeoutCause(ctx, bounds.time, errExecTime)
	defer expire()
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	in, feed := io.Pipe()
	// It ends with the call at the latest, when Recv does.
	go func() {
		for {
			m, err := stream.Recv()
			if err == nil {
				_, err = feed.Write(m.GetStdin())
			}
			if err != nil {
				_ = feed.CloseWithError(err) // io.EOF where the client has sent all
				return
			}
		}
	}()
	out := &execStreams{stream: stream, left: bounds.output, kill: kill}
	res := unit.ExecStream(ctx, start.GetBin(), start.GetArgs(), in, execWriter{out, false}, execWriter{out, true})
	_ = in.Close()
	what := "exec " + clip(start.GetBin()) + " in agent " + a.name
	switch cause := context.Cause(ctx); {
	case stream.Context().Err() != nil:
		return stream.Context().Err()
	case errors.Is(cause, errClosed), errors.Is(cause, errAgentEnds):
		return fail(codes.Unavailable, "", "%s: %w", what, cause)
	case errors.Is(cause, errExecOutput):
		return fail(codes.ResourceExhausted, "let it write more with --max-output", "%s: %w: more than %d bytes; it was killed", what, cause, bounds.output)
	case errors.Is(cause, errExecTime) && res.Err != nil:
		return fail(codes.DeadlineExceeded, "give it longer with --timeout", "%s: %w: more than %s; it was killed", what, cause, bounds.time)
	case res.Err != nil:
		why := res.Err
		if cause := errors.Unwrap(why); cause != nil {
			why = cause
		}
		return fail(codes.FailedPrecondition, "", "%s: %w", what, why)
	}
	return out.send(&daemonv1.ExecResponse{Part: &daemonv1.ExecResponse_Exit{Exit: &daemonv1.ExecExit{Code: int32(res.ExitCode)}}})
}

// execStreams sends both streams; a stream of gRPC takes one message at a time.
type execStreams struct {
	mu     sync.Mutex
	stream execServer
	// left is how many bytes may be written yet; kill ends a BIN that writes more.
	left int64
	kill context.CancelCauseFunc
}

func (o *execStreams) send(m *daemonv1.ExecResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stream.Send(m)
}

// write sends what of p may be written yet.
func (o *execStreams) write(p []byte, stderr bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	allowed := p[:min(int64(len(p)), o.left)]
	o.left -= int64(len(allowed))
	m := &daemonv1.ExecResponse{Part: &daemonv1.ExecResponse_Stdout{Stdout: allowed}}
	if stderr {
		m.Part = &daemonv1.ExecResponse_Stderr{Stderr: allowed}
	}
	if len(allowed) > 0 {
		if err := o.stream.Send(m); err != nil {
			return err
		}
	}
	if len(allowed) < len(p) {
		o.kill(errExecOutput)
		return errExecOutput
	}
	return nil
}

type execWriter struct {
	out    *execStreams
	stderr bool
}

// Write sends p before it returns, so that a client that does not read holds its own BIN up.
func (w execWriter) Write(p []byte) (int, error) {
	if err := w.out.write(p, w.stderr); err != nil {
		return 0, err
	}
	return len(p), nil
}

// enlist counts an execution in, so that it ends with the agent; one that is offline is refused where
// the agent runs or is to run.
func (a *supervised) enlist(cancel context.CancelCauseFunc, offline bool) (*execution, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case offline && a.run != nil && !a.run.ended:
		return nil, fail(codes.FailedPrecondition, "stop it with `otters stop "+a.name+"`", "agent %s is not stopped: its runtime has the sessions", a.name)
	case a.removing:
		return nil, fail(codes.FailedPrecondition, "", "agent %s is being removed", a.name)
	}
	e := &execution{cancel: cancel, done: make(chan struct{}), offline: offline}
	a.execs[e] = struct{}{}
	return e, nil
}

func (a *supervised) discharge(e *execution) {
	a.mu.Lock()
	delete(a.execs, e)
	a.mu.Unlock()
	close(e.done)
}

// endExecs kills what the operator runs in the agent and waits for its end.
func (a *supervised) endExecs() {
	a.endExecsOf(errAgentEnds, func(*execution) bool { return true })
}

// endExecsOf is endExecs of some; cause is told.
func (a *supervised) endExecsOf(cause error, these func(*execution) bool) {
	a.mu.Lock()
	var all []*execution
	for e := range a.execs {
		if these(e) {
			e.cancel(cause)
			all = append(all, e)
		}
	}
	a.mu.Unlock()
	for _, e := range all {
		<-e.done
	}
}
