package agentruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/otters-sh/otters/loop"
)

const (
	// skillsDir holds a folder for each skill.
	skillsDir = "etc/data/skills"
	skillFile = "SKILL.md"
	skillTool = "skill_read"

	// Bounds of skills: how many are listed, and the sizes of a file, a name and a description, in bytes.
	maxSkills           = 64
	maxSkillFile        = 256 << 10
	maxSkillName        = 64
	maxSkillDescription = 1024
	// maxSkillEntries bounds what is looked at of the folder; what lies beyond is not seen.
	maxSkillEntries = 4096
)

// skill is a folder of instructions that the model reads when it needs them.
type skill struct{ name, description string }

// readSkills finds the skills of a tree, in the order of their names. What is none is left out, with a
// warning that names it.
func readSkills(root *os.Root) (skills []skill, warnings []string) {
	dir, err := root.OpenFile(skillsDir, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, []string{"skills: " + err.Error()}
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxSkillEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, []string{"skills: " + err.Error()}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		s, err := readSkill(root, e.Name())
		switch {
		case err != nil:
			warnings = append(warnings, fmt.Sprintf("skill %s: left out: %s", start(e.Name(), maxSkillName), err))
		case len(skills) == maxSkills:
			warnings = append(warnings, fmt.Sprintf("skill %s: left out: there are more than %d", s.name, maxSkills))
		default:
			skills = append(skills, s)
		}
		if len(warnings) == maxWarnings {
			break
		}
	}
	return skills, warnings
}

// maxWarnings bounds how many there are.
const maxWarnings = 32

func readSkill(root *os.Root, folder string) (skill, error) {
	if !skillName(folder) {
		return skill{}, fmt.Errorf("the folder's name: want 1 to %d of a to z, digits and -", maxSkillName)
	}
	// A link within the tree would make other files of it a skill.
	if info, err := root.Lstat(path.Join(skillsDir, folder)); err != nil {
		return skill{}, err
	} else if !info.IsDir() {
		return skill{}, errors.New("it is no folder")
	}
	text, err := readDocument(root, path.Join(skillsDir, folder, skillFile), maxSkillFile)
	if err != nil {
		return skill{}, err
	}
	front, _, ok := frontMatter(text)
	if !ok {
		return skill{}, fmt.Errorf("%s does not begin with front matter between lines of ---", skillFile)
	}
	var head struct {
		Name        string `yaml:"name"`
		Description string `yaml:"description"`
	}
	if err := yaml.Unmarshal([]byte(front), &head); err != nil {
		return skill{}, fmt.Errorf("front matter: %s", oneLine(err.Error()))
	}
	description := oneLine(head.Description)
	switch {
	case head.Name != folder:
		return skill{}, fmt.Errorf("front matter: name is %q; want the folder's name", start(head.Name, maxSkillName))
	case description == "":
		return skill{}, errors.New("front matter: description is missing")
	case len(description) > maxSkillDescription:
		return skill{}, fmt.Errorf("front matter: description has %d bytes, over the limit of %d", len(description), maxSkillDescription)
	}
	return skill{name: head.Name, description: description}, nil
}

func skillName(name string) bool {
	ok := name != "" && len(name) <= maxSkillName
	for _, c := range []byte(name) {
		ok = ok && (c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z')
	}
	return ok
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// frontMatter splits a text that begins with YAML between two lines of three hyphens.
func frontMatter(text string) (front, body string, ok bool) {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "\uFEFF"), "\r\n", "\n")
	rest, ok := strings.CutPrefix(text, "---\n")
	if !ok {
		return "", "", false
	}
	if body, empty := strings.CutPrefix(rest, "---\n"); empty {
		return "", body, true
	}
	front, body, ok = strings.Cut(rest, "\n---\n")
	if !ok {
		front, ok = strings.CutSuffix(rest, "\n---")
	}
	return front, body, ok
}

// skillList is the document that tells the model which skills there are.
func skillList(skills []skill) string {
	var b strings.Builder
	b.WriteString("Instructions for some tasks. Before such a task read them with the tool " + skillTool + ".\n")
	for _, s := range skills {
		fmt.Fprintf(&b, "- %s: %s\n", s.name, s.description)
	}
	return b.String()
}

// skillReader is the tool by which the model reads a skill.
type skillReader struct {
	root   string
	skills []skill
}

// openSkills adds the tool that reads skills, where there are some. Errors wrap ErrConfig.
func openSkills(root string, skills []skill, tools []loop.Tool) ([]loop.Tool, error) {
	if len(skills) == 0 {
		return tools, nil
	}
	if slices.ContainsFunc(tools, func(t loop.Tool) bool { return t.Spec().Name == skillTool }) {
		return nil, fmt.Errorf("%w: tool %s: skills are read with a tool of the same name; rename the tool", ErrConfig, skillTool)
	}
	return append(tools, &skillReader{root, skills}), nil
}

func (r *skillReader) Spec() loop.ToolSpec {
	return loop.ToolSpec{
		Name: skillTool, Description: "Reads the instructions of a skill, or another file of its folder.",
		Parameters: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"},` +
			`"file":{"type":"string","description":"Path in the skill's folder; ` + skillFile + ` where left out."}},"required":["name"],"additionalProperties":false}`),
	}
}

// decodeArgs reads the arguments of a call into in, and refuses what it does not know.
func decodeArgs(call loop.Call, in any) error {
	dec := json.NewDecoder(bytes.NewReader(call.Args))
	dec.DisallowUnknownFields()
	if err := dec.Decode(in); err != nil {
		return fmt.Errorf("arguments: %w", err)
	}
	return nil
}

// Call is loop.Tool's.
func (r *skillReader) Call(_ context.Context, call loop.Call) (string, error) {
	var in struct {
		Name string `json:"name"`
		File string `json:"file"`
	}
	if err := decodeArgs(call, &in); err != nil {
		return "", err
	}
	if !slices.ContainsFunc(r.skills, func(s skill) bool { return s.name == in.Name }) {
		names := make([]string, len(r.skills))
		for i, s := range r.skills {
			names[i] = s.name
		}
		return "", fmt.Errorf("skill %q: there is none; there are %s", start(in.Name, maxSkillName), strings.Join(names, ", "))
	}
	if in.File == "" {
		in.File = skillFile
	}
	// The root is the skill's own folder: whatever the path, no other file is read.
	root, err := os.OpenRoot(r.root)
	if err != nil {
		return "", fmt.Errorf("skill %s: %w", in.Name, err)
	}
	defer root.Close()
	folder, err := root.OpenRoot(path.Join(skillsDir, in.Name))
	if err != nil {
		return "", fmt.Errorf("skill %s: %w", in.Name, err)
	}
	defer folder.Close()
	text, err := readDocument(folder, in.File, maxSkillFile)
	if err != nil {
		return "", fmt.Errorf("skill %s: %w", in.Name, err)
	}
	if strings.ContainsRune(text, 0) {
		return "", fmt.Errorf("skill %s: %s is no text", in.Name, in.File)
	}
	if _, body, ok := frontMatter(text); ok && in.File == skillFile {
		text = strings.TrimSpace(body)
	}
	return text, nil
}
