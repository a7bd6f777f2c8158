package script

import (
	"context"
	"regexp"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

const noteKey = `^[a-z0-9][a-z0-9_-]{0,63}$`

// previewRunes is the length of a preview.
const previewRunes = 80

func (n *note) proto(content bool) *agentv1.Note {
	runes := []rune(n.Content)
	out := &agentv1.Note{
		Key: n.Key, Preview: string(runes[:min(previewRunes, len(runes))]), InContext: n.InContext,
		CreatedAt: n.Created, UpdatedAt: n.Updated,
	}
	if content {
		out.Content = n.Content
	}
	return out
}

func (s *state) note(key string) (*note, error) {
	i := slices.IndexFunc(s.Notes, func(n *note) bool { return n.Key == key })
	if i < 0 {
		return nil, status.Errorf(codes.NotFound, "no note %q", key)
	}
	return s.Notes[i], nil
}

// ListNotes lists the notes, without their contents.
func (r *Runtime) ListNotes(_ context.Context, req *agentv1.ListNotesRequest) (*agentv1.ListNotesResponse, error) {
	res := new(agentv1.ListNotesResponse)
	return res, r.lock(false, func(s *state) error {
		for _, n := range s.Notes {
			if n.InContext || !req.OnlyInContext {
				res.Notes = append(res.Notes, n.proto(false))
			}
		}
		return nil
	})
}

// GetNote returns one note.
func (r *Runtime) GetNote(_ context.Context, req *agentv1.GetNoteRequest) (*agentv1.GetNoteResponse, error) {
	res := new(agentv1.GetNoteResponse)
	return res, r.lock(false, func(s *state) error {
		n, err := s.note(req.Key)
		if err == nil {
			res.Note = n.proto(true)
		}
		return err
	})
}

// SaveNote writes a note, within the limits of the request.
func (r *Runtime) SaveNote(_ context.Context, req *agentv1.SaveNoteRequest) (*agentv1.SaveNoteResponse, error) {
	if !regexp.MustCompile(noteKey).MatchString(req.Key) {
		return nil, status.Errorf(codes.InvalidArgument, "key %q does not match %s", req.Key, noteKey)
	}
	if req.MaxBytes > 0 && len(req.Content) > int(req.MaxBytes) {
		return nil, status.Errorf(codes.FailedPrecondition, "%d bytes, at most %d", len(req.Content), req.MaxBytes)
	}
	res := new(agentv1.SaveNoteResponse)
	return res, r.lock(true, func(s *state) error {
		n, err := s.note(req.Key)
		now := time.Now().Unix()
		switch {
		case err == nil:
			res.Overwrote = true
		case req.MaxCount > 0 && len(s.Notes) >= int(req.MaxCount):
			return status.Errorf(codes.FailedPrecondition, "%d notes, at most %d", len(s.Notes), req.MaxCount)
		default:
			n = &note{Key: req.Key, Created: now}
			s.Notes = append(s.Notes, n)
		}
		n.Content, n.Updated = req.Content, now
		res.Note = n.proto(true)
		return nil
	})
}

// DeleteNote deletes a note, and tells whether there was one.
func (r *Runtime) DeleteNote(_ context.Context, req *agentv1.DeleteNoteRequest) (*agentv1.DeleteNoteResponse, error) {
	res := new(agentv1.DeleteNoteResponse)
	return res, r.lock(true, func(s *state) error {
		before := len(s.Notes)
		s.Notes = slices.DeleteFunc(s.Notes, func(n *note) bool { return n.Key == req.Key })
		res.Deleted = len(s.Notes) < before
		return nil
	})
}

// SetNoteInContext pins a note into the context or takes it out.
func (r *Runtime) SetNoteInContext(_ context.Context, req *agentv1.SetNoteInContextRequest) (*agentv1.SetNoteInContextResponse, error) {
	res := new(agentv1.SetNoteInContextResponse)
	return res, r.lock(true, func(s *state) error {
		n, err := s.note(req.Key)
		if err != nil {
			return err
		}
		n.InContext, n.Updated = req.InContext, time.Now().Unix()
		res.Note = n.proto(true)
		return nil
	})
}
