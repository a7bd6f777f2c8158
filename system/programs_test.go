package system

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/osfs"
)

// Invariant: a program with a key is pulled once for all that want it, and nobody's end is another's. The
// worst inputs: the caller that pulls goes away while others wait, and the pull fails.

func TestAPullThatIsGivenUpIsTakenOverByWhoWaitsForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := newPrograms(serial{memfs.New(), new(sync.Mutex)}, false)
		if err != nil {
			t.Fatal(err)
		}
		pulls := 0 // One at a time, which the flight sees to.
		broken := errors.New("the registry is gone")
		pull := func(ctx context.Context, w io.Writer) error {
			pulls++
			switch pulls {
			case 1:
				<-ctx.Done()
				return ctx.Err()
			case 3:
				return broken
			}
			_, err := io.WriteString(w, "program")
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, others := make(chan error, 1), make(chan error, 4)
		go func() { _, err := s.install(ctx, "sha256-1", pull); first <- err }()
		synctest.Wait()
		for range cap(others) {
			go func() { _, err := s.install(t.Context(), "sha256-1", pull); others <- err }()
		}
		synctest.Wait() // All of them wait for the first.
		if pulls != 1 {
			t.Errorf("%d pulls, want 1", pulls)
		}
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up: %v", err)
		}
		for range cap(others) {
			if err := <-others; err != nil {
				t.Errorf("who waited: %v", err)
			}
		}
		if pulls != 2 {
			t.Errorf("%d pulls, want 2", pulls)
		}
		// Its twin: a pull that fails is not tried again behind the caller's back.
		if _, err := s.install(t.Context(), "sha256-2", pull); !errors.Is(err, broken) || pulls != 3 {
			t.Errorf("%v after %d pulls", err, pulls)
		}
		if name, err := s.install(t.Context(), "sha256-1", pull); err != nil || pulls != 3 || !strings.HasPrefix(name, "sha256-") {
			t.Errorf("%s, %v after %d pulls", name, err, pulls)
		}
	})
}

// Invariant: a program that is there stays the same file, for an agent may be about to get it mounted; one
// that was cut short does not stay.
func TestAProgramThatIsThereStaysTheSameFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := newPrograms(osfs.New(dir, osfs.WithBoundOS()), true)
	if err != nil {
		t.Fatal(err)
	}
	pull := func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, "program")
		return err
	}
	stored := func() os.FileInfo {
		name, err := s.install(t.Context(), "", pull)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, storeDir, name))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := stored()
	if again := stored(); !os.SameFile(first, again) {
		t.Error("the second install replaced it")
	}
	path := filepath.Join(dir, storeDir, first.Name())
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 3); err != nil {
		t.Fatal(err)
	}
	if whole := stored(); whole.Size() != int64(len("program")) {
		t.Errorf("%d bytes", whole.Size())
	}
	entries, err := os.ReadDir(filepath.Join(dir, storeDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".new-") {
			t.Errorf("%s is left", e.Name())
		}
	}
}
