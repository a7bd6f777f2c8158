package client

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// maxLinks is how many symlinks are followed on the way to a file, as in the kernel.
const maxLinks = 40

var errLeftOut = errors.New(IgnoreFile + " leaves it out of the build folder")

// Folder is source as Build sends it with the Agentfile file: what its .agentignore names can't be opened,
// through links neither. source must be one that links can't leave, such as (*os.Root).FS. Errors about
// the .agentignore wrap ErrArchive.
func Folder(source fs.FS, file string) (fs.FS, error) {
	ignore, err := readIgnore(source)
	if err != nil || ignore == nil {
		return source, err
	}
	return sent{source, ignore, file}, nil
}

type sent struct {
	fs.FS
	ignore *ignored
	keep   string
}

func (s sent) Open(name string) (fs.File, error) {
	if err := s.check("open", name); err != nil {
		return nil, err
	}
	f, err := s.FS.Open(name)
	if d, ok := f.(fs.ReadDirFile); ok && err == nil {
		if info, err := d.Stat(); err == nil && info.IsDir() {
			return sentFolder{d, s, name}, nil
		}
	}
	return f, err
}

// sentFolder lists what of a folder is sent.
type sentFolder struct {
	fs.ReadDirFile
	sent sent
	name string
}

func (f sentFolder) ReadDir(n int) ([]fs.DirEntry, error) {
	for {
		list, err := f.ReadDirFile.ReadDir(n)
		list = slices.DeleteFunc(list, func(e fs.DirEntry) bool {
			name := path.Join(f.name, e.Name())
			return f.sent.match(name) != nil && !(e.IsDir() && f.sent.excepts(name))
		})
		if n <= 0 || len(list) > 0 || err != nil {
			return list, err
		}
	}
}

func (s sent) Stat(name string) (fs.FileInfo, error) {
	if err := s.check("stat", name); err != nil {
		return nil, err
	}
	return fs.Stat(s.FS, name)
}

// check refuses name where it, or a link on the way to what it names, is left out. A path that leads to
// nothing is the source's to refuse.
func (s sent) check(op, name string) error {
	at, rest, links := ".", strings.Split(name, "/"), 0
	for len(rest) > 0 && at != ".." && !strings.HasPrefix(at, "../") {
		at, rest = path.Join(at, rest[0]), rest[1:]
		to, err := fs.ReadLink(s.FS, at)
		if err != nil || path.IsAbs(to) {
			continue // no link, or one that leaves
		}
		if err := s.match(at); err != nil {
			return &fs.PathError{Op: op, Path: name, Err: err}
		}
		if links++; links > maxLinks {
			return nil
		}
		at, rest = path.Dir(at), append(strings.Split(to, "/"), rest...)
	}
	err := s.match(at)
	if errors.Is(err, errLeftOut) && s.excepts(at) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

// excepts tells that something below a folder which is left out is sent, and so the folder is.
func (s sent) excepts(dir string) bool {
	if !s.ignore.exceptions() && !strings.HasPrefix(s.keep, dir+"/") {
		return false
	}
	found := false
	// What can't be listed is the build's to tell.
	_ = fs.WalkDir(s.FS, dir, func(name string, _ fs.DirEntry, err error) error {
		if found = err == nil && s.match(name) == nil; found {
			return fs.SkipAll
		}
		return nil
	})
	return found
}

func (s sent) match(name string) error {
	if name == "." || name == s.keep {
		return nil
	}
	skip, err := s.ignore.match(name)
	if err == nil && skip {
		err = errLeftOut
	}
	return err
}
