package daemon

import (
	"context"
	"encoding/json"
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// maxSchema bounds a JSON Schema, in bytes; maxSchemaName and maxSchemaText what is told of it.
	maxSchema     = 256 << 10
	maxSchemaName = 256
	maxSchemaText = 4096
)

// PromptObject asks the agent's model for one object.
func (s conversationService) PromptObject(ctx context.Context, req *daemonv1.PromptObjectRequest) (*daemonv1.PromptObjectResponse, error) {
	a, err := s.sup.lookup(req.GetAgent())
	if err != nil {
		return nil, err
	}
	switch {
	case req.GetText() == "":
		return nil, fail(codes.InvalidArgument, "", "prompt to agent %s: the text is empty", a.name)
	case len(req.GetText()) > maxText:
		return nil, fail(codes.InvalidArgument, "", "prompt to agent %s: the text is longer than %d bytes", a.name, maxText)
	case len(req.GetSchema()) > maxSchema:
		return nil, fail(codes.InvalidArgument, "", "prompt to agent %s: the schema is longer than %d bytes", a.name, maxSchema)
	case !json.Valid(req.GetSchema()):
		return nil, fail(codes.InvalidArgument, "", "prompt to agent %s: the schema is no JSON, or nests deeper than 10000 levels", a.name)
	case len(req.GetName()) > maxSchemaName || len(req.GetDescription()) > maxSchemaText:
		return nil, fail(codes.InvalidArgument, "", "prompt to agent %s: the schema's name has at most %d bytes and its description %d", a.name, maxSchemaName, maxSchemaText)
	}
	r, err := a.begin()
	if err != nil {
		return nil, err
	}
	defer a.finish(r)
	client := ctx
	id, ctx, err := newRun(ctx, "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ending, func() { cancel(errClosed) })()
	var object []byte
	err = executor.ErrNotImplemented
	if prompter, ok := a.unit.(executor.ObjectPrompter); ok {
		object, err = prompter.PromptObject(ctx, executor.ObjectPromptRequest{
			Prompt: req.GetText(), Schema: req.GetSchema(), SchemaName: req.GetName(), SchemaDescription: req.GetDescription(),
		})
	}
	if errors.Is(err, executor.ErrNotImplemented) {
		return nil, fail(codes.Unimplemented, "prompt it without a schema", "prompt to agent %s: its runtime answers with no objects (PromptObject)", a.name)
	}
	if err := a.promptError(ctx, client, &relay{}, err); err != nil {
		return nil, err
	}
	if !json.Valid(object) {
		return nil, fail(codes.Internal, "", "prompt to agent %s: its runtime answered with something that is no JSON", a.name)
	}
	return &daemonv1.PromptObjectResponse{Object: object, RunId: id}, nil
}
