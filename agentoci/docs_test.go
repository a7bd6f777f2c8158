package agentoci

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"oras.land/oras-go/v2/content/memory"
)

// fenced are the blocks of a language in a text.
func fenced(t *testing.T, text, language string) []string {
	t.Helper()
	parts := strings.Split(text, "```"+language+"\n")
	if len(parts) < 2 {
		t.Fatalf("no block of %s", language)
	}
	var out []string
	for _, p := range parts[1:] {
		block, _, _ := strings.Cut(p, "```")
		out = append(out, block)
	}
	return out
}

// No block of the two documents is one that no test runs: those of agentfile and json are run here, and
// the console's by the command line's tests.
func TestEveryBlockOfTheDocumentsIsRun(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]map[string]int{
		"agentfile.md":    {"agentfile": -1},
		"image-format.md": {"agentfile": 1, "json": 1, "console": -1},
	} {
		text, err := os.ReadFile("../docs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for i, part := range strings.Split("\n"+string(text), "\n```") {
			if i%2 == 1 {
				language, _, _ := strings.Cut(part, "\n")
				seen[language]++
			}
		}
		for language, n := range seen {
			if most, run := want[language]; !run || most >= 0 && n > most {
				t.Errorf("%s: %d blocks of %q, which no test runs", name, n, language)
			}
		}
		if len(seen) != len(want) {
			t.Errorf("%s has blocks of %v", name, seen)
		}
	}
}

// The config that docs/image-format.md shows is the one of the Agentfile above it.
func TestTheFormatsExampleIsWhatIsBuilt(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/image-format.md")
	if err != nil {
		t.Fatal(err)
	}
	store := memory.New()
	folder := fstest.MapFS{"rivers.json": {Data: []byte("{}")}}
	b := build(t, store, fenced(t, string(text), "agentfile")[0], BuildOptions{Folder: folder, Tags: []string{"x"}})
	img, err := Load(t.Context(), store, "x")
	if err != nil {
		t.Fatal(b, err)
	}
	blob, err := fetchAll(t.Context(), store, img.Manifest.Config, maxConfig)
	if err != nil {
		t.Fatal(err)
	}
	var shown, is any
	if err := json.Unmarshal([]byte(fenced(t, string(text), "json")[0]), &shown); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(blob, &is); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(shown, is); d != "" {
		t.Errorf("(-shown +is):\n%s", d)
	}
}

// Every Agentfile of the language's reference is built.
func TestTheReferencesExamplesAreBuilt(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/agentfile.md")
	if err != nil {
		t.Fatal(err)
	}
	folder := fstest.MapFS{}
	for _, name := range []string{"rivers.json", "texts/rivers.md", "data/rivers.json", "data/2026.csv"} {
		folder[name] = &fstest.MapFile{Data: []byte(name)}
	}
	folder["skills/tables/SKILL.md"] = &fstest.MapFile{Data: []byte(skillText)}
	store := memory.New()
	build(t, store, "FROM scratch\nMODEL a/b\n", BuildOptions{Tags: []string{"host.example/team/base:1"}})
	blocks := fenced(t, string(text), "agentfile")
	for _, block := range blocks {
		build(t, store, block, BuildOptions{Folder: folder, Parent: in(store)})
	}
	if len(blocks) < 12 {
		t.Errorf("%d examples", len(blocks))
	}
}
