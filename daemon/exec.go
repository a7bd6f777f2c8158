package daemon

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// maxExecArgs and maxExecArgBytes bound the arguments of a BIN.
	maxExecArgs     = 10_000
	maxExecArgBytes = 1 << 20
)

type execServer = grpc.BidiStreamingServer[daemonv1.ExecRequest, daemonv1.ExecResponse]

// execution is a BIN that runs for the operator; done is closed when it has ended.
type execution struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	// offline tells that it works on the sessions, so that it ends when the agent starts too.
	offline bool
}

var errAgentEnds = errors.New("the agent is being stopped")

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
	if err := checkExec(start); err != nil {
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
	return a.exec(ctx, unit, start, stream)
}

func checkExec(start *daemonv1.ExecStart) error {
	size := 0
	for _, arg := range start.GetArgs() {
		size += len(arg) + 1
	}
	if len(start.GetArgs()) > maxExecArgs || size > maxExecArgBytes {
		return fail(codes.InvalidArgument, "", "exec: more than %d arguments or %d bytes of them; give the rest on standard input", maxExecArgs, maxExecArgBytes)
	}
	return nil
}

func (a *supervised) exec(ctx context.Context, unit executor.StreamExecer, start *daemonv1.ExecStart, stream execServer) error {
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
	out := &execOutput{stream: stream}
	res := unit.ExecStream(ctx, start.GetBin(), start.GetArgs(), in, execWriter{out, false}, execWriter{out, true})
	_ = in.Close()
	switch cause := context.Cause(ctx); {
	case stream.Context().Err() != nil:
		return stream.Context().Err()
	case errors.Is(cause, errClosed), errors.Is(cause, errAgentEnds):
		return fail(codes.Unavailable, "", "exec %s in agent %s: %w", clip(start.GetBin()), a.name, cause)
	case res.Err != nil:
		why := res.Err
		if cause := errors.Unwrap(why); cause != nil {
			why = cause
		}
		return fail(codes.FailedPrecondition, "", "exec %s in agent %s: %w", clip(start.GetBin()), a.name, why)
	}
	return out.send(&daemonv1.ExecResponse{Part: &daemonv1.ExecResponse_Exit{Exit: &daemonv1.ExecExit{Code: int32(res.ExitCode)}}})
}

// execOutput sends both streams; a stream of gRPC takes one message at a time.
type execOutput struct {
	mu     sync.Mutex
	stream execServer
}

func (o *execOutput) send(m *daemonv1.ExecResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stream.Send(m)
}

type execWriter struct {
	out    *execOutput
	stderr bool
}

// Write sends p before it returns, so that a client that does not read holds its own BIN up.
func (w execWriter) Write(p []byte) (int, error) {
	m := &daemonv1.ExecResponse{Part: &daemonv1.ExecResponse_Stdout{Stdout: p}}
	if w.stderr {
		m.Part = &daemonv1.ExecResponse_Stderr{Stderr: p}
	}
	if err := w.out.send(m); err != nil {
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
