package spec

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxListed is how many names of a folder are compared with one that is not there.
const maxListed = 1000

// place is where the file names a source, so that what is wrong with it is told there.
type place struct {
	line, at int
	text     string
}

// sources checks the files that CONTEXT and ADD name, those that an instruction further down replaced
// aside, and reads the texts of CONTEXT.
func (p *parser) sources(folder fs.FS) {
	f := &folderReader{fs: folder, lists: map[string][]fs.DirEntry{}, left: MaxTexts}
	for i := range p.a.Contexts {
		c := &p.a.Contexts[i]
		if c.File == "" {
			continue
		}
		text, err := f.text(c.File)
		if err == nil {
			err = checkContent(text)
		}
		p.source("CONTEXT", c.Name, c.File, f, err)
		c.Content = text
	}
	skills := 0
	for _, d := range p.a.Adds {
		if d.IsSkill() {
			// Those above the bound are refused already, and each would be read whole.
			if skills++; skills > MaxSkills {
				continue
			}
			_, err := SkillFiles(folder, d.Src)
			p.source("ADD", d.Name, d.Src, f, err)
			continue
		}
		_, err := f.stat(d.Src, MaxFile)
		p.source("ADD", d.Name, d.Src, f, err)
	}
}

// source notes what is wrong with a source, at its place in the file.
func (p *parser) source(kind, key, src string, f *folderReader, err error) {
	if err == nil {
		return
	}
	hint := ""
	if errors.Is(err, fs.ErrNotExist) && len(p.problems) < maxProblems {
		hint = f.meant(src, strings.HasPrefix(key, skillsDir))
	}
	at := p.places[kind+" "+key]
	p.line, p.text = at.line, at.text
	n := len(p.problems)
	p.problem(at.at, hint, "%s %s: %s: %v", kind, key, clip(src), err)
	if n < len(p.problems) {
		p.problems[n].cause = err
	}
}

// folderReader reads a build folder.
type folderReader struct {
	fs fs.FS
	// lists are the folders that were read for a near-miss.
	lists map[string][]fs.DirEntry
	// left is how many bytes of text may still be read.
	left int64
}

// missing is fs.ErrNotExist in words that are about a build folder.
type missing struct{}

func (missing) Error() string        { return "there is no such file in the build folder" }
func (missing) Is(target error) bool { return target == fs.ErrNotExist }

// stat tells that a source is a regular file of at most most bytes. It opens nothing, since opening a
// named pipe waits for its other end.
func (f *folderReader) stat(name string, most int64) (fs.FileInfo, error) {
	info, err := fs.Stat(f.fs, name)
	var at *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, missing{}
	case errors.As(err, &at):
		return nil, at.Err
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, errors.New("it is a folder; name its files one by one, or write a / after that of a skill")
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	case info.Size() > most:
		return nil, fmt.Errorf("%d bytes, more than %d", info.Size(), most)
	}
	return info, nil
}

// text reads a text, and no more of it than its bound where it grows meanwhile.
func (f *folderReader) text(name string) (string, error) {
	info, err := f.stat(name, MaxContent)
	if err != nil {
		return "", err
	}
	if f.left -= info.Size(); f.left < 0 {
		return "", fmt.Errorf("the texts of CONTEXT have more than %d bytes together", MaxTexts)
	}
	file, err := f.fs.Open(name)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, info.Size()+1))
	if err = errors.Join(err, file.Close()); err == nil && int64(len(text)) != info.Size() {
		err = errors.New("it changed while it was read; try again")
	}
	return string(text), err
}

// meant is the hint for a path that is not there: the same with its first wrong part mended.
func (f *folderReader) meant(src string, skill bool) string {
	parts := strings.Split(src, "/")
	if skill {
		parts = append(parts, SkillFile)
	}
	dir := "."
	for i, part := range parts {
		var names []string
		last := i == len(parts)-1
		for _, e := range f.list(dir) {
			// A link may be either.
			if e.Type()&fs.ModeSymlink != 0 || e.IsDir() != last {
				names = append(names, e.Name())
			}
		}
		if !slices.Contains(names, part) {
			near := nearest(part, names)
			if near == "" {
				return ""
			}
			fixed := path.Join(append([]string{dir, near}, parts[i+1:]...)...)
			if _, err := f.stat(fixed, MaxFile); err != nil || skill && last {
				return ""
			}
			if skill {
				fixed = strings.TrimSuffix(fixed, SkillFile)
			}
			return fmt.Sprintf("did you mean %s?", clip(fixed))
		}
		dir = path.Join(dir, part)
	}
	return ""
}

// list reads at most maxListed names of a folder; one that can't be read has none.
func (f *folderReader) list(dir string) []fs.DirEntry {
	if list, ok := f.lists[dir]; ok {
		return list
	}
	// What was read before an error is enough for a hint.
	f.lists[dir], _ = readDir(f.fs, dir, maxListed)
	return f.lists[dir]
}

// SkillPart is a file of a skill.
type SkillPart struct {
	// Path is that in the skill's folder, with slashes; Size is in bytes.
	Path string
	Size int64
}

// SkillFiles lists the files of the skill in the folder dir, in the order of their paths. It is an error
// when it has no SKILL.md that begins with front matter, something that is neither file nor folder, such as
// a link, or more than the bounds of this package.
func SkillFiles(folder fs.FS, dir string) ([]SkillPart, error) {
	f := &folderReader{fs: folder}
	if info, err := fs.Stat(folder, dir); err == nil && !info.IsDir() {
		return nil, errors.New("it is no folder; leave the / out")
	}
	info, err := f.stat(path.Join(dir, SkillFile), MaxSkillText)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", SkillFile, err)
	}
	if err := frontMatter(folder, path.Join(dir, SkillFile), info.Size()); err != nil {
		return nil, fmt.Errorf("%s: %w", SkillFile, err)
	}
	w := &skillWalk{folder: folder}
	if err := w.walk(dir, ".", 1); err != nil {
		return nil, err
	}
	slices.SortFunc(w.parts, func(a, b SkillPart) int { return strings.Compare(a.Path, b.Path) })
	return w.parts, nil
}

// frontMatter tells that a file begins with it. What stands in it is the runtime's to read.
func frontMatter(folder fs.FS, name string, size int64) error {
	file, err := folder.Open(name)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(file, size))
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if !utf8.Valid(text) {
		return errors.New("the text is not UTF-8")
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(string(text), "\ufeff"), "\n")
	if strings.TrimSuffix(first, "\r") != "---" {
		return errors.New("it begins with no front matter; write name and description between lines of ---")
	}
	return nil
}

type skillWalk struct {
	folder  fs.FS
	parts   []SkillPart
	entries int
	bytes   int64
}

// walk reads the folder at, which lies at rel in the skill.
func (w *skillWalk) walk(at, rel string, depth int) error {
	list, err := readDir(w.folder, at, MaxSkillFiles-w.entries+1)
	if err != nil {
		return err
	}
	for _, e := range list {
		name := path.Join(rel, e.Name())
		if w.entries++; w.entries > MaxSkillFiles {
			return fmt.Errorf("more than %d files and folders; leave some out", MaxSkillFiles)
		}
		info, err := e.Info()
		switch {
		case err != nil:
			return err
		case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return fmt.Errorf("%q: the name has what is no text; give it another name", clip(name))
		case info.IsDir() && depth == MaxSkillDepth:
			return fmt.Errorf("%s: it lies more than %d folders deep; move it up", clip(name), MaxSkillDepth)
		case info.IsDir():
			if err := w.walk(path.Join(at, e.Name()), name, depth+1); err != nil {
				return err
			}
			continue
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s: it is neither a file nor a folder; put a copy there", clip(name))
		}
		if w.bytes += info.Size(); w.bytes > MaxSkillBytes {
			return fmt.Errorf("the files have more than %d bytes together; leave some out", MaxSkillBytes)
		}
		w.parts = append(w.parts, SkillPart{name, info.Size()})
	}
	return nil
}

// readDir reads at most most entries of a folder. One may return fewer at a time, and have more.
func readDir(folder fs.FS, name string, most int) (list []fs.DirEntry, err error) {
	file, err := folder.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	d, ok := file.(fs.ReadDirFile)
	if !ok {
		return nil, errors.New("it can't be listed")
	}
	for len(list) < most {
		more, err := d.ReadDir(most - len(list))
		list = append(list, more...)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return list, err
		}
	}
	return list, nil
}
