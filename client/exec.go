package client

import (
	"context"
	"errors"
	"io"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// stdinChunk is how much of standard input goes into one message, in bytes.
const stdinChunk = 32 << 10

// Exec runs a BIN that the agent declares, and returns its exit code, -1 where a signal ended it. One that
// passes its bounds is killed, with an error of codes.DeadlineExceeded or codes.ResourceExhausted.
// stdin may be nil. It is read until it ends or the BIN has; a read that is under way then is not
// waited for. Ending the context kills the BIN and all it started.
func (c *Client) Exec(ctx context.Context, start *daemonv1.ExecStart, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.Exec(ctx)
	if err != nil {
		return -1, c.fromCall(ctx, err)
	}
	if err := stream.Send(&daemonv1.ExecRequest{Part: &daemonv1.ExecRequest_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return -1, c.fromCall(ctx, err)
	}
	go func() {
		// What is wrong with the stream comes with the answer.
		if stdin != nil {
			in := partWriter(func(p []byte) error {
				return stream.Send(&daemonv1.ExecRequest{Part: &daemonv1.ExecRequest_Stdin{Stdin: p}})
			})
			_, _ = io.CopyBuffer(in, struct{ io.Reader }{stdin}, make([]byte, stdinChunk))
		}
		_ = stream.CloseSend()
	}()
	for {
		m, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return -1, c.fromCall(ctx, err)
		}
		switch part := m.GetPart().(type) {
		case *daemonv1.ExecResponse_Stdout:
			_, err = stdout.Write(part.Stdout)
		case *daemonv1.ExecResponse_Stderr:
			_, err = stderr.Write(part.Stderr)
		case *daemonv1.ExecResponse_Exit:
			return int(part.Exit.GetCode()), nil
		}
		if err != nil {
			return -1, err
		}
	}
}
