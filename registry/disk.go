package registry

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// disk is what makes the store's changes last. Tests put another in its place, which notes the order of
// things or fails.
type disk interface {
	syncFile(f *os.File) error
	rename(from, to string) error
	syncFolder(f *os.File) error
	remove(path string) error
	// commit ends a transaction of the database; exec returns when that is on disk.
	commit(exec func() error) error
}

type realDisk struct{}

func (realDisk) syncFile(f *os.File) error      { return f.Sync() }
func (realDisk) rename(from, to string) error   { return os.Rename(from, to) }
func (realDisk) syncFolder(f *os.File) error    { return f.Sync() }
func (realDisk) remove(path string) error       { return os.Remove(path) }
func (realDisk) commit(exec func() error) error { return exec() }

// makeFolder makes dir with what is missing above it, so that a loss of power does not take them away.
func makeFolder(d disk, dir string) error {
	_, err := os.Stat(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := makeFolder(d, parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncPath(d, parent)
}

// syncPath syncs the folder at path.
func syncPath(d disk, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.syncFolder(f), f.Close())
}
