package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/otters-sh/otters/internal/leak"
)

func openTest(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.uploads.start(s, "r", digest.SHA256); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Some of them end a moment after it.
	if err := leak.Find(before); err != nil {
		t.Fatal(err)
	}
}

// A group is one transaction, yet a call that fails takes only its own writes back.
func TestFailedCallLeavesItsGroupAlone(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	refused := errors.New("refused")
	entered, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		// This call holds the committer until the others wait together.
		_ = s.commits.do(0, func(*writer) error { close(entered); <-release; return nil })
	})
	<-entered
	const calls = 10
	errs := make([]error, calls)
	for i := range calls {
		wg.Go(func() {
			errs[i] = s.commits.do(0, func(w *writer) error {
				if _, err := w.repository(fmt.Sprintf("r%d", i)); err != nil {
					return err
				}
				if i%2 == 1 {
					return refused
				}
				return nil
			})
		})
	}
	for waiting := 0; waiting < calls; {
		s.commits.mu.Lock()
		waiting = len(s.commits.waiting)
		s.commits.mu.Unlock()
	}
	close(release)
	wg.Wait()
	for i := range calls {
		var found int
		if err := s.row(context.Background(), "SELECT count(*) FROM repositories WHERE name = ?", []any{fmt.Sprintf("r%d", i)}, []any{&found}); err != nil {
			t.Fatal(err)
		}
		if failed := i%2 == 1; failed != errors.Is(errs[i], refused) || failed != (found == 0) {
			t.Errorf("call %d: error %v, %d rows", i, errs[i], found)
		}
	}
}

// A commit that fails tells every call of its group, and nothing of it is visible.
func TestFailedCommitIsToldToAll(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	err := s.commits.do(0, func(w *writer) error {
		if err := w.exec("PRAGMA defer_foreign_keys = ON"); err != nil {
			return err
		}
		return w.exec("INSERT INTO members(repository, content, manifest) VALUES (99, 99, 0)")
	})
	if !errors.Is(err, errCommit) {
		t.Errorf("error %v, want that of the commit", err)
	}
	var n int
	if err := s.row(context.Background(), "SELECT count(*) FROM members", nil, []any{&n}); err != nil || n != 0 {
		t.Errorf("%d members, %v", n, err)
	}
	data := []byte("after")
	if err := s.Push(context.Background(), ocispec.Descriptor{Digest: digest.FromBytes(data), Size: 5}, bytes.NewReader(data)); err != nil {
		t.Errorf("push after it: %v", err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := openDatabase(filepath.Join(dir, "registry.db"), "")
	if err != nil {
		t.Fatal(err)
	}
	set := func(version int) {
		t.Helper()
		if _, err := db.Exec(fmt.Sprintf("PRAGMA user_version = %d", version)); err != nil {
			t.Fatal(err)
		}
	}
	set(len(migrations) + 1)
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrSchema) {
		t.Errorf("error %v, want %v", err, ErrSchema)
	}
	set(len(migrations))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	openTest(t, dir)
}

func TestFileOfNoDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "registry.db"), bytes.Repeat([]byte("no database "), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(dir, Options{}); err == nil {
		_ = s.Close()
		t.Error("opened")
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add(ocispec.MediaTypeImageManifest, []byte(`{"schemaVersion":2,"config":{"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},"layers":[]}`))
	f.Add(ocispec.MediaTypeImageIndex, []byte(`{"schemaVersion":2,"manifests":[],"subject":{}}`))
	f.Add("text/plain", []byte("x"))
	f.Fuzz(func(t *testing.T, contentType string, data []byte) {
		m, err := parseManifest(contentType, digest.FromBytes(data), data)
		if err != nil {
			if !errors.Is(err, errManifest) {
				t.Errorf("error %v is not that of a manifest", err)
			}
			return
		}
		for _, e := range m.edges {
			if checkDigest(e.desc.Digest) != nil || e.desc.Size < 0 {
				t.Errorf("edge %v", e.desc)
			}
		}
	})
}
