package agentruntime_test

// Invariant: a tool gets the working folder and no secret, its output is bounded and cut between
// characters, and nothing it started outlives its call. Worst inputs: endless output; a child in the
// background that keeps the pipes; arguments of another shape.

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/otters-sh/otters/internal/modelserver"
)

// toolResult runs sh with the script and returns what the model was told.
func toolResult(t *testing.T, script string) string {
	t.Helper()
	a := newAgent(t, "", modelserver.Script(toolCall("1", "sh", `{"args":["-c",`+quote(script)+`]}`), modelserver.Answer{Text: "ok"}))
	events, err := stream(context.Background(), a.serve(), "s", "go", nil)
	if err != nil {
		t.Fatal(err)
	}
	return find(t, events, "tool.result").GetContent()
}

func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

func TestAToolSeesItsFolderAndNoSecret(t *testing.T) {
	t.Parallel()
	folder, got, _ := strings.Cut(toolResult(t, "pwd; env"), "\n")
	if !strings.HasSuffix(folder, "/workspace") || !strings.Contains(got, "GREETING=hello\n") || !strings.Contains(got, "RUNTIME_MAX_TOKENS_X=1\n") {
		t.Errorf("tool output %q in %s", got, folder)
	}
	for _, secret := range []string{modelKey, "API_KEY", "API_BASE", "agenttoken", "OTTERSD_URL", "SECRET_TOKEN"} {
		if strings.Contains(got, secret) {
			t.Errorf("%s is in the tool's environment", secret)
		}
	}
}

func TestExitCodesSignalsAndStandardErrorAreTold(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"true":                       "exit code 0",
		"printf out":                 "out\nexit code 0",
		"echo out; echo bad >&2":     "out\nstandard error:\nbad\nexit code 0",
		"echo out; exit 3":           "out\n\nexit code 3",
		"kill -9 $$":                 "killed by signal killed",
		"sleep 1000 & echo detached": "detached\nexit code 0",
	} {
		if got := toolResult(t, script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
}

func TestOutputIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	got := toolResult(t, "printf a; yes € | tr -d '\\n' | head -c 300000; printf end; echo x >&2")
	head, rest, _ := strings.Cut(got, "\n[cut: the first 32767 and the last 32766 of 300004 bytes; all of it is in ")
	file, tail, _ := strings.Cut(rest, "]\n")
	if !strings.HasPrefix(head, "a€") || !strings.HasSuffix(head, "€") || !strings.HasPrefix(tail, "€") || !strings.HasSuffix(tail, "€end\nstandard error:\nx\nexit code 0") {
		t.Errorf("output of %d bytes ends with %q", len(got), got[max(0, len(got)-200):])
	}
	if strings.Contains(got, "\uFFFD") {
		t.Error("a character was cut in two")
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "a"+strings.Repeat("€", 100000)+"end" || !strings.Contains(file, "/workspace/tool-output/") {
		t.Errorf("the whole output is in %q with %d bytes, error %v", file, len(data), err)
	}
	if got := toolResult(t, "printf '\\377x'"); got != "\uFFFDx\nexit code 0" {
		t.Errorf("bytes that are no text came as %q", got)
	}
}

func TestKeptOutputStaysInTheWorkspace(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	got := toolResult(t, "rmdir tool-output 2>/dev/null; ln -s '"+outside+"' tool-output; head -c 100000 /dev/zero | tr '\\0' x")
	if !strings.Contains(got, "the rest could not be kept:") || !strings.HasSuffix(got, "xx\nexit code 0") {
		t.Errorf("output ends with %q", got[max(0, len(got)-200):])
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("%d files were written outside, error %v", len(entries), err)
	}
}

func TestBoundsOfATurnAreSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ config, script, reason, result string }{
		"tool output": {`tool-max-output: "256"`, "head -c 1000 /dev/zero | tr '\\0' x", "done", "the first 128 and the last 128 of 1000 bytes"},
		"tool time":   {`tool-timeout: 1s`, "sleep 100", "done", "longer than its limit of 1s"},
		"turn tokens": {`max-turn-tokens: "1"`, "echo hello", "max_tokens", "its limit is 1"},
		"repeats":     {`max-repeats: "1"`, "echo hello", "repeat", "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, "configs: {"+c.config+"}\n", modelserver.Script(toolCall("1", "sh", `{"args":["-c",`+quote(c.script)+`]}`), modelserver.Answer{Text: "ok"}))
			events, err := stream(context.Background(), a.serve(), "s", "go", nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := find(t, events, "tool.result").GetContent(); !strings.Contains(got, c.result) {
				t.Errorf("result %q, want %q", got, c.result)
			}
			if got := events[len(events)-1].GetReason(); got != c.reason {
				t.Errorf("reason %s, want %s", got, c.reason)
			}
		})
	}
}

// Where in the turn it is when its time is over depends on the machine.
func TestTheTimeOfATurnIsASetting(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {turn-timeout: 1s}\n", modelserver.Script(toolCall("1", "sh", `{"args":["-c","sleep 100"]}`), modelserver.Answer{Text: "ok"}))
	events, err := stream(context.Background(), a.serve(), "s", "go", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := find(t, events, "error").GetContent(); got != "turn took longer than its limit of 1s" || events[len(events)-1].GetReason() != "timeout" {
		t.Errorf("it says %q in %s", got, types(events))
	}
}

func TestTheSoftLimitOfATurnIsASetting(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {turn-soft-timeout: 1s}\n", modelserver.Script(toolCall("1", "sh", `{"args":["-c","sleep 1"]}`), modelserver.Answer{Text: "ok"}))
	if _, err := stream(context.Background(), a.serve(), "s", "go", nil); err != nil {
		t.Fatal(err)
	}
	first, second := a.model.Requests()[0].Last().Content, a.model.Requests()[1].Last().Content
	if first != "go" || !strings.Contains(second, " of 30m0s). Finish now") {
		t.Errorf("the model was told %q, then %q", first, second)
	}
}

func TestOddArgumentsAreExplainedToTheModel(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{`{"args":"x"}`, `want {"args": ["…"], "stdin": "…"}`},
		{`{"command":"x"}`, `unknown field "command"`},
		{`{"args":["a\u0000b"]}`, "start:"},
	} {
		answers := modelserver.Script(toolCall("1", "cat", c[0]), modelserver.Answer{Text: "sorry"})
		events, err := stream(context.Background(), newAgent(t, "", answers).serve(), "s", "go", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := find(t, events, "tool.result").GetContent(); !strings.Contains(got, c[1]) {
			t.Errorf("%s: %q, want %q", c[0], got, c[1])
		}
	}
}
