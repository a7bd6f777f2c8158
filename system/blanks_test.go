package system

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/otters-sh/otters/internal/rootfs"
)

// The invariant: a folder that take hands out is whole, and is handed out once.

func blanksIn(t *testing.T, dir string) *blanks {
	t.Helper()
	fs, err := rootfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBlanks(fs, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.close()
		fs.Close()
	})
	return b
}

// made waits until the folders ahead are there.
func made(t *testing.T, b *blanks) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); b.short(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is made ahead")
		}
	}
}

func TestFoldersAheadAreWholeAndHandedOutOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := blanksIn(t, dir)
	made(t, b)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var got []string
	for i := range 8 {
		wg.Go(func() {
			name := "agent-" + string(rune('a'+i))
			if b.take(name) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, name)
			}
		})
	}
	wg.Wait()
	if len(got) < blanksAhead {
		t.Errorf("%d of at least %d were handed out", len(got), blanksAhead)
	}
	for _, name := range got {
		for _, want := range []string{"state", "root.new/etc/context", "root.new/usr/bin", "root.new/workspace", "root.new/var/lib"} {
			if info, err := os.Stat(filepath.Join(dir, name, want)); err != nil || !info.IsDir() {
				t.Errorf("%s lacks %s: %v", name, want, err)
			}
		}
	}
}

func TestTheNextProviderUsesWhatIsWholeAndNothingElse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := blanksIn(t, dir)
	made(t, first)
	first.close()
	half := filepath.Join(dir, storeBlanks, "half")
	if err := os.MkdirAll(filepath.Join(half, newTree, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	second := blanksIn(t, dir)
	second.close()
	for i := range blanksAhead {
		if name := "agent-" + string(rune('a'+i)); !second.take(name) {
			t.Errorf("folder %d of the earlier provider was not used", i)
		}
	}
	if second.take("one-more") {
		t.Error("half a folder was handed out")
	}
	if _, err := os.Lstat(half); !os.IsNotExist(err) {
		t.Errorf("half a folder was left: %v", err)
	}
}
