package system

import (
	"os"
	"sync"

	"github.com/go-git/go-billy/v5"
)

// serial lets one goroutine at a time into a filesystem: those in memory are not made for more.
// Filesystems chrooted from it share the lock.
type serial struct {
	billy.Filesystem
	mu *sync.Mutex
}

func (s serial) Create(name string) (billy.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.Create(name)
}

func (s serial) Open(name string) (billy.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.Open(name)
}

func (s serial) OpenFile(name string, flag int, perm os.FileMode) (billy.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.OpenFile(name, flag, perm)
}

func (s serial) Stat(name string) (os.FileInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.Stat(name)
}

func (s serial) Lstat(name string) (os.FileInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.Lstat(name)
}

func (s serial) Rename(from, to string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.Rename(from, to)
}

func (s serial) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.Remove(name)
}

func (s serial) TempFile(dir, prefix string) (billy.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.TempFile(dir, prefix)
}

func (s serial) ReadDir(name string) ([]os.FileInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.ReadDir(name)
}

func (s serial) MkdirAll(name string, perm os.FileMode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.MkdirAll(name, perm)
}

func (s serial) Symlink(target, link string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.Symlink(target, link)
}

func (s serial) Readlink(link string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Filesystem.Readlink(link)
}

func (s serial) Chroot(name string) (billy.Filesystem, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fs, err := s.Filesystem.Chroot(name)
	if err != nil {
		return nil, err
	}
	return serial{fs, s.mu}, nil
}
