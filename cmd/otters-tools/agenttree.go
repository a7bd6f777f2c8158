package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxWritten bounds what one run writes to one file that it holds in memory, in bytes.
const maxWritten = 64 << 20

// maxLinks is how many symbolic links lead to one file at most.
const maxLinks = 40

// agentTree is the agent's tree, below which the tools that write do all they do: a path or a
// symbolic link that leads out of it is refused. It is the folder that OTTERS_AGENT_ROOT names, and
// without that the working folder.
type agentTree struct {
	root *os.Root
	base string // absolute, without links
	work string // the working folder, relative to base
}

func openTree() (*agentTree, error) {
	// Not os.Getwd, which believes PWD.
	work, err := syscall.Getwd()
	if err != nil {
		return nil, fmt.Errorf("working folder: %w", err)
	}
	base := work
	if named := os.Getenv("OTTERS_AGENT_ROOT"); named != "" {
		if base, err = filepath.EvalSymlinks(named); err != nil {
			return nil, fmt.Errorf("OTTERS_AGENT_ROOT: %w", err)
		}
	}
	rel, err := filepath.Rel(base, work)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, fmt.Errorf("the working folder %s is not in the agent's tree %s", work, base)
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		return nil, err
	}
	return &agentTree{root, base, rel}, nil
}

func (t *agentTree) close() { t.root.Close() }

// local returns the path below the root that a name stands for.
func (t *agentTree) local(name string) (string, error) {
	if name == "" {
		return "", errors.New("the path is empty")
	}
	rel := filepath.Join(t.work, name)
	if filepath.IsAbs(name) {
		var err error
		if rel, err = filepath.Rel(t.base, filepath.Clean(name)); err != nil {
			return "", err
		}
	}
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("leads out of the agent's tree %s", t.base)
	}
	return rel, nil
}

// target returns the path of the file to write for a name, past the symbolic links that stay in the
// tree, and what stands there now, nil for nothing.
func (t *agentTree) target(name string) (string, fs.FileInfo, error) {
	rel, err := t.local(name)
	if err != nil {
		return "", nil, err
	}
	if strings.HasSuffix(name, "/") {
		return "", nil, errors.New("a folder, not a file")
	}
	for range maxLinks {
		info, err := t.root.Lstat(rel)
		if errors.Is(err, fs.ErrNotExist) {
			return rel, nil, nil
		}
		if err != nil {
			return "", nil, t.explain(err)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if !info.Mode().IsRegular() {
				return "", nil, errors.New("not a regular file")
			}
			return rel, info, nil
		}
		to, err := t.root.Readlink(rel)
		if err != nil {
			return "", nil, t.explain(err)
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(t.base, filepath.Dir(rel), to)
		}
		if rel, err = t.local(to); err != nil {
			return "", nil, fmt.Errorf("a symbolic link that %w", err)
		}
	}
	return "", nil, errors.New("too many symbolic links")
}

// explain puts what os.Root says of a path that escapes into the words used here.
func (t *agentTree) explain(err error) error {
	if strings.Contains(err.Error(), "path escapes from parent") {
		return fmt.Errorf("leads out of the agent's tree %s", t.base)
	}
	return err
}

// read returns what a file holds, at most maxWritten bytes of it.
func (t *agentTree) read(rel string) ([]byte, error) {
	f, err := t.root.Open(rel)
	if err != nil {
		return nil, t.explain(err)
	}
	defer f.Close()
	return readAll(f, maxWritten)
}

// readAll reads to the end, which must come within limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("more than %d MiB", limit>>20)
	}
	return data, err
}

// replace makes the file at rel hold what fill writes, all of it or nothing: others see the old file
// or the new one. Folders that are missing are made. old is the file that is there, whose permissions
// stay, or nil.
func (t *agentTree) replace(rel string, old fs.FileInfo, fill func(io.Writer) error) (err error) {
	dir := filepath.Dir(rel)
	if err := t.root.MkdirAll(dir, 0o755); err != nil {
		return t.explain(err)
	}
	var random [8]byte
	rand.Read(random[:]) // never fails
	temp := filepath.Join(dir, ".otters-"+hex.EncodeToString(random[:]))
	f, err := t.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return t.explain(err)
	}
	defer func() {
		if err != nil {
			t.root.Remove(temp)
		}
	}()
	err = fill(f)
	if err == nil && old != nil {
		err = f.Chmod(old.Mode().Perm())
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return t.explainOrNil(t.root.Rename(temp, rel))
}

func (t *agentTree) explainOrNil(err error) error {
	if err == nil {
		return nil
	}
	return t.explain(err)
}

// writeBytes is a fill for replace.
func writeBytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}
