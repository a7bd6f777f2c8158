package agentruntime

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/loop"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// Bounds on what tells the model about an object, in bytes. The loop bounds the schema.
const (
	maxObjectName        = 256
	maxObjectDescription = 4096
)

func checkObjectRequest(req *agentv1.PromptObjectRequest) error {
	for _, field := range []struct {
		name, text string
		limit      int
	}{
		{"prompt", req.GetPrompt(), maxUserPrompt},
		{"schema_name", req.GetSchemaName(), maxObjectName},
		{"schema_desc", req.GetSchemaDesc(), maxObjectDescription},
	} {
		if len(field.text) > field.limit {
			return status.Errorf(codes.InvalidArgument, "%s: %d bytes are over the limit of %d", field.name, len(field.text), field.limit)
		}
	}
	if strings.TrimSpace(req.GetPrompt()) == "" {
		return status.Error(codes.InvalidArgument, "prompt: it is empty")
	}
	return nil
}

// PromptObject asks the model for one object, without session and tools. Nothing of it is stored.
func (s *service) PromptObject(ctx context.Context, req *agentv1.PromptObjectRequest) (*agentv1.PromptObjectResponse, error) {
	if err := checkObjectRequest(req); err != nil {
		return nil, err
	}
	metadata, err := copiedMetadata(ctx)
	if err != nil {
		return nil, err
	}
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	st, err := s.store.wait(ctx)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	system, err := s.systemPrompt(ctx, st)
	if err != nil {
		return nil, storeStatus(ctx, err)
	}
	out, err := s.loop.Object(ctx, loop.ObjectPrompt{
		System: system, Prompt: req.GetPrompt(), Metadata: metadata,
		Format: loop.ObjectFormat{Name: req.GetSchemaName(), Description: req.GetSchemaDesc(), Schema: req.GetSchemaJson()},
	})
	if err != nil {
		return nil, objectStatus(err)
	}
	return &agentv1.PromptObjectResponse{ObjectJson: out.JSON, RawText: out.Text}, nil
}

// objectStatus is the status of a prompt that gave no object.
func objectStatus(err error) error {
	var unfit *loop.ObjectError
	var end *loop.EndError
	switch {
	case errors.Is(err, loop.ErrSchema):
		return status.Error(codes.InvalidArgument, "schema_json: "+strings.TrimPrefix(err.Error(), loop.ErrSchema.Error()+": "))
	case errors.As(err, &end):
		return turnStatus(end.Reason, err)
	case errors.Is(err, loop.ErrRefused):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.As(err, &unfit):
		return status.Error(codes.Aborted, err.Error())
	case errors.Is(err, context.Canceled):
		return turnStatus(loop.Cancelled, err)
	case errors.Is(err, context.DeadlineExceeded):
		return turnStatus(loop.Timeout, err)
	}
	return turnStatus(loop.ModelError, err)
}
