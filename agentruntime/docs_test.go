package agentruntime_test

// Invariant: docs/runtime.md lists each key, event, reason and code that there is and no other, its
// defaults and bounds hold, and what it shows happens.

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/agentruntime"
	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

func readDoc(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/runtime.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// table is the rows of the document's table with this head, by cells.
func table(t *testing.T, head string) [][]string {
	t.Helper()
	_, rest, ok := strings.Cut(readDoc(t), "\n"+head+"\n")
	if !ok {
		t.Fatalf("the document has no table %s", head)
	}
	var rows [][]string
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		if strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

// names are the quoted words of the first cells.
func names(rows [][]string) []string {
	var list []string
	for _, r := range rows {
		for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(r[0], -1) {
			list = append(list, m[1])
		}
	}
	slices.Sort(list)
	return list
}

// constants are the values of the string constants of a type in a file.
func constants(t *testing.T, file, kind string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if is, ok := spec.Type.(*ast.Ident); ok && is.Name == kind {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
		}
		return true
	})
	slices.Sort(values)
	return values
}

func TestTheDocumentListsEveryKeyEventReasonAndCode(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\bcodes\.([A-Z]\w+)`).FindAllStringSubmatch(string(text), -1) {
			used[m[1]] = true
		}
	}
	delete(used, "OK")
	delete(used, "Code") // the type
	var documented []string
	for _, r := range table(t, "| Code | When | For example |") {
		var c codes.Code
		if err := c.UnmarshalJSON([]byte(`"` + r[0] + `"`)); err != nil {
			t.Errorf("code %s: %v", r[0], err)
		}
		documented = append(documented, c.String())
	}
	slices.Sort(documented)
	for what, c := range map[string]struct{ documented, there []string }{
		"keys":    {names(table(t, "| CONFIG | Is | Default |")), slices.Sorted(slices.Values(agentruntime.KnownKeys))},
		"events":  {names(table(t, "| Event | Tells |")), constants(t, "../loop/event.go", "EventType")},
		"reasons": {names(table(t, "| Reason | The turn ended since |")), constants(t, "../loop/event.go", "Reason")},
		"codes":   {documented, slices.Sorted(maps.Keys(used))},
	} {
		if !slices.Equal(c.documented, c.there) || len(c.there) == 0 {
			t.Errorf("%s: the document has %q, the code %q", what, c.documented, c.there)
		}
	}
}

func TestDefaultsAndBoundsAreAsDocumented(t *testing.T) {
	t.Parallel()
	bounds := regexp.MustCompile(`(-?\d+) to (\d+)`)
	checked := 0
	for _, r := range table(t, "| CONFIG | Is | Default |") {
		keys := names([][]string{r})
		def := strings.Trim(r[len(r)-1], "`")
		if _, err := strconv.Atoi(def); len(keys) == 1 && (err == nil || strings.HasPrefix(r[len(r)-1], "`")) {
			if same, err := agentruntime.SameSettings(map[string]string{keys[0]: def}); err != nil || !same {
				t.Errorf("%s: the default is not %s, error %v", keys[0], def, err)
			}
		}
		m := bounds.FindStringSubmatch(r[1])
		if len(keys) != 1 || m == nil {
			continue
		}
		low, _ := strconv.Atoi(m[1])
		high, _ := strconv.Atoi(m[2])
		for value, ok := range map[int]bool{low - 1: false, low: true, high: true, high + 1: false} {
			if _, err := agentruntime.SameSettings(map[string]string{keys[0]: strconv.Itoa(value)}); (err == nil) != ok {
				t.Errorf("%s of %d: error %v", keys[0], value, err)
			}
		}
		checked++
	}
	if checked < 9 {
		t.Errorf("%d keys have bounds", checked)
	}
}

// blocks are the code blocks of a language in the document.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	var list []string
	for _, rest := range strings.Split(readDoc(t), "\n```"+language+"\n")[1:] {
		text, _, closed := strings.Cut(rest, "```")
		if !closed {
			t.Fatalf("a block of %s has no end", language)
		}
		list = append(list, text)
	}
	if len(list) == 0 {
		t.Fatalf("the document has no block of %s", language)
	}
	return list
}

// block is the first of them.
func block(t *testing.T, language string) string { return blocks(t, language)[0] }

func TestTheDocumentsKeysAreSet(t *testing.T) {
	t.Parallel()
	wants := [][]string{
		{`"max_tokens":1000`, `"temperature":0.2`, `"top_p":0.9`, `"presence_penalty":0.5`, `"frequency_penalty":0.5`},
		{`"max_tokens":8192`, `"thinking":{"budget_tokens":2048,"type":"enabled"}`},
		{`"top_k":40`},
	}
	var all []string
	for i, text := range blocks(t, "yaml")[1:] {
		a := newAgent(t, "", say("ok"))
		a.write("etc/agent.yaml", text)
		a.opts.Environ = append(a.opts.Environ, "ANTHROPIC_API_BASE="+a.model.Base, "ANTHROPIC_API_KEY=k")
		if err := chat(context.Background(), a.serve(), "s", "x"); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for _, want := range wants[i] {
			if raw := string(a.model.Requests()[0].Raw); !strings.Contains(raw, want) {
				t.Errorf("%s is not in %s", want, raw)
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^  ([a-z-]+): "?([^"\n]*)"?$`).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
			if same, err := agentruntime.SameSettings(map[string]string{m[1]: m[2]}); err != nil || same {
				t.Errorf("%s of %s changes nothing, error %v", m[1], m[2], err)
			}
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); !slices.Equal(all, slices.Sorted(slices.Values(agentruntime.KnownKeys))) {
		t.Errorf("the examples set %q", all)
	}
}

func TestTheDocumentsTurnHappens(t *testing.T) {
	t.Parallel()
	a := newAgent(t, "", modelserver.Script(
		toolCall("1", "note_save", `{"key":"rivers","content":"The Severn is the longest."}`), modelserver.Answer{Pieces: []string{"Noted."}}))
	a.write("etc/agent.yaml", block(t, "yaml"))
	events, err := stream(context.Background(), a.serve(), "s", "Remember that the Severn is the longest river.", nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, strings.Join(strings.Fields(e.GetType()+" "+strconv.Itoa(int(e.GetStep()))+" "+e.GetTool()+" "+e.GetContent()+" "+e.GetReason()), " "))
	}
	var want []string
	for line := range strings.Lines(block(t, "text")) {
		want = append(want, strings.Join(strings.Fields(line), " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTheDocumentsBadTreesAreRefused(t *testing.T) {
	t.Parallel()
	for _, r := range table(t, "| In agent.yaml | Says |") {
		a := newAgent(t, "", say("ok"))
		a.write("etc/agent.yaml", "id: x\nmodel: test/m1\n"+strings.Trim(r[0], "`")+"\n")
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		a.opts.Listener = l
		err = agentruntime.Serve(context.Background(), a.opts)
		if !errors.Is(err, agentruntime.ErrConfig) || !strings.HasPrefix(err.Error(), strings.Trim(r[1], "`")) {
			t.Errorf("%s says %v", r[0], err)
		}
	}
}

func TestTheDocumentsErrorsHappen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	with := func(more string, answer func(modelserver.Request) modelserver.Answer) agentv1.AgentRuntimeClient {
		return newAgent(t, more, answer).serve()
	}
	ok := with("", say(`{}`))
	guarded := newAgent(t, "", say("ok"))
	guarded.opts.ServeToken = "ots_0123456789abcdef"
	closed := guarded.serve()
	refusing := func(status int, text string) agentv1.AgentRuntimeClient {
		return with("", func(modelserver.Request) modelserver.Answer { return modelserver.Answer{Status: status, Text: text} })
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	broken := newAgent(t, "", say("ok"))
	unread := broken.serve()
	if _, err := unread.ListNotes(ctx, &agentv1.ListNotesRequest{}); err != nil {
		t.Fatal(err)
	}
	broken.sql("DROP TABLE notes")
	happens := map[string]error{}
	for _, err := range []error{
		chat(ctx, ok, "", "x"),
		chat(metadata.AppendToOutgoingContext(ctx, agentruntime.ServeTokenKey, "wrong"), closed, "s", "x"),
		func() error { _, err := ok.GetNote(ctx, &agentv1.GetNoteRequest{Key: "rivers"}); return err }(),
		func() error { _, err := again(ok, "s"); return err }(),
		chat(ctx, refusing(429, "slow down"), "s", "x"),
		chat(gone, ok, "s", "x"),
		func() error { _, err := unread.ListNotes(ctx, &agentv1.ListNotesRequest{}); return err }(),
		chat(ctx, refusing(503, "down"), "s", "x"),
		func() error {
			_, err := ok.PromptObject(ctx, &agentv1.PromptObjectRequest{Prompt: "x", SchemaJson: []byte(countSchema)})
			return err
		}(),
		chat(ctx, with("configs: {turn-timeout: 1s}\n", func(modelserver.Request) modelserver.Answer {
			return modelserver.Answer{Text: "x", Hold: make(chan struct{})}
		}), "s", "x"),
	} {
		happens[status.Convert(err).Message()] = err
	}
	examples := 0
	for _, r := range table(t, "| Code | When | For example |") {
		if len(r) < 3 || r[2] == "" {
			continue
		}
		examples++
		var want codes.Code
		if err := want.UnmarshalJSON([]byte(`"` + r[0] + `"`)); err != nil {
			t.Fatal(err)
		}
		if err := happens[strings.Trim(r[2], "`")]; status.Code(err) != want {
			t.Errorf("%s %s: got %v of %q", r[0], r[2], err, slices.Sorted(maps.Keys(happens)))
		}
	}
	if examples != len(happens) {
		t.Errorf("the document has %d examples, the test %d", examples, len(happens))
	}
}
