package agentruntime_test

// Invariant: a tool gets the working folder and no secret, its output is bounded and cut between
// characters, and nothing it started outlives its call. Worst inputs: endless output; a child in the
// background that keeps the pipes; arguments of another shape.

import (
	"context"
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
	got := toolResult(t, "pwd; env")
	if !strings.Contains(got, "/workspace\n") || !strings.Contains(got, "GREETING=hello") || !strings.Contains(got, "RUNTIME_MAX_TOKENS_X=1") {
		t.Errorf("tool output %q", got)
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
	got := toolResult(t, "printf a; yes € | tr -d '\\n' | head -c 300000")
	if !strings.HasSuffix(got, "€\n[cut: the first 65536 of 300001 bytes]\nexit code 0") && !strings.HasSuffix(got, "€\n[cut: the first 65535 of 300001 bytes]\nexit code 0") && !strings.HasSuffix(got, "€\n[cut: the first 65534 of 300001 bytes]\nexit code 0") {
		t.Errorf("output ends with %q", got[len(got)-80:])
	}
	if strings.Contains(got, "\uFFFD") {
		t.Error("a character was cut in two")
	}
	if got := toolResult(t, "printf '\\377x'"); got != "\uFFFDx\nexit code 0" {
		t.Errorf("bytes that are no text came as %q", got)
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
