package agentoci

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

// tree is the file tree that the layers of an image make, as far as it had to be read: the last layer
// first, and only as many as it takes to know a file. Nothing is unpacked; it knows where things lie.
type tree struct {
	store   content.Fetcher
	layers  []ocispec.Descriptor
	skipped []string
	budget  *budget
	// known are listings of layers that other images may have too; nil knows none.
	known *listings

	// read is how many layers were, from the last.
	read    int
	entries map[string]entry
	// hidden and opaque are what whiteouts took from the layers that are not read yet: a path and all
	// beneath it, and all beneath a path.
	hidden, opaque map[string]bool
}

// entry is a path of the tree.
type entry struct {
	kind  byte // of package tar
	layer int
	path  string // in the layer, where a hard link is what it links to
	link  string
	size  int64
}

// budget is what may still be unpacked and listed; an image is read with one.
type budget struct {
	bytes   int64
	entries int
	names   int
}

func newBudget() *budget {
	return &budget{bytes: maxUnpacked, entries: maxEntries, names: maxNames}
}

// compression names how a layer is packed, and is empty for what is no layer.
func compression(mediaType string) string {
	switch mediaType {
	case ocispec.MediaTypeImageLayer, "application/vnd.docker.image.rootfs.diff.tar":
		return "tar"
	case ocispec.MediaTypeImageLayerGzip, "application/vnd.docker.image.rootfs.diff.tar.gzip":
		return "gzip"
	case ocispec.MediaTypeImageLayerZstd:
		return "zstd"
	}
	return ""
}

// errAbsent is the outcome of a path that the image has not.
var errAbsent = errors.New("it is not in the image")

// find resolves a path to a regular file, through symlinks, with / as the image's root.
func (t *tree) find(ctx context.Context, name string) (entry, error) {
	for {
		e, final, err := t.resolve(name)
		if final || t.read == len(t.layers) {
			if errors.Is(err, errAbsent) && len(t.skipped) > 0 {
				err = fmt.Errorf("%w; layers of type %.300q were not looked into", err, strings.Join(t.skipped, ", "))
			}
			return e, err
		}
		if err := t.scan(ctx, len(t.layers)-1-t.read); err != nil {
			return entry{}, err
		}
		t.read++
	}
}

// resolve walks a path in what is read. final tells that no lower layer can change the outcome.
func (t *tree) resolve(name string) (e entry, final bool, err error) {
	at, rest, links := "", strings.Split(name, "/"), 0
	final = true
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = strings.TrimPrefix(path.Dir("/"+at), "/")
			continue
		}
		at = strings.TrimPrefix(at+"/"+part, "/")
		found, ok := t.entries[at]
		switch {
		case !ok:
			// A folder may lack an entry of its own; a lower layer may then still have one.
			final = false
		case found.kind == tar.TypeSymlink:
			if links++; links > maxLinks {
				return entry{}, final, unsafe("symlinks that lead in a circle")
			}
			if path.IsAbs(found.link) {
				at = ""
			} else {
				at = strings.TrimPrefix(path.Dir("/"+at), "/")
			}
			rest = append(strings.Split(found.link, "/"), rest...)
		}
	}
	e, ok := t.entries[at]
	switch {
	case !ok:
		return entry{}, false, errAbsent
	case e.kind != tar.TypeReg:
		return entry{}, final, unsafe("it is " + kindOf(e.kind) + " and no regular file")
	}
	return e, final, nil
}

// layer is an open layer. done reads the rest of the blob and checks it: until then nothing that was
// read is believed.
type layer struct {
	*tar.Reader
	raw   io.ReadCloser
	close func()
}

func (l *layer) done() error {
	_, err := io.Copy(io.Discard, l.raw)
	return err
}

func (l *layer) Close() {
	l.close()
	l.raw.Close()
}

func (t *tree) open(ctx context.Context, n int, left *budget) (*layer, error) {
	desc := t.layers[n]
	raw, err := fetch(ctx, t.store, desc, maxUnpacked)
	if err != nil {
		return nil, err
	}
	l := &layer{raw: raw, close: func() {}}
	var r io.Reader = raw
	switch compression(desc.MediaType) {
	case "gzip":
		z, err := gzip.NewReader(raw)
		if err != nil {
			raw.Close()
			return nil, err
		}
		r, l.close = z, func() { z.Close() }
	case "zstd":
		// The window bounds memory; 32 MiB is more than any level but the extreme ones uses.
		z, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(32<<20))
		if err != nil {
			raw.Close()
			return nil, err
		}
		r, l.close = z, z.Close
	}
	l.Reader = tar.NewReader(&budgetReader{r: r, budget: left})
	return l, nil
}

// budgetReader ends a layer that unpacks to more than is left.
type budgetReader struct {
	r      io.Reader
	budget *budget
}

func (b *budgetReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.budget.bytes -= int64(n); b.budget.bytes < 0 {
		return 0, fmt.Errorf("the layers unpack to more than %d bytes: %w", int64(maxUnpacked), ErrLimit)
	}
	return n, err
}

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// scan lists a layer and lays the layers above over it.
func (t *tree) scan(ctx context.Context, n int) error {
	var s scan
	var err error
	if t.known == nil {
		s, err = t.list(ctx, n, t.budget)
	} else {
		s, err = t.known.get(ctx, t.layers[n], func() (scan, error) {
			left := newBudget()
			s, err := t.list(ctx, n, left)
			s.cost = budget{bytes: maxUnpacked - left.bytes, entries: maxEntries - left.entries, names: maxNames - left.names}
			return s, err
		})
		if err == nil {
			err = t.budget.charge(s.cost)
		}
	}
	if err != nil {
		return fmt.Errorf("layer %d: %w", n, err)
	}
	t.merge(s, n)
	return nil
}

// list reads a layer to its end.
func (t *tree) list(ctx context.Context, n int, left *budget) (scan, error) {
	s := scan{entries: map[string]entry{}}
	l, err := t.open(ctx, n, left)
	if err != nil {
		return s, err
	}
	defer l.Close()
	for {
		h, err := l.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return s, err
		}
		if left.entries--; left.entries < 0 {
			return s, fmt.Errorf("more than %d entries: %w", maxEntries, ErrLimit)
		}
		if left.names -= len(h.Name) + len(h.Linkname); left.names < 0 {
			return s, fmt.Errorf("names of more than %d bytes: %w", maxNames, ErrLimit)
		}
		if err := s.add(h); err != nil {
			return s, fmt.Errorf("%.200q: %w", h.Name, err)
		}
	}
	if err := l.done(); err != nil {
		return s, err
	}
	return s, s.check()
}

func (t *tree) merge(s scan, layer int) {
	if t.entries == nil {
		t.entries, t.hidden, t.opaque = map[string]entry{}, map[string]bool{}, map[string]bool{}
	}
	var mine []string
	for name := range s.entries {
		if !t.covered(name) {
			mine = append(mine, name)
		}
	}
	for _, name := range mine {
		e := s.entries[name]
		e.layer = layer
		t.entries[name] = e
	}
	for _, name := range s.hidden {
		t.hidden[name] = true
	}
	for _, name := range s.opaque {
		t.opaque[name] = true
	}
}

// covered tells that the layers above hide a path.
func (t *tree) covered(name string) bool {
	if _, ok := t.entries[name]; ok || t.hidden[name] {
		return true
	}
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		if t.opaque[dir] {
			return true
		}
		if dir == "." {
			return false
		}
		if e, ok := t.entries[dir]; t.hidden[dir] || ok && e.kind != tar.TypeDir {
			return true
		}
	}
}

// scan is one layer by itself.
type scan struct {
	entries        map[string]entry // their layer is not set
	hidden, opaque []string
	// cost is what it takes of an image's budget, where several images may have the layer.
	cost budget
}

func (s *scan) add(h *tar.Header) error {
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return unsafe("it is named as the root and is no folder")
		}
		return nil
	}
	dir, base := path.Split(name)
	switch {
	case base == opaque:
		s.opaque = append(s.opaque, path.Clean(dir))
		return nil
	case strings.HasPrefix(base, ".wh..wh."):
		return nil // notes that some union file systems keep
	case strings.HasPrefix(base, whiteout):
		gone := base[len(whiteout):]
		if gone == "" || gone == "." || gone == ".." {
			return unsafe("it is a whiteout of its own folder or the one above")
		}
		s.hidden = append(s.hidden, path.Join(dir, gone))
		return nil
	}
	e := entry{kind: h.Typeflag, path: name, link: h.Linkname, size: h.Size}
	switch h.Typeflag {
	case tar.TypeReg:
		if h.Size > maxFile {
			return fmt.Errorf("%d bytes, more than %d: %w", h.Size, int64(maxFile), ErrLimit)
		}
	case tar.TypeLink:
		// A hard link is the file it links to, which comes before it in the same layer.
		target, err := entryName(h.Linkname)
		if err != nil {
			return unsafe(fmt.Sprintf("it is a hard link out of the image, to %.200q", h.Linkname))
		}
		if file, ok := s.entries[target]; ok && file.kind == tar.TypeReg {
			e = file
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxName {
			return unsafe("it is a symlink that leads nowhere")
		}
	}
	if old, ok := s.entries[name]; ok && !(old.kind == tar.TypeDir && e.kind == tar.TypeDir) {
		return unsafe("it is there twice")
	}
	s.entries[name] = e
	return nil
}

// check refuses what lies below something that is no folder.
func (s *scan) check() error {
	for name := range s.entries {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if e, ok := s.entries[dir]; ok && e.kind != tar.TypeDir {
				return fmt.Errorf("%.200q: %w", name, unsafe(fmt.Sprintf("it lies below %q, which is no folder", dir)))
			}
		}
	}
	return nil
}

// write reads a file out of its layer, and the layer to its end.
func (t *tree) write(ctx context.Context, e entry, w io.Writer) error {
	l, err := t.open(ctx, e.layer, newBudget())
	if err != nil {
		return err
	}
	defer l.Close()
	for {
		h, err := l.Next()
		if errors.Is(err, io.EOF) {
			return errors.New("the layer changed while it was read")
		}
		if err != nil {
			return err
		}
		if name, err := entryName(h.Name); err != nil || name != e.path || h.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := io.Copy(w, l); err != nil {
			return err
		}
		return l.done()
	}
}

// Usage reads the usage text. It is empty for an image that has none, and an error where the image
// says it has one.
func (b *Bin) Usage(ctx context.Context) (string, error) {
	for _, l := range b.markdown {
		if path.Join("/", title(l)) != b.usage {
			continue
		}
		text, err := fetchAll(ctx, b.store, l, maxUsage)
		return b.usageText(text, err)
	}
	e, err := b.tree.find(ctx, b.usage)
	if errors.Is(err, errAbsent) && !b.usageTold {
		return "", nil
	}
	if err == nil && e.size > maxUsage {
		err = fmt.Errorf("%d bytes, more than %d: %w", e.size, maxUsage, ErrLimit)
	}
	var buf bytes.Buffer
	if err == nil {
		err = b.tree.write(ctx, e, &buf)
	}
	return b.usageText(buf.Bytes(), err)
}

func (b *Bin) usageText(text []byte, err error) (string, error) {
	if err == nil && !utf8.Valid(text) {
		err = errors.New("it is not UTF-8")
	}
	if err != nil {
		return "", fmt.Errorf("%s: usage %s: %w", b.Name, b.usage, err)
	}
	return string(text), nil
}
