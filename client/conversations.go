package client

import (
	"context"
	"io"
	"iter"

	"google.golang.org/grpc"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Sessions lists the sessions of an agent, the newest first.
func (c *Client) Sessions(ctx context.Context, agent string) ([]*daemonv1.Session, error) {
	r, err := c.talk.ListSessions(ctx, &daemonv1.ListSessionsRequest{Agent: agent})
	r, err = call(ctx, c, r, err)
	return r.GetSessions(), err
}

// Session yields the newest messages of a session, oldest first: at most limit, of which 0 is 100 and
// 1000 the most.
func (c *Client) Session(ctx context.Context, agent, session string, limit int32) iter.Seq2[*daemonv1.ShowSessionResponse, error] {
	return receive(ctx, c, func(ctx context.Context) (grpc.ServerStreamingClient[daemonv1.ShowSessionResponse], error) {
		return c.talk.ShowSession(ctx, &daemonv1.ShowSessionRequest{Agent: agent, SessionId: session, Limit: limit})
	})
}

// RemoveSession removes a session of an agent.
func (c *Client) RemoveSession(ctx context.Context, agent, session string) error {
	r, err := c.talk.RemoveSession(ctx, &daemonv1.RemoveSessionRequest{Agent: agent, SessionId: session})
	_, err = call(ctx, c, r, err)
	return err
}

// ExportSessions writes sessions of an agent that does not run. What was written may be used only when
// the error is nil. An error of w comes back as it is.
func (c *Client) ExportSessions(ctx context.Context, w io.Writer, req *daemonv1.ExportSessionsRequest) error {
	for m, err := range receive(ctx, c, func(ctx context.Context) (grpc.ServerStreamingClient[daemonv1.ExportSessionsResponse], error) {
		return c.talk.ExportSessions(ctx, req)
	}) {
		if err != nil {
			return err
		}
		if _, err := w.Write(m.GetData()); err != nil {
			return err
		}
	}
	return nil
}

// ImportSessions stores what ExportSessions wrote in an agent that does not run: all of it, or nothing
// and an error. With replace it takes the place of sessions and notes that are there already. Errors
// about the reading of r wrap ErrInput.
func (c *Client) ImportSessions(ctx context.Context, agent string, r io.Reader, replace bool) (*daemonv1.ImportSessionsResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.talk.ImportSessions(ctx)
	if err != nil {
		return nil, c.fromCall(ctx, err)
	}
	first := &daemonv1.ImportSessionsRequest{Part: &daemonv1.ImportSessionsRequest_Options{Options: &daemonv1.ImportSessionsOptions{Agent: agent, Replace: replace}}}
	return upload(ctx, c, stream, first,
		func(p []byte) *daemonv1.ImportSessionsRequest {
			return &daemonv1.ImportSessionsRequest{Part: &daemonv1.ImportSessionsRequest_Data{Data: p}}
		},
		func(w io.Writer) error { return copyInput(ctx, w, r, ErrInput) })
}

// Notes lists the notes of an agent that runs, without their contents; with onlyPinned those that are
// part of the model's context.
func (c *Client) Notes(ctx context.Context, agent string, onlyPinned bool) ([]*daemonv1.Note, error) {
	r, err := c.talk.ListNotes(ctx, &daemonv1.ListNotesRequest{Agent: agent, OnlyPinned: onlyPinned})
	r, err = call(ctx, c, r, err)
	return r.GetNotes(), err
}

// Note returns a note of an agent that runs.
func (c *Client) Note(ctx context.Context, agent, key string) (*daemonv1.Note, error) {
	r, err := c.talk.GetNote(ctx, &daemonv1.GetNoteRequest{Agent: agent, Key: key})
	r, err = call(ctx, c, r, err)
	return r.GetNote(), err
}

// SetNote writes a note of an agent that runs, and tells whether there was one.
func (c *Client) SetNote(ctx context.Context, agent, key, content string) (note *daemonv1.Note, overwrote bool, err error) {
	r, err := c.talk.SetNote(ctx, &daemonv1.SetNoteRequest{Agent: agent, Key: key, Content: content})
	r, err = call(ctx, c, r, err)
	return r.GetNote(), r.GetOverwrote(), err
}

// RemoveNote removes a note of an agent that runs.
func (c *Client) RemoveNote(ctx context.Context, agent, key string) error {
	r, err := c.talk.RemoveNote(ctx, &daemonv1.RemoveNoteRequest{Agent: agent, Key: key})
	_, err = call(ctx, c, r, err)
	return err
}

// PinNote makes a note part of the model's context, or takes it out of it.
func (c *Client) PinNote(ctx context.Context, agent, key string, pin bool) (*daemonv1.Note, error) {
	r, err := c.talk.PinNote(ctx, &daemonv1.PinNoteRequest{Agent: agent, Key: key, Unpin: !pin})
	r, err = call(ctx, c, r, err)
	return r.GetNote(), err
}

// PromptObject asks an agent for one JSON object that fits a JSON Schema, without session and tools.
func (c *Client) PromptObject(ctx context.Context, req *daemonv1.PromptObjectRequest) (*daemonv1.PromptObjectResponse, error) {
	r, err := c.talk.PromptObject(ctx, req)
	return call(ctx, c, r, err)
}
