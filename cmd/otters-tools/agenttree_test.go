package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tarOf makes an archive of files.
func tarOf(t *testing.T, files map[string]string) string {
	t.Helper()
	var headers []tar.Header
	for name, text := range files {
		headers = append(headers, tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))})
	}
	return tarWith(t, headers, files)
}

func tarWith(t *testing.T, headers []tar.Header, texts map[string]string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte(texts[h.Name])[:h.Size]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// names is every path below a folder.
func names(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, _ fs.DirEntry, err error) error {
		if path != "." {
			all = append(all, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

// newRoot is an agent's tree with a secret beside it and links that lead to it.
func newRoot(t *testing.T) (root, secret string, env []string) {
	t.Helper()
	top := tempDir(t)
	root, secret = filepath.Join(top, "agent"), filepath.Join(top, "secret")
	for _, dir := range []string{"workspace/sub", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{secret: "secret", root + "/workspace/notes.txt": "a\nb\n", root + "/etc/in": "in"} {
		// Whatever the umask is, a mode is checked.
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o640), os.Chmod(path, 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"workspace/out": "../../secret", "workspace/outdir": "../..", "workspace/abs": secret, "workspace/in": "../etc/in",
		"workspace/absin": root + "/etc/in", "workspace/loop": "loop", "workspace/new": "sub/made",
	} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	return root, secret, []string{"OTTERS_AGENT_ROOT=" + root}
}

// Invariant: what writes stays in the agent's tree and leaves a file as it was or whole. Worst inputs:
// a link to a file outside, a folder that is a link outside, and a name with dots.
func TestWritingStaysInTheAgentsTree(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stderr string
		code         int
		path         string // what is written then
	}{
		{name: "notes.txt", path: "workspace/notes.txt"},
		{name: "x/y/z", path: "workspace/x/y/z"},
		{name: "in", path: "etc/in"},
		{name: "absin", path: "etc/in"},
		{name: "new", path: "workspace/sub/made"},
		{name: "../etc/in", path: "etc/in"},
		{name: "out", stderr: "a symbolic link that leads out of the agent's tree", code: 1},
		{name: "abs", stderr: "a symbolic link that leads out of the agent's tree", code: 1},
		{name: "outdir/secret", stderr: "leads out of the agent's tree", code: 1},
		{name: "../../secret", stderr: "leads out of the agent's tree", code: 1},
		{name: "/etc/otters-test", stderr: "leads out of the agent's tree", code: 1},
		{name: "loop", stderr: "too many symbolic links", code: 1},
		{name: "sub", stderr: "not a regular file", code: 1},
		{name: "sub/", stderr: "a folder, not a file", code: 1},
		{name: "notes.txt/x", stderr: "not a directory", code: 1},
	} {
		root, secret, env := newRoot(t)
		before := names(t, root)
		got := startIn(t, env, root+"/workspace", "new", built, "write", tt.name)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.stderr) || (tt.code == 0) != (got.stderr == "") {
			t.Errorf("write %s: %+v", tt.name, got)
		}
		if read(t, secret) != "secret" {
			t.Fatalf("write %s reached outside", tt.name)
		}
		if tt.code == 0 && read(t, filepath.Join(root, tt.path)) != "new" {
			t.Errorf("write %s: %s is %q", tt.name, tt.path, read(t, filepath.Join(root, tt.path)))
		}
		if tt.code != 0 && names(t, root) != before {
			t.Errorf("write %s left %s", tt.name, names(t, root))
		}
	}
	_, err := os.Lstat("/etc/otters-test")
	if err == nil {
		t.Error("/etc was written to")
	}
}

func TestWhatWritesKeepsOrRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		argv           []string
		stdin          string
		stdout, stderr string
		code           int
		notes          string
	}{
		{argv: []string{"write", "notes.txt", "x"}, stdout: "1 bytes written to notes.txt\n", notes: "x"},
		{argv: []string{"write", "-a", "notes.txt", "--", "- c\n"}, stdout: "4 bytes added to notes.txt\n", notes: "a\nb\n- c\n"},
		{argv: []string{"write", "-n", "notes.txt", "x"}, stderr: "write: notes.txt: is there already; without -n it is replaced", code: 1, notes: "a\nb\n"},
		{argv: []string{"write", "-a", "-n", "notes.txt"}, stderr: "write: -a and -n: only one of them at a time", code: 2, notes: "a\nb\n"},
		{argv: []string{"write"}, stderr: "write: want FILE, and TEXT or nothing", code: 2, notes: "a\nb\n"},
		{argv: []string{"write", "-p", "x"}, stderr: "write: unknown shorthand flag: 'p' in -p", code: 2, notes: "a\nb\n"},

		{argv: []string{"edit", "notes.txt", "--old", "a\nb", "--new", "-x"}, stdout: "notes.txt: 1 replaced, on line 1\n", notes: "-x\n"},
		{argv: []string{"edit", "notes.txt", "--old", "\n", "--new", ""}, stderr: "edit: notes.txt: the text of --old stands in it 2 times, on lines 1, 2; give more of the text around it, or --all", code: 1, notes: "a\nb\n"},
		{argv: []string{"edit", "notes.txt", "--old", "\n", "--new", "", "--all"}, stdout: "notes.txt: 2 replaced, on lines 1, 2\n", notes: "ab"},
		{argv: []string{"edit", "notes.txt", "--old", ".", "--new", "x"}, stderr: "edit: notes.txt: the text of --old is not in it; it must match exactly, blanks and line ends too", code: 1, notes: "a\nb\n"},
		{argv: []string{"edit", "notes.txt", "--view", "2,"}, stdout: "     2\tb\n", notes: "a\nb\n"},
		{argv: []string{"edit", "notes.txt", "--view", "3"}, stderr: "edit: notes.txt: has 2 lines, none from 3 on", code: 1, notes: "a\nb\n"},
		{argv: []string{"edit", "notes.txt", "--view", "0"}, stderr: "edit: --view 0: want FROM or FROM,TO, lines counted from 1", code: 2, notes: "a\nb\n"},
		{argv: []string{"edit", "notes.txt", "--old", "a"}, stderr: "edit: want --old and --new, or --view", code: 2, notes: "a\nb\n"},
		{argv: []string{"edit", "notes.txt", "--old", "", "--new", "x"}, stderr: "edit: --old: the text is empty", code: 2, notes: "a\nb\n"},
		{argv: []string{"edit", "out", "--old", "secret", "--new", "x"}, stderr: "edit: out: a symbolic link that leads out of the agent's tree ROOT", code: 1, notes: "a\nb\n"},
		{argv: []string{"edit", "absent", "--old", "a", "--new", "x"}, stderr: "edit: absent: no such file or directory", code: 1, notes: "a\nb\n"},

		{argv: []string{"sed", "-i", "s/a/[&]/", "notes.txt"}, notes: "[a]\nb\n"},
		{argv: []string{"sed", "-i", "p", "out", "notes.txt"}, stderr: "sed: out: a symbolic link that leads out of the agent's tree ROOT", code: 1, notes: "a\na\nb\nb\n"},
		{argv: []string{"sed", "-i", ":x;bx", "notes.txt"}, stderr: "sed: notes.txt: more than 1048576 commands for one line; does a branch go round for ever", code: 1, notes: "a\nb\n"},
		{argv: []string{"sed", "-i", "p"}, stderr: "sed: -i: no file given", code: 2, notes: "a\nb\n"},
	} {
		root, secret, env := newRoot(t)
		got := startIn(t, env, root+"/workspace", tt.stdin, built, tt.argv...)
		first, _, _ := strings.Cut(got.stderr, "\n")
		if got.stdout != tt.stdout || first != strings.ReplaceAll(tt.stderr, "ROOT", root) || got.code != tt.code {
			t.Errorf("%q: %+v", tt.argv, got)
		}
		if text := read(t, root+"/workspace/notes.txt"); text != tt.notes {
			t.Errorf("%q: notes.txt is %q, want %q", tt.argv, text, tt.notes)
		}
		if info, err := os.Stat(root + "/workspace/notes.txt"); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%q: mode of notes.txt: %v, %v", tt.argv, info, err)
		}
		if read(t, secret) != "secret" {
			t.Errorf("%q reached outside", tt.argv)
		}
	}
}

func TestAWorkingFolderOutsideTheTreeIsRefused(t *testing.T) {
	t.Parallel()
	root, _, env := newRoot(t)
	got := startIn(t, env, filepath.Dir(root), "", built, "write", "x", "y")
	if got.code != 1 || !strings.Contains(got.stderr, "is not in the agent's tree "+root) {
		t.Errorf("%+v", got)
	}
}

// Invariant: nothing of an archive lands outside the folder it is unpacked into, nor is a file there
// written through a link. Worst inputs: a path with dots, a link that a later entry goes through, and
// two links that lead out only together.
func TestUnpackingAHostileArchive(t *testing.T) {
	t.Parallel()
	reg := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o4755, Size: 1}
	}
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	hard := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
	}
	const leads = "leads out of the folder that is unpacked into"
	for _, tt := range []struct {
		what    string
		headers []tar.Header
		stderr  string
		left    string // below the folder
	}{
		{"a file and its links", []tar.Header{reg("d/f"), link("d/l", "f"), hard("h", "d/f"), link("up", "d/../d/f")}, "", "d d/f d/l h up"},
		{"a dangling link", []tar.Header{link("l", "nowhere")}, "", "l"},
		{"a file in the place of a link", []tar.Header{reg("f"), link("l", "f"), reg("l")}, "", "f l"},
		{"dots", []tar.Header{reg("a"), reg("../b")}, "../b: " + leads, "a"},
		{"an absolute path", []tar.Header{reg("/b")}, "/b: " + leads, ""},
		{"a link out", []tar.Header{link("l", "../..")}, "l: a symbolic link to ../.., which " + leads, ""},
		{"an absolute link", []tar.Header{link("l", "/etc")}, "l: a symbolic link to /etc, which " + leads, ""},
		{"links that lead out together", []tar.Header{link("x", "."), link("y", "x/.."), reg("y/secret")}, "y/secret: " + leads, "x y"},
		{"links that lead out together in the end", []tar.Header{link("x", "."), link("y", "x/..")}, "y: a symbolic link that " + leads, "x"},
		{"a hard link out", []tar.Header{hard("h", "../notes.txt")}, "h: " + leads, ""},
		{"a device", []tar.Header{{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}}, "null: neither a file nor a folder nor a link (type '3')", ""},
	} {
		root, secret, env := newRoot(t)
		texts := map[string]string{}
		for _, h := range tt.headers {
			texts[h.Name] = "x"
		}
		got := startIn(t, env, root+"/workspace", tarWith(t, tt.headers, texts), built, "tar", "-x", "-f", "-", "-C", "into")
		want := result{}
		if tt.stderr != "" {
			want = result{"", "tar: -: " + tt.stderr + "\n", 1}
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", tt.what, got, want)
		}
		if left := names(t, root+"/workspace/into"); left != tt.left {
			t.Errorf("%s: left %q, want %q", tt.what, left, tt.left)
		}
		if read(t, secret) != "secret" || read(t, root+"/workspace/notes.txt") != "a\nb\n" {
			t.Fatalf("%s reached outside", tt.what)
		}
		if info, err := os.Stat(root + "/workspace/into/d/f"); tt.left != "" && tt.left[0] == 'd' && (err != nil || info.Mode() != 0o755) {
			t.Errorf("%s: %v, %v", tt.what, info.Mode(), err)
		}
	}
}

func TestABombOfAnArchiveIsRefused(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	// Only the headers: what they promise is refused before a byte of it is read.
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "big", Size: 2 << 30}); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"-t", "-x"} {
		got := start(t, tempDir(t), b.String(), built, "tar", mode, "-f", "-")
		if want := (result{"", "tar: -: more than 1 GiB unpacked\n", 1}); got != want {
			t.Errorf("%s: %+v", mode, got)
		}
	}
}

func TestArchivesComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, option string }{
		{"a.tar", "-v"}, {"a.tar.gz", "-v"}, {"a.tgz", "-v"}, {"a.tar.zst", "-v"}, {"a.bin", "-z"}, {"b.bin", "--zstd"},
	} {
		root, _, env := newRoot(t)
		dir := root + "/workspace"
		run := func(argv ...string) result {
			return startIn(t, env, dir, "", built, append([]string{"tar"}, argv...)...)
		}
		for range 2 { // the second time the archive is there and not put into itself
			if got := run("-c", "-f", tt.name, tt.option, "."); got.code != 0 || got.stderr != "" {
				t.Fatalf("%s: %+v", tt.name, got)
			}
		}
		if got := run("xf", tt.name, "-C", "back", "notes.txt", "./sub"); got != (result{}) {
			t.Errorf("%s: %+v", tt.name, got)
		}
		if names(t, dir+"/back") != "notes.txt sub" || read(t, dir+"/back/notes.txt") != "a\nb\n" {
			t.Errorf("%s: back came %s", tt.name, names(t, dir+"/back"))
		}
		if got := run("-t", "-f", tt.name); got.stdout != "abs\nabsin\nin\nloop\nnew\nnotes.txt\nout\noutdir\nsub/\n" {
			t.Errorf("%s: %+v", tt.name, got)
		}
		if got := run("-x", "-f", tt.name, "-C", "back", "absent"); got != (result{"", "tar: absent: not in the archive\n", 1}) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

func TestTarRefusesAWrongCall(t *testing.T) {
	t.Parallel()
	dir := newTree(t)
	for argv, want := range map[string]string{
		"tar -f x":                     "tar: want one of -t, -x and -c",
		"tar -t -x -f x":               "tar: want one of -t, -x and -c",
		"tar -t":                       "tar: want -f ARCHIVE, - for standard input or output",
		"tar -c -f x":                  "tar: -c: want the files and folders to put in",
		"tar -c -z --zstd -f x last.t": "tar: -z and --zstd: only one of them at a time",
		"tar -x --zstd -f x":           "tar: --zstd: only together with -c; how an archive is compressed is seen when it is read",
		"tar -x -p -f x":               "tar: unknown shorthand flag: 'p' in -p",
		"tar -t -f absent":             "tar: absent: no such file or directory",
		"tar -t -f empty.txt":          "tar: empty.txt: the archive is empty",
		"tar -t -f notes.txt":          "tar: notes.txt: unexpected EOF",
		"tar -c -f x.tar absent":       "tar: absent: no such file or directory",
		"tar -c -f x.tar ../x":         "tar: x.tar: ../x: want a path below the folder that is packed; -C names another one",
		"tar -x -f two.json -C ../x":   "tar: two.json: -C ../x: leads out of the agent's tree " + dir,
	} {
		got := start(t, dir, "", built, strings.Fields(argv)...)
		if first, _, _ := strings.Cut(got.stderr, "\n"); first != want || got.code == 0 || got.stdout != "" {
			t.Errorf("%s: %+v", argv, got)
		}
	}
	if _, err := os.Stat(dir + "/x.tar"); err == nil {
		t.Error("an archive was left of what could not be read")
	}
}
