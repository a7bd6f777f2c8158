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
