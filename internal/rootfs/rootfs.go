// Package rootfs is a billy filesystem bound to a descriptor of its root. Whoever can write in the
// tree can't make an operation leave it: names are resolved by the kernel below the descriptor, and
// a symlink that leads out is an error.
//
// It does not stop bind mounts, device files or the magic links of /proc; see os.Root.
package rootfs

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-git/go-billy/v5"
)

// FS is a filesystem below one folder. It is safe for concurrent use.
type FS struct {
	root *os.Root
	dir  string
}

var (
	_ billy.Filesystem = (*FS)(nil)
	_ billy.Change     = (*FS)(nil)
)

// Open binds a filesystem to the existing folder dir.
func Open(dir string) (*FS, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, err
	}
	return &FS{root: root, dir: abs}, nil
}

// Close lets go of the folder. Filesystems made by Chroot are closed on their own.
func (f *FS) Close() error { return f.root.Close() }

// Root is the folder's path on the host, as it was when it was opened.
func (f *FS) Root() string { return f.dir }

// Chroot binds a filesystem to a folder below this one, which is made where it is missing.
func (f *FS) Chroot(name string) (billy.Filesystem, error) {
	return f.Sub(name)
}

// Sub is Chroot with the type that can be closed.
func (f *FS) Sub(name string) (*FS, error) {
	p := local(name)
	if err := f.root.MkdirAll(p, 0o755); err != nil {
		return nil, err
	}
	sub, err := f.root.OpenRoot(p)
	if err != nil {
		return nil, err
	}
	return &FS{root: sub, dir: filepath.Join(f.dir, p)}, nil
}

// local makes name relative to the root: billy's names may be absolute within it. What climbs out
// is left as it is, for os.Root to refuse.
func local(name string) string {
	p := strings.TrimLeft(path.Clean(filepath.ToSlash(name)), "/")
	if p == "" {
		return "."
	}
	return p
}

// Create makes or truncates a file with mode 0666 less the umask.
func (f *FS) Create(name string) (billy.File, error) {
	return f.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

// Open opens a file for reading.
func (f *FS) Open(name string) (billy.File, error) { return f.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile opens a file. With O_CREATE missing folders above it are made, as billy has it.
func (f *FS) OpenFile(name string, flag int, perm os.FileMode) (billy.File, error) {
	p := local(name)
	if flag&os.O_CREATE != 0 {
		if err := f.above(p); err != nil {
			return nil, err
		}
	}
	file, err := f.root.OpenFile(p, flag, perm)
	if err != nil {
		return nil, err
	}
	return &openFile{File: file, name: name}, nil
}

func (f *FS) above(p string) error {
	if dir := path.Dir(p); dir != "." {
		return f.root.MkdirAll(dir, 0o755)
	}
	return nil
}

// openFile answers the name it was opened by, as billy has it.
type openFile struct {
	*os.File
	name string
}

func (o *openFile) Name() string { return o.name }

// Lock and Unlock are for file systems with mandatory locks; nothing here takes any.
func (o *openFile) Lock() error   { return nil }
func (o *openFile) Unlock() error { return nil }

// Stat follows symlinks that stay below the root.
func (f *FS) Stat(name string) (os.FileInfo, error) { return f.root.Stat(local(name)) }

// Lstat follows no symlink at the end of the name.
func (f *FS) Lstat(name string) (os.FileInfo, error) { return f.root.Lstat(local(name)) }

// Rename moves a file or folder and replaces what is there, as rename(2) does.
func (f *FS) Rename(from, to string) error {
	p := local(to)
	if err := f.above(p); err != nil {
		return err
	}
	return f.root.Rename(local(from), p)
}

// Remove removes a file or an empty folder.
func (f *FS) Remove(name string) error { return f.root.Remove(local(name)) }

// RemoveAll removes name and everything below it, and follows no symlink. Nothing there is no
// error.
func (f *FS) RemoveAll(name string) error { return f.root.RemoveAll(local(name)) }

// SyncDir has what was made, renamed and removed in the folder name survive a power loss.
func (f *FS) SyncDir(name string) error {
	dir, err := f.root.Open(local(name))
	if err != nil {
		return err
	}
	err = dir.Sync()
	if cerr := dir.Close(); err == nil {
		err = cerr
	}
	return err
}

// Join joins with slashes.
func (f *FS) Join(elem ...string) string { return path.Join(elem...) }

// TempFile makes a new file with mode 0600 in dir.
func (f *FS) TempFile(dir, prefix string) (billy.File, error) {
	return f.OpenFile(path.Join(dir, prefix+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// ReadDir lists a folder by name.
func (f *FS) ReadDir(name string) ([]os.FileInfo, error) {
	entries, err := fs.ReadDir(f.root.FS(), local(name))
	if err != nil {
		return nil, err
	}
	infos := make([]os.FileInfo, 0, len(entries))
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", name, err)
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// MkdirAll makes a folder and those above it.
func (f *FS) MkdirAll(name string, perm os.FileMode) error {
	return f.root.MkdirAll(local(name), perm)
}

// Symlink makes a symlink with exactly this target, which may lead out: it is then for others to
// follow, and this filesystem refuses to.
func (f *FS) Symlink(target, link string) error {
	p := local(link)
	if err := f.above(p); err != nil {
		return err
	}
	return f.root.Symlink(target, p)
}

// Readlink is a symlink's target.
func (f *FS) Readlink(link string) (string, error) { return f.root.Readlink(local(link)) }

// Chmod changes the mode, and follows symlinks that stay below the root.
func (f *FS) Chmod(name string, mode os.FileMode) error { return f.root.Chmod(local(name), mode) }

// Lchown changes the owner and follows no symlink.
func (f *FS) Lchown(name string, uid, gid int) error { return f.root.Lchown(local(name), uid, gid) }

// Chown changes the owner and follows symlinks that stay below the root.
func (f *FS) Chown(name string, uid, gid int) error { return f.root.Chown(local(name), uid, gid) }

// Chtimes changes the times.
func (f *FS) Chtimes(name string, atime, mtime time.Time) error {
	return f.root.Chtimes(local(name), atime, mtime)
}
