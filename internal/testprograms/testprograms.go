// Package testprograms builds the programs of this module for tests that run them. Nobody but tests imports it.
package testprograms

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Variable names the environment variable with a folder in which make test has built them all, so that
// not every package links them again. Where it is empty each package builds its own.
const Variable = "OTTERS_TEST_PROGRAMS"

// Set is some programs of the module. They are static, since inside strict there is no loader, and come
// without the race detector.
type Set struct {
	packages []string
	once     sync.Once
	dir      string
	own      bool
	err      error
}

// Of returns the programs of packages, which are paths below the module, such as cmd/otters-sandbox.
func Of(packages ...string) *Set { return &Set{packages: packages} }

// Dir returns a folder that every user reaches with the programs, each called as its package. They are
// built at the first call. The folder may be that of others too: nothing in it may be changed.
func (s *Set) Dir() (string, error) {
	s.once.Do(func() {
		if s.dir = os.Getenv(Variable); s.dir == "" {
			s.err = s.build()
			return
		}
		for _, p := range s.packages {
			if _, err := os.Stat(filepath.Join(s.dir, filepath.Base(p))); err != nil {
				s.err = fmt.Errorf("%s: %w; build it there or unset the variable", Variable, err)
			}
		}
	})
	return s.dir, s.err
}

// For is Dir for a test, which ends where there are none.
func (s *Set) For(t testing.TB) string {
	t.Helper()
	dir, err := s.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (s *Set) build() (err error) {
	if s.dir, err = os.MkdirTemp("", "otters-programs-"); err != nil {
		return err
	}
	s.own = true
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return err
	}
	// The flags of make build, so that nothing is compiled twice.
	args := []string{"build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", s.dir + string(filepath.Separator)}
	for _, p := range s.packages {
		args = append(args, "github.com/otters-sh/otters/"+p)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %v: %w\n%s", s.packages, err, out)
	}
	return nil
}

// Remove removes the folder, unless others use it too.
func (s *Set) Remove() error {
	if !s.own {
		return nil
	}
	return os.RemoveAll(s.dir)
}
