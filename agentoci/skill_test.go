package agentoci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/spec"
)

// Invariant: a skill comes out of an image as the folder that went in, or not at all (P11). The three worst
// inputs: an archive whose names lead out, one of hard links that unpacks to everything, an image that hides
// its skills behind the syntax that has none.

const skillText = "---\nname: tables\ndescription: Makes tables.\n---\nUse pipes.\n"

func skillFolder() fs.FS {
	return fstest.MapFS{
		"tables/SKILL.md": {Data: []byte(skillText)}, "tables/ref/units.md": {Data: []byte("km"), Mode: 0o700}, "tables/.env": {Data: []byte("hunter2")},
	}
}

func TestASkillIsBuiltLoadedAndInherited(t *testing.T) {
	t.Parallel()
	const golden = "sha256:0d1088069e950a3c0812679cde4fbb8e309225a569a2cfdd4f196a52dec23b23"
	for kind, store := range stores(t) {
		base := build(t, store, "FROM scratch\nADD tables/ \"how to\"", BuildOptions{Folder: skillFolder(), Tags: []string{"base:latest"}})
		if len(base.Warnings) != 1 || !strings.HasPrefix(base.Warnings[0], "ADD skills/tables: tables/.env looks like a secret") {
			t.Error(kind, base.Warnings)
		}
		build(t, store, "FROM base\nNAME child", BuildOptions{Parent: in(store), Tags: []string{"child:latest"}})
		for _, tag := range []string{"base:latest", "child:latest"} {
			img, err := Load(t.Context(), store, tag)
			if err != nil {
				t.Fatal(kind, err)
			}
			last := img.Manifest.Layers[len(img.Manifest.Layers)-1]
			if img.Agentfile.Syntax != spec.SkillSyntax || last.MediaType != MediaTypeSkill || title(last) != "skills/tables" || last.Digest != golden {
				t.Errorf("%s: %s: %s %+v", kind, tag, img.Agentfile.Syntax, last)
			}
			config, err := fetchAll(t.Context(), store, img.Manifest.Config, maxConfig)
			if err != nil || !bytes.HasPrefix(config, []byte(`{"syntax":"openotters/agentfile:1+skills",`)) || !bytes.Contains(config, []byte(`"adds":[{"src":"tables","name":"skills/tables","description":"how to"}]`)) {
				t.Errorf("%s: %s %v", kind, config, err)
			}
			folder, files, err := img.OpenSkill(t.Context(), "skills/tables", t.TempDir())
			if err != nil {
				t.Fatal(kind, err)
			}
			want := []spec.SkillPart{{Path: ".env", Size: 7}, {Path: "SKILL.md", Size: int64(len(skillText))}, {Path: "ref/units.md", Size: 2}}
			if d := cmp.Diff(want, files); d != "" {
				t.Error(kind, d)
			}
			if text, err := fs.ReadFile(folder, "ref/units.md"); err != nil || string(text) != "km" {
				t.Errorf("%s: %q %v", kind, text, err)
			}
			folder.Close()
			if _, _, err := img.OpenSkill(t.Context(), "skills/other", ""); err == nil {
				t.Error(kind, "a skill that is not there was opened")
			}
		}
		// An image without skills is what it was.
		if r := build(t, store, guide, BuildOptions{Folder: folder()}); r.Agentfile.Syntax != spec.DefaultSyntax {
			t.Error(kind, r.Agentfile.Syntax)
		}
	}
}

// shifting gives another text of a skill's file from the second time on that it is opened.
type shifting struct {
	fs.FS
	then string
	n    *int
}

func (s shifting) Open(name string) (fs.File, error) {
	if name != "tables/ref/units.md" {
		return s.FS.Open(name)
	}
	// Each is asked for its kind before it is opened: the first two are for the digest.
	if *s.n++; *s.n <= 2 {
		return s.FS.Open(name)
	}
	return fstest.MapFS{name: {Data: []byte(s.then)}}.Open(name)
}

func TestP10ASkillThatChangesDuringTheBuildIsRefused(t *testing.T) {
	t.Parallel()
	for then, want := range map[string]string{"mk": "sha256:", "kmm": "it changed while it was built", "k": "it changed while it was built", "km": ""} {
		for kind, store := range stores(t) {
			folder := shifting{skillFolder(), then, new(int)}
			_, err := Build(t.Context(), store, []byte("FROM scratch\nADD tables/"), BuildOptions{Folder: folder, Tags: []string{"a"}})
			if _, none := store.Resolve(t.Context(), "a"); (none == nil) != (want == "") {
				t.Errorf("%s: %q: tagged: %v", kind, then, none)
			}
			if want == "" {
				if err != nil || *folder.n < 4 {
					t.Errorf("%s: the allowed twin: %v, opened %d times", kind, err, *folder.n)
				}
				continue
			}
			wants(t, kind+" "+then, err, nil, want)
		}
	}
}

// What the runtime would leave out is told at the build.
func TestASkillThatTheRuntimeLeavesOutIsWarnedOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		skillText: "", "\ufeff---\r\nname: tables\r\ndescription: >\r\n  Makes\r\n  tables.\r\n---\r\n": "", "---\nname: tables\ndescription: d\n---": "",
		"---\nname: other\ndescription: d\n---\n": `says name "other"; want "tables"`, "---\nname: tables\n---\n": "says no description",
		"---\nname: tables\ndescription: d\n": "has no end", "---\nname: tables\ndescription: d\n---x\n": "has no end", "---\n---\n": "says name", "---\n\t: [\n---\n": "yaml: ", "---\nname: [a]\n---\n": "yaml: ",
		"---\nname: tables\ndescription: " + strings.Repeat("x", 1025) + "\n---\n": "more than 1024 bytes",
	} {
		folder := fstest.MapFS{"tables/SKILL.md": {Data: []byte(text)}}
		got := strings.Join(build(t, memory.New(), "FROM scratch\nADD tables/", BuildOptions{Folder: folder}).Warnings, "|")
		if (want == "") != (got == "") || !strings.Contains(got, want) || strings.Contains(got, "\n") || want != "" && !strings.HasPrefix(got, "ADD skills/tables: tables/SKILL.md: ") {
			t.Errorf("%.60q: %s; want %q", text, got, want)
		}
	}
}

func TestP11ABadSkillOfAnImageIsRefused(t *testing.T) {
	t.Parallel()
	store := memory.New()
	build(t, store, "FROM scratch\nADD tables/", BuildOptions{Folder: skillFolder(), Tags: []string{"good"}})
	good, err := Load(t.Context(), store, "good")
	if err != nil {
		t.Fatal(err)
	}
	own := file("SKILL.md", skillText)
	bomb := []item{own, file("big", strings.Repeat("x", 1<<20))}
	for i := range 16 {
		bomb = append(bomb, hardlink(fmt.Sprintf("link%d", i), "big"))
	}
	many := []item{own}
	for i := range spec.MaxSkillFiles {
		many = append(many, file(fmt.Sprint(i), ""))
	}
	for name, tc := range map[string]struct {
		items []item
		is    error
	}{
		"a name that goes up":         {[]item{own, file("../../passwd", "x")}, ErrUnsafe},
		"an absolute name":            {[]item{own, file("/etc/passwd", "x")}, ErrUnsafe},
		"a link out":                  {[]item{own, symlink("out", "/etc/passwd")}, ErrUnsafe},
		"a link up":                   {[]item{own, symlink("up", "..")}, ErrUnsafe},
		"a file through a link":       {[]item{own, symlink("a", ".."), file("a/b", "x")}, ErrUnsafe},
		"a link for its SKILL.md":     {[]item{file("x", skillText), symlink("SKILL.md", "x")}, ErrUnsafe},
		"a hard link to outside":      {[]item{own, hardlink("a", "/etc/passwd")}, ErrUnsafe},
		"hard links that add up":      {bomb, ErrUnsafe},
		"a device":                    {[]item{own, special(tar.TypeChar, "null")}, ErrUnsafe},
		"the same file twice":         {[]item{own, file("./SKILL.md", skillText)}, ErrUnsafe},
		"no SKILL.md":                 {[]item{file("skill.md", skillText)}, ErrUnsafe},
		"no front matter":             {[]item{file("SKILL.md", "Use pipes.")}, ErrUnsafe},
		"more files than there may":   {many, ErrLimit},
		"a folder deeper than it may": {[]item{own, file(strings.Repeat("d/", spec.MaxSkillDepth)+"x", "")}, ErrUnsafe},
		"":                            {[]item{own, file("ref/units.md", "km")}, nil},
	} {
		var m ocispec.Manifest
		if err := json.Unmarshal([]byte(jsonOf(t, good.Manifest)), &m); err != nil {
			t.Fatal(err)
		}
		last := &m.Layers[len(m.Layers)-1]
		desc, err := pushBytes(t.Context(), store, MediaTypeSkill, archive(t, tc.items...))
		if err != nil {
			t.Fatal(err)
		}
		last.Digest, last.Size = desc.Digest, desc.Size
		manifest(t, store, "bad", m)
		img, err := Load(t.Context(), store, "bad")
		if err != nil {
			t.Fatal(name, err)
		}
		folder, _, err := img.OpenSkill(t.Context(), "skills/tables", t.TempDir())
		if name == "" {
			if err != nil {
				t.Error("the allowed twin:", err)
			} else {
				folder.Close()
			}
			continue
		}
		wants(t, name, err, tc.is, "ADD skills/tables: ")
	}
}

// A skill is not believed for what its image or its store says of it.
func TestASkillThatIsAnotherIsNotBelieved(t *testing.T) {
	t.Parallel()
	store := memory.New()
	build(t, store, "FROM scratch\nADD tables/", BuildOptions{Folder: skillFolder(), Tags: []string{"good"}})
	good, err := Load(t.Context(), store, "good")
	if err != nil {
		t.Fatal(err)
	}
	// The right archive in the place of another, and no archive.
	layer := good.Manifest.Layers[len(good.Manifest.Layers)-1]
	for name, b := range map[string][]byte{"other bytes": archive(t, file("SKILL.md", skillText)), "nothing": nil} {
		img, err := Load(t.Context(), lying{store, layer.Digest, b}, "good")
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = img.OpenSkill(t.Context(), "skills/tables", t.TempDir())
		wants(t, name, err, nil, "ADD skills/tables: ")
	}
	// What an older reader would take for something else.
	forge := func(tag, config, mediaType string) {
		var m ocispec.Manifest
		if err := json.Unmarshal([]byte(jsonOf(t, good.Manifest)), &m); err != nil {
			t.Fatal(err)
		}
		m.Layers[len(m.Layers)-1].MediaType = mediaType
		var err error
		if m.Config, err = pushBytes(t.Context(), store, MediaTypeConfig, []byte(config)); err != nil {
			t.Fatal(err)
		}
		manifest(t, store, tag, m)
	}
	const adds = `"agent":{"adds":[{"src":"tables","name":"skills/tables"}]}}`
	forge("older", `{"syntax":"openotters/agentfile:1",`+adds, MediaTypeSkill)
	forge("file", `{"syntax":"openotters/agentfile:1+skills",`+adds, MediaTypeFile)
	forge("out", `{"syntax":"openotters/agentfile:1+skills","agent":{"adds":[{"src":"tables","name":"skills/../tables"}]}}`, MediaTypeSkill)
	forge("well", `{"syntax":"openotters/agentfile:1+skills",`+adds, MediaTypeSkill)
	for tag, want := range map[string]string{"older": "it has skills, which are not in its syntax", "file": "its layer is of type", "out": "is not the name of a skill"} {
		_, err := Load(t.Context(), store, tag)
		wants(t, tag, err, nil, want)
	}
	if _, err := Load(t.Context(), store, "well"); err != nil {
		t.Error("the allowed twin:", err)
	}
}

func TestWarningsOfABuildAreBounded(t *testing.T) {
	t.Parallel()
	// A skill may be named as a secret is: its files are not for that.
	folder := fstest.MapFS{"token/SKILL.md": {Data: []byte("---\nname: other\n---\n")}}
	for i := range 2 * maxWarnings {
		folder[fmt.Sprintf("token/%d.pem", i)] = &fstest.MapFile{}
	}
	got := build(t, memory.New(), "FROM scratch\nADD token/", BuildOptions{Folder: folder}).Warnings
	// That of the skill, that of its name, and one for each file.
	if len(got) != maxWarnings+1 || !strings.Contains(got[0], `says name "other"`) || strings.Contains(strings.Join(got, " "), "token/SKILL.md looks") || got[maxWarnings] != fmt.Sprintf("and %d more warnings", maxWarnings+2) {
		t.Errorf("%d warnings: %q … %q", len(got), got[0], got[len(got)-1])
	}
}
