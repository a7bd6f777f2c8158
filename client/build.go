package client

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Bounds of a build folder. The daemon has bounds of its own; these end a mistake, such as building
// in a home folder, before it is sent.
const (
	// MaxArchiveBytes is the largest sum of the sizes of a build folder's files.
	MaxArchiveBytes = 2 << 30
	// MaxArchiveEntries is how many files, folders and symlinks a build folder may have.
	MaxArchiveEntries = 100_000
)

// chunk is how much of the archive one message carries, in bytes.
const chunk = 64 << 10

// givenFile is what an Agentfile is called that is no file of the folder.
const givenFile = "-"

// BuildOptions says what to build.
type BuildOptions struct {
	// Tags are the names of the image, name[:tag]; at least one.
	Tags []string
	// File is the Agentfile's path in Source; empty is "Agentfile".
	File string
	// Agentfile is its text in place of a file of Source, unless it is nil. Errors call it "-".
	Agentfile []byte
	// Args are values for ARG.
	Args map[string]string
	// Source is the build folder, such as (*os.Root).FS. Where it is no fs.ReadLinkFS a symlink in
	// it is an error. What its .agentignore names is left out, but never the Agentfile.
	Source fs.FS
	// Archive is the build folder as a tar archive, not compressed, in place of Source. It is sent as
	// it is.
	Archive io.Reader
}

// Build sends the build folder and returns when the image is tagged. Errors about the folder wrap
// ErrArchive.
func (c *Client) Build(ctx context.Context, opts BuildOptions) (*daemonv1.BuildResponse, error) {
	file := opts.File
	if file == "" {
		file = "Agentfile"
	}
	write := func(w io.Writer) error { return copyArchive(ctx, w, opts.Archive, ErrArchive) }
	if opts.Archive == nil {
		if opts.Agentfile != nil {
			file = givenFile
		} else if err := checkFile(opts.Source, file); err != nil {
			return nil, err
		}
		ignore, err := readIgnore(opts.Source)
		if err != nil {
			return nil, err
		}
		write = func(w io.Writer) error {
			a := &archiver{maxBytes: MaxArchiveBytes, maxEntries: MaxArchiveEntries, ignore: ignore, keep: file, given: opts.Agentfile}
			return a.write(ctx, w, opts.Source)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.Build(ctx)
	if err != nil {
		return nil, c.fromCall(ctx, err)
	}
	first := &daemonv1.BuildOptions{Tags: opts.Tags, File: file, BuildArgs: opts.Args}
	return upload(ctx, c, stream, &daemonv1.BuildRequest{Part: &daemonv1.BuildRequest_Options{Options: first}},
		func(p []byte) *daemonv1.BuildRequest {
			return &daemonv1.BuildRequest{Part: &daemonv1.BuildRequest_Archive{Archive: p}}
		}, write)
}

// copyArchive is copyInput that tells at once of what can't be an archive.
func copyArchive(ctx context.Context, w io.Writer, r io.Reader, wrong error) error {
	in := bufio.NewReaderSize(r, chunk)
	if first, _ := in.Peek(2); len(first) == 2 && first[0] == 0x1f && first[1] == 0x8b {
		return fmt.Errorf("%w: the archive is compressed with gzip; decompress it first, as with gunzip", wrong)
	}
	return copyInput(ctx, w, in, wrong)
}

// copyInput tells an error of reading, which it wraps in wrong, from one of sending.
func copyInput(ctx context.Context, w io.Writer, r io.Reader, wrong error) error {
	read := &source{Reader: r}
	_, err := io.Copy(w, readerWithContext{ctx, read})
	if read.err != nil {
		return fmt.Errorf("%w: %w", wrong, read.err)
	}
	return err
}

// readerWithContext ends between two reads.
type readerWithContext struct {
	ctx context.Context
	r   io.Reader
}

func (r readerWithContext) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// partWriter is given copies of what is written, which gRPC may keep.
type partWriter func([]byte) error

func (w partWriter) Write(p []byte) (int, error) {
	if err := w(bytes.Clone(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func checkFile(source fs.FS, file string) error {
	if !fs.ValidPath(file) {
		return fmt.Errorf("%w: agentfile %q: not a path inside the folder; name one relative to the folder, such as sub/Agentfile", ErrArchive, file)
	}
	info, err := fs.Stat(source, file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: no %s in it; write one, or name another with -f", ErrArchive, file)
	case err != nil:
		return fmt.Errorf("%w: %w; name another with -f", ErrArchive, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is a %s, not a file; name another with -f", ErrArchive, file, kind(info.Mode()))
	}
	return nil
}

// WriteArchive writes source as a tar archive: folders, files and symlinks (as symlinks) in the
// order of their paths, without times and owners, so that the same folder gives the same bytes on
// every machine. Anything else in it, and a folder past the bounds, is an error that wraps
// ErrArchive; an error of w comes back as it is.
func WriteArchive(ctx context.Context, w io.Writer, source fs.FS) error {
	return (&archiver{maxBytes: MaxArchiveBytes, maxEntries: MaxArchiveEntries}).write(ctx, w, source)
}

type archiver struct {
	maxBytes   int64
	maxEntries int
	// ignore is what is left out, but for the file keep.
	ignore *ignored
	keep   string
	// given is the Agentfile where it is no file of the folder.
	given []byte

	out     *tar.Writer
	source  fs.FS
	bytes   int64
	entries int
}

func (a *archiver) write(ctx context.Context, w io.Writer, source fs.FS) error {
	a.source, a.out = source, tar.NewWriter(w)
	if a.given != nil {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: givenFile, Mode: 0o644, Size: int64(len(a.given)), Format: tar.FormatPAX}
		if err := a.out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := a.out.Write(a.given); err != nil {
			return err
		}
	}
	err := fs.WalkDir(source, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("%w: %w", ErrArchive, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if path == "." {
			return nil
		}
		skip, err := a.ignore.match(path)
		switch {
		case err != nil:
			return err
		case a.given != nil && path == givenFile && !skip:
			return fmt.Errorf("%w: a file of the name %s is in the way of an Agentfile from elsewhere; rename it", ErrArchive, givenFile)
		case skip && (path != a.keep || a.given != nil):
			if entry.IsDir() && !a.ignore.exceptions() && !strings.HasPrefix(a.keep, path+"/") {
				return fs.SkipDir
			}
			return nil
		}
		return a.add(path, entry)
	})
	if err != nil {
		return err
	}
	return a.out.Close()
}

func (a *archiver) add(path string, entry fs.DirEntry) error {
	if a.entries++; a.entries > a.maxEntries {
		return fmt.Errorf("%w: more than %d files and folders; build in a smaller one", ErrArchive, a.maxEntries)
	}
	info, err := entry.Info()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	header := &tar.Header{Name: path, Format: tar.FormatPAX}
	switch mode := info.Mode(); {
	case mode.IsDir():
		header.Typeflag, header.Name, header.Mode = tar.TypeDir, path+"/", 0o755
	case mode&fs.ModeSymlink != 0:
		header.Typeflag, header.Mode = tar.TypeSymlink, 0o777
		if header.Linkname, err = fs.ReadLink(a.source, path); err != nil {
			return fmt.Errorf("%w: %w", ErrArchive, err)
		}
	case mode.IsRegular():
		return a.file(path, header)
	default:
		return fmt.Errorf("%w: %s is a %s: only files, folders and symlinks can be built from; remove it", ErrArchive, path, kind(mode))
	}
	return a.out.WriteHeader(header)
}

// file takes size and mode from the opened file, so that they are those of what is read.
func (a *archiver) file(path string, header *tar.Header) (err error) {
	f, err := a.source.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %s changed while it was read; try again", ErrArchive, path)
	}
	if a.bytes += info.Size(); a.bytes > a.maxBytes {
		return fmt.Errorf("%w: more than %d bytes at %s; build in a smaller one", ErrArchive, a.maxBytes, path)
	}
	header.Typeflag, header.Size, header.Mode = tar.TypeReg, info.Size(), 0o644
	if info.Mode()&0o100 != 0 {
		header.Mode = 0o755
	}
	if err := a.out.WriteHeader(header); err != nil {
		return err
	}
	read := &source{Reader: io.LimitReader(f, info.Size())}
	n, err := io.Copy(a.out, read)
	switch {
	case read.err != nil:
		return fmt.Errorf("%w: %s: %w", ErrArchive, path, read.err)
	case err != nil:
		return err
	case n != info.Size():
		return fmt.Errorf("%w: %s became shorter while it was read; try again", ErrArchive, path)
	}
	return nil
}

// source keeps the error of reading apart from that of writing.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "folder"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}
