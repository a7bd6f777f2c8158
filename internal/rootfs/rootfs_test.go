package rootfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-git/go-billy/v5/util"
)

// The invariant: nothing outside the root is read, written, renamed or removed, whatever symlinks
// lie inside. The worst inputs: a folder swapped for a symlink (P13), a chain of relative symlinks
// (P4), a path that climbs.

func open(t *testing.T) (*FS, string, string) {
	t.Helper()
	base := t.TempDir()
	dir, outside := filepath.Join(base, "root"), filepath.Join(base, "outside")
	for _, d := range []string{dir, outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	fs, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fs.Close() })
	return fs, dir, outside
}

func TestSymlinksThatLeadOutAreNotFollowed(t *testing.T) {
	t.Parallel()
	fs, dir, outside := open(t)
	for link, target := range map[string]string{
		"abs": outside, "rel": "../outside", "chain": "x/../../outside", "up": "..", "proc": "/proc/self/cwd",
	} {
		if err := os.MkdirAll(filepath.Join(dir, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"abs/secret", "rel/secret", "chain/secret", "up/outside/secret", "../outside/secret", "proc/secret"} {
		if f, err := fs.Open(name); err == nil {
			f.Close()
			t.Errorf("opened %s", name)
		}
		if _, err := fs.Stat(name); err == nil {
			t.Errorf("stat of %s", name)
		}
		if f, err := fs.Create(name + ".new"); err == nil {
			f.Close()
			t.Errorf("created %s.new", name)
		}
		if err := fs.Remove(name); err == nil {
			t.Errorf("removed %s", name)
		}
		if err := fs.Rename(name, "got"); err == nil {
			t.Errorf("renamed %s", name)
		}
		if err := fs.Chmod(name, 0o777); err == nil {
			t.Errorf("chmod of %s", name)
		}
	}
	if got, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(got) != "secret" {
		t.Fatalf("outside was touched: %q, %v", got, err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Fatalf("something was written outside: %v", entries)
	}
	// The allowed twin: the same operations inside.
	if err := util.WriteFile(fs, "in/file", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fs.Symlink("in", "inside"); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat("inside/file"); err != nil {
		t.Errorf("a symlink that stays inside was refused: %v", err)
	}
}

func TestRemoveAllTakesTheLinkNotItsTarget(t *testing.T) {
	t.Parallel()
	fs, dir, outside := open(t)
	if err := os.MkdirAll(filepath.Join(dir, "tree"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "tree", "link")); err != nil {
		t.Fatal(err)
	}
	if err := fs.RemoveAll("tree"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "secret")); err != nil {
		t.Fatal("what the link pointed at was removed")
	}
	if _, err := fs.Lstat("tree"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the tree is still there: %v", err)
	}
}

func TestP13AFolderSwappedForASymlinkGetsNothing(t *testing.T) {
	t.Parallel()
	fs, dir, outside := open(t)
	sub, err := fs.Sub("agent/root")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if err := os.Rename(filepath.Join(dir, "agent"), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "agent")); err != nil {
		t.Fatal(err)
	}
	if err := util.WriteFile(sub, "note", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "moved", "root", "note")); err != nil {
		t.Errorf("the write did not go to the folder that was opened: %v", err)
	}
	if _, err := fs.Sub("agent/root"); err == nil {
		t.Error("the symlink was entered")
	}
}

func TestFilesRoundTrip(t *testing.T) {
	t.Parallel()
	fs, dir, _ := open(t)
	f, err := fs.TempFile("a/b", "x-")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, f.Name())); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("temp file: %v, %v", info, err)
	}
	if err := fs.Rename(f.Name(), "/c/d"); err != nil {
		t.Fatal(err)
	}
	g, err := fs.Open("c/d")
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if got, err := io.ReadAll(g); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	infos, err := fs.ReadDir("")
	if err != nil || len(infos) != 2 {
		t.Fatalf("%v, %v", infos, err)
	}
}

func TestAFolderIsSyncedOnlyInside(t *testing.T) {
	t.Parallel()
	fs, dir, outside := open(t)
	if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if err := fs.MkdirAll("in/side", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"": true, ".": true, "in/side": true, "out": false, "none": false} {
		if err := fs.SyncDir(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
