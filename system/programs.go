package system

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/go-git/go-billy/v5"
	"golang.org/x/sync/singleflight"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/workspace"
)

const (
	// storeDir holds programs by the digest of their content, and storeRefs tells which content an
	// image's program has.
	storeDir  = ".store"
	storeRefs = ".store/refs"
	// maxProgramSize bounds one unpacked program.
	maxProgramSize = 1 << 30
)

// programs is the read-only store of unpacked programs that the trees of all agents point into.
// Equal programs are there once, whatever images they came from.
type programs struct {
	fs     billy.Filesystem
	flight singleflight.Group
	mu     sync.Mutex // held while a program gets its name
}

func newPrograms(root billy.Filesystem, disk bool) (*programs, error) {
	mode := os.FileMode(0o700)
	if disk && os.Geteuid() == 0 {
		mode = 0o711
	}
	for _, dir := range []string{storeDir, storeRefs} {
		if err := makeFolder(root, dir, mode); err != nil {
			return nil, fmt.Errorf("program store: %w", err)
		}
	}
	return &programs{fs: root}, nil
}

// errLeft tells that the caller whose pull others waited for went away.
var errLeft = errors.New("the caller that pulled went away")

// install returns the store's name for the program that pull writes. A program with a key, which
// must stand for the same bytes for ever, is pulled once, and concurrent callers with one key share a
// pull. When the one that pulls goes away the next one does.
func (s *programs) install(ctx context.Context, key string, pull func(context.Context, io.Writer) error) (string, error) {
	if key == "" {
		return s.add(ctx, pull)
	}
	for {
		if name, ok := s.lookup(key); ok {
			return name, nil
		}
		v, err, _ := s.flight.Do(key, func() (any, error) {
			if name, ok := s.lookup(key); ok {
				return name, nil
			}
			name, err := s.add(ctx, pull)
			switch {
			case err == nil:
				return name, s.remember(key, name)
			case ctx.Err() != nil:
				return "", fmt.Errorf("%w: %w", errLeft, err)
			}
			return "", err
		})
		if err == nil {
			return v.(string), nil
		}
		if ctx.Err() != nil || !errors.Is(err, errLeft) {
			return "", err
		}
	}
}

// programKey names the program of the image with this digest; empty where there is no digest.
func programKey(digest string) string {
	if digest == "" {
		return ""
	}
	return strings.ReplaceAll(digest, ":", "-")
}

// contentKey names a program that images share.
func contentKey(info agentoci.BinaryInfo) string {
	sum := sha256.Sum256([]byte(info.Layer.String() + "\x00" + info.Path))
	return "program-" + hex.EncodeToString(sum[:])
}

// alias returns the store's name for a key, which install gives where it is not known.
func (s *programs) alias(key string, install func() (string, error)) (string, error) {
	if name, ok := s.lookup(key); ok {
		return name, nil
	}
	name, err := install()
	if err != nil {
		return "", err
	}
	return name, s.remember(key, name)
}

func (s *programs) lookup(key string) (string, bool) {
	f, err := s.fs.Open(s.fs.Join(storeRefs, key))
	if err != nil {
		return "", false
	}
	defer f.Close()
	name, err := io.ReadAll(io.LimitReader(f, 128))
	if err != nil {
		return "", false
	}
	if _, err := s.fs.Lstat(s.fs.Join(storeDir, string(name))); err != nil {
		return "", false
	}
	return string(name), true
}

func (s *programs) remember(key, name string) error {
	return workspace.WriteFile(s.fs, s.fs.Join(storeRefs, key), []byte(name), 0o600, false)
}

// add stores what pull writes under the digest of it.
func (s *programs) add(ctx context.Context, pull func(context.Context, io.Writer) error) (string, error) {
	f, err := s.fs.TempFile(storeDir, ".new-")
	if err != nil {
		return "", fmt.Errorf("program store: %w", err)
	}
	tmp := f.Name()
	sum := sha256.New()
	w := &boundedWriter{w: io.MultiWriter(f, sum), left: maxProgramSize}
	err = pull(ctx, w)
	if err == nil && w.left == maxProgramSize {
		err = errors.New("program is empty")
	}
	if sync, ok := f.(interface{ Sync() error }); ok && err == nil {
		err = sync.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	name := "sha256-" + hex.EncodeToString(sum.Sum(nil))
	if c, ok := s.fs.(billy.Change); ok && err == nil {
		err = c.Chmod(tmp, 0o555)
	}
	if err == nil {
		err = s.place(tmp, s.fs.Join(storeDir, name))
	}
	if err != nil {
		_ = s.fs.Remove(tmp)
		return "", err
	}
	return name, nil
}

// place gives a finished file its name. A whole one that has it already stays: the kernel does not
// mount what was replaced meanwhile, and another agent may be about to.
func (s *programs) place(tmp, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, err := s.fs.Lstat(tmp)
	if err != nil {
		return err
	}
	if there, err := s.fs.Lstat(name); err == nil && there.Mode().IsRegular() && there.Size() == is.Size() {
		return s.fs.Remove(tmp)
	}
	return s.fs.Rename(tmp, name)
}

// copyTo writes the program name to w.
func (s *programs) copyTo(name string, w io.Writer) error {
	f, err := s.fs.Open(s.fs.Join(storeDir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// path is where the program lies on the host.
func (s *programs) path(name string) string { return hostPath(s.fs, storeDir, name) }

// boundedWriter fails once more than left bytes were written.
type boundedWriter struct {
	w    io.Writer
	left int64
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		return 0, fmt.Errorf("program is over %d bytes", maxProgramSize)
	}
	n, err := b.w.Write(p)
	b.left -= int64(n)
	return n, err
}
