package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// fakeConversations are what the fake answers about sessions and notes.
type fakeConversations struct {
	sessions []*daemonv1.Session
	messages []*daemonv1.ShowSessionResponse
	export   string
	notes    []*daemonv1.Note
	object   string
}

// fakeTalk is the fake's part about sessions and notes.
type fakeTalk struct {
	daemonv1.UnimplementedConversationServiceServer
	*fake
}

func (f fakeTalk) ListSessions(_ context.Context, r *daemonv1.ListSessionsRequest) (*daemonv1.ListSessionsResponse, error) {
	return &daemonv1.ListSessionsResponse{Sessions: f.sessions}, f.note(r)
}

func (f fakeTalk) ShowSession(r *daemonv1.ShowSessionRequest, s grpc.ServerStreamingServer[daemonv1.ShowSessionResponse]) error {
	for _, m := range f.messages {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return f.note(r)
}

func (f fakeTalk) RemoveSession(_ context.Context, r *daemonv1.RemoveSessionRequest) (*daemonv1.RemoveSessionResponse, error) {
	if r.GetSessionId() == "none" {
		return nil, refusal(codes.NotFound, "session none of agent "+r.GetAgent()+": there is no such session", "`otters session ls` lists them")
	}
	return &daemonv1.RemoveSessionResponse{}, f.note(r)
}

func (f fakeTalk) ExportSessions(r *daemonv1.ExportSessionsRequest, s grpc.ServerStreamingServer[daemonv1.ExportSessionsResponse]) error {
	for _, part := range strings.SplitAfter(f.export, "\n") {
		if err := s.Send(&daemonv1.ExportSessionsResponse{Data: []byte(part)}); err != nil {
			return err
		}
	}
	return f.note(r)
}

func (f fakeTalk) ImportSessions(s grpc.ClientStreamingServer[daemonv1.ImportSessionsRequest, daemonv1.ImportSessionsResponse]) error {
	var got strings.Builder
	var options *daemonv1.ImportSessionsOptions
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if r.GetOptions() != nil {
			options = r.GetOptions()
		}
		got.Write(r.GetData())
	}
	if err := f.note([]any{options, got.String()}); err != nil {
		return err
	}
	return s.SendAndClose(&daemonv1.ImportSessionsResponse{Sessions: 1, Turns: 2, Messages: 3, Summaries: 4, Notes: 5})
}

func (f fakeTalk) ListNotes(_ context.Context, r *daemonv1.ListNotesRequest) (*daemonv1.ListNotesResponse, error) {
	return &daemonv1.ListNotesResponse{Notes: f.notes}, f.note(r)
}

func (f fakeTalk) find(key string) (*daemonv1.Note, error) {
	for _, n := range f.notes {
		if n.GetKey() == key {
			return n, nil
		}
	}
	return nil, refusal(codes.NotFound, "note "+key+" of agent g: there is no such note", "")
}

func (f fakeTalk) GetNote(_ context.Context, r *daemonv1.GetNoteRequest) (*daemonv1.GetNoteResponse, error) {
	n, err := f.find(r.GetKey())
	if err != nil {
		return nil, err
	}
	return &daemonv1.GetNoteResponse{Note: n}, f.note(r)
}

func (f fakeTalk) SetNote(_ context.Context, r *daemonv1.SetNoteRequest) (*daemonv1.SetNoteResponse, error) {
	_, err := f.find(r.GetKey())
	return &daemonv1.SetNoteResponse{Note: &daemonv1.Note{Key: r.GetKey(), Content: r.GetContent()}, Overwrote: err == nil}, f.note(r)
}

func (f fakeTalk) RemoveNote(_ context.Context, r *daemonv1.RemoveNoteRequest) (*daemonv1.RemoveNoteResponse, error) {
	if _, err := f.find(r.GetKey()); err != nil {
		return nil, err
	}
	return &daemonv1.RemoveNoteResponse{}, f.note(r)
}

func (f fakeTalk) PinNote(_ context.Context, r *daemonv1.PinNoteRequest) (*daemonv1.PinNoteResponse, error) {
	return &daemonv1.PinNoteResponse{Note: &daemonv1.Note{Key: r.GetKey(), Pinned: !r.GetUnpin()}}, f.note(r)
}

func (f fakeTalk) PromptObject(_ context.Context, r *daemonv1.PromptObjectRequest) (*daemonv1.PromptObjectResponse, error) {
	if f.object == "" {
		return nil, refusal(codes.Unimplemented, "prompt to agent "+r.GetAgent()+": its runtime answers with no objects (PromptObject)", "prompt it without a schema")
	}
	return &daemonv1.PromptObjectResponse{Object: []byte(f.object), RunId: "r"}, f.note(r)
}
