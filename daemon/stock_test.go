package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// stocked is a home that a daemon left which had stored its programs and run an agent with them. Most tests
// begin with a copy of it, for to store and unpack 50 MB takes longer than what they are about.
var stocked stock

type stock struct {
	once  sync.Once
	dir   string
	home  string
	files map[string]time.Time // those that the copies share, and when they were written
}

// shared tells whether copies of the home share a file: contents that are named by what they hold.
func shared(path string) bool {
	dir := filepath.Base(filepath.Dir(path))
	return dir == "blobs" || dir == ".store"
}

// fill makes the home on first use.
func (s *stock) fill(t *testing.T) {
	t.Helper()
	s.once.Do(func() {
		home := emptyDir(t)
		s.dir = filepath.Dir(home)
		d := boot(t, home)
		d.image("stock", guide)
		d.create(&daemonv1.CreateAgentRequest{Image: "stock", Name: "stock"})
		d.await("stock", "ready")
		if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: "stock", Force: true}); err != nil {
			t.Fatal(err)
		}
		if err := d.Daemon.images.store.Untag(t.Context(), "stock:latest"); err != nil {
			t.Fatal(err)
		}
		d.collected()
		if err := d.end(); err != nil {
			t.Fatal(err)
		}
		files := map[string]time.Time{}
		err := filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !shared(path) {
				return err
			}
			info, err := e.Info()
			if err == nil {
				files[path] = info.ModTime()
			}
			return err
		})
		if err != nil || len(files) != 4 {
			t.Fatalf("%d programs and layers in the home, want 4; %v", len(files), err)
		}
		s.home, s.files = home, files
	})
	if s.home == "" {
		t.Fatal("there is no home to copy: the test that was to make it has failed")
	}
}

// check tells of a shared file that a test has changed.
func (s *stock) check() error {
	for path, written := range s.files {
		info, err := os.Stat(path)
		if err == nil && !info.ModTime().Equal(written) {
			err = errors.New("it was written since")
		}
		if err != nil {
			return fmt.Errorf("a test has changed %s, which others share; it needs emptyHome: %w", path, err)
		}
	}
	return nil
}

// emptyDir is where a home can be, on a short path, since a socket's is limited, that agents' users reach.
func emptyDir(t *testing.T) string {
	t.Helper()
	in := os.TempDir()
	if len(in) > 64 {
		in = "/tmp"
	}
	dir, err := os.MkdirTemp(in, "otd-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "h")
}

// emptyHome is a home that no daemon has had.
func emptyHome(t *testing.T) string {
	t.Helper()
	home := emptyDir(t)
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(home)) })
	return home
}

// newHome is a home in which a daemon has stored its programs, and with nothing else in it.
func newHome(t *testing.T) string {
	t.Helper()
	stocked.fill(t)
	home := emptyHome(t)
	err := filepath.WalkDir(stocked.home, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(stocked.home, path)
		if err != nil {
			return err
		}
		to := filepath.Join(home, rel)
		if shared(path) && !e.IsDir() {
			return os.Link(path, to)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch info.Mode().Type() {
		case 0:
			b, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(to, b, info.Mode().Perm())
			}
			if err != nil {
				return err
			}
		case fs.ModeDir:
			if err := os.Mkdir(to, info.Mode().Perm()); err != nil {
				return err
			}
		default:
			return errors.New("neither file nor folder: " + path)
		}
		is := info.Sys().(*syscall.Stat_t)
		return errors.Join(os.Lchown(to, int(is.Uid), int(is.Gid)), os.Chmod(to, info.Mode().Perm()))
	})
	if err != nil {
		t.Fatal(err)
	}
	return home
}
