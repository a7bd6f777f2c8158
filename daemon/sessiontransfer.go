package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// stopped is an agent that does not run, the only kind whose sessions are exported and imported.
func (s conversationService) stopped(what, name string) (*supervised, error) {
	a, runs, err := s.remembering(name)
	if err != nil {
		return nil, err
	}
	if runs {
		return nil, fail(codes.FailedPrecondition, "stop it with `otters stop "+a.name+"`", "%s of agent %s: it runs; its sessions are moved while it does not", what, a.name)
	}
	return a, nil
}

type exportStream = grpc.ServerStreamingServer[daemonv1.ExportSessionsResponse]

// ExportSessions passes the export of the agent's own runtime on.
func (s conversationService) ExportSessions(req *daemonv1.ExportSessionsRequest, out exportStream) error {
	a, err := s.stopped("export", req.GetAgent())
	if err != nil {
		return err
	}
	if n := len(req.GetSessionIds()); n > maxNamedSessions {
		return fail(codes.InvalidArgument, "", "export of agent %s: %d sessions: at most %d can be named", a.name, n, maxNamedSessions)
	}
	var args []string
	if req.GetNotes() {
		args = append(args, "--notes")
	}
	args = append(args, "--")
	for _, id := range req.GetSessionIds() {
		if err := checkKeptSession(id); err != nil {
			return err
		}
		args = append(args, id)
	}
	ctx, cancel := context.WithCancelCause(out.Context())
	defer cancel(nil)
	w := &exportWriter{out: out, cancel: func(err error) { cancel(err) }}
	err = a.offline(ctx, s.ending, offlineCall{verb: "export", args: args, stdout: w})
	if err == nil && !w.whole() {
		err = fail(codes.Internal, "", "export of agent %s: its runtime gave no whole export", a.name)
	}
	return err
}

// exportWriter sends an export on, and remembers its end.
type exportWriter struct {
	out    exportStream
	cancel func(error)
	size   int64
	tail   []byte
}

// maxEndLine bounds the last line of an export, in bytes.
const maxEndLine = 1024

// Write sends p before it returns, so that a client that does not read holds its own export up.
func (w *exportWriter) Write(p []byte) (int, error) {
	var err error
	if w.size += int64(len(p)); w.size > maxTransfer {
		err = fail(codes.ResourceExhausted, "name the sessions to export", "export: more than %d bytes", int64(maxTransfer))
	} else {
		err = w.out.Send(&daemonv1.ExportSessionsResponse{Data: p})
	}
	if err != nil {
		w.cancel(err)
		return 0, err
	}
	w.tail = append(w.tail, p[max(0, len(p)-maxEndLine):]...)
	w.tail = w.tail[max(0, len(w.tail)-maxEndLine):]
	return len(p), nil
}

// whole tells whether the last line is an export's end.
func (w *exportWriter) whole() bool {
	line, ended := bytes.CutSuffix(w.tail, []byte{'\n'})
	line = line[bytes.LastIndexByte(line, '\n')+1:]
	var end struct {
		Type string `json:"type"`
	}
	return ended && json.Unmarshal(line, &end) == nil && end.Type == "end"
}

type importStream = grpc.ClientStreamingServer[daemonv1.ImportSessionsRequest, daemonv1.ImportSessionsResponse]

// ImportSessions passes an export to the agent's own runtime, which checks it.
func (s conversationService) ImportSessions(in importStream) error {
	first, err := in.Recv()
	if errors.Is(err, io.EOF) || err == nil && first.GetOptions() == nil {
		return fail(codes.InvalidArgument, "", "import: the first message carries no options")
	}
	if err != nil {
		return err
	}
	a, err := s.stopped("import", first.GetOptions().GetAgent())
	if err != nil {
		return err
	}
	var args []string
	if first.GetOptions().GetReplace() {
		args = append(args, "--replace")
	}
	answer := &daemonv1.ImportSessionsResponse{}
	r, w := io.Pipe()
	ctx, cancel := context.WithCancelCause(in.Context())
	defer cancel(nil)
	done := make(chan error, 1)
	// It ends by itself, also where the client stalls: a start of the agent does not wait for one.
	s.sup.work.Go(func() {
		lines := &lineReader{most: 1, cancel: func(err error) { cancel(err) }, take: func(line []byte) error { return readCounts(line, answer) }}
		err := a.offline(ctx, s.ending, offlineCall{verb: "import", args: args, stdin: r, stdout: lines})
		if err == nil && lines.most == 1 {
			err = errNoLine
		}
		_ = r.CloseWithError(errImported)
		done <- err
	})
	if err := feedImport(in, w); err != nil && !errors.Is(err, errImported) {
		// Without its end it is not stored.
		_ = w.CloseWithError(err)
		cancel(err)
		<-done
		return err
	}
	if err := <-done; err != nil {
		return err
	}
	return in.SendAndClose(answer)
}

// errImported tells that nobody reads an import any more.
var errImported = errors.New("the import is over")

// feedImport writes what the client sends.
func feedImport(in importStream, w *io.PipeWriter) error {
	for size := int64(0); ; {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err != nil {
			return err
		}
		if m.GetOptions() != nil {
			return fail(codes.InvalidArgument, "", "import: options come once and first")
		}
		if size += int64(len(m.GetData())); size > maxTransfer {
			return fail(codes.InvalidArgument, "", "import: more than %d bytes", int64(maxTransfer))
		}
		if _, err := w.Write(m.GetData()); err != nil {
			return err
		}
	}
}

func readCounts(line []byte, into *daemonv1.ImportSessionsResponse) error {
	var c struct{ Sessions, Turns, Messages, Summaries, Notes int64 }
	if err := json.Unmarshal(line, &c); err != nil {
		return errNoLine
	}
	into.Sessions, into.Turns, into.Messages, into.Summaries, into.Notes = c.Sessions, c.Turns, c.Messages, c.Summaries, c.Notes
	return nil
}
