package agentruntime_test

// Invariant: the model knows every good skill and reads no file beside them; a bad one is left out
// with a reason and costs no other; the system prompt has one order, and past its budget that is told.
// Worst inputs: a skill that is a link or a pipe, front matter of any shape, a path that leads out (P11).

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/otters-sh/otters/agentruntime"
	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// put writes a file and the folders above it.
func (a *agent) put(name, text string) {
	a.t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(a.root, name)), 0o755); err != nil {
		a.t.Fatal(err)
	}
	a.write(name, text)
}

func warnings(t *testing.T, c agentv1.AgentRuntimeClient) []string {
	t.Helper()
	h, err := c.Health(context.Background(), &agentv1.HealthRequest{})
	if err != nil || h.GetStatus() != "ok" {
		t.Fatalf("health %v, error %v", h, err)
	}
	return h.GetWarnings()
}

// journal is a log that a test reads while it is written.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// P11: by no path and no link does the model read beside a skill.
func TestSkillsAreListedAndReadOnDemand(t *testing.T) {
	t.Parallel()
	reads := []string{
		`{"name":"tables"}`, `{"name":"tables","file":"ref/units.md"}`, `{"name":"nothing"}`, `{"name":"tables","file":"../../../agent.yaml"}`,
		`{"name":"tables","file":"/etc/passwd"}`, `{"name":"tables","file":"out"}`, `{"name":"tables","file":"pipe"}`, `{"name":"tables","file":"image"}`,
		`{"name":"tables","file":"long"}`, `{"name":"tables","file":"ref"}`, `{"file":"SKILL.md"}`, `{"nam":"tables"}`,
	}
	want := []string{
		"Use pipes.", "km, m", `skill "nothing": there is none; there are csv, tables`, "escapes", "escapes", "escapes", "is no regular file", "is no text",
		"is longer than 262144 bytes", "is no regular file", `skill ""`, "unknown field",
	}
	var calls []modelserver.Call
	for i, args := range reads {
		calls = append(calls, modelserver.Call{ID: fmt.Sprint(i), Name: "skill_read", Args: args})
	}
	a := newAgent(t, "", modelserver.Script(modelserver.Answer{Calls: calls}, modelserver.Answer{Text: "ok"}))
	a.put("etc/data/skills/tables/SKILL.md", "---\nname: tables\ndescription: >\n  Makes tables\n  of text.\nlicense: MIT\n---\n\nUse pipes.\n")
	a.put("etc/data/skills/tables/ref/units.md", "km, m")
	a.put("etc/data/skills/tables/image", "\x00\x01")
	a.put("etc/data/skills/tables/long", strings.Repeat("x", 256<<10+1))
	a.put("etc/data/skills/csv/SKILL.md", "\uFEFF---\r\nname: csv\r\ndescription: Reads CSV.\r\n---\r\nBody")
	dir := filepath.Join(a.root, "etc/data/skills/tables")
	if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(dir, "out")), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	c := a.serve()
	if err := chat(context.Background(), c, "s", "make a table"); err != nil {
		t.Fatal(err)
	}
	reqs := a.model.Requests()
	const list = "Be short.\n</document>\n\n<document name=\"skills\">\nInstructions for some tasks. Before such a task read them with the tool skill_read.\n" +
		"- csv: Reads CSV.\n- tables: Makes tables of text.\n</document>"
	if got := reqs[0].Messages[0].Content; !strings.HasSuffix(got, list) {
		t.Errorf("system prompt\n%s", got)
	}
	results := reqs[1].Messages[3:]
	for i, r := range results {
		if !strings.Contains(r.Content, want[i]) || i < 2 && r.Content != want[i] {
			t.Errorf("%s gave %q, want %q", reads[i], r.Content, want[i])
		}
	}
	if w := warnings(t, c); len(w) != 0 || len(results) != len(want) {
		t.Errorf("warnings %q, %d results", w, len(results))
	}
}

func TestABadSkillIsLeftOutWithAWarning(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	for folder, text := range map[string]string{
		"good": "---\nname: good\ndescription: does good\n---\n", "short": "---\nname: short\ndescription: d\n---",
		"b-none": "Use pipes.", "c-open": "---\nname: c-open\n", "d-yaml": "---\n\t: [\n---\n", "e-name": "---\nname: other\ndescription: d\n---\n",
		"f-description": "---\nname: f-description\n---\n", "g-long": "---\nname: g-long\ndescription: " + strings.Repeat("x", 1025) + "\n---\n",
		"h-huge": "---\nname: h-huge\ndescription: d\n---\n" + strings.Repeat("x", 256<<10), "i-type": "---\nname: [a]\ndescription: d\n---\n",
		"J-case": "---\nname: J-case\ndescription: d\n---\n",
	} {
		a.put("etc/data/skills/"+folder+"/SKILL.md", text)
	}
	dir := filepath.Join(a.root, "etc/data/skills")
	a.put("etc/data/skills/a-file", "x")
	outside := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "k-empty"), 0o755), os.Symlink(outside, filepath.Join(dir, "l-link")), os.Symlink("good", filepath.Join(dir, "m-link")),
		os.WriteFile(filepath.Join(outside, "SKILL.md"), []byte("---\nname: l-link\ndescription: d\n---\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	log := &journal{}
	a.opts.Log = log
	c := a.serve()
	got := warnings(t, c)
	for i, want := range []string{
		"skill J-case: left out: the folder's name: want 1 to 64", "skill a-file: left out: ", "skill b-none: left out: SKILL.md does not begin with front matter",
		"skill c-open: left out: SKILL.md does not begin with front matter", "skill d-yaml: left out: front matter: yaml: ", `skill e-name: left out: front matter: name is "other"`,
		"skill f-description: left out: front matter: description is missing", "skill g-long: left out: front matter: description has 1025 bytes",
		"skill h-huge: left out: etc/data/skills/h-huge/SKILL.md is longer than", "skill i-type: left out: front matter: yaml: ", "skill k-empty: left out: ", "skill l-link: left out: ", "skill m-link: left out: it is no folder",
	} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) || strings.Contains(got[i], "\n") {
			t.Errorf("warning %d: want %s in %q", i+1, want, got)
			continue
		}
		if !strings.Contains(log.String(), "warning: "+got[i]+"\n") {
			t.Errorf("%q is not in the log", got[i])
		}
	}
	if err := chat(context.Background(), c, "s", "x"); err != nil {
		t.Fatal(err)
	}
	if text := a.model.Requests()[0].Messages[0].Content; !strings.Contains(text, "- good: does good\n- short: d\n</document>") {
		t.Errorf("system prompt %s", text)
	}
}

func TestManySkillsAreBounded(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", say("ok"))
	for i := range 66 {
		name := fmt.Sprintf("s%03d", i)
		a.put("etc/data/skills/"+name+"/SKILL.md", "---\nname: "+name+"\ndescription: d\n---\n")
	}
	c := a.serve()
	if got := strings.Join(warnings(t, c), "\n"); got != "skill s064: left out: there are more than 64\nskill s065: left out: there are more than 64" {
		t.Errorf("warnings %s", got)
	}
}

func TestAToolMayNotHideTheOneForSkills(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "  - {name: skill_read, binary: /bin/sh}\n", say("ok"))
	a.serve() // without skills the name is free
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	a.put("etc/data/skills/a/SKILL.md", "---\nname: a\ndescription: d\n---\n")
	err := agentruntime.Serve(context.Background(), a.opts)
	if !errors.Is(err, agentruntime.ErrConfig) || !strings.Contains(err.Error(), "tool skill_read: skills are read with a tool of the same name") {
		t.Errorf("error %v", err)
	}
}

func TestALargeSystemPromptIsToldInHealth(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "configs: {prompt-budget: \"2000\"}\n", say("ok"))
	a.write("etc/context/STYLE.md", strings.Repeat("s", 1000))
	c := a.serve()
	if got := warnings(t, c); len(got) != 0 {
		t.Errorf("warnings %q", got)
	}
	ctx := context.Background()
	if _, err := c.SaveNote(ctx, &agentv1.SaveNoteRequest{Key: "n", Content: strings.Repeat("n", 900)}); err != nil {
		t.Fatal(err)
	}
	if got := warnings(t, c); len(got) != 0 {
		t.Errorf("warnings %q though the note is not pinned", got)
	}
	if _, err := c.SetNoteInContext(ctx, &agentv1.SetNoteInContextRequest{Key: "n", InContext: true}); err != nil {
		t.Fatal(err)
	}
	got := warnings(t, c)
	if len(got) != 1 || !strings.Contains(got[0], "bytes are over the prompt-budget of 2000; the largest are STYLE 1") || !strings.Contains(got[0], ", notes 9") {
		t.Errorf("warnings %q", got)
	}
	if err := chat(ctx, c, "s", "x"); err != nil {
		t.Fatal(err)
	}
	if text := a.model.Requests()[0].Messages[0].Content; len(text) < 2000 || !strings.Contains(text, strings.Repeat("n", 900)) {
		t.Errorf("not all was sent: %d bytes", len(text))
	}
}
