package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// extraction unpacks into one folder, and into nothing above it: every path goes through os.Root,
// and nothing is written through a link.
type extraction struct {
	a    *archive
	tree *agentTree
	into *os.Root
	dirs []folderMeta
	// links are looked at again when all is unpacked: only then is it known where each leads.
	links []string
}

// folderMeta is set when all files are there: a read-only folder takes none.
type folderMeta struct {
	name string
	mode fs.FileMode
	time time.Time
}

func newExtraction(a *archive) (*extraction, error) {
	t, err := openTree()
	if err != nil {
		return nil, err
	}
	rel, err := t.local(*a.folder)
	if err == nil {
		err = t.root.MkdirAll(rel, 0o755)
	}
	var into *os.Root
	if err == nil {
		into, err = t.root.OpenRoot(rel)
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("-C %s: %s", *a.folder, cause(t.explain(err)))
	}
	return &extraction{a: a, tree: t, into: into}, nil
}

func (x *extraction) close() {
	x.into.Close()
	x.tree.close()
}

func (x *extraction) entry(h *tar.Header, content io.Reader) error {
	name := filepath.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return errors.New("leads out of the folder that is unpacked into")
	}
	if name == "." {
		return nil
	}
	if err := x.into.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return x.reason(err)
	}
	if err := x.place(h, name, content); err != nil {
		return x.reason(err)
	}
	if *x.a.verbose {
		_, err := fmt.Fprintln(x.a.c.stdout, h.Name)
		return err
	}
	return nil
}

func (x *extraction) reason(err error) error {
	if explained := x.tree.explain(err); explained != err {
		return errors.New("leads out of the folder that is unpacked into")
	}
	return err
}

func (x *extraction) place(h *tar.Header, name string, content io.Reader) error {
	mode := h.FileInfo().Mode().Perm() // no setuid, setgid or sticky bit
	switch h.Typeflag {
	case tar.TypeDir:
		info, err := x.into.Lstat(name)
		if err == nil && !info.IsDir() {
			return errors.New("a folder in the archive, and something else in the way of it")
		}
		if err != nil {
			err = x.into.Mkdir(name, 0o755)
		}
		x.dirs = append(x.dirs, folderMeta{name, mode, h.ModTime})
		return err
	case tar.TypeReg:
		return x.file(name, mode, h.ModTime, content)
	case tar.TypeSymlink:
		to := filepath.Join(filepath.Dir(name), h.Linkname)
		if filepath.IsAbs(h.Linkname) || !filepath.IsLocal(to) {
			return fmt.Errorf("a symbolic link to %s, which leads out of the folder that is unpacked into", h.Linkname)
		}
		if err := x.clear(name); err != nil {
			return err
		}
		x.links = append(x.links, name)
		return x.into.Symlink(h.Linkname, name)
	case tar.TypeLink:
		to := filepath.Clean(h.Linkname)
		if to == name {
			return nil
		}
		if err := x.clear(name); err != nil {
			return err
		}
		return x.into.Link(to, name)
	}
	return fmt.Errorf("neither a file nor a folder nor a link (type %q)", h.Typeflag)
}

// clear removes the file or link that an entry takes the place of.
func (x *extraction) clear(name string) error {
	err := x.into.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (x *extraction) file(name string, mode fs.FileMode, changed time.Time, content io.Reader) (err error) {
	if err := x.clear(name); err != nil {
		return err
	}
	f, err := x.into.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = setTimes(f, changed)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		x.into.Remove(name)
	}
	return err
}

// finish removes the links that together lead out, and gives the folders their permissions.
func (x *extraction) finish() error {
	for _, name := range x.links {
		if _, err := x.into.Stat(name); err != nil && x.tree.explain(err) != err {
			x.into.Remove(name)
			return fmt.Errorf("%s: a symbolic link that leads out of the folder that is unpacked into", name)
		}
	}
	for i := len(x.dirs) - 1; i >= 0; i-- {
		d := x.dirs[i]
		info, err := x.into.Lstat(d.name)
		if err != nil || !info.IsDir() {
			continue // a later entry took its place
		}
		if err := x.settle(d.name, d.mode, d.time); err != nil {
			return fmt.Errorf("%s: %s", d.name, cause(err))
		}
	}
	return nil
}

// settle gives a folder its permissions and its time.
func (x *extraction) settle(dir string, mode fs.FileMode, changed time.Time) error {
	f, err := x.into.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return setTimes(f, changed)
}
