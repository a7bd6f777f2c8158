package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// Invariant: a definition with skills says so by its syntax, and no other does; a skill is a bounded folder
// of plain files with a SKILL.md. The three worst inputs: a link in the folder (P11), a folder without an
// end, a file that takes the skills' place.

const skillText = "---\nname: tables\ndescription: Makes tables.\n---\nUse pipes.\n"

func TestParseReadsSkills(t *testing.T) {
	t.Parallel()
	folder := fstest.MapFS{
		"skills/tables/SKILL.md": {Data: []byte(skillText)}, "skills/tables/ref/units.md": {Data: []byte("km")}, "csv/SKILL.md": {Data: []byte("\ufeff---\r\n")},
	}
	a, err := Parse("f", []byte("FROM scratch\nADD skills/tables/ \"tables\"\nADD csv/ comma\n"), ParseOptions{Folder: folder})
	if err != nil {
		t.Fatal(err)
	}
	want := []Add{{Src: "skills/tables", Name: "skills/tables", Description: "tables"}, {Src: "csv", Name: "skills/comma"}}
	if d := cmp.Diff(want, a.Adds); d != "" || a.Syntax != SkillSyntax || !a.HasSkills() || a.Validate() != nil {
		t.Error(d, a.Syntax, a.Validate())
	}
	parts, err := SkillFiles(folder, "skills/tables")
	if d := cmp.Diff([]SkillPart{{"SKILL.md", int64(len(skillText))}, {"ref/units.md", 2}}, parts); err != nil || d != "" {
		t.Error(err, d)
	}
	// A definition has the syntax as long as it has a skill, and its JSON form keeps them.
	child, err := Parse("f", []byte("# syntax="+SkillSyntax+"\nFROM x\nADD a"), ParseOptions{})
	if err != nil || child.Syntax != DefaultSyntax {
		t.Fatal(err, child)
	}
	if m := Merge(a, child); m.Syntax != SkillSyntax || len(m.Adds) != 3 {
		t.Errorf("%+v", m)
	}
	blob, err := json.Marshal(a)
	again := new(Agentfile)
	if err := errors.Join(err, json.Unmarshal(blob, again)); err != nil || !cmp.Equal(again.Adds, a.Adds) {
		t.Error(err, again)
	}
	const text = "FROM scratch\nADD skills/tables/ \"tables\"\n"
	if out, err := Format("f", []byte("from scratch\nadd  skills/tables/   \"tables\"")); err != nil || string(out) != text {
		t.Errorf("%q %v", out, err)
	}
}

func TestSkillsAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good/SKILL.md": skillText, "none/x.md": "x", "plain/SKILL.md": "Use pipes.", "bytes/SKILL.md": "---\n\xff", "link/SKILL.md": skillText, "long/SKILL.md": skillText + strings.Repeat("x", MaxSkillText),
		"outside": "x", "file": "x", "deep/SKILL.md": skillText, "deep/" + strings.Repeat("d/", MaxSkillDepth) + "x": "x", "deeper/SKILL.md": skillText,
		"Good/SKILL.md": skillText, "pipe/SKILL.md": skillText, "edge/SKILL.md": skillText, "edge/" + strings.Repeat("d/", MaxSkillDepth-1) + "x": "x", "odd/SKILL.md": skillText, "odd/a\nb": "x",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"link/ref": "../outside", "self": "good"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "linked"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../good/SKILL.md", filepath.Join(dir, "linked/SKILL.md")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	many := "FROM scratch\n"
	for i := range MaxSkills + 1 {
		many += fmt.Sprintf("ADD good/ s%d\n", i)
	}
	for name, tc := range map[string]struct{ bad, want, good string }{
		"a folder without SKILL.md":     {"ADD none/", "2:5: ADD skills/none: none: SKILL.md: there is no such file", "ADD good/"},
		"a folder that is not there":    {"ADD god/", "no such file in the build folder; did you mean good/?", "ADD good/"},
		"a file":                        {"ADD file/", "it is no folder; leave the / out", "ADD file"},
		"no front matter":               {"ADD plain/", "begins with no front matter", "ADD good/"},
		"no text":                       {"ADD bytes/", "SKILL.md: the text is not UTF-8", "ADD good/"},
		"a long text":                   {"ADD long/", "more than 262144", "ADD good/"},
		"P11 a link out of it":          {"ADD link/", "ref: it is neither a file nor a folder", "ADD self/"},
		"P11 a link for its SKILL.md":   {"ADD linked/", "SKILL.md: it is neither a file nor a folder", "ADD self/"},
		"P11 a folder above":            {"ADD ../good/", "has a .. part", "ADD ./good/"},
		"P11 a name that leads out":     {"ADD good/ ../x", "is not the name of a skill", "ADD good/ x"},
		"P11 a file named into skills":  {"ADD file skills/x", "is not a name", "ADD file skills-x"},
		"folders too deep":              {"ADD deep/", "more than 10 folders deep", "ADD edge/"},
		"a capital in its name":         {"ADD Good/", "is not the name of a skill", "ADD Good/ good"},
		"a name that is no text":        {"ADD odd/", `odd: "a\nb": the name has what is no text; give it another name`, "ADD good/"},
		"two slashes":                   {"ADD good//", "is a folder; name a file", "ADD good/"},
		"the build folder itself":       {"ADD ./", "is a folder; name a file", "ADD ./good/"},
		"a file in the place of skills": {"ADD good/\nADD file skills", "3:5: the name skills is taken", "ADD file skills"},
	} {
		if _, err := Parse("f", []byte("FROM scratch\n"+tc.bad), ParseOptions{Folder: root.FS()}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want %s", name, err, tc.want)
		}
		if _, err := Parse("f", []byte("FROM scratch\n"+tc.good), ParseOptions{Folder: root.FS()}); err != nil {
			t.Errorf("%s, its allowed twin: %v", name, err)
		}
	}
	if _, err := Parse("f", []byte(many), ParseOptions{}); err == nil || !strings.Contains(err.Error(), "f:66:5: more than 64 skills") {
		t.Error("many skills:", err)
	}
	_, err = Parse("f", []byte("# syntax="+DefaultSyntax+"\nFROM scratch\nADD good/"), ParseOptions{})
	if err == nil || !strings.Contains(err.Error(), "f:3:5: there are no skills in openotters/agentfile:1; write # syntax=openotters/agentfile:1+skills in the first line") {
		t.Error("another syntax:", err)
	}
	if err := (&Agentfile{Adds: []Add{{Name: "skills/a"}, {Name: "skills"}}}).Validate(); err == nil || !strings.Contains(err.Error(), "is taken") {
		t.Error("Validate:", err)
	}
	if err := (&Agentfile{Adds: []Add{{Name: "skills/../a"}}}).Validate(); err == nil {
		t.Error("Validate takes a name that leads out")
	}
}

func TestSkillsAreBounded(t *testing.T) {
	t.Parallel()
	folder := fstest.MapFS{"a/SKILL.md": {Data: []byte(skillText)}}
	for i := range MaxSkillFiles - 1 {
		folder[fmt.Sprintf("a/%d", i)] = &fstest.MapFile{}
	}
	if _, err := SkillFiles(folder, "a"); err != nil {
		t.Error("as many as may be:", err)
	}
	folder["a/more"] = &fstest.MapFile{}
	if _, err := SkillFiles(folder, "a"); err == nil || !strings.Contains(err.Error(), "more than 1000 files and folders") {
		t.Error(err)
	}
	big := fstest.MapFS{"a/SKILL.md": {Data: []byte(skillText)}, "a/big": {Data: make([]byte, MaxSkillBytes-len(skillText))}}
	if _, err := SkillFiles(big, "a"); err != nil {
		t.Error("as large as may be:", err)
	}
	big["a/more"] = &fstest.MapFile{Data: []byte("x")}
	if _, err := SkillFiles(big, "a"); err == nil || !strings.Contains(err.Error(), "more than 16777216 bytes together") {
		t.Error(err)
	}
	big["a/dev"] = &fstest.MapFile{Mode: fs.ModeDevice}
	if _, err := SkillFiles(big, "a"); err == nil {
		t.Error("a device was taken")
	}
}

// counted counts what is opened, and lists a folder one name at a time, as a filesystem may.
type counted struct {
	fs.FS
	opened int
}

func (c *counted) Open(name string) (fs.File, error) {
	c.opened++
	f, err := c.FS.Open(name)
	if d, ok := f.(fs.ReadDirFile); ok {
		return onebyone{d}, err
	}
	return f, err
}

type onebyone struct{ fs.ReadDirFile }

func (o onebyone) ReadDir(n int) ([]fs.DirEntry, error) {
	return o.ReadDirFile.ReadDir(min(n, 1))
}

func TestASkillIsReadWholeAndAlone(t *testing.T) {
	t.Parallel()
	skill := func(last fs.FileMode) *counted {
		return &counted{FS: fstest.MapFS{"a/SKILL.md": {Data: []byte(skillText)}, "a/x": {}, "a/y/z": {}, "a/zz": {Mode: last}}}
	}
	if parts, err := SkillFiles(skill(0), "a"); err != nil || len(parts) != 4 {
		t.Error(parts, err)
	}
	if _, err := SkillFiles(skill(fs.ModeSymlink), "a"); err == nil || !strings.Contains(err.Error(), "zz: it is neither a file nor a folder") {
		t.Error("the last name of a folder:", err)
	}
	// Skills above the bound are refused unread.
	opened := func(skills int) int {
		src := "FROM scratch\n"
		for i := range skills {
			src += fmt.Sprintf("ADD a/ s%d\n", i)
		}
		folder := skill(0)
		if _, err := Parse("f", []byte(src), ParseOptions{Folder: folder}); (err == nil) != (skills <= MaxSkills) {
			t.Errorf("%d skills: %v", skills, err)
		}
		return folder.opened
	}
	if most := opened(MaxSkills); most < MaxSkills || opened(1000) != most {
		t.Errorf("%d files are opened for %d skills, %d for 1000", most, MaxSkills, opened(1000))
	}
}
