package workspace

import (
	"fmt"
	"os"
	"path"

	"github.com/go-git/go-billy/v5"
)

// WriteFile writes a file whole or not at all: a new file beside it is renamed over name, so that a
// process that has the old one open keeps the old one. With sync the content is on disk before the
// rename and the rename when WriteFile returns, where the filesystem can do that.
func WriteFile(fs billy.Filesystem, name string, data []byte, mode os.FileMode, sync bool) error {
	dir, base := path.Split(name)
	f, err := fs.TempFile(dir, "."+base+"-")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	tmp := f.Name()
	_, err = f.Write(data)
	if s, ok := f.(interface{ Sync() error }); ok && err == nil && sync {
		err = s.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	// Filesystems in memory have no modes.
	if c, ok := fs.(interface {
		Chmod(name string, mode os.FileMode) error
	}); ok && err == nil && mode != 0o600 {
		err = c.Chmod(tmp, mode)
	}
	if err == nil {
		err = fs.Rename(tmp, name)
	}
	if err != nil {
		_ = fs.Remove(tmp)
		return fmt.Errorf("write %s: %w", name, err)
	}
	if sync {
		if err := SyncDir(fs, dir); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// SyncDir has what was made, renamed and removed in a folder survive a power loss, where the filesystem
// can do that.
func SyncDir(fs billy.Filesystem, dir string) error {
	if s, ok := fs.(interface{ SyncDir(name string) error }); ok {
		return s.SyncDir(dir)
	}
	return nil
}
