package daemon

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Invariant: a place in a trace is passed on as it came or not at all. Worst inputs: two of them, one
// with a line break.

func TestTraceParents(t *testing.T) {
	t.Parallel()
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct {
		given []string
		want  string
	}{
		{nil, ""}, {[]string{good}, good}, {[]string{good, good}, ""}, {[]string{good + "\r\nx: y"}, ""}, {[]string{"00-0-0-01"}, ""},
		{[]string{"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"}, ""},
	} {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{"traceparent": c.given})
		if got := traceParent(ctx); got != c.want {
			t.Errorf("%q: %q", c.given, got)
		}
	}
}

func TestAFailureIsToldWithoutWhatGRPCPutsBefore(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("not ready within 30s: probe: %w", status.Error(codes.Unavailable, "the model's file is missing"))
	if got, want := new(supervised).explain(err), "not ready within 30s: probe: the model's file is missing"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
