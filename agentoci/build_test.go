package agentoci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/errdef"

	"github.com/otters-sh/otters/spec"
)

// Invariant: what Load returns is what Build was given, digest by digest, or there is an error and no
// tag moved. The three worst inputs: a source that leads out of the folder, a file that changes while
// it is built, a parent that claims another ancestry than it has.

const guide = `FROM scratch
RUNTIME otters/runtime:1
MODEL offline/otter
NAME guide
CONTEXT SOUL "who" <<EOF
You guide.
EOF
CONTEXT RULES file://docs/rules.md
CONFIG max-steps=1.10
BIN cat otters/tools/cat "reads"
ADD data/map.txt "a map"
ENV GREETING=hello
LABEL org.example.team=river
CAPABILITY job_submit
`

func folder() fs.FS {
	return fstest.MapFS{"docs/rules.md": {Data: []byte("Be kind.\n")}, "data/map.txt": {Data: []byte("here\n")}}
}

func TestBuildAndLoad(t *testing.T) {
	t.Parallel()
	for kind, store := range stores(t) {
		result := build(t, store, guide, BuildOptions{Folder: folder(), Tags: []string{"guide:latest", "guide:1"}, Created: time.Unix(1, 0)})
		img, err := Load(t.Context(), store, "guide:1")
		if err != nil {
			t.Fatal(kind, err)
		}
		if d := cmp.Diff(result.Agentfile, img.Agentfile); d != "" {
			t.Error(kind, d)
		}
		if img.Descriptor.Digest != result.Descriptor.Digest || len(result.Warnings) != 0 {
			t.Error(kind, img.Descriptor, result)
		}
		if c := img.Agentfile.Contexts[1]; c.Content != "Be kind.\n" || c.File != "docs/rules.md" {
			t.Errorf("%s: %+v", kind, c)
		}
		var layers []string
		for _, l := range img.Manifest.Layers {
			layers = append(layers, l.MediaType+" "+title(l))
		}
		want := []string{MediaTypeAgentfile + " Agentfile", MediaTypeContext + " SOUL.md", MediaTypeContext + " RULES.md", MediaTypeFile + " map.txt"}
		if !cmp.Equal(layers, want) || img.Manifest.ArtifactType != "application/vnd.openotters.agent.v1" || img.Manifest.Config.MediaType != "application/vnd.openotters.agent.config.v1+json" {
			t.Error(kind, layers, img.Manifest)
		}
		if d := cmp.Diff(map[string]string{"org.example.team": "river", ocispec.AnnotationTitle: "guide", ocispec.AnnotationCreated: "1970-01-01T00:00:01Z"}, img.Manifest.Annotations); d != "" {
			t.Error(kind, d)
		}
		if src, err := img.Source(t.Context()); err != nil || string(src) != guide {
			t.Error(kind, err)
		}
		r, size, err := img.OpenAdd(t.Context(), "map.txt")
		if err != nil {
			t.Fatal(kind, err)
		}
		if text, err := io.ReadAll(r); err != nil || string(text) != "here\n" || size != 5 {
			t.Errorf("%s: %q %d %v", kind, text, size, err)
		}
		r.Close()
		if _, _, err := img.OpenAdd(t.Context(), "other"); err == nil {
			t.Error(kind, "a file that is not there was opened")
		}

		config, err := fetchAll(t.Context(), store, img.Manifest.Config, maxConfig)
		if err != nil {
			t.Fatal(err)
		}
		const golden = `{"syntax":"openotters/agentfile:1","agent":{"from":"scratch","runtime":"otters/runtime:1","model":"offline/otter","name":"guide",` +
			`"contexts":[{"name":"SOUL","description":"who","content":"You guide.\n"},{"name":"RULES","content":"Be kind.\n","file":"docs/rules.md"}],` +
			`"configs":[{"key":"max-steps","value":"1.10"}],"bins":[{"name":"cat","image":"otters/tools/cat","description":"reads"}],` +
			`"adds":[{"src":"data/map.txt","name":"map.txt","description":"a map"}],"labels":{"org.example.team":"river"},` +
			`"envs":[{"key":"GREETING","value":"hello"}],"capabilities":["job-submit"]}}`
		if string(config) != golden {
			t.Errorf("%s: config:\n%s\nwant:\n%s", kind, config, golden)
		}
	}
}

func TestS4SameInputSameDigest(t *testing.T) {
	t.Parallel()
	const golden = "sha256:3c2afda9aa32577168624af0f133c4265a9e09613768acbc0611bed73fe21276"
	var digests []string
	for range 3 {
		for _, store := range stores(t) {
			digests = append(digests, build(t, store, guide, BuildOptions{Folder: folder()}).Descriptor.Digest.String())
		}
	}
	for _, d := range digests {
		if d != golden {
			t.Errorf("digest %s, on every machine it is %s", d, golden)
		}
	}
	other := build(t, memory.New(), guide, BuildOptions{Folder: folder(), Created: time.Unix(1, 0)})
	if other.Descriptor.Digest.String() == golden {
		t.Error("another input has the same digest")
	}
}

func TestBuildInherits(t *testing.T) {
	t.Parallel()
	parents, target := memory.New(), memory.New()
	base := build(t, parents, guide, BuildOptions{Folder: folder(), Tags: []string{"base:latest"}})
	mid := build(t, parents, "FROM base\nCONTEXT SOUL <<E\nmine\nE\nADD own.txt", BuildOptions{
		Folder: fstest.MapFS{"own.txt": {Data: []byte("own")}}, Parent: in(parents), Tags: []string{"ghcr.io/a/mid:2"},
	})
	if err := parents.Tag(t.Context(), mid.Descriptor, mid.Descriptor.Digest.String()); err != nil {
		t.Fatal(err)
	}
	src := "FROM ghcr.io/a/mid:2@" + mid.Descriptor.Digest.String() + "\nNAME leaf\nRUNTIME r:2"
	build(t, target, src, BuildOptions{Parent: in(parents), Tags: []string{"leaf"}})

	img, err := Load(t.Context(), target, "leaf")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"org.example.team": "river", ocispec.AnnotationTitle: "leaf",
		ocispec.AnnotationBaseImageName: "ghcr.io/a/mid:2", ocispec.AnnotationBaseImageDigest: mid.Descriptor.Digest.String(),
		AnnotationChain: "ghcr.io/a/mid:2@" + mid.Descriptor.Digest.String() + " base:latest@" + base.Descriptor.Digest.String(),
	}
	if d := cmp.Diff(want, img.Manifest.Annotations); d != "" {
		t.Error(d)
	}
	if chain, err := img.Chain(); err != nil || len(chain) != 2 || chain[1].Digest != base.Descriptor.Digest || chain[1].Name != "base:latest" {
		t.Error(chain, err)
	}
	if len(img.Agentfile.Contexts) != 2 || img.Agentfile.Contexts[0].Content != "mine\n" || len(img.Agentfile.Configs) != 0 || img.Agentfile.Model != "offline/otter" {
		t.Errorf("%+v", img.Agentfile)
	}
	// The files came along from the other store.
	for name, text := range map[string]string{"map.txt": "here\n", "own.txt": "own"} {
		r, _, err := img.OpenAdd(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); err != nil || string(b) != text {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}

	// A store that answers another digest than FROM pins is not believed.
	liar := func(context.Context, spec.Reference) (oras.ReadOnlyTarget, string, error) {
		return parents, "base:latest", nil
	}
	_, err = Build(t.Context(), target, []byte(src), BuildOptions{Parent: liar})
	wants(t, "another digest", err, nil, "the store answered "+base.Descriptor.Digest.String())
	_, err = Build(t.Context(), target, []byte("FROM nothing"), BuildOptions{Parent: in(parents)})
	wants(t, "a parent that is not there", err, errdef.ErrNotFound, "Agentfile: FROM nothing: load nothing:latest")
	_, err = Build(t.Context(), target, []byte("FROM base"), BuildOptions{})
	wants(t, "no registry", err, nil, "only FROM scratch")
}

func TestS1ChainOfFrom(t *testing.T) {
	t.Parallel()
	store := memory.New()
	build(t, store, "FROM scratch", BuildOptions{Tags: []string{"a0:latest"}})
	for i := 1; i <= spec.MaxDepth; i++ {
		build(t, store, fmt.Sprintf("FROM a%d", i-1), BuildOptions{Parent: in(store), Tags: []string{fmt.Sprintf("a%d:latest", i)}})
	}
	_, err := Build(t.Context(), store, []byte("FROM a10"), BuildOptions{Parent: in(store)})
	wants(t, "the eleventh parent", err, ErrChain, "11 parents, more than 10")

	// A tag that is built on its own older self is no cycle.
	build(t, store, "FROM scratch\nNAME x", BuildOptions{Tags: []string{"self:latest"}})
	for i := range 3 {
		build(t, store, fmt.Sprintf("FROM self\nENV N=%d", i), BuildOptions{Parent: in(store), Tags: []string{"self:latest"}})
	}
	img, err := Load(t.Context(), store, "self:latest")
	if err != nil {
		t.Fatal(err)
	}
	if chain, err := img.Chain(); err != nil || len(chain) != 3 {
		t.Error(chain, err)
	}

	// The same digest twice is one, and a parent that tells no chain has depth 1.
	forge := func(tag, chain string) {
		m := img.Manifest
		m.Annotations = map[string]string{AnnotationChain: chain}
		manifest(t, store, tag, m)
	}
	twice := "x@" + img.Descriptor.Digest.String()
	forge("cycle:latest", twice+" "+twice)
	_, err = Build(t.Context(), store, []byte("FROM cycle"), BuildOptions{Parent: in(store)})
	wants(t, "a cycle", err, ErrChain, "is there twice")
	forge("once:latest", twice)
	build(t, store, "FROM once", BuildOptions{Parent: in(store)})
	forge("words:latest", "x y")
	_, err = Build(t.Context(), store, []byte("FROM words"), BuildOptions{Parent: in(store)})
	wants(t, "words without digests", err, ErrChain, "no digest")
	forge("long:latest", strings.Repeat(twice+" ", 5000))
	_, err = Build(t.Context(), store, []byte("FROM long"), BuildOptions{Parent: in(store)})
	wants(t, "5000 parents", err, ErrChain, "more than 10")
	forge("none:latest", "")
	r := build(t, store, "FROM none", BuildOptions{Parent: in(store), Tags: []string{"child:latest"}})
	if img, err = Load(t.Context(), store, "child:latest"); err != nil {
		t.Fatal(err, r)
	}
	if chain, err := img.Chain(); err != nil || len(chain) != 1 {
		t.Error(chain, err)
	}
}

func TestS3SecretsAreWarnedOfByName(t *testing.T) {
	t.Parallel()
	src := "FROM scratch\nADD .env env.txt\nADD k/id_rsa\nADD notes.txt\nADD x.txt server.pem\nCONTEXT A file://.netrc\nENV DB_PASSWORD=hunter2\nENV TOKENS_MAX=1\nENV EMPTY_TOKEN=\nARG GH_TOKEN=hunter2\n"
	f := fstest.MapFS{".env": {Data: []byte("hunter2")}, "k/id_rsa": {}, "notes.txt": {}, ".netrc": {}, "x.txt": {}}
	got := strings.Join(build(t, memory.New(), src, BuildOptions{Folder: f}).Warnings, "\n")
	for _, want := range []string{"ADD env.txt: .env looks", "ADD id_rsa: k/id_rsa", "ADD server.pem: x.txt", "CONTEXT A: .netrc", "ENV DB_PASSWORD looks", "ARG GH_TOKEN looks"} {
		if !strings.Contains(got, want) {
			t.Errorf("no warning %q in\n%s", want, got)
		}
	}
	for _, not := range []string{"hunter2", "notes.txt", "TOKENS_MAX", "EMPTY_TOKEN"} {
		if strings.Contains(got, not) {
			t.Errorf("%q in\n%s", not, got)
		}
	}
}

func TestBuildRefusesFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{"in/file": "x", "in/dir/file": "x", "in/big": strings.Repeat("x", spec.MaxContent+1), "in/full": strings.Repeat("x", spec.MaxContent), "in/bytes": "\xff", "secret": "out"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"in/out": "../secret", "in/abs": "/etc/passwd", "in/link": "file", "in/up": ".."} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(root, "in/fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenRoot(filepath.Join(root, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name, tc := range map[string]struct{ bad, want, good string }{
		"P10 a symlink out":                  {"ADD out", "out", "ADD link"},
		"P10 a context out":                  {"CONTEXT A file://out", "CONTEXT A: ", "CONTEXT A file://link"},
		"P10 an absolute symlink":            {"ADD abs", "abs", "ADD file"},
		"P10 through a folder":               {"ADD up/secret", "up/secret", "ADD ./file"},
		"P5 a FIFO, which is not waited for": {"ADD fifo", "is no regular file", "ADD file"},
		"a folder itself":                    {"ADD dir", "it is a folder; name its files one by one", "ADD dir/file"},
		"a folder":                           {"ADD up/in x", "up/in", "ADD file x"},
		"a file that is not there":           {"ADD gone", "gone: there is no such file in the build folder", "ADD file"},
		"a context over its limit":           {"CONTEXT A file://big", "big: 1048577 bytes, more than 1048576", "CONTEXT A file://full"},
		"a context that is not text":         {"CONTEXT A file://bytes", "Agentfile:2:11: CONTEXT A: bytes: the text is not UTF-8", "ADD bytes"},
	} {
		store := memory.New()
		_, err := Build(t.Context(), store, []byte("FROM scratch\n"+tc.bad), BuildOptions{Folder: r.FS(), Tags: []string{"a"}})
		wants(t, name, err, nil, tc.want)
		if _, err := store.Resolve(t.Context(), "a"); !errors.Is(err, errdef.ErrNotFound) {
			t.Errorf("%s: the store was changed: %v", name, err)
		}
		build(t, store, "FROM scratch\n"+tc.good, BuildOptions{Folder: r.FS()})
	}
	_, err = Build(t.Context(), memory.New(), []byte("FROM scratch\nADD a\nADD b"), BuildOptions{Folder: r.FS()})
	wants(t, "all files at once", err, fs.ErrNotExist, "ADD a: a: there is no such file in the build folder")
	wants(t, "all files at once", err, fs.ErrNotExist, "ADD b: b:")
	_, err = Build(t.Context(), memory.New(), []byte("FROM scratch\nADD a"), BuildOptions{})
	wants(t, "no folder", err, nil, "there is no build folder")
	_, err = Build(t.Context(), memory.New(), []byte("FROM scratch\nNAM x"), BuildOptions{Name: "d/Agentfile"})
	wants(t, "a syntax error", err, spec.ErrInvalid, "d/Agentfile:2:1: unknown instruction")
}

// A build tells everything at once, in the folder that came as an archive too.
func TestBuildTellsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	folder, err := ReadArchive(t.Context(), bytes.NewReader(archive(t, file("data/river.json", "{}"), symlink("out", "/etc/passwd"))), ArchiveOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	_, err = Build(t.Context(), memory.New(), []byte("FROM scratch\nADD data/rivers.json\nNAM x\nADD dta/river.json y\nADD out\n"), BuildOptions{Folder: folder})
	wants(t, "a file with no name", err, fs.ErrNotExist, "Agentfile:2:5: ADD rivers.json: data/rivers.json: there is no such file in the build folder; did you mean data/river.json?\n    ADD data/rivers.json\n        ^\n")
	wants(t, "a word", err, spec.ErrInvalid, `Agentfile:3:1: unknown instruction "NAM"; did you mean NAME?`)
	wants(t, "a folder with no name", err, nil, "Agentfile:4:5: ADD y: dta/river.json: there is no such file in the build folder; did you mean data/river.json?")
	wants(t, "a link", err, ErrUnsafe, `Agentfile:5:5: ADD out: out: unsafe entry: the symlink "out" leads out of the build folder, to "/etc/passwd"`)
	list, err := fs.ReadDir(folder, ".")
	if err != nil || len(list) != 2 || list[0].Name() != "data" || !list[0].IsDir() || list[1].Type() != fs.ModeSymlink {
		t.Error(list, err)
	}
}

// swapping gives other bytes each time a file is opened.
type swapping struct {
	fs.FS
	n *int
}

func (s swapping) Open(name string) (fs.File, error) {
	*s.n++
	return fstest.MapFS{name: {Data: fmt.Appendf(nil, "%04d", *s.n)}}.Open(name)
}

func TestP10AFileThatChangesDuringTheBuildIsRefused(t *testing.T) {
	t.Parallel()
	for kind, store := range stores(t) {
		_, err := Build(t.Context(), store, []byte("FROM scratch\nADD a"), BuildOptions{Folder: swapping{n: new(int)}, Tags: []string{"a"}})
		wants(t, kind, err, nil, "ADD a: store sha256:")
		if _, err := store.Resolve(t.Context(), "a"); !errors.Is(err, errdef.ErrNotFound) {
			t.Error(kind, err)
		}
		build(t, store, "FROM scratch\nADD a", BuildOptions{Folder: fstest.MapFS{"a": {}}, Tags: []string{"a"}})
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	store := memory.New()
	build(t, store, guide, BuildOptions{Folder: folder(), Tags: []string{"good"}})
	good, err := Load(t.Context(), store, "good")
	if err != nil {
		t.Fatal(err)
	}
	variant := func(tag string, change func(*ocispec.Manifest)) {
		var m ocispec.Manifest
		if err := json.Unmarshal([]byte(jsonOf(t, good.Manifest)), &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		manifest(t, store, tag, m)
	}
	config := func(tag, text string) {
		variant(tag, func(m *ocispec.Manifest) {
			if m.Config, err = pushBytes(t.Context(), store, MediaTypeConfig, []byte(text)); err != nil {
				t.Fatal(err)
			}
		})
	}
	variant("bin", func(m *ocispec.Manifest) { m.ArtifactType = ArtifactTypeBin })
	variant("image", func(m *ocispec.Manifest) { m.ArtifactType = ""; m.Config.MediaType = ocispec.MediaTypeImageConfig })
	variant("nofile", func(m *ocispec.Manifest) { m.Layers = m.Layers[:3] })
	variant("twice", func(m *ocispec.Manifest) { m.Layers = append(m.Layers, m.Layers[3]) })
	variant("big", func(m *ocispec.Manifest) { m.Config.Size = maxConfig + 1 })
	variant("negative", func(m *ocispec.Manifest) { m.Layers[3].Size = -1 })
	variant("md5", func(m *ocispec.Manifest) { m.Layers[3].Digest = "md5:0123456789abcdef0123456789abcdef" })
	variant("older", func(m *ocispec.Manifest) { m.ArtifactType = "" })
	config("name", `{"syntax":"openotters/agentfile:1","agent":{"contexts":[{"name":"../../x","content":"y"}]}}`)
	config("env", `{"agent":{"envs":[{"key":"LISTEN_FDS","value":"3"}]}}`)
	config("syntax", `{"syntax":"openotters/agentfile:9","agent":{}}`)
	config("none", `{}`)
	config("json", `{`)
	config("dst", `{"agent":{"adds":[{"src":"a/map.txt","dst":"/data/map.txt"}],"contexts":[{"name":"RULES","file":"docs/rules.md"}]}}`)
	if _, err := packIndex(t, store, "index"); err != nil {
		t.Fatal(err)
	}

	for tag, want := range map[string]string{
		"bin": `its artifact type is "application/vnd.openotters.bin.v1"`, "image": "its config is of type", "index": "it is an index",
		"nofile": "ADD map.txt: the image has no layer", "twice": "there twice", "big": "more than 16777216", "negative": "negative size", "md5": "digest",
		"name": `CONTEXT "../../x"`, "env": "LISTEN_FDS is reserved", "syntax": "agentfile:9", "none": "defines no agent", "json": "config: ", "gone": "not found",
	} {
		_, err := Load(t.Context(), store, tag)
		wants(t, tag, err, nil, want)
		if notAgent := tag == "bin" || tag == "image" || tag == "index" || tag == "none"; notAgent != errors.Is(err, ErrNotAgent) {
			t.Errorf("%s: ErrNotAgent: %v", tag, err)
		}
	}
	if _, err := Load(t.Context(), store, "older"); err != nil {
		t.Error("an image without artifactType:", err)
	}
	img, err := Load(t.Context(), store, "dst")
	if err != nil || img.Agentfile.Adds[0].Name != "map.txt" || img.Agentfile.Contexts[0].Content != "Be kind.\n" {
		t.Error("an older image:", err)
	}

	// R1: a blob that is not what its digest says is never believed.
	for name, desc := range map[string]ocispec.Descriptor{"manifest": good.Descriptor, "config": good.Manifest.Config} {
		blob, err := fetchAll(t.Context(), store, desc, maxConfig)
		if err != nil {
			t.Fatal(err)
		}
		for how, b := range map[string][]byte{"changed": bytes.Replace(blob, []byte("guide"), []byte("other"), 1), "cut": blob[:len(blob)-1], "longer": append(bytes.Clone(blob), ' ')} {
			_, err := Load(t.Context(), lying{store, desc.Digest, b}, "good")
			wants(t, name+" "+how, err, nil, desc.Digest.String())
		}
	}
	add := good.Manifest.Layers[3]
	img, err = Load(t.Context(), lying{store, add.Digest, []byte("HERE\n")}, "good")
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := img.OpenAdd(t.Context(), "map.txt")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); err == nil {
		t.Error("a file with another digest was read without an error")
	}
}
