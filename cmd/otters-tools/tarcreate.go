package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// make writes the archive of the operands, as a whole or not at all when it goes to a file.
func (a *archive) make(operands []string) error {
	t, err := openTree()
	if err != nil {
		return err
	}
	defer t.close()
	rel, err := t.local(*a.folder)
	if err != nil {
		return fmt.Errorf("-C %s: %w", *a.folder, err)
	}
	from, err := t.root.OpenRoot(rel)
	if err != nil {
		return fmt.Errorf("-C %s: %s", *a.folder, cause(t.explain(err)))
	}
	defer from.Close()
	fill := func(w io.Writer) error { return a.pack(from, operands, w) }
	if *a.file == "-" {
		return fill(a.c.stdout)
	}
	target, old, err := t.target(*a.file)
	if err == nil {
		a.old = old
		err = t.replace(target, old, fill)
	}
	if err != nil && a.c.sink.err == nil {
		return fmt.Errorf("%s: %s", *a.file, cause(err))
	}
	return err
}

// compressor returns what compresses as the options or the archive's name say.
func (a *archive) compressor(w io.Writer) (io.WriteCloser, error) {
	name := *a.file
	switch {
	case *a.zst, !*a.gz && (strings.HasSuffix(name, ".tar.zst") || strings.HasSuffix(name, ".tzst")):
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	case *a.gz, strings.HasSuffix(name, ".tar.gz"), strings.HasSuffix(name, ".tgz"):
		return gzip.NewWriter(w), nil
	}
	return nopCloser{w}, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (a *archive) pack(from *os.Root, operands []string, w io.Writer) error {
	z, err := a.compressor(w)
	if err != nil {
		return err
	}
	out := tar.NewWriter(z)
	for _, name := range operands {
		clean := filepath.Clean(name)
		if !filepath.IsLocal(clean) {
			return fmt.Errorf("%s: want a path below the folder that is packed; -C names another one", name)
		}
		if err := a.walk(from, clean, out); err != nil {
			return err
		}
	}
	if a.c.code != exitOK {
		return errors.New("no archive was made: not all could be read")
	}
	if err := out.Close(); err != nil {
		return err
	}
	return z.Close()
}

func (a *archive) walk(from *os.Root, name string, out *tar.Writer) error {
	return fs.WalkDir(from.FS(), filepath.ToSlash(name), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			a.c.fail(name, err)
			return nil
		}
		// The archive that is being made may stand among what it is made of.
		if name == "." || strings.HasPrefix(path.Base(name), ".otters-") && len(path.Base(name)) == 24 {
			return nil
		}
		if a.entries++; a.entries > maxEntries {
			return errEntries
		}
		if err := a.add(from, name, out); err != nil {
			return fmt.Errorf("%s: %s", name, cause(err))
		}
		if *a.verbose && *a.file != "-" {
			fmt.Fprintln(a.c.stdout, name) // sticky
		}
		return a.c.sink.err
	})
}

// add puts in one file, folder or symbolic link, owned by nobody in particular.
func (a *archive) add(from *os.Root, name string, out *tar.Writer) error {
	info, err := from.Lstat(name)
	if err != nil {
		return err
	}
	if a.old != nil && os.SameFile(info, a.old) {
		return nil
	}
	to := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if to, err = from.Readlink(name); err != nil {
			return err
		}
	case !info.IsDir() && !info.Mode().IsRegular():
		return errors.New("neither a file nor a folder nor a link")
	}
	h, err := tar.FileInfoHeader(info, to)
	if err != nil {
		return err
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	h.Mode = int64(info.Mode().Perm())
	if !info.Mode().IsRegular() {
		return out.WriteHeader(h)
	}
	if a.left -= info.Size(); a.left < 0 {
		return fmt.Errorf("more than %d GiB to pack", maxUnpacked>>30)
	}
	f, err := from.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	// A file that grows meanwhile is taken at the size that it had.
	_, err = io.CopyN(out, f, info.Size())
	if errors.Is(err, io.EOF) {
		err = errors.New("became shorter while it was read")
	}
	return err
}
