package daemon

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/otters-sh/otters/internal/modelserver"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: an agent of provider anthropic is answered by that provider in its own format, which sees
// the real key and never the agent's token; what the provider refuses is told as it is. Worst inputs:
// a provider that is overloaded, one that breaks off, a refusal.
func TestAnAgentSpeaksAnthropicToItsProvider(t *testing.T) {
	t.Parallel()
	const key = "sk-ant-0123456789abcdef0123456789"
	server := modelserver.Start(modelserver.Script(
		modelserver.Answer{Reasoning: "count them", Signature: "sig-1", Calls: []modelserver.Call{{ID: "toolu_1", Name: "wc", Args: `{"args":["-l"],"stdin":"a\nb\n"}`}}},
		modelserver.Answer{Reasoning: "so", Signature: "sig-2", Text: "two lines"},
		modelserver.Answer{Status: 529, Code: "overloaded_error", Text: "Overloaded, " + key, RetryAfter: "1"},
		modelserver.Answer{Text: "half", Abort: true},
		modelserver.Answer{Text: "I", Finish: "refusal"},
		modelserver.Answer{Text: "and on"},
	))
	t.Cleanup(server.Close)
	home := newHome(t)
	writeHome(t, home, "providers.yaml", fmt.Sprintf("providers:\n  - name: anthropic\n    api-key: %s\n    api-base: %s\n    models: [claude-1]\n", key, server.Base))
	d := boot(t, home)
	d.image("claude", with("MODEL anthropic/claude-1"))
	d.create(&daemonv1.CreateAgentRequest{Image: "claude", Name: "c", Configs: map[string]string{"thinking": "1024"}})
	if got := d.await("c", "ready", "failed"); got.GetStatus() != "ready" {
		t.Fatalf("the agent is %s: %s", got.GetStatus(), got.GetMessage())
	}

	got := d.ask("c", "s", "how many lines?")
	if got.reason != "done" || got.text != "two lines" || len(got.results) != 1 || !strings.HasPrefix(got.results[0], "2\n") || !slices.Contains(got.types, "reasoning.delta") {
		t.Errorf("the turn is %+v", got)
	}
	for _, c := range []struct{ prompt, reason string }{{"overloaded", "model_error"}, {"broken", "model_error"}, {"refused", "model_error"}, {"well", "done"}} {
		if got := d.ask("c", "s", c.prompt); got.reason != c.reason {
			t.Errorf("%s: the turn is %+v", c.prompt, got)
		}
	}
	all := server.Requests()
	if len(all) != 6 {
		t.Fatalf("the provider was asked %d times", len(all))
	}
	for i, r := range all {
		if r.Header.Get("X-Api-Key") != key || r.Model != "claude-1" || strings.Contains(fmt.Sprint(r.Header), "otr_") || r.Thinking["budget_tokens"] != 1024.0 {
			t.Errorf("request %d: %s %v", i, r.Model, r.Header)
		}
	}
}
