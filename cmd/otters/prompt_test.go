package main

import (
	"bytes"
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

func turnEvents(reason string) []*daemonv1.PromptResponse {
	return []*daemonv1.PromptResponse{
		{RunId: "r", SessionId: "s-1", Type: "step.start", Step: 1},
		{Type: "reasoning.delta", Step: 1, Content: "hm"},
		{Type: "text.delta", Step: 1, Content: "Let me "},
		{Type: "text.delta", Step: 1, Content: "look\x1b[2J."},
		{Type: "tool.call", Step: 1, Tool: "jq", ToolId: "t", Content: "{\"args\":\n [\".a\"]}"},
		{Type: "tool.result", Step: 1, Tool: "jq", ToolId: "t", Content: "7\n", DurationMs: 3},
		{Type: "tool.result", Step: 1, Tool: "ls", ToolId: "u", Content: "a\n  b\x1b\nc", DurationMs: 4},
		{Type: "step.finish", Step: 1, DurationMs: 1500, Usage: &daemonv1.Usage{InputTokens: 10, OutputTokens: 2}},
		{Type: "of.tomorrow", Content: "ignored"},
		{Type: "text.delta", Step: 2, Content: "It is 7.\n"},
		{Type: "message.create", Content: "[]"},
		{Type: "turn.finish", Reason: reason, Usage: &daemonv1.Usage{InputTokens: 20, OutputTokens: 4}},
	}
}

var times = regexp.MustCompile(`turn took \S+ m?s`)

func TestPromptStreams(t *testing.T) {
	t.Parallel()
	f := &fake{events: turnEvents("done")}
	socket := serve(t, f)
	got := otters(t.Context(), socket, "", "prompt", "guide", "what is a?", "--session", "s-0")
	got.err = times.ReplaceAllString(got.err, "turn took T")
	// Into a pipe the answer comes as it is; the notes are harmless always.
	check(t, got, outcome{out: "Let me look\x1b[2J.\nIt is 7.\n", err: `hm
→ jq {"args": [".a"]}
← jq (3 ms) 7
← ls (4 ms)
    a
      b␛
    c
  step 1 took 1.5 s, 10 tokens in, 2 out
  turn took T, 20 tokens in, 4 out; go on with --session s-1
`})
	want := &daemonv1.PromptRequest{Agent: "guide", SessionId: "s-0", Text: "what is a?"}
	if diff := cmp.Diff(want, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestPromptOnATerminalNeutralisesTheAnswer(t *testing.T) {
	t.Parallel()
	socket := serve(t, &fake{events: turnEvents("done")})
	var out, errs bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, err: &errs, outTerm: true, errTerm: true}
	if code := a.run(t.Context(), []string{"--socket", socket, "prompt", "guide", "hi"}); code != 0 || strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "look␛[2J.") {
		t.Errorf("code %d, %q", code, out.String())
	}
	if rest := strings.NewReplacer("\x1b[2m", "", "\x1b[0m", "").Replace(errs.String()); strings.Contains(rest, "\x1b") {
		t.Errorf("notes carry foreign escapes: %q", rest)
	}
}

func TestPromptFromStandardInput(t *testing.T) {
	t.Parallel()
	f := &fake{events: turnEvents("done")}
	socket := serve(t, f)
	for _, args := range [][]string{{"prompt", "guide"}, {"prompt", "guide", "-"}} {
		if got := otters(t.Context(), socket, "several\nlines\n", args...); got.code != 0 {
			t.Errorf("%v: %+v", args, got)
		}
		if text := f.last().(*daemonv1.PromptRequest).GetText(); text != "several\nlines\n" {
			t.Errorf("%v sends %q", args, text)
		}
	}
	most := otters(t.Context(), socket, strings.Repeat("x", maxPrompt), "prompt", "guide")
	if most.code != 0 {
		t.Errorf("the largest prompt: %d %s", most.code, most.err)
	}
	for in, says := range map[string]string{
		"":                               "the text is empty",
		" \n\t ":                         "the text is empty",
		strings.Repeat("x", maxPrompt+1): "more than 1048576 bytes",
		"a\xffb":                         "not valid UTF-8",
	} {
		if got := otters(t.Context(), socket, in, "prompt", "guide"); got.code != exitUsage || !strings.Contains(got.err, says) {
			t.Errorf("%.10q: %+v, want %q", in, got, says)
		}
	}
}

func TestPromptThatEndsEarlyFails(t *testing.T) {
	t.Parallel()
	for reason := range endings {
		got := otters(t.Context(), serve(t, &fake{events: turnEvents(reason)}), "", "prompt", "guide", "hi")
		if got.code != 1 || !strings.Contains(got.err, "otters: prompt guide: the turn ended early: "+reason+"; ") {
			t.Errorf("%s: %+v", reason, got)
		}
	}
	for name, events := range map[string][]*daemonv1.PromptResponse{
		"error, then its reason":         {{Type: "error", Content: "no\nmodel"}, {Type: "turn.finish", Reason: "model_error"}},
		"error of a runtime without one": {{Type: "error", Content: "no\nmodel"}},
	} {
		got := otters(t.Context(), serve(t, &fake{events: events}), "", "prompt", "guide", "hi")
		if got.code != 1 || !strings.Contains(got.err, "! no model\n") || !strings.Contains(got.err, "ended early: ") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// A runtime that knows no turn.finish ends well when its stream does.
	got := otters(t.Context(), serve(t, &fake{events: turnEvents("")[:10]}), "", "prompt", "guide", "hi")
	if got.code != 0 {
		t.Errorf("%+v", got)
	}
}

func TestCtrlCCancelsTheTurn(t *testing.T) {
	t.Parallel()
	f := &fake{events: turnEvents("")[:4], hang: true}
	socket := serve(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-f.created; cancel() }()
	got := otters(ctx, socket, "", "prompt", "guide", "hi")
	if got.code != exitInterrupted || !strings.HasSuffix(got.err, "otters: interrupted\n") {
		t.Errorf("%+v", got)
	}
	<-f.hungUp
}

func TestLogs(t *testing.T) {
	t.Parallel()
	socket := serve(t, &fake{agents: []*daemonv1.Agent{someAgent()}, logs: []string{"one", "t\x1b[2Jwo"}})
	check(t, otters(t.Context(), socket, "", "logs", "guide"), outcome{out: "one\nt\x1b[2Jwo\n"})
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs, outTerm: true}
	if code := a.run(t.Context(), []string{"--socket", socket, "logs", "guide"}); code != 0 || out.String() != "one\nt␛[2Jwo\n" {
		t.Errorf("%d %q", code, out.String())
	}
}

func TestNeutral(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain ünïcode 👩‍🚀\n\tx":    "plain ünïcode 👩‍🚀\n\tx",
		"a\r\nb\rc":                 "a\nb␍c",
		"\x00\x07\x1b[0m\x7f":       "␀␇␛[0m␡",
		"c1 \u009b31m":              "c1 <U+009B>31m",
		"bidi \u202eabc\u2066":      "bidi <U+202E>abc<U+2066>",
		"tags \U000e0041\U000e007f": "tags <U+E0041><U+E007F>",
		"broken \xff":               "broken \uFFFD",
	} {
		if got := neutral(in, true); got != want {
			t.Errorf("neutral(%q) = %q, want %q", in, got, want)
		}
	}
	if got := neutral("a\nb\tc", false); got != "a␊b␉c" {
		t.Errorf("one line: %q", got)
	}
}

func TestPromptPrintsEventsAsJSON(t *testing.T) {
	t.Parallel()
	f := &fake{events: turnEvents("done")}
	got := otters(t.Context(), serve(t, f), "", "prompt", "guide", "hi", "--json")
	lines := strings.Split(strings.TrimSuffix(got.out, "\n"), "\n")
	if got.code != 0 || got.err != "" || len(lines) != len(f.events) {
		t.Fatalf("%+v", got)
	}
	for i, want := range map[int]string{
		0:  `{"run_id":"r","session_id":"s-1","type":"step.start","step":1}`,
		3:  `{"type":"text.delta","step":1,"content":"look\u001b[2J."}`,
		4:  `{"type":"tool.call","step":1,"tool":"jq","tool_id":"t","content":"{\"args\":\n [\".a\"]}"}`,
		5:  `{"type":"tool.result","step":1,"tool":"jq","tool_id":"t","content":"7\n","duration_ms":3}`,
		7:  `{"type":"step.finish","step":1,"duration_ms":1500,"usage":{"input_tokens":10,"output_tokens":2,"cached_tokens":0,"reasoning_tokens":0}}`,
		8:  `{"type":"of.tomorrow","content":"ignored"}`,
		11: `{"type":"turn.finish","usage":{"input_tokens":20,"output_tokens":4,"cached_tokens":0,"reasoning_tokens":0},"reason":"done"}`,
	} {
		if lines[i] != want {
			t.Errorf("line %d is %s, want %s", i, lines[i], want)
		}
	}
	got = otters(t.Context(), serve(t, &fake{events: turnEvents("timeout")}), "", "prompt", "guide", "hi", "--json")
	if got.code != 1 || !strings.HasSuffix(got.out, `"reason":"timeout"}`+"\n") || !strings.HasPrefix(got.err, "otters: prompt guide: the turn ended early: timeout") {
		t.Errorf("%+v", got)
	}
}

func TestPromptWithAttachments(t *testing.T) {
	t.Parallel()
	f := &fake{events: turnEvents("done")}
	socket := serve(t, f)
	dir := t.TempDir()
	path := func(name, text string) string {
		writeFile(t, filepath.Join(dir, name), text)
		return filepath.Join(dir, name)
	}
	png := "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
	got := otters(t.Context(), socket, "", "prompt", "--attach", path("a.txt", "swim ü\n"), "--attach", path("b.json", png), "guide", "read it", "--busy", "refuse")
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	want := &daemonv1.PromptRequest{Agent: "guide", Text: "read it", Busy: "refuse", Attachments: []*daemonv1.Attachment{
		{Name: "a.txt", MediaType: "text/plain; charset=utf-8", Data: []byte("swim ü\n")}, {Name: "b.json", MediaType: "image/png", Data: []byte(png)},
	}}
	if diff := cmp.Diff(want, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	half := path("half", strings.Repeat("x", maxAttached/2))
	if got := otters(t.Context(), socket, "", "prompt", "--attach", half, "--attach", half, "guide", "x"); got.code != 0 {
		t.Errorf("as much as there may be: %d %s", got.code, got.err)
	}
	asked := len(f.asked)
	for says, files := range map[string][]string{
		"no such file":           {filepath.Join(dir, "none")},
		"is empty":               {path("empty", "")},
		"is not a regular file":  {dir},
		"one: more than 0 bytes": {half, half, path("one", "x")},
		"17 files attached":      strings.Split(strings.Repeat(half+" ", 16)+half, " "),
	} {
		args := []string{"prompt", "guide", "x"}
		for _, file := range files {
			args = append(args, "--attach", file)
		}
		if got := otters(t.Context(), socket, "", args...); got.code == 0 || !strings.Contains(got.err, says) {
			t.Errorf("%s: %+v", says, got)
		}
	}
	if len(f.asked) != asked {
		t.Error("the daemon was asked all the same")
	}
}

func TestPromptAgain(t *testing.T) {
	t.Parallel()
	f := &fake{events: turnEvents("done")}
	socket := serve(t, f)
	if got := otters(t.Context(), socket, "not read", "prompt", "--regenerate", "--session", "s", "guide"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if diff := cmp.Diff(&daemonv1.PromptRequest{Agent: "guide", SessionId: "s", Regenerate: true}, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	for says, args := range map[string][]string{
		"needs the session":            {"--regenerate", "guide"},
		"give no text and no --attach": {"--regenerate", "--session", "s", "guide", "text"},
		"give it alone":                {"--schema", "x", "--session", "s", "guide", "text"},
		"want wait or refuse":          {"--busy", "later", "guide", "text"},
	} {
		if got := otters(t.Context(), socket, "", append([]string{"prompt"}, args...)...); got.code != exitUsage || !strings.Contains(got.err, says) {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestPromptWithASchema(t *testing.T) {
	t.Parallel()
	f := &fake{}
	f.object = `{"river":"<Severn>","km":354}`
	socket := serve(t, f)
	file := filepath.Join(t.TempDir(), "s.json")
	writeFile(t, file, `{"type":"object"}`)
	check(t, otters(t.Context(), socket, "", "prompt", "--schema", file, "guide", "which?"), outcome{out: "{\n  \"river\": \"<Severn>\",\n  \"km\": 354\n}\n"})
	if diff := cmp.Diff(&daemonv1.PromptObjectRequest{Agent: "guide", Text: "which?", Schema: []byte(`{"type":"object"}`)}, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	check(t, otters(t.Context(), serve(t, &fake{}), "", "prompt", "--schema", file, "guide", "which?"),
		outcome{code: 1, err: "otters: prompt to agent guide: its runtime answers with no objects (PromptObject); prompt it without a schema\n"})
	writeFile(t, file, "{")
	for says, path := range map[string]string{"is no JSON": file, "no such file": file + "2"} {
		if got := otters(t.Context(), socket, "", "prompt", "--schema", path, "guide", "which?"); got.code != 1 || !strings.HasPrefix(got.err, "otters: prompt: schema: ") || !strings.Contains(got.err, says) {
			t.Errorf("%+v", got)
		}
	}
}
