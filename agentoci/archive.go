package agentoci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// ArchiveOptions bound ReadArchive. Zero values are the defaults.
type ArchiveOptions struct {
	// Name is what errors call it; default is "build folder".
	Name string
	// Dir is where contents are kept until Close; default is the system's temporary folder.
	Dir string
	// MaxBytes is the size of all files together, default 2 GiB, and MaxFile that of one, 1 GiB.
	MaxBytes, MaxFile int64
	// MaxEntries is the number of files, folders and links, default 100,000.
	MaxEntries int
}

// Archive is a build folder that came as a tar archive. It is an fs.FS in which symlinks lead only
// to what is in the archive; Open tells when one leads out. Contents lie in one file that has no
// name, so that nothing is left behind even by a crash.
type Archive struct {
	spool *os.File
	nodes map[string]*node
	// list tells what is in each folder, made when the first is asked for.
	list func() map[string][]string
}

type node struct {
	kind byte // tar.TypeReg, TypeDir or TypeSymlink
	at   int64
	size int64
	link string
}

var _ fs.FS = (*Archive)(nil)

// ReadArchive reads a tar archive, not compressed, to its end. Close the Archive after use. An entry
// that is no file, folder, symlink or hard link to an earlier file, whose name leaves the folder, that
// lies below something that is no folder, that is there twice, or that has a privilege of its own is
// refused with ErrUnsafe; what is over a bound with ErrLimit.
func ReadArchive(ctx context.Context, r io.Reader, opts ArchiveOptions) (*Archive, error) {
	a, err := readArchive(ctx, r, opts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmp.Or(opts.Name, "build folder"), err)
	}
	return a, nil
}

func readArchive(ctx context.Context, r io.Reader, opts ArchiveOptions) (_ *Archive, err error) {
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 2 << 30
	}
	if opts.MaxFile <= 0 {
		opts.MaxFile = maxFile
	}
	if opts.MaxEntries <= 0 {
		opts.MaxEntries = 100_000
	}
	spool, err := os.CreateTemp(opts.Dir, "build-*")
	if err != nil {
		return nil, err
	}
	a := &Archive{spool: spool, nodes: map[string]*node{".": {kind: tar.TypeDir}}}
	a.list = sync.OnceValue(a.folders)
	defer func() {
		if err != nil {
			spool.Close()
		}
	}()
	if err := os.Remove(spool.Name()); err != nil {
		return nil, err
	}
	// Headers count too: a header with its extensions may be a megabyte.
	raw := &endReader{r: newLimitReader(contextReader{ctx, r}, opts.MaxBytes+int64(opts.MaxEntries)*4096)}
	tr := tar.NewReader(raw)
	var total int64
	names := int64(maxNames)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, raw)
			if err == nil && raw.zeros < 1024 {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return nil, fmt.Errorf("tar: %w", err)
			}
			return a, nil
		}
		if err != nil {
			return nil, fmt.Errorf("tar: %w", err)
		}
		if names -= int64(len(h.Name) + len(h.Linkname)); names < 0 {
			return nil, fmt.Errorf("names of more than %d bytes: %w", maxNames, ErrLimit)
		}
		if err := a.add(tr, h, &total, opts); err != nil {
			return nil, fmt.Errorf("%.200q: %w", h.Name, err)
		}
		// The root and folders without an entry of their own count too.
		if len(a.nodes)-1 > opts.MaxEntries {
			return nil, fmt.Errorf("more than %d entries: %w", opts.MaxEntries, ErrLimit)
		}
	}
}

// endReader counts the zeros at the end of what was read. A whole archive ends with two blocks of
// them; package tar also takes one that was cut between two entries.
type endReader struct {
	r     io.Reader
	zeros int64
}

func (e *endReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	end := len(bytes.TrimRight(p[:n], "\x00"))
	if end > 0 {
		e.zeros = 0
	}
	e.zeros += int64(n - end)
	return n, err
}

func unsafe(why string) error { return fmt.Errorf("%w: %s", ErrUnsafe, why) }

func (a *Archive) add(tr *tar.Reader, h *tar.Header, total *int64, opts ArchiveOptions) error {
	if strings.HasPrefix(h.Name, "/") {
		return unsafe("its name is absolute; leave the first / out")
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if n := a.nodes[dir]; n != nil && n.kind != tar.TypeDir {
			return unsafe(fmt.Sprintf("it lies below %q, which is no folder", dir))
		}
	}
	old := a.nodes[name]
	if old != nil && !(old.kind == tar.TypeDir && h.Typeflag == tar.TypeDir) {
		return unsafe("it is there twice")
	}
	switch h.Typeflag {
	case tar.TypeDir:
	case tar.TypeReg, tar.TypeLink:
		if err := unprivileged(h); err != nil {
			return err
		}
		if strings.HasSuffix(h.Name, "/") {
			return unsafe("it is a file with the name of a folder")
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxName {
			return unsafe("it is a symlink that leads nowhere")
		}
	default:
		return unsafe(kindOf(h.Typeflag) + " can't be in it; leave it out")
	}
	n := &node{kind: h.Typeflag, link: h.Linkname}
	switch h.Typeflag {
	case tar.TypeReg:
		if n.at, n.size, err = a.store(tr, h.Size, total, opts); err != nil {
			return err
		}
	case tar.TypeLink:
		target, err := entryName(h.Linkname)
		if err != nil || strings.HasPrefix(h.Linkname, "/") {
			return unsafe(fmt.Sprintf("it is a hard link out of the folder, to %.200q", h.Linkname))
		}
		file := a.nodes[target]
		if file == nil || file.kind != tar.TypeReg {
			return unsafe(fmt.Sprintf("it is a hard link to %.200q, which is no earlier file", h.Linkname))
		}
		n = file
	}
	a.mkdirs(name)
	a.nodes[name] = n
	return nil
}

// mkdirs notes the folders of name that have no entry of their own.
func (a *Archive) mkdirs(name string) {
	for dir := path.Dir(name); a.nodes[dir] == nil; dir = path.Dir(dir) {
		a.nodes[dir] = &node{kind: tar.TypeDir}
	}
}

func (a *Archive) store(r io.Reader, size int64, total *int64, opts ArchiveOptions) (at, n int64, err error) {
	if size > opts.MaxFile {
		return 0, 0, fmt.Errorf("%d bytes, more than %d: %w", size, opts.MaxFile, ErrLimit)
	}
	at = *total
	if *total += size; *total > opts.MaxBytes {
		return 0, 0, fmt.Errorf("the files have more than %d bytes together: %w", opts.MaxBytes, ErrLimit)
	}
	n, err = io.Copy(a.spool, r)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	return at, n, err
}

// entryName cleans the name of a tar entry. A leading slash is dropped.
func entryName(s string) (string, error) {
	rel := strings.TrimLeft(s, "/")
	switch {
	case rel == "" && s == "":
		return "", unsafe("it has no name")
	case len(s) > maxName || strings.Count(s, "/") > maxNesting:
		return "", unsafe(fmt.Sprintf("its name has more than %d bytes or %d folders", maxName, maxNesting))
	case !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0:
		return "", unsafe("its name is not text")
	}
	for part := range strings.SplitSeq(rel, "/") {
		if part == ".." {
			return "", unsafe("its name has a .. part")
		}
	}
	return path.Clean(rel), nil
}

// unprivileged refuses files that would be more than their bytes where they are unpacked.
func unprivileged(h *tar.Header) error {
	if h.FileInfo().Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		return unsafe("it is set-user-id or set-group-id; clear the bit")
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.security.") || strings.HasPrefix(key, "LIBARCHIVE.xattr.security.") {
			return unsafe("it has the extended attribute " + key[strings.Index(key, "xattr.")+6:])
		}
	}
	return nil
}

func kindOf(flag byte) string {
	switch flag {
	case tar.TypeDir:
		return "a folder"
	case tar.TypeSymlink:
		return "a symlink"
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeChar, tar.TypeBlock:
		return "a device"
	case tar.TypeFifo:
		return "a FIFO"
	}
	return fmt.Sprintf("an entry of type %q", flag)
}

// Close gives the space back.
func (a *Archive) Close() error { return a.spool.Close() }

// Open opens a file or folder. Symlinks are followed inside the archive; one that leads out of it is
// ErrUnsafe.
func (a *Archive) Open(name string) (fs.File, error) {
	fail := func(err error) (fs.File, error) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if !fs.ValidPath(name) {
		return fail(fs.ErrInvalid)
	}
	at, rest, links := ".", strings.Split(name, "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch {
		case part == "" || part == ".":
			continue
		case part == ".." && at == ".":
			return fail(unsafe("a symlink leads out of the build folder"))
		case part == "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		n := a.nodes[next]
		switch {
		case n == nil:
			return fail(fs.ErrNotExist)
		case n.kind == tar.TypeSymlink:
			if links++; links > maxLinks {
				return fail(unsafe("symlinks that lead in a circle"))
			}
			if path.IsAbs(n.link) {
				return fail(unsafe(fmt.Sprintf("the symlink %q leads out of the build folder, to %.200q", next, n.link)))
			}
			rest = append(strings.Split(n.link, "/"), rest...)
		case n.kind != tar.TypeDir && len(rest) > 0:
			return fail(fs.ErrNotExist)
		default:
			at = next
		}
	}
	f := a.file(path.Base(name), a.nodes[at])
	if f.IsDir() {
		return &archiveFolder{archiveFile: f, archive: a, at: at}, nil
	}
	return f, nil
}

func (a *Archive) file(name string, n *node) *archiveFile {
	return &archiveFile{SectionReader: io.NewSectionReader(a.spool, n.at, n.size), name: name, node: n}
}

// folders lists the names in each folder, sorted.
func (a *Archive) folders() map[string][]string {
	out := map[string][]string{}
	for name := range a.nodes {
		if name != "." {
			out[path.Dir(name)] = append(out[path.Dir(name)], path.Base(name))
		}
	}
	for _, names := range out {
		slices.Sort(names)
	}
	return out
}

// archiveFile is its own fs.FileInfo.
type archiveFile struct {
	*io.SectionReader
	name string
	node *node
}

func (f *archiveFile) Stat() (fs.FileInfo, error) { return f, nil }
func (f *archiveFile) Close() error               { return nil }
func (f *archiveFile) Name() string               { return f.name }
func (f *archiveFile) IsDir() bool                { return f.node.kind == tar.TypeDir }
func (f *archiveFile) ModTime() time.Time         { return time.Time{} }
func (f *archiveFile) Sys() any                   { return nil }

func (f *archiveFile) Mode() fs.FileMode {
	switch f.node.kind {
	case tar.TypeDir:
		return fs.ModeDir | 0o755
	case tar.TypeSymlink:
		return fs.ModeSymlink | 0o777
	}
	return 0o644
}

// archiveFolder is a folder that can be listed.
type archiveFolder struct {
	*archiveFile
	archive *Archive
	at      string
	// list is what is not returned yet, once listed.
	list   []fs.DirEntry
	listed bool
}

var _ fs.ReadDirFile = (*archiveFolder)(nil)

func (f *archiveFolder) ReadDir(n int) ([]fs.DirEntry, error) {
	if !f.listed {
		f.listed = true
		for _, name := range f.archive.list()[f.at] {
			f.list = append(f.list, fs.FileInfoToDirEntry(f.archive.file(name, f.archive.nodes[path.Join(f.at, name)])))
		}
	}
	if n > 0 && len(f.list) == 0 {
		return nil, io.EOF
	}
	if n <= 0 || n > len(f.list) {
		n = len(f.list)
	}
	out := f.list[:n]
	f.list = f.list[n:]
	return out, nil
}
