package main

import (
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestListAndUsageTellOfEveryTool(t *testing.T) {
	t.Parallel()
	var listed []struct{ Name, Description, Usage string }
	got := start(t, "", "", built, "otters-tools", "list", "--json")
	if err := json.Unmarshal([]byte(got.stdout), &listed); err != nil {
		t.Fatal(err)
	}
	all := tools()
	if len(listed) != len(all) || !slices.IsSortedFunc(all, func(a, b tool) int { return strings.Compare(a.name, b.name) }) {
		t.Fatalf("listed %v", listed)
	}
	plain := start(t, "", "", built, "otters-tools", "list").stdout
	for i, tool := range all {
		if listed[i].Name != tool.name || listed[i].Description != tool.description || tool.description == "" {
			t.Errorf("%v is not %s", listed[i], tool.name)
		}
		if !strings.Contains(plain, tool.description) {
			t.Errorf("%s is not in the plain list", tool.name)
		}
		text := start(t, "", "", built, "otters-tools", "usage", tool.name)
		if text.code != 0 || !strings.HasPrefix(text.stdout, "# "+tool.name+"\n") {
			t.Errorf("usage of %s: %+v", tool.name, text)
		}
		if listed[i].Usage != text.stdout {
			t.Errorf("%s: another usage in the list: %q", tool.name, listed[i].Usage)
		}
		checkUsage(t, tool, text.stdout)
	}
}

// checkUsage holds a usage text against the options that the tool really takes.
func checkUsage(t *testing.T, tool tool, text string) {
	t.Helper()
	if !strings.Contains(text, "\nBounds: ") {
		t.Errorf("%s: the usage tells no bounds", tool.name)
	}
	flags := pflag.NewFlagSet(tool.name, pflag.ContinueOnError)
	tool.options(newCall(tool, nil, nil, nil), flags)
	known := map[string]bool{}
	flags.VisitAll(func(f *pflag.Flag) {
		known["--"+f.Name] = true
		if f.Shorthand != "" {
			known["-"+f.Shorthand] = true
		}
	})
	if tool.raw {
		for _, test := range []string{"-name", "-iname", "-type", "-mindepth", "-maxdepth"} {
			known[test] = true
		}
	}
	inList := map[string]bool{}
	option := regexp.MustCompile("`(-[-a-zA-Z0-9]+)")
	for line := range strings.Lines(text) {
		// What an option does follows the first colon.
		names, _, ok := strings.Cut(line, ":")
		if !ok || !strings.HasPrefix(line, "- `-") {
			continue
		}
		for _, m := range option.FindAllStringSubmatch(names, -1) {
			inList[m[1]] = true
		}
	}
	for name := range known {
		if !inList[name] {
			t.Errorf("%s: the usage says nothing of %s", tool.name, name)
		}
	}
	for name := range inList {
		if !known[name] {
			t.Errorf("%s: the usage tells of %s, which the tool does not take", tool.name, name)
		}
	}
}

// Every example of a usage text is a call that the tool takes.
func TestTheExamplesOfEveryUsageRun(t *testing.T) {
	t.Parallel()
	// What fetch asks example.org for is answered by a proxy, and sh has all tools in its PATH.
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host != "example.org" {
			http.Error(w, r.URL.Host, http.StatusBadGateway)
		}
		fmt.Fprintln(w, r.Method, r.URL.Path)
	}))
	defer proxy.Close()
	env := []string{"HTTP_PROXY=" + proxy.URL, "PATH=" + binFolder(t)}
	for _, tool := range tools() {
		text, err := usages.ReadFile("usage/" + tool.name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		_, examples, ok := strings.Cut(string(text), "Examples:\n\n")
		if !ok {
			t.Errorf("%s: no examples", tool.name)
			continue
		}
		for line := range strings.Lines(examples) {
			line, ok := strings.CutPrefix(line, "    ")
			if !ok {
				break
			}
			argv := words(strings.TrimSpace(line))
			got := startIn(t, env, newAgent(t), "", built, argv...)
			want := 0
			if tool.name == "diff" {
				want = exitDiffer
			}
			if got.code != want || got.stdout == "" || got.stderr != "" {
				t.Errorf("%q: %+v", argv, got)
			}
		}
	}
}

// binFolder makes what an agent's usr/bin is: a link for each tool.
func binFolder(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	for _, tool := range tools() {
		if err := os.Symlink(built, filepath.Join(dir, tool.name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// words splits at blanks outside double quotes.
func words(line string) []string {
	var out []string
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			out = append(out, part)
		} else {
			out = append(out, strings.Fields(part)...)
		}
	}
	return out
}

// newAgent lays out what the examples speak of and returns the working folder in it.
func newAgent(t *testing.T) string {
	t.Helper()
	root := tempDir(t)
	for name, text := range map[string]string{
		"etc/data/rivers.json":   `{"rivers":[{"name":"Severn","length_km":354}]}`,
		"etc/data/sightings.csv": "id,river,count\n1,River Severn,4\n",
		"workspace/notes.txt":    "TODO: count the otter\n", "workspace/names.txt": "b\na\n", "workspace/words.txt": "b\nb\n",
		"etc/data/rivers.yaml": "rivers:\n  - name: Severn\n", "etc/data/rivers.tar": tarOf(t, map[string]string{"severn.txt": "354\n"}),
		"workspace/part1.txt": "1\n", "workspace/part2.txt": "2\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(root, "workspace")
}

// The guide's table is what the program lists, and its Agentfile lines name tools that are there.
func TestTheGuideNamesEveryTool(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| (.*) \\| (.+) \\|$").FindAllStringSubmatch(string(guide), -1)
	all := tools()
	if len(rows) != len(all) {
		t.Fatalf("%d rows for %d tools", len(rows), len(all))
	}
	for i, tool := range all {
		if rows[i][1] != tool.name || rows[i][2] != tool.description {
			t.Errorf("row %q is not %s: %s", rows[i][0], tool.name, tool.description)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^    BIN (\S+) (\S+)$`).FindAllStringSubmatch(string(guide), -1) {
		if _, ok := find(m[1]); !ok || m[2] != "otters/tools/"+m[1] {
			t.Errorf("%s: no such tool", m[0])
		}
	}
}

// The guide names every library that the tools are made of.
func TestTheGuideNamesEveryLibrary(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			parts := strings.Split(strings.Trim(spec.Path.Value, `"`), "/")
			host, name := parts[0], strings.Join(parts[:min(3, len(parts))], "/")
			switch {
			case host == "gopkg.in":
				name = parts[1]
			case host == "mvdan.cc":
				name = host + "/" + parts[1]
			case host != "github.com" || parts[2] == "pflag" || parts[1] == "otters-sh":
				continue
			}
			if found++; !strings.Contains(string(guide), name) {
				t.Errorf("%s: %s is not in docs/tools.md", file, name)
			}
		}
	}
	if found < 6 {
		t.Errorf("%d imports of libraries", found)
	}
}
