package agentruntime_test

// Invariant: a session takes one turn at a time, and a prompt that comes meanwhile waits, or is refused
// where its caller asked for that, and then leaves nothing. Worst inputs: a prompt that is refused while
// others wait; one for another session; a word that is neither.

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

func TestABusySessionIsWaitedForOrRefused(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	a := newAgent(t, "", func(r modelserver.Request) modelserver.Answer {
		if r.Last().Content == "first" {
			return modelserver.Answer{Text: "one", Hold: hold}
		}
		return modelserver.Answer{Text: "ok"}
	})
	c := a.serve()
	chat := func(session, busy, prompt string) error {
		ctx := context.Background()
		if busy != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "otters-busy", busy)
		}
		_, err := c.Chat(ctx, &agentv1.ChatRequest{SessionId: session, Prompt: prompt})
		return err
	}
	begun, first, second := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		told := false
		_, err := stream(context.Background(), c, "s", "first", func(*agentv1.ChatStreamEvent) {
			if !told {
				told = true
				close(begun)
			}
		})
		first <- err
	}()
	<-begun
	if err := chat("s", "refuse", "no"); status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "session s: it is busy with another turn" {
		t.Errorf("refused: %v", err)
	}
	if err := chat("other", "refuse", "yes"); err != nil {
		t.Errorf("another session: %v", err)
	}
	for _, word := range []string{"perhaps", "WAIT"} {
		if err := chat("other", word, "no"); status.Code(err) != codes.InvalidArgument {
			t.Errorf("busy %q: %v", word, err)
		}
	}
	go func() { second <- chat("s", "wait", "second") }()
	close(hold)
	for what, done := range map[string]chan error{"first": first, "second": second} {
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := chat("s", "refuse", "third"); err != nil {
		t.Errorf("when nobody is in it: %v", err)
	}
	var got []string
	for _, m := range messages(t, c, "s") {
		if m.GetRole() == "user" {
			got = append(got, m.GetContent())
		}
	}
	if len(got) != 3 || got[0] != "first" || got[1] != "second" || got[2] != "third" {
		t.Errorf("the session has %v", got)
	}
}
