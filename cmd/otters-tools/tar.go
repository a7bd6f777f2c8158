package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/pflag"
)

// Bounds of an archive, whatever it says of itself.
const (
	maxEntries    = 100_000
	maxUnpacked   = 1 << 30 // bytes in all files
	maxZstdWindow = 128 << 20
)

var (
	errEntries  = fmt.Errorf("more than %d entries", maxEntries)
	errUnpacked = fmt.Errorf("more than %d GiB unpacked", maxUnpacked>>30)
)

// archive is one run of tar.
type archive struct {
	c                              *call
	list, extract, create, verbose *bool
	gz, zst                        *bool
	file, folder                   *string
	only                           []string
	matched                        map[string]bool
	old                            fs.FileInfo // the archive that is replaced
	entries                        int
	left                           int64
}

func tarArchive(c *call, flags *pflag.FlagSet) func([]string) error {
	a := archive{
		c:       c,
		list:    flags.BoolP("list", "t", false, "list what is in the archive"),
		extract: flags.BoolP("extract", "x", false, "unpack the archive"),
		create:  flags.BoolP("create", "c", false, "make the archive of the PATHs"),
		file:    flags.StringP("file", "f", "", "the `ARCHIVE`; - is standard input or output"),
		gz:      flags.BoolP("gzip", "z", false, "with -c: compress by gzip"),
		zst:     flags.Bool("zstd", false, "with -c: compress by zstd"),
		folder:  flags.StringP("directory", "C", ".", "unpack into `FOLDER`, or take the PATHs from it"),
		verbose: flags.BoolP("verbose", "v", false, "name what is unpacked or put in; with -t tell size and kind"),
		left:    maxUnpacked,
		matched: map[string]bool{},
	}
	return a.run
}

// bareLetters puts the hyphen before a first argument like xzf.
func bareLetters(args []string) ([]string, error) {
	if len(args) > 0 && strings.Trim(args[0], "txcfzvC") == "" && args[0] != "" && strings.ContainsAny(args[0], "txc") {
		return append([]string{"-" + args[0]}, args[1:]...), nil
	}
	return args, nil
}

func (a *archive) run(operands []string) error {
	modes := 0
	for _, set := range []*bool{a.list, a.extract, a.create} {
		if *set {
			modes++
		}
	}
	switch {
	case modes != 1:
		return usageError("want one of -t, -x and -c")
	case *a.file == "":
		return usageError("want -f ARCHIVE, - for standard input or output")
	case *a.gz && *a.zst:
		return usageError("-z and --zstd: only one of them at a time")
	case *a.zst && !*a.create:
		return usageError("--zstd: only together with -c; how an archive is compressed is seen when it is read")
	case *a.create && len(operands) == 0:
		return usageError("-c: want the files and folders to put in")
	}
	if *a.create {
		return a.make(operands)
	}
	for _, name := range operands {
		a.only = append(a.only, path.Clean(name))
	}
	err := a.unpack()
	if err != nil {
		return fmt.Errorf("%s: %w", *a.file, err)
	}
	for i, name := range a.only {
		if !a.matched[name] {
			a.c.fail(operands[i], errors.New("not in the archive"))
		}
	}
	return nil
}

// unpack lists or extracts.
func (a *archive) unpack() error {
	source := a.c.stdin
	if *a.file != "-" {
		f, err := os.Open(*a.file)
		if err != nil {
			return errors.New(cause(err))
		}
		defer f.Close()
		source = f
	}
	plain, done, err := decompressed(source)
	if err != nil {
		return err
	}
	defer done()
	if *a.list {
		return a.each(plain, func(h *tar.Header, _ io.Reader) error { return a.show(h) })
	}
	x, err := newExtraction(a)
	if err != nil {
		return err
	}
	defer x.close()
	if err := a.each(plain, x.entry); err != nil {
		return err
	}
	return x.finish()
}

// decompressed tells gzip and zstd by how they start.
func decompressed(source io.Reader) (io.Reader, func(), error) {
	in := bufio.NewReaderSize(source, 64<<10)
	start, _ := in.Peek(4)
	switch {
	case strings.HasPrefix(string(start), "\x1f\x8b"):
		r, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, err
		}
		return r, func() { r.Close() }, nil
	case string(start) == "\x28\xb5\x2f\xfd":
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	case len(start) == 0:
		return nil, nil, errors.New("the archive is empty")
	}
	return in, func() {}, nil
}

// each hands the entries that are asked for to fn. All bytes that are read count, those of entries
// that are passed over too.
func (a *archive) each(plain io.Reader, fn func(*tar.Header, io.Reader) error) error {
	in := tar.NewReader(&unpacked{plain, a.left + maxEntries*1024})
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if a.entries++; a.entries > maxEntries {
			return errEntries
		}
		if h.Size > a.left {
			return errUnpacked
		}
		a.left -= max(h.Size, 0)
		if !a.wanted(h.Name) {
			continue
		}
		if err := fn(h, in); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// unpacked ends the reading of an archive that never ends.
type unpacked struct {
	r    io.Reader
	left int64
}

func (u *unpacked) Read(p []byte) (int, error) {
	if u.left <= 0 {
		return 0, errUnpacked
	}
	n, err := u.r.Read(p[:min(int64(len(p)), u.left)])
	u.left -= int64(n)
	return n, err
}

// wanted tells whether an entry is one of the operands or below one.
func (a *archive) wanted(name string) bool {
	if len(a.only) == 0 {
		return true
	}
	name = path.Clean(name)
	for _, want := range a.only {
		if name == want || want == "." || strings.HasPrefix(name, want+"/") {
			a.matched[want] = true
			return true
		}
	}
	return false
}

func (a *archive) show(h *tar.Header) error {
	if !*a.verbose {
		_, err := fmt.Fprintln(a.c.stdout, h.Name)
		return err
	}
	name := h.Name
	switch h.Typeflag {
	case tar.TypeSymlink:
		name += " -> " + h.Linkname
	case tar.TypeLink:
		name += " link to " + h.Linkname
	}
	info := h.FileInfo()
	_, err := fmt.Fprintf(a.c.stdout, "%s %10d %s %s\n", info.Mode(), h.Size, h.ModTime.UTC().Format("2006-01-02 15:04"), name)
	return err
}
