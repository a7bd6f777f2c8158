package agentruntime_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// Invariant: an agent whose provider is anthropic is answered in that provider's format, and what the
// provider signed survives the store.
func TestAClaudeThinksAndCallsOverRestarts(t *testing.T) {
	t.Parallel()
	a := newAgent(t, `configs:
  max-tokens: "4000"
  thinking: "2000"
  temperature: "1"
`, modelserver.Script(
		modelserver.Answer{Reasoning: "let me look", Signature: "sig-1", Calls: []modelserver.Call{{ID: "toolu_1", Name: "cat", Args: `{"args":["/dev/null"]}`}}},
		modelserver.Answer{Reasoning: "nothing", Signature: "sig-2", Text: "empty", InputTokens: 100, CachedTokens: 90, OutputTokens: 7},
		modelserver.Answer{Text: "as I said"},
	))
	a.opts.Model = "anthropic/claude-1"
	a.opts.Environ = append(a.opts.Environ, "ANTHROPIC_API_BASE="+a.model.Base, "ANTHROPIC_API_KEY="+modelKey)
	stream, err := a.serve().ChatStream(context.Background(), &agentv1.ChatStreamRequest{SessionId: "s", Prompt: "look"})
	if err != nil {
		t.Fatal(err)
	}
	var reasoning, text string
	var last *agentv1.ChatStreamEvent
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e.GetType() {
		case "reasoning.delta":
			reasoning += e.GetContent()
		case "text.delta":
			text += e.GetContent()
		}
		last = e
	}
	if reasoning != "let me looknothing" || text != "empty" || last.GetReason() != "done" || last.GetUsage().GetCachedTokens() != 90 {
		t.Errorf("reasoning %q, text %q, last %v", reasoning, text, last)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if err := chat(context.Background(), a.serve(), "s", "well?"); err != nil {
		t.Fatal(err)
	}
	all := a.model.Requests()
	if len(all) != 3 || all[0].Header.Get("X-Api-Key") != modelKey || !strings.Contains(all[0].System[0].Text, "Be short.") {
		t.Fatalf("%d requests, the first %s", len(all), all[0].Raw)
	}
	// The server takes back no reasoning but what it signed.
	if raw := string(all[2].Raw); strings.Count(raw, `"signature":"sig-`) != 2 {
		t.Errorf("the third request says %s", raw)
	}
}
