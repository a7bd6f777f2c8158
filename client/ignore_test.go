package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// Invariant: what .agentignore names is not sent, under no name that leads to it; the Agentfile is.

func ignoredNames(t *testing.T, files fstest.MapFS, keep string) ([]string, error) {
	t.Helper()
	ignore, err := readIgnore(files)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	a := &archiver{maxBytes: MaxArchiveBytes, maxEntries: MaxArchiveEntries, ignore: ignore, keep: keep}
	if err := a.write(t.Context(), &out, files); err != nil {
		return nil, err
	}
	var names []string
	for _, e := range untar(t, &out) {
		names = append(names, e.Name)
	}
	return names, nil
}

func folder(ignore string, names ...string) fstest.MapFS {
	out := fstest.MapFS{IgnoreFile: {Data: []byte(ignore), Mode: 0o644}}
	for _, n := range names {
		out[n] = &fstest.MapFile{Data: []byte(n), Mode: 0o644}
	}
	return out
}

// P12: the ways round a pattern.
func TestIgnoreP12(t *testing.T) {
	t.Parallel()
	files := []string{"Agentfile", "a.txt", ".env", "sub/.env", "keys/x.pem", "keys/deep/y.pem", "keys/public.pem"}
	for _, c := range []struct {
		what, ignore string
		want         []string
	}{
		{"none", "", []string{".agentignore", ".env", "Agentfile", "a.txt", "keys/", "keys/deep/", "keys/deep/y.pem", "keys/public.pem", "keys/x.pem", "sub/", "sub/.env"}},
		{"a name at any depth, a folder with all beneath", "**/.env\nkeys\n", []string{".agentignore", "Agentfile", "a.txt", "sub/"}},
		{"the same path written in other ways", "/.env\n./sub//.env\nkeys/\n", []string{".agentignore", "Agentfile", "a.txt", "sub/"}},
		{"an exception", "# what is kept\nkeys\n!keys/public.pem\n**/.env\n", []string{".agentignore", "Agentfile", "a.txt", "keys/public.pem", "sub/"}},
		{"a later line takes an exception back", "keys\n!keys/public.pem\nkeys\nsub\n.env", []string{".agentignore", "Agentfile", "a.txt"}},
		{"everything, the Agentfile stays", "*\n", []string{"Agentfile"}},
	} {
		got, err := ignoredNames(t, folder(c.ignore, files...), "Agentfile")
		if d := cmp.Diff(c.want, got); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", c.what, err, d)
		}
	}
	got, err := ignoredNames(t, folder("sub\n", "sub/Agentfile", "sub/b"), "sub/Agentfile")
	if d := cmp.Diff([]string{".agentignore", "sub/Agentfile"}, got); err != nil || d != "" {
		t.Errorf("an Agentfile in a folder that is left out: %v\n%s", err, d)
	}
}

func TestIgnoreRefuses(t *testing.T) {
	t.Parallel()
	for ignore, want := range map[string]string{
		"[\n":                       `build folder: .agentignore:1: "[": syntax error in pattern; mend the pattern, or remove it`,
		"a\n\n# [\n![z-\nb\n":       `.agentignore:4: "![z-": syntax error`,
		"a\r\n!\r\n":                `.agentignore:2: "!": illegal exclusion`,
		"\ufeff# a\n\\":             `.agentignore:2: "\\": syntax error`,
		"a\n[]a]\n":                 `.agentignore:2: "[]a]": syntax error`,
		"!a[b-a]":                   `.agentignore:1: "!a[b-a]": syntax error`,
		"a\n\xff\xfe":               `.agentignore:2: it is not text; write it as UTF-8`,
		"a\x00":                     `.agentignore:1: it is not text`,
		strings.Repeat("a", 70<<10): "larger than 65536 bytes",
		strings.Repeat("a\n", 1001): "1001 patterns, more than 1000",
	} {
		if _, err := ignoredNames(t, folder(ignore, "Agentfile", "b"), "Agentfile"); !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v; want %q", ignore, err, want)
		}
	}
}

func TestArchiveOfTheCaller(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := copyArchive(t.Context(), &out, strings.NewReader("any bytes"), ErrArchive); err != nil || out.String() != "any bytes" {
		t.Errorf("%q %v", out.String(), err)
	}
	if err := copyArchive(t.Context(), io.Discard, strings.NewReader("\x1f\x8b\x08"), ErrArchive); !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "gunzip") {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := copyArchive(gone, io.Discard, strings.NewReader("x"), ErrArchive); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// P12: Folder opens what Build sends, and nothing else.
func TestFolderIsWhatIsSent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{IgnoreFile: "keys\n!keys/public\nAgentfile\nhidden\n", "Agentfile": "a", "keys/private": "p", "keys/public": "p", "keys/deep/private": "p", "keys/deep/er/private": "p", "a/b": "b"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"a/up": "../keys/private", "a/ok": "../keys/public", "hidden": "a", "all": "keys", "circle": "circle", "out": "../../etc/passwd", "a/b2": "../a/../a/b",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	files, err := Folder(root.FS(), "Agentfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{"Agentfile", "keys/public", "a/b", "a/ok", "a/b2", "all/public"} {
		if _, err := fs.ReadFile(files, good); err != nil {
			t.Error(err)
		}
	}
	if list, err := fs.ReadDir(files, "keys"); err != nil || len(list) != 1 || list[0].Name() != "public" {
		t.Error(list, err)
	}
	if list, err := fs.ReadDir(files, "."); err != nil || slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() == "hidden" }) {
		t.Error(list, err)
	}
	for bad, want := range map[string]error{
		"keys/private": errLeftOut, "a/up": errLeftOut, "hidden/b": errLeftOut, "all/private": errLeftOut, "keys/deep": errLeftOut, "circle": nil, "out": nil, "none": fs.ErrNotExist, "../x": nil,
	} {
		_, err := fs.Stat(files, bad)
		if _, other := files.Open(bad); err == nil || other == nil || want != nil && (!errors.Is(err, want) || !errors.Is(other, want)) {
			t.Errorf("%s: %v, %v", bad, err, other)
		}
	}
}
