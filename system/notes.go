package system

import (
	"context"

	"github.com/otters-sh/otters/executor"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

func note(n *agentv1.Note) executor.Note {
	return executor.Note{
		Key: n.GetKey(), Content: n.GetContent(), Preview: n.GetPreview(), InContext: n.GetInContext(),
		CreatedAt: n.GetCreatedAt(), UpdatedAt: n.GetUpdatedAt(),
	}
}

// ListNotes lists the runtime's notes without their contents.
func (a *Agent) ListNotes(ctx context.Context, onlyInContext bool) ([]executor.Note, error) {
	c, ctx, err := a.client(ctx)
	if err != nil {
		return nil, a.callError("list notes", err)
	}
	res, err := c.ListNotes(ctx, &agentv1.ListNotesRequest{OnlyInContext: onlyInContext})
	if err != nil {
		return nil, a.callError("list notes", err)
	}
	notes := make([]executor.Note, len(res.Notes))
	for i, n := range res.Notes {
		notes[i] = note(n)
	}
	return notes, nil
}

// GetNote returns one note. The error wraps executor.ErrNoteNotFound where there is none.
func (a *Agent) GetNote(ctx context.Context, key string) (executor.Note, error) {
	c, ctx, err := a.client(ctx)
	if err != nil {
		return executor.Note{}, a.callError("get note", err)
	}
	res, err := c.GetNote(ctx, &agentv1.GetNoteRequest{Key: key})
	if err != nil {
		return executor.Note{}, a.callError("get note", err)
	}
	return note(res.Note), nil
}

// SaveNote writes a note. Limits of 0 are the runtime's own.
func (a *Agent) SaveNote(ctx context.Context, key, content string, maxBytes, maxCount int32) (executor.SaveResult, error) {
	c, ctx, err := a.client(ctx)
	if err != nil {
		return executor.SaveResult{}, a.callError("save note", err)
	}
	res, err := c.SaveNote(ctx, &agentv1.SaveNoteRequest{Key: key, Content: content, MaxBytes: maxBytes, MaxCount: maxCount})
	if err != nil {
		return executor.SaveResult{}, a.callError("save note", err)
	}
	return executor.SaveResult{Note: note(res.Note), Overwrote: res.Overwrote}, nil
}

// DeleteNote deletes a note and tells whether there was one.
func (a *Agent) DeleteNote(ctx context.Context, key string) (bool, error) {
	c, ctx, err := a.client(ctx)
	if err != nil {
		return false, a.callError("delete note", err)
	}
	res, err := c.DeleteNote(ctx, &agentv1.DeleteNoteRequest{Key: key})
	if err != nil {
		return false, a.callError("delete note", err)
	}
	return res.Deleted, nil
}

// SetNoteInContext pins a note into the context or takes it out. The error wraps
// executor.ErrNoteNotFound where there is none.
func (a *Agent) SetNoteInContext(ctx context.Context, key string, inContext bool) (executor.Note, error) {
	c, ctx, err := a.client(ctx)
	if err != nil {
		return executor.Note{}, a.callError("pin note", err)
	}
	res, err := c.SetNoteInContext(ctx, &agentv1.SetNoteInContextRequest{Key: key, InContext: inContext})
	if err != nil {
		return executor.Note{}, a.callError("pin note", err)
	}
	return note(res.Note), nil
}
