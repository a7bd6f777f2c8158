package agentruntime

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// ServeTokenKey is the metadata in which a caller presents the serve token.
const ServeTokenKey = "otters-serve-token"

// tokenCheck lets only those in who present the token: every call of every service.
type tokenCheck struct{ hash [sha256.Size]byte }

func (c tokenCheck) check(ctx context.Context) error {
	values := metadata.ValueFromIncomingContext(ctx, ServeTokenKey)
	if len(values) != 1 {
		return status.Errorf(codes.Unauthenticated, "no serve token: this runtime answers only callers with metadata %s", ServeTokenKey)
	}
	hash := sha256.Sum256([]byte(values[0]))
	if subtle.ConstantTimeCompare(hash[:], c.hash[:]) != 1 {
		return status.Error(codes.Unauthenticated, "wrong serve token")
	}
	return nil
}

func (c tokenCheck) options() []grpc.ServerOption {
	unary := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := c.check(ctx); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
	stream := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := c.check(ss.Context()); err != nil {
			return err
		}
		return next(srv, ss)
	}
	return []grpc.ServerOption{grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream)}
}
