package client

import (
	"bytes"
	"context"
	"errors"
	"io"
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
		"[\n":                       ".agentignore: ",
		"!\n":                       "illegal exclusion",
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
