package client

import (
	"errors"
	"io/fs"
	"path"
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
	return s.FS.Open(name)
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
	if err := s.match(at); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
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
