package agentoci

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/content/oci"

	"github.com/otters-sh/otters/spec"
)

// Invariant: bad input leaves the whole store as it was: its tags, its manifests and its blobs. The three
// worst inputs: a manifest that is found to be too large when all its parts are there, a second program
// that can't be packed after the first one was, a parent whose last layer is not what it says.

// contents are all files of a store's folder, by what is in them.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = fmt.Sprintf("%x", sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBadInputLeavesTheStoreAsItWas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := oci.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	parents := memory.New()
	build(t, store, "FROM scratch\nNAME other\n", BuildOptions{Tags: []string{"guide:latest"}})
	good := build(t, parents, guide, BuildOptions{Folder: folder(), Tags: []string{"p0:latest"}})
	for i := 1; i <= spec.MaxDepth; i++ {
		build(t, parents, fmt.Sprintf("FROM p%d", i-1), BuildOptions{Parent: in(parents), Tags: []string{fmt.Sprintf("p%d:latest", i)}})
	}
	img, err := Load(t.Context(), parents, "p0:latest")
	if err != nil {
		t.Fatal(err)
	}
	m := img.Manifest
	m.Annotations = map[string]string{AnnotationChain: "x@" + good.Descriptor.Digest.String() + " x@" + good.Descriptor.Digest.String()}
	manifest(t, parents, "cycle:latest", m)
	if _, err := packIndex(t, parents, "bin:latest"); err != nil {
		t.Fatal(err)
	}
	full := strings.Repeat("x", spec.MaxContent)
	files := fstest.MapFS{"a": {Data: []byte("a")}, "full": {Data: []byte(full)}, "more": {Data: []byte(full + "x")}, "bytes": {Data: []byte("\xff")}}
	value := strings.Repeat("v", 60_000)
	labels, contexts, texts := "ARG v="+value+"\n", "", "CONTEXT T <<E\nt\nE\n"
	for i := range 80 {
		if labels += fmt.Sprintf("LABEL l%d=", i); i < 65 {
			labels += "${v}\n"
		} else {
			labels += value + "\n"
		}
	}
	for i := range maxReferences - 1 {
		contexts += fmt.Sprintf("CONTEXT C%d <<E\nE\n", i)
	}
	for i := range 16 {
		texts += fmt.Sprintf("CONTEXT F%d file://full\n", i)
	}
	before := contents(t, dir)
	for name, tc := range map[string]struct {
		bad, want, good string
		parent          Opener
	}{
		"a word":                           {bad: "FROM scratch\nADD a\nNAM x", want: "unknown instruction", good: "FROM scratch\nADD a\nNAME x"},
		"a reserved name":                  {bad: "FROM scratch\nADD a\nCONTEXT AGENT <<E\nE", want: "is reserved", good: "FROM scratch\nCONTEXT AGENTS <<E\nE"},
		"a file that is not there":         {bad: "FROM scratch\nADD a\nADD b", want: "no such file", good: "FROM scratch\nADD a b"},
		"a skill that is none":             {bad: "FROM scratch\nADD a\nADD gone/", want: "SKILL.md: there is no such file", good: "FROM scratch\nADD a"},
		"a path that leaves":               {bad: "FROM scratch\nADD a\nADD ../a", want: "..", good: "FROM scratch\nADD ./a"},
		"a text over its limit":            {bad: "FROM scratch\nADD a\nCONTEXT A file://more", want: "1048577 bytes", good: "FROM scratch\nCONTEXT A file://full"},
		"a text that is none":              {bad: "FROM scratch\nADD a\nCONTEXT A file://bytes", want: "not UTF-8", good: "FROM scratch\nADD bytes"},
		"a definition over its limit":      {bad: "FROM scratch\nADD a\n" + texts, want: "more than 16777216", good: "FROM scratch\nCONTEXT T file://full"},
		"a manifest over 4 MiB":            {bad: "FROM scratch\nADD a\n" + labels, want: "more than 4194304", good: "FROM scratch\nLABEL a=b"},
		"a manifest of too many parts":     {bad: "FROM scratch\n" + contexts, want: "manifest of 8193 parts", good: "FROM scratch\nADD a"},
		"S1 the eleventh parent":           {bad: "FROM p10\nADD a", want: "11 parents", good: "FROM p9\nADD a", parent: in(parents)},
		"S1 a cycle":                       {bad: "FROM cycle\nADD a", want: "there twice", good: "FROM p0\nADD a", parent: in(parents)},
		"a parent that is not there":       {bad: "FROM none\nADD a", want: "not found", good: "FROM p0\nADD a", parent: in(parents)},
		"a parent that is no agent":        {bad: "FROM bin\nADD a", want: "not an agent image", good: "FROM p0\nADD a", parent: in(parents)},
		"a parent of another digest":       {bad: "FROM p1@" + good.Descriptor.Digest.String(), want: "not found", good: "FROM p0\nADD a", parent: in(parents)},
		"a build argument without its ARG": {bad: "FROM scratch\nADD a", want: "", good: "FROM scratch\nADD a"},
	} {
		opts := BuildOptions{Folder: files, Parent: tc.parent, Tags: []string{"guide:latest", "new:1"}}
		if tc.want == "" {
			opts.Args, tc.want = map[string]string{"x": "1"}, "no ARG x"
		}
		_, err := Build(t.Context(), store, []byte(tc.bad), opts)
		wants(t, name, err, nil, tc.want)
		if d := cmp.Diff(before, contents(t, dir)); d != "" {
			t.Fatalf("%s: the store is another:\n%.2000s", name, d)
		}
		opts.Args = nil
		build(t, memory.New(), tc.good, opts)
	}
	_, err = Build(t.Context(), store, []byte("FROM scratch\nADD a\nADD fifo"), BuildOptions{Folder: fifo(t), Tags: []string{"new:1"}})
	wants(t, "P5 a FIFO", err, nil, "no regular file")
	if d := cmp.Diff(before, contents(t, dir)); d != "" {
		t.Errorf("the store is another:\n%.2000s", d)
	}
}

func TestABadProgramLeavesTheStoreAsItWas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := oci.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	before, long := contents(t, dir), strings.Repeat("x", maxUsage+1)
	programs := func(p ...Program) []Program { return p }
	for name, tc := range map[string]struct {
		image    BinImage
		programs []Program
		want     string
	}{
		"a second program of another size": {BinImage{Name: "multi"}, programs(program(amd64, "a"), Program{Platform: arm64, Name: "multi", Size: 9, Open: program(arm64, "b").Open}), "linux/arm64"},
		"two programs for a platform":      {BinImage{Name: "multi"}, programs(program(amd64, "a"), program(amd64, "b")), "two layers are for linux/amd64"},
		"a usage over its limit":           {BinImage{Name: "multi", Usage: long}, programs(program(amd64, "a")), "more than 1048576"},
		"labels over 4 MiB":                {BinImage{Name: "multi", Labels: map[string]string{"a": strings.Repeat("x", maxManifest)}}, programs(program(amd64, "a")), "more than 4194304"},
		"no platform":                      {BinImage{Name: "multi"}, programs(program(ocispec.Platform{}, "a")), "no platform"},
		"no program":                       {BinImage{Name: "multi"}, nil, "no layer"},
	} {
		_, err := BuildBin(t.Context(), store, tc.image, tc.programs)
		wants(t, name, err, nil, tc.want)
	}
	if d := cmp.Diff(before, contents(t, dir)); d != "" {
		t.Errorf("the store is another:\n%.2000s", d)
	}
	if _, err := BuildBin(t.Context(), store, BinImage{Name: "multi", Tags: []string{"bin:1"}}, programs(program(amd64, "a"), program(arm64, "b"))); err != nil {
		t.Error("the allowed twin:", err)
	}
}

// What can only be seen while it is copied: the blobs that came before it stay, and nothing refers to
// them. docs/image-format.md says so.
func TestWhatIsSeenLateLeavesNoNameAndNoManifest(t *testing.T) {
	t.Parallel()
	dir, parents := t.TempDir(), memory.New()
	store, err := oci.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	build(t, store, "FROM scratch\nNAME other\n", BuildOptions{Tags: []string{"guide:latest"}})
	build(t, parents, guide, BuildOptions{Folder: folder(), Tags: []string{"p0:latest"}})
	img, err := Load(t.Context(), parents, "p0:latest")
	if err != nil {
		t.Fatal(err)
	}
	before, layer := contents(t, dir), img.Manifest.Layers[3]
	lies := func(b string) Opener {
		return func(context.Context, spec.Reference) (oras.ReadOnlyTarget, string, error) {
			return lying{parents, layer.Digest, []byte(b)}, "p0:latest", nil
		}
	}
	for name, parent := range map[string]Opener{"another blob": lies("HERE\n"), "a truncated blob": lies("he")} {
		_, err := Build(t.Context(), store, []byte("FROM p0\nNAME x"), BuildOptions{Parent: parent, Tags: []string{"guide:latest"}})
		wants(t, name, err, nil, "ADD map.txt: store "+layer.Digest.String())
		after := contents(t, dir)
		if index := filepath.Join(dir, "index.json"); after[index] != before[index] {
			t.Errorf("%s: a name or manifest was stored", name)
		}
	}
}

// fifo is a folder with a file and a FIFO.
func fifo(t *testing.T) fs.FS {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	return os.DirFS(dir)
}
