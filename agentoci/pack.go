package agentoci

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	digest "github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/spec"
)

// Program is a static binary that becomes a layer.
type Program struct {
	Platform ocispec.Platform
	// Name is the file's name in the layer's root, and Links are symlinks to it beside it: the names
	// of a multi-call program.
	Name  string
	Links []string
	// Size is the binary's in bytes. Open is called up to twice and must give the same bytes.
	Size int64
	Open func() (io.ReadCloser, error)
}

// Layer is a stored layer that PackBin makes images from, as many as its program has names.
type Layer struct {
	Platform   ocispec.Platform
	Descriptor ocispec.Descriptor
	DiffID     digest.Digest
	// Names are the files in the layer's root.
	Names []string
}

// BinImage is what PackBin makes a BIN or RUNTIME image from.
type BinImage struct {
	// Name is a file in the root of each of Layers, or a symlink to one.
	Name        string
	Description string
	// Usage is the text of /USAGE.md; without it the image has none.
	Usage string
	// Labels go into the images' configs and annotations.
	Labels map[string]string
	// Layers are one per platform.
	Layers []Layer
	// Tags are given to the index when all is stored.
	Tags []string
}

// PackLayer stores the program as a tar layer in target. It is not compressed: the same binary gives
// the same digest whatever compressor was linked, and is unpacked at the speed of the disk.
func PackLayer(ctx context.Context, target oras.Target, p Program) (Layer, error) {
	var parts stage
	l, err := parts.layer(ctx, p)
	if err == nil {
		err = parts.store(ctx, target)
	}
	if err != nil {
		return Layer{}, fmt.Errorf("pack layer: %s: %w", p.Name, err)
	}
	return l, nil
}

// layer adds the layer of a program, which is read for its digest.
func (s *stage) layer(ctx context.Context, p Program) (Layer, error) {
	names := append([]string{p.Name}, p.Links...)
	slices.Sort(names[1:])
	for i, name := range names {
		if err := checkBinName(name); err != nil {
			return Layer{}, err
		}
		if slices.Contains(names[:i], name) {
			return Layer{}, fmt.Errorf("the name %s is there twice", name)
		}
	}
	if p.Size < 0 || p.Size > maxFile {
		return Layer{}, fmt.Errorf("size %d is not between 0 and %d: %w", p.Size, int64(maxFile), ErrLimit)
	}
	digester := digest.SHA256.Digester()
	count := &countWriter{w: digester.Hash()}
	if err := writeProgram(ctx, count, p, names[1:]); err != nil {
		return Layer{}, err
	}
	l := Layer{
		Platform:   p.Platform,
		Descriptor: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digester.Digest(), Size: count.n},
		DiffID:     digester.Digest(),
		Names:      names,
	}
	s.add("", l.Descriptor, func() (io.ReadCloser, error) {
		return newPipe(func(w io.Writer) error { return writeProgram(ctx, w, p, names[1:]) }), nil
	})
	return l, nil
}

func checkBinName(name string) error {
	if name == "" {
		return errors.New("a BIN needs a name")
	}
	return (&spec.Agentfile{Name: name}).Validate()
}

func writeProgram(ctx context.Context, w io.Writer, p Program, links []string) error {
	r, err := p.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	tw := tar.NewWriter(w)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: p.Name, Mode: 0o755, Size: p.Size, Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	if _, err := io.Copy(tw, contextReader{ctx, r}); err != nil {
		return err
	}
	for _, link := range links {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: p.Name, Mode: 0o777, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
	}
	return tw.Close()
}

type countWriter struct {
	w io.Writer
	n int64
}

func (c *countWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// pipe runs a writer beside its reader; Close waits for it.
type pipe struct {
	*io.PipeReader
	done chan struct{}
}

func newPipe(write func(io.Writer) error) *pipe {
	r, w := io.Pipe()
	p := &pipe{PipeReader: r, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		w.CloseWithError(write(w))
	}()
	return p
}

func (p *pipe) Close() error {
	err := p.PipeReader.Close()
	<-p.done
	return err
}

// PackBin stores a BIN or RUNTIME image in target: an index with one manifest per platform, each an
// ordinary image that a container engine takes too. Images of the same Layers share them.
func PackBin(ctx context.Context, target oras.Target, b BinImage) (ocispec.Descriptor, error) {
	return packBin(ctx, target, b, new(stage))
}

// BuildBin stores a BIN image of programs, one per platform, in place of the Layers of b. Everything is
// read and checked before the first blob is stored.
func BuildBin(ctx context.Context, target oras.Target, b BinImage, programs []Program) (ocispec.Descriptor, error) {
	var parts stage
	b.Layers = nil
	for _, p := range programs {
		l, err := parts.layer(ctx, p)
		if err != nil {
			return ocispec.Descriptor{}, fmt.Errorf("pack %s: %s: %w", b.Name, platformString(p.Platform), err)
		}
		b.Layers = append(b.Layers, l)
	}
	return packBin(ctx, target, b, &parts)
}

func packBin(ctx context.Context, target oras.Target, b BinImage, parts *stage) (ocispec.Descriptor, error) {
	desc, err := b.stage(parts)
	if err == nil {
		err = parts.store(ctx, target)
	}
	if err == nil {
		err = tagAll(ctx, target, desc, b.Tags)
	}
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("pack %s: %w", b.Name, err)
	}
	return desc, nil
}

// stage adds the documents of the image.
func (b BinImage) stage(parts *stage) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	if err := b.check(); err != nil {
		return none, err
	}
	index := ocispec.Index{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageIndex,
		ArtifactType: ArtifactTypeBin,
		Annotations:  b.annotations(),
	}
	var usage *ocispec.Descriptor
	if b.Usage != "" {
		blob, err := usageLayer(b.Usage)
		if err != nil {
			return none, err
		}
		desc := parts.bytes("", ocispec.MediaTypeImageLayer, blob)
		usage = &desc
	}
	layers := slices.Clone(b.Layers)
	slices.SortFunc(layers, func(x, y Layer) int {
		return strings.Compare(platformString(x.Platform), platformString(y.Platform))
	})
	for _, l := range layers {
		desc, err := b.manifest(parts, l, usage)
		if err != nil {
			return none, err
		}
		index.Manifests = append(index.Manifests, desc)
	}
	desc, err := parts.document(ocispec.MediaTypeImageIndex, index, len(index.Manifests))
	desc.ArtifactType = ArtifactTypeBin
	return desc, err
}

func (b BinImage) check() error {
	if err := checkBinName(b.Name); err != nil {
		return err
	}
	if len(b.Usage) > maxUsage {
		return fmt.Errorf("the usage has %d bytes, more than %d: %w", len(b.Usage), maxUsage, ErrLimit)
	}
	if len(b.Layers) == 0 {
		return errors.New("it has no layer")
	}
	seen := map[string]bool{}
	for _, l := range b.Layers {
		p := platformString(l.Platform)
		switch {
		case l.Platform.OS == "" || l.Platform.Architecture == "":
			return errors.New("a layer has no platform")
		case seen[p]:
			return fmt.Errorf("two layers are for %s", p)
		case !slices.Contains(l.Names, b.Name):
			return fmt.Errorf("the layer for %s has no file %s", p, b.Name)
		}
		seen[p] = true
	}
	return nil
}

func (b BinImage) annotations() map[string]string {
	out := map[string]string{}
	for k, v := range b.Labels {
		out[k] = v
	}
	// Older tools know the other prefix alone.
	for _, prefix := range []string{binPrefix, binPrefixOlder} {
		out[prefix+"name"] = b.Name
		if b.Description != "" {
			out[prefix+"description"] = b.Description
		}
	}
	return out
}

func usageLayer(text string) ([]byte, error) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "USAGE.md", Mode: 0o644, Size: int64(len(text)), Format: tar.FormatUSTAR}); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(tw, text); err != nil {
		return nil, err
	}
	err := tw.Close()
	return buf.Bytes(), err
}

func (b BinImage) manifest(parts *stage, l Layer, usage *ocispec.Descriptor) (ocispec.Descriptor, error) {
	none := ocispec.Descriptor{}
	config := ocispec.Image{
		Platform: l.Platform,
		Config:   ocispec.ImageConfig{Entrypoint: []string{"/" + b.Name}, Labels: b.annotations()},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{l.DiffID}},
	}
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: ArtifactTypeBin,
		Layers:       []ocispec.Descriptor{l.Descriptor},
		Annotations:  b.annotations(),
	}
	if usage != nil {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, usage.Digest)
		m.Layers = append(m.Layers, *usage)
	}
	blob, err := json.Marshal(config)
	if err != nil {
		return none, err
	}
	m.Config = parts.bytes("", ocispec.MediaTypeImageConfig, blob)
	desc, err := parts.document(ocispec.MediaTypeImageManifest, m, len(m.Layers)+1)
	if err != nil {
		return none, err
	}
	// An entry of the index says no artifact type: skopeo 1.9 would write the index anew without it.
	platform := l.Platform
	desc.Platform = &platform
	return desc, nil
}

func platformString(p ocispec.Platform) string {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}
