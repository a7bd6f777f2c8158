package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// Invariant: with the build folder Parse tells what is wrong with the files in one go with what is wrong
// with the words, each at its place, and reads no more than its bounds. The three worst inputs: a folder
// of a million names beside one that is missing, texts that are each within their bound and together
// fill the memory, and a file that grows while it is read.

func TestFilesAreToldWithTheRest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"in/data/rivers.json": "{}", "in/a.md": "a", "in/bytes": "\xff", "secret": "x"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret", filepath.Join(dir, "in/out")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	src := "FROM scratch\nARG d=dta\n  ADD  ${d}/rivers.json x \"é\"\nNAM x\nADD a.me\nADD A.md\nADD farthest\nADD data y\n" +
		"CONTEXT A \"é\" file://out\nCONTEXT B file://bytes\nCONTEXT C file://gone\nCONTEXT C file://a.md\nADD data/rivers.json\nADD A/rivers.json z\n"
	const want = `f:3:8: ADD x: dta/rivers.json: there is no such file in the build folder; did you mean data/rivers.json?
      ADD  ${d}/rivers.json x "é"
           ^
f:4:1: unknown instruction "NAM"; did you mean NAME?
    NAM x
    ^
f:5:5: ADD a.me: a.me: there is no such file in the build folder; did you mean a.md?
    ADD a.me
        ^
f:6:5: ADD A.md: A.md: there is no such file in the build folder; did you mean a.md?
    ADD A.md
        ^
f:7:5: ADD farthest: farthest: there is no such file in the build folder
    ADD farthest
        ^
f:8:5: ADD y: data: it is a folder; name its files one by one, or write a / after that of a skill
    ADD data y
        ^
f:9:15: CONTEXT A: out: path escapes from parent
    CONTEXT A "é" file://out
                  ^
f:10:11: CONTEXT B: bytes: the text is not UTF-8
    CONTEXT B file://bytes
              ^
f:14:5: ADD z: A/rivers.json: there is no such file in the build folder
    ADD A/rivers.json z
        ^`
	_, err = Parse("f", []byte(src), ParseOptions{Folder: root.FS()})
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, ErrInvalid) {
		t.Error("what the files were refused for is lost")
	}
	// Without the folder only the words are looked at.
	if _, err = Parse("f", []byte(src), ParseOptions{}); err == nil || strings.Count(err.Error(), "^") != 1 {
		t.Error(err)
	}
	good := "FROM scratch\nADD data/rivers.json\nCONTEXT C file://gone\nCONTEXT C file://a.md\n"
	a, err := Parse("f", []byte(good), ParseOptions{Folder: root.FS()})
	if err != nil || a.Contexts[0].Content != "a" || a.Contexts[0].File != "a.md" {
		t.Errorf("the allowed twin: %+v %v", a, err)
	}
}

// sized is a file with a size that it does not have.
type sized struct {
	fs.File
	fs.FileInfo
	size int64
}

func (s sized) Stat() (fs.FileInfo, error) { return s, nil }
func (s sized) Size() int64                { return s.size }

// claims is a folder of such files.
type claims struct {
	fs.FS
	size int64
}

func (c claims) Open(name string) (fs.File, error) {
	f, err := c.FS.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		return f, err
	}
	return sized{f, info, c.size}, nil
}

func TestFilesAreBounded(t *testing.T) {
	t.Parallel()
	folder := fstest.MapFS{"full": {Data: make([]byte, 0, MaxContent)}}
	folder["full"].Data = []byte(strings.Repeat("x", MaxContent))
	folder["more"] = &fstest.MapFile{Data: []byte(strings.Repeat("x", MaxContent+1))}
	texts := func(n int) string {
		var b strings.Builder
		b.WriteString("FROM scratch\n")
		for i := range n {
			fmt.Fprintf(&b, "CONTEXT C%d file://full\n", i)
		}
		return b.String()
	}
	for name, tc := range map[string]struct {
		folder    fs.FS
		bad, want string
		good      string
	}{
		"a text":                       {folder, "FROM scratch\nCONTEXT A file://more", "2:11: CONTEXT A: more: 1048577 bytes, more than 1048576", "FROM scratch\nCONTEXT A file://full"},
		"texts together":               {folder, texts(17), "18:13: CONTEXT C16: full: the texts of CONTEXT have more than 16777216 bytes together", texts(16)},
		"an ADD":                       {claims{folder, MaxFile + 1}, "FROM scratch\nADD full", "2:5: ADD full: full: 1073741825 bytes, more than 1073741824", "FROM scratch"},
		"an ADD, just":                 {claims{folder, MaxFile}, "FROM scratch\nADD none", "no such file", "FROM scratch\nADD full"},
		"a text that grows":            {claims{folder, 10}, "FROM scratch\nCONTEXT A file://full", "2:11: CONTEXT A: full: it changed while it was read; try again", "FROM scratch\nADD full"},
		"a text that became shorter":   {claims{folder, MaxContent}, "FROM scratch\nCONTEXT A file://short", "no such file", "FROM scratch\nCONTEXT A file://full"},
		"a folder of very many names":  {crowd{}, "FROM scratch\nADD nobod", "2:5: ADD nobod: nobod: there is no such file in the build folder", "FROM scratch"},
		"a folder that has no listing": {blind{folder}, "FROM scratch\nADD ful", "2:5: ADD ful: ful: there is no such file in the build folder", "FROM scratch\nADD full"},
	} {
		if _, err := Parse("f", []byte(tc.bad), ParseOptions{Folder: tc.folder}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %.300v", name, err)
		}
		if _, err := Parse("f", []byte(tc.good), ParseOptions{Folder: tc.folder}); err != nil {
			t.Errorf("%s, its allowed twin: %.300v", name, err)
		}
	}
}

// blind is a folder that can't be listed.
type blind struct{ fs.FS }

func (b blind) Open(name string) (fs.File, error) {
	f, err := b.FS.Open(name)
	if err != nil {
		return nil, err
	}
	return struct{ fs.File }{f}, nil
}

// crowd is a folder whose listing has no end. It fails the process when it is asked for all of it.
type crowd struct{}

func (crowd) Open(name string) (fs.File, error) {
	if name != "." {
		return nil, fs.ErrNotExist
	}
	return crowd{}, nil
}

func (crowd) Stat() (fs.FileInfo, error) { return nil, fs.ErrInvalid }
func (crowd) Read([]byte) (int, error)   { return 0, fs.ErrInvalid }
func (crowd) Close() error               { return nil }

func (crowd) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 || n > maxListed {
		panic("the listing has no end")
	}
	list := make([]fs.DirEntry, n)
	for i := range list {
		info, err := fstest.MapFS{"other": {}}.Stat("other")
		if err != nil {
			return nil, err
		}
		list[i] = fs.FileInfoToDirEntry(info)
	}
	return list, nil
}
