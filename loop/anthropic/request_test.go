package anthropic_test

// Invariant: whatever history the loop has, the request keeps the rules of the format, which the
// scripted server checks; reasoning goes back to the model that gave it, unchanged, and to no other.
// Worst inputs: reasoning that was cut before it was signed, ids that another provider gave, a hint of
// the user behind results.

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/loop"
	"github.com/otters-sh/otters/loop/anthropic"
)

// echo is a tool that gives back its argument.
type echo struct{ name string }

func (e echo) Spec() loop.ToolSpec {
	return loop.ToolSpec{Name: e.name, Description: "gives back", Parameters: json.RawMessage(`{"type":"object","properties":{"say":{"type":"string"}}}`)}
}

func (e echo) Call(_ context.Context, c loop.Call) (string, error) {
	var in struct{ Say string }
	err := json.Unmarshal(c.Args, &in)
	return in.Say, err
}

func types(blocks []modelserver.Block) string {
	var list []string
	for _, b := range blocks {
		list = append(list, b.Type)
	}
	return strings.Join(list, " ")
}

func TestATurnWithThinkingAndToolsKeepsItsSignatures(t *testing.T) {
	t.Parallel()
	s := serve(t, modelserver.Script(
		modelserver.Answer{Redacted: "c2VjcmV0", Reasoning: "both at once", Signature: "sig-1", Text: "let me see",
			Calls: []modelserver.Call{{ID: "toolu_1", Name: "one", Args: `{"say":"first"}`}, {ID: "toolu_2", Name: "two", Args: `{"say":""}`}, {ID: "toolu_3", Name: "gone", Args: ``}}},
		modelserver.Answer{Signature: "sig-2", Calls: []modelserver.Call{{ID: "toolu_4", Name: "one", Args: `{}`}}},
		modelserver.Answer{Reasoning: "that is all", Signature: "sig-3", Text: "done"},
		modelserver.Answer{Text: "again"},
	))
	m := open(t, anthropic.Options{BaseURL: s.Base, APIKey: "otr_k", Thinking: 2000})
	l := loop.New(loop.Config{Model: m, Tools: []loop.Tool{echo{"one"}, echo{"two"}}, System: "be short", MaxTokens: 4000})
	var reasoning strings.Builder
	out, err := l.Run(context.Background(), loop.Turn{Prompt: "go", Metadata: map[string]string{"otters-run": "run-1"}, Observe: func(e loop.Event) {
		if e.Type == loop.ReasoningDelta {
			reasoning.WriteString(e.Content)
		}
	}})
	if err != nil || out.Reason != loop.Done || out.Text != "done" || reasoning.String() != "both at oncethat is all" {
		t.Fatalf("outcome %+v, reasoning %q, error %v", out, reasoning.String(), err)
	}
	// History as a store gives it back.
	stored, err := json.Marshal(out.Messages)
	if err != nil {
		t.Fatal(err)
	}
	var history []loop.Message
	if err := json.Unmarshal(stored, &history); err != nil || !reflect.DeepEqual(history, out.Messages) {
		t.Fatalf("stored as %s, %v", stored, err)
	}
	if out, err := l.Run(context.Background(), loop.Turn{History: history, Prompt: "and?"}); err != nil || out.Text != "again" {
		t.Fatalf("outcome %+v, error %v", out, err)
	}

	all := s.Requests()
	if all[0].Header.Get("X-Api-Key") != "otr_k" || all[0].Header.Get("Otters-Run") != "run-1" || !all[0].Stream || all[0].Model != "claude-1" || all[0].MaxTokens != 4000 {
		t.Errorf("request %s %v", all[0].Raw, all[0].Header)
	}
	if all[0].Thinking["type"] != "enabled" || all[0].Thinking["budget_tokens"] != 2000.0 {
		t.Errorf("thinking %v", all[0].Thinking)
	}
	second := all[1].Messages
	if len(second) != 3 || types(second[1].Blocks) != "redacted_thinking thinking text tool_use tool_use tool_use" || types(second[2].Blocks) != "tool_result tool_result tool_result" {
		t.Fatalf("the second request says %s", all[1].Raw)
	}
	if b := second[1].Blocks; b[0].Data != "c2VjcmV0" || b[1].Thinking != "both at once" || b[1].Signature != "sig-1" || string(b[5].Input) != "{}" {
		t.Errorf("the answer went back as %s", second[1].RawContent)
	}
	results := second[2].Blocks
	if results[0].ToolUseID != "toolu_1" || !strings.Contains(string(results[0].Content), "first") || results[1].ToolUseID != "toolu_2" || results[1].Content != nil ||
		results[2].ToolUseID != "toolu_3" || !results[2].IsError || results[0].IsError {
		t.Errorf("results %s", second[2].RawContent)
	}
	if types(all[2].Messages[3].Blocks) != "thinking tool_use" || all[2].Messages[3].Blocks[0].Signature != "sig-2" {
		t.Errorf("the third request says %s", all[2].Raw)
	}
	if last := all[3].Messages; len(last) != 7 || types(last[5].Blocks) != "thinking text" || last[6].Blocks[0].Text != "and?" {
		t.Errorf("the next turn says %s", all[3].Raw)
	}
	checkMarks(t, all)
}

// checkMarks: tools and system prompt are marked in every request, and what was said where results end it.
func checkMarks(t *testing.T, all []modelserver.Request) {
	t.Helper()
	for i, r := range all {
		if r.System[0].Text != "be short" || r.System[0].Cache["type"] != "ephemeral" || r.Tools[0].Cache != nil || r.Tools[1].Cache["type"] != "ephemeral" {
			t.Errorf("request %d: system %+v, tools %+v", i, r.System, r.Tools)
		}
		last := r.Messages[len(r.Messages)-1].Blocks
		if got := last[len(last)-1].Cache != nil; got != (last[0].Type == "tool_result") {
			t.Errorf("request %d: marked at its end: %v", i, got)
		}
	}
	if string(all[0].Tools[0].InputSchema) != `{"type":"object","properties":{"say":{"type":"string"}}}` || all[0].Tools[0].Name != "one" || all[0].Tools[0].Description != "gives back" {
		t.Errorf("tool %+v", all[0].Tools[0])
	}
}

func TestHistoriesOfOthersKeepTheRules(t *testing.T) {
	t.Parallel()
	call := func(id string) loop.Part { return loop.Part{Kind: loop.KindCall, ID: id, Name: "jq", Args: `{"a":1}`} }
	result := func(id string) loop.Part { return loop.Part{Kind: loop.KindResult, ID: id, Name: "jq", Text: "out"} }
	history := []loop.Message{
		loop.UserMessage("a"),
		{Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.KindReasoning, Text: "unsigned"}, call("call:1"), call("call.1")}},
		{Role: loop.RoleTool, Parts: []loop.Part{result("call:1"), result("call.1")}},
		loop.UserMessage("hurry up"),
		{Role: loop.RoleAssistant, Parts: []loop.Part{{Kind: loop.KindReasoning, Text: "cut"}}, Incomplete: true},
		loop.UserMessage("b"),
		{Role: loop.RoleAssistant, Parts: []loop.Part{
			{Kind: loop.KindReasoning, Text: "of another", Opaque: `{"model":"claude-0","signature":"s"}`}, {Kind: loop.KindText, Text: " \n"}, {Kind: loop.KindText, Text: "so"},
			{Kind: loop.KindReasoning, Text: "last", Opaque: `{"model":"claude-1","signature":"s"}`}}},
		loop.UserMessage("c"),
		{Role: loop.RoleAssistant, Parts: []loop.Part{call("call:1")}},
		{Role: loop.RoleTool, Parts: []loop.Part{result("call:1"), result("never called")}},
		{Role: loop.RoleAssistant, Parts: []loop.Part{call("")}},
		{Role: loop.RoleTool, Parts: []loop.Part{result("")}},
		loop.UserMessage(" "),
	}
	s := serve(t, modelserver.Script(modelserver.Answer{Text: "ok"}))
	text, _, _, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base}), loop.Request{Messages: history})
	if err != nil || text != "ok" {
		t.Fatalf("text %q, error %v", text, err)
	}
	got := s.Requests()[0]
	var seen []string
	for _, m := range got.Messages {
		seen = append(seen, m.Role+": "+types(m.Blocks))
	}
	want := "user: text / assistant: tool_use tool_use / user: tool_result tool_result text text / assistant: text / user: text / assistant: tool_use / user: tool_result / assistant: tool_use / user: tool_result"
	if strings.Join(seen, " / ") != want {
		t.Errorf("messages are %s", strings.Join(seen, " / "))
	}
	if got.MaxTokens != loop.DefaultMaxTokens || got.System != nil || got.Thinking != nil || strings.Contains(string(got.Raw), "unsigned") {
		t.Errorf("request %s", got.Raw)
	}
}

func TestThinkingIsAskedForAsItIsSet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		thinking  anthropic.Thinking
		maxTokens int
		want      map[string]any
	}{
		{anthropic.ThinkingDefault, 9, nil},
		{anthropic.ThinkingOff, 9, map[string]any{"type": "disabled"}},
		{anthropic.ThinkingAdaptive, 1025, map[string]any{"type": "adaptive", "display": "summarized"}},
		{anthropic.ThinkingAdaptive, 1024, nil},
		{1024, 1025, map[string]any{"type": "enabled", "budget_tokens": 1024.0}},
		{1024, 1024, nil}, // such as a summary
	} {
		s := serve(t, modelserver.Script(modelserver.Answer{Text: "ok"}))
		req := hello()
		req.MaxTokens = c.maxTokens
		if _, _, _, err := collect(context.Background(), open(t, anthropic.Options{BaseURL: s.Base, Thinking: c.thinking}), req); err != nil {
			t.Fatal(err)
		}
		if got := s.Requests()[0].Thinking; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%d of %d: %v, want %v", c.thinking, c.maxTokens, got, c.want)
		}
	}
}

func TestWhatTheFormatHasNotIsRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, func(modelserver.Request) modelserver.Answer { return modelserver.Answer{Text: "ok"} })
	m := open(t, anthropic.Options{BaseURL: s.Base})
	f, k := 0.5, 5
	for name, c := range map[string]struct {
		change func(*loop.Request)
		want   string
	}{
		"fine":               {func(r *loop.Request) { r.Params = loop.Params{Temperature: &f, TopP: &f, TopK: &k} }, ""},
		"a presence penalty": {func(r *loop.Request) { r.Params.PresencePenalty = &f }, "presence-penalty"},
		"a frequency one":    {func(r *loop.Request) { r.Params.FrequencyPenalty = &f }, "frequency-penalty"},
		"no JSON":            {func(r *loop.Request) { r.Tools = []loop.ToolSpec{{Name: "x", Parameters: []byte("{")}} }, "tool x"},
		"nothing":            {func(r *loop.Request) { r.Messages = []loop.Message{loop.UserMessage("")} }, "nothing was said"},
	} {
		req := hello()
		c.change(&req)
		before := len(s.Requests())
		_, _, _, err := collect(context.Background(), m, req)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
		if asked := len(s.Requests()) > before; asked != (c.want == "") {
			t.Errorf("%s: the provider was asked: %v", name, asked)
		}
	}
	for _, part := range []string{`"temperature":0.5`, `"top_p":0.5`, `"top_k":5`} {
		if raw := string(s.Requests()[0].Raw); !strings.Contains(raw, part) {
			t.Errorf("request %s lacks %s", raw, part)
		}
	}
}

func TestArgumentsThatCameWithTheirCallCount(t *testing.T) {
	t.Parallel()
	raw := `event: message_start
data: {"type":"message_start","message":{}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t1","name":"one","input":{"say":"x"}}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":"so"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"}}

event: message_stop
data: {"type":"message_stop"}

`
	s := serve(t, modelserver.Script(modelserver.Answer{Raw: raw}, modelserver.Answer{Text: "ok"}))
	l := loop.New(loop.Config{Model: open(t, anthropic.Options{BaseURL: s.Base}), Tools: []loop.Tool{echo{"one"}}})
	out, err := l.Run(context.Background(), loop.Turn{Prompt: "go"})
	if err != nil || out.Text != "ok" || out.Messages[2].Parts[0].Text != "x" {
		t.Errorf("outcome %+v, error %v", out, err)
	}
}
