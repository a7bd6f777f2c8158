package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Invariant: the log is in at most two files of bounded size, its lines are whole and in order, and none is
// lost of the newest. Worst inputs: a line longer than a file may be, a file that can't be moved, a path that
// is a link.

func TestALogFileIsBoundedAndGoesOn(t *testing.T) {
	t.Parallel()
	const most = 200
	path := filepath.Join(t.TempDir(), "d.log")
	var to []string
	moved := func(f *os.File) error { to = append(to, f.Name()); return nil }
	text := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		return string(b)
	}
	var all strings.Builder
	l, err := openLogFile(path, most, moved)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		line := fmt.Sprintf("line %d\n", i)
		all.WriteString(line)
		if _, err := l.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if i == 50 { // another daemon goes on
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if l, err = openLogFile(path, most, moved); err != nil {
				t.Fatal(err)
			}
		}
	}
	defer func() { _ = l.Close() }()
	before, now := text(path+".1"), text(path)
	if len(before) > most || len(now) > most || len(before) < most/2 || !strings.HasSuffix(all.String(), before+now) || !strings.HasPrefix(before, "line ") {
		t.Errorf("%q then %q", before, now)
	}
	if len(to) < 5 || to[0] != path {
		t.Errorf("went on in %q", to)
	}
	long := strings.Repeat("x", 3*most) + "\n"
	for range 2 {
		if _, err := l.Write([]byte(long)); err != nil || text(path) != long {
			t.Errorf("a long line: %d bytes, %v", len(text(path)), err)
		}
	}
	// What can't be moved is written on.
	if err := errors.Join(os.Remove(path+".1"), os.MkdirAll(path+".1/full", 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write([]byte("on\n")); err != nil || text(path) != long+"on\n" {
		t.Errorf("a file that can't be moved: %d bytes, %v", len(text(path)), err)
	}
	if err := os.RemoveAll(path + ".1"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write([]byte("again\n")); err != nil || text(path) != "again\n" || text(path+".1") != long+"on\n" {
		t.Errorf("when it can: %q, %v", text(path), err)
	}
}

func TestALogFileIsAFileOfItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, []byte("kept"), 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{link, dir, filepath.Join(dir, "none", "log"), "/dev/null"} {
		if _, err := openLogFile(bad, 10, func(*os.File) error { return nil }); err == nil || !strings.Contains(err.Error(), "--log-file") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "kept" {
		t.Errorf("%q, %v", b, err)
	}
}
