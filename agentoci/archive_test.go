package agentoci

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/otters-sh/otters/spec"
)

// Invariant: an Archive holds only what is below its root, once, and nothing is left behind. The three
// worst inputs: a name that leaves the folder, an entry written through a symlink, a file that says
// it is larger than everything.
//
// The cases P1 to P12 are those of here, bin_test.go, build_test.go, layout_test.go and, for P12, of
// package client. There is no P7. P11, a bundle of skills, comes in as such an archive too; what the
// runtime reads of one is in package agentruntime.

func TestArchiveRefuses(t *testing.T) {
	t.Parallel()
	suid := file("a", "x")
	suid.Mode = 0o4755
	caps := file("a", "x")
	caps.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "x"}
	user := file("a", "x")
	user.PAXRecords = map[string]string{"SCHILY.xattr.user.note": "x"}
	for name, tc := range map[string]struct {
		bad  []item
		want string
		good []item
	}{
		"P1 a name that goes up":            {[]item{file("../a", "x")}, "..", []item{file("./..a", "x")}},
		"P1 a name that goes up inside":     {[]item{file("a/../b", "x")}, "..", []item{file("a/./b", "x")}},
		"P1 an absolute name":               {[]item{file("/etc/passwd", "x")}, "absolute", []item{file("etc/passwd", "x")}},
		"P2 a file through a symlink":       {[]item{symlink("a", "/etc"), file("a/passwd", "x")}, `lies below "a"`, []item{dir("a"), file("a/passwd", "x")}},
		"P2 a file through a file":          {[]item{file("a", "x"), file("a/b", "x")}, `lies below "a"`, []item{file("a", "x"), file("ab", "x")}},
		"P3 a hard link to outside":         {[]item{hardlink("a", "/etc/passwd")}, "hard link out", []item{file("b", "x"), hardlink("a", "b")}},
		"P3 a hard link up":                 {[]item{hardlink("a", "../b")}, "hard link out", []item{file("b", "x"), hardlink("a", "./b")}},
		"P3 a hard link to a symlink":       {[]item{symlink("b", "/etc/passwd"), hardlink("a", "b")}, "no earlier file", []item{file("b", "x"), hardlink("a", "b")}},
		"P4 an empty name":                  {[]item{{Header: &tar.Header{Typeflag: tar.TypeReg}}}, "no name", []item{dir("./")}},
		"P4 the name .":                     {[]item{file(".", "")}, "twice", []item{dir(".")}},
		"P4 the name ..":                    {[]item{dir("..")}, "..", []item{dir("...")}},
		"P4 a folder that is a symlink up":  {[]item{symlink("a", ".."), file("a/b", "x")}, `lies below "a"`, []item{symlink("a", ".."), file("b", "x")}},
		"P4 a folder replaced by a symlink": {[]item{dir("a"), symlink("a", "/etc")}, "twice", []item{dir("a"), dir("a/")}},
		"P5 a device":                       {[]item{special(tar.TypeChar, "a")}, "a device", []item{file("a", "x")}},
		"P5 a FIFO":                         {[]item{special(tar.TypeFifo, "a")}, "a FIFO", []item{dir("a")}},
		"P5 set-user-id":                    {[]item{suid}, "set-user-id", []item{file("a", "x")}},
		"P5 a capability":                   {[]item{caps}, "extended attribute security.capability", []item{user}},
		"P6 the same file twice":            {[]item{file("a", "x"), file("./a", "y")}, "twice", []item{file("a", "x"), file("A", "y")}},
		"P6 a file that was a folder":       {[]item{file("a/b", "x"), file("a", "y")}, "twice", []item{file("a/b", "x"), dir("a")}},
	} {
		a, err := ReadArchive(t.Context(), bytes.NewReader(archive(t, tc.bad...)), ArchiveOptions{Dir: t.TempDir()})
		wants(t, name, err, ErrUnsafe, tc.want)
		if err == nil {
			a.Close()
		}
		if a, err = ReadArchive(t.Context(), bytes.NewReader(archive(t, tc.good...)), ArchiveOptions{Dir: t.TempDir()}); err != nil {
			t.Errorf("%s, its allowed twin: %v", name, err)
			continue
		}
		a.Close()
	}
}

// P4: a name that package tar writes for no file.
func TestArchiveP4AFileWithTheNameOfAFolder(t *testing.T) {
	t.Parallel()
	for name, is := range map[string]error{"a/": ErrUnsafe, "a": nil} {
		f := file("x", "x")
		f.Format, f.PAXRecords = tar.FormatPAX, map[string]string{"pXth": name}
		a, err := ReadArchive(t.Context(), bytes.NewReader(bytes.ReplaceAll(archive(t, f), []byte("pXth="), []byte("path="))), ArchiveOptions{Dir: t.TempDir()})
		if !errors.Is(err, is) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			a.Close()
		}
	}
}

func TestArchiveP4SymlinksLeadOnlyInside(t *testing.T) {
	t.Parallel()
	a, err := ReadArchive(t.Context(), bytes.NewReader(archive(t,
		file("dir/file", "inside"), symlink("rel", "dir/file"), symlink("dir/up", "../rel"), symlink("d", "dir"), symlink("dd", "d/../d/."),
		symlink("abs", "/etc/passwd"), symlink("out", "../x"), symlink("far", "dir/../../x"), symlink("x", "y"), symlink("y", "x"), symlink("gone", "nothing"),
		file("-", "plain"), hardlink("hard", "dir/file"))), ArchiveOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, name := range []string{"dir/file", "rel", "dir/up", "d/file", "dd/file", "dd/up", "hard"} {
		if b, err := fs.ReadFile(a, name); err != nil || string(b) != "inside" {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	for name, want := range map[string]error{
		"abs": ErrUnsafe, "out": ErrUnsafe, "far": ErrUnsafe, "x": ErrUnsafe, "gone": fs.ErrNotExist, "dir/file/x": fs.ErrNotExist,
		"../x": fs.ErrInvalid, "/etc/passwd": fs.ErrInvalid, "nothing": fs.ErrNotExist,
	} {
		_, err := a.Open(name)
		wants(t, name, err, want, name)
	}
	if info, err := fs.Stat(a, "d"); err != nil || !info.IsDir() {
		t.Error(info, err)
	}
}

func TestArchiveP9IsBounded(t *testing.T) {
	t.Parallel()
	opts := ArchiveOptions{Dir: t.TempDir(), MaxBytes: 10, MaxFile: 8, MaxEntries: 3}
	for name, tc := range map[string]struct {
		bad, good []item
		want      string
	}{
		"a file":         {[]item{file("a", "123456789")}, []item{file("a", "12345678")}, "9 bytes, more than 8"},
		"files together": {[]item{file("a", "123456"), file("b", "12345")}, []item{file("a", "123456"), file("b", "1234")}, "more than 10 bytes together"},
		"entries":        {[]item{dir("a"), dir("b"), dir("c"), dir("d")}, []item{dir("a"), dir("b"), dir("c")}, "more than 3 entries"},
	} {
		_, err := ReadArchive(t.Context(), bytes.NewReader(archive(t, tc.bad...)), opts)
		wants(t, name, err, ErrLimit, tc.want)
		a, err := ReadArchive(t.Context(), bytes.NewReader(archive(t, tc.good...)), opts)
		if err != nil {
			t.Errorf("%s, its allowed twin: %v", name, err)
			continue
		}
		a.Close()
	}

	// Sizes that are negative, or that overflow, come from hand-made headers.
	good := archive(t, file("a", "x"))
	for name, size := range map[string]string{"negative": "-0000000001\x00", "overflow": "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "huge": "77777777777\x00"} {
		bad := bytes.Clone(good)
		copy(bad[124:136], size)
		sum := 0
		copy(bad[148:156], "        ")
		for _, c := range bad[:512] {
			sum += int(c)
		}
		copy(bad[148:156], fmt.Sprintf("%06o\x00 ", sum))
		if _, err := ReadArchive(t.Context(), bytes.NewReader(bad), ArchiveOptions{Dir: t.TempDir()}); err == nil {
			t.Errorf("size %s: it was taken", name)
		}
	}
	for long, short := range map[string]string{strings.Repeat("a/", 101) + "a": strings.Repeat("a/", 100) + "a", strings.Repeat("a", 1025): strings.Repeat("a", 1024)} {
		_, err := ReadArchive(t.Context(), bytes.NewReader(archive(t, file(long, "x"))), ArchiveOptions{Dir: t.TempDir()})
		wants(t, "a long name", err, ErrUnsafe, "more than 1024 bytes or 100 folders")
		a, err := ReadArchive(t.Context(), bytes.NewReader(archive(t, file(short, "x"))), ArchiveOptions{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
	_, err := ReadArchive(t.Context(), bytes.NewReader(archive(t, file("a/b/c/d", "x"))), opts)
	wants(t, "folders without an entry", err, ErrLimit, "more than 3 entries")
	for _, end := range []int{0, 100, 512, 513, 1024, 1536} {
		_, err = ReadArchive(t.Context(), bytes.NewReader(good[:end]), ArchiveOptions{Dir: t.TempDir()})
		wants(t, fmt.Sprintf("an archive cut at %d", end), err, io.ErrUnexpectedEOF, "build folder: ")
	}
	_, err = ReadArchive(t.Context(), strings.NewReader(strings.Repeat("no tar ", 200)), ArchiveOptions{Dir: t.TempDir()})
	wants(t, "no archive", err, tar.ErrHeader, "archive")
	_, err = ReadArchive(t.Context(), bytes.NewReader(good[:100]), ArchiveOptions{Dir: t.TempDir(), Name: "the skill"})
	wants(t, "one that is no build folder", err, io.ErrUnexpectedEOF, "the skill: tar: ")
}

func TestArchiveLeavesNothingBehindAndStops(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	a, err := ReadArchive(t.Context(), bytes.NewReader(archive(t, file("a", strings.Repeat("x", 1<<20)))), ArchiveOptions{Dir: folder})
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(folder); len(left) != 0 {
		t.Errorf("files in the folder while it is open: %v", left)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ReadArchive(ctx, bytes.NewReader(archive(t, file("a", "x"))), ArchiveOptions{Dir: folder}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzReadArchive(f *testing.F) {
	f.Add(archive(f, file("a/b", "x"), symlink("c", "a/../b"), hardlink("d", "a/b"), dir("e")))
	f.Add(archive(f, symlink("a", "/"), file("../x", "y")))
	f.Add(archive(f, file("SKILL.md", skillText), file("ref/units.md", "km")))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := ReadArchive(t.Context(), bytes.NewReader(data), ArchiveOptions{MaxBytes: 1 << 20, MaxEntries: 100})
		if err != nil {
			return
		}
		defer a.Close()
		for name, n := range a.nodes {
			if !fs.ValidPath(name) {
				t.Fatalf("name %q", name)
			}
			f, err := a.Open(name)
			if err != nil {
				continue
			}
			b, err := io.ReadAll(f)
			if err != nil && n.kind == tar.TypeReg || len(b) > 1<<20 {
				t.Fatalf("%q: %d bytes, %v", name, len(b), err)
			}
			f.Close()
		}
		// The same as a skill: all that it lists are its own plain files.
		skill, err := spec.SkillFiles(a, ".")
		for _, part := range skill {
			n := a.nodes[part.Path]
			if err != nil || n == nil || n.kind != tar.TypeReg || n.size != part.Size {
				t.Fatalf("%q: %+v, %v", part.Path, n, err)
			}
		}
	})
}
