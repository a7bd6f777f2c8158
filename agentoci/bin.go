package agentoci

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"

	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/spec"
)

// BinOptions are how a BIN or RUNTIME image is read.
type BinOptions struct {
	// Platform is which of the image's programs is wanted; nil is the host's.
	Platform *ocispec.Platform
}

// Bin is a BIN or RUNTIME image for one platform, whose manifest was read and checked. It is for one
// goroutine; its layers are read when they are needed, and once.
type Bin struct {
	Name, Description string
	// Labels are the labels of the image's config and the annotations of manifest and index, of which
	// the nearest to the program wins.
	Labels map[string]string
	// Digest is what the reference resolved to: the index's where there is one.
	Digest digest.Digest
	// Manifest is the platform's.
	Manifest ocispec.Descriptor

	store  oras.ReadOnlyTarget
	binary string
	usage  string
	// usageTold tells that the image itself says where its usage text is.
	usageTold bool
	tree      tree
	markdown  []ocispec.Descriptor
}

// BinaryInfo says which bytes a binary is: those of Path in the layer. Images that share a layer have
// the same for the same program, so it is a key under which to keep what was unpacked.
type BinaryInfo struct {
	Layer digest.Digest
	Path  string
	Size  int64
}

// OpenBin reads the BIN or RUNTIME image that store calls ref. It is an error wrapping ErrNotBin for
// an image that names no program, ErrNoPlatform, with the platforms there are, for one without the
// platform's, and an errdef.ErrNotFound where there is none.
func OpenBin(ctx context.Context, store oras.ReadOnlyTarget, ref string, opts BinOptions) (*Bin, error) {
	b, err := openBin(ctx, store, ref, opts)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", ref, err)
	}
	return b, nil
}

func openBin(ctx context.Context, store oras.ReadOnlyTarget, ref string, opts BinOptions) (*Bin, error) {
	desc, err := store.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	want := ocispec.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}
	if opts.Platform != nil {
		want = *opts.Platform
	}
	b := &Bin{Digest: desc.Digest, Manifest: desc, store: store}
	var notes []map[string]string // nearest to the program first
	if isIndex(desc.MediaType) {
		var index ocispec.Index
		if err := fetchDocument(ctx, store, desc, &index); err != nil {
			return nil, fmt.Errorf("index: %w", err)
		}
		if b.Manifest, err = choose(index.Manifests, want); err != nil {
			return nil, err
		}
		notes = append(notes, b.Manifest.Annotations, index.Annotations)
	}
	if !isManifest(b.Manifest.MediaType) {
		return nil, fmt.Errorf("%w: its media type is %.100q", ErrNotBin, b.Manifest.MediaType)
	}
	var m ocispec.Manifest
	if err := fetchDocument(ctx, store, b.Manifest, &m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if m.ArtifactType == ArtifactTypeAgent || m.Config.MediaType == MediaTypeConfig {
		return nil, fmt.Errorf("%w: it is an agent", ErrNotBin)
	}
	labels, err := b.config(ctx, m.Config, want)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	notes = append([]map[string]string{m.Annotations}, append(notes, labels)...)
	return b, b.describe(m, notes)
}

// choose finds the manifest of a platform.
func choose(list []ocispec.Descriptor, want ocispec.Platform) (ocispec.Descriptor, error) {
	var have []string
	for _, d := range list {
		if d.Platform == nil {
			continue
		}
		if matches(*d.Platform, want) {
			return d, nil
		}
		if d.Platform.OS != "unknown" {
			have = append(have, printable(platformString(*d.Platform)))
		}
	}
	if len(have) == 0 {
		have = []string{"none"}
	}
	if len(have) > 20 {
		have = append(have[:20], "…")
	}
	return ocispec.Descriptor{}, fmt.Errorf("%w as %s; there is: %s", ErrNoPlatform, platformString(want), strings.Join(have, ", "))
}

func printable(s string) string { return strings.Trim(fmt.Sprintf("%.60q", s), `"`) }

func matches(have, want ocispec.Platform) bool {
	return have.OS == want.OS && have.Architecture == want.Architecture && (want.Variant == "" || have.Variant == want.Variant)
}

// config reads the labels of an ordinary image's config. An artifact's says nothing.
func (b *Bin) config(ctx context.Context, desc ocispec.Descriptor, want ocispec.Platform) (map[string]string, error) {
	if desc.MediaType != ocispec.MediaTypeImageConfig && desc.MediaType != "application/vnd.docker.container.image.v1+json" {
		return nil, nil
	}
	blob, err := fetchAll(ctx, b.store, desc, maxManifest)
	if err != nil {
		return nil, err
	}
	var image ocispec.Image
	if err := json.Unmarshal(blob, &image); err != nil {
		return nil, err
	}
	if image.OS != "" && image.Architecture != "" && !matches(image.Platform, want) {
		return nil, fmt.Errorf("%w as %s; there is: %s", ErrNoPlatform, platformString(want), printable(platformString(image.Platform)))
	}
	return image.Config.Labels, nil
}

func (b *Bin) describe(m ocispec.Manifest, notes []map[string]string) error {
	b.Labels = map[string]string{}
	for _, n := range slices.Backward(notes) {
		maps.Copy(b.Labels, n)
	}
	note := func(key string) string {
		for _, prefix := range []string{binPrefix, binPrefixOlder} {
			if v := b.Labels[prefix+key]; v != "" {
				return v
			}
		}
		return ""
	}
	b.Name, b.Description = note("name"), note("description")
	if b.Name == "" {
		return fmt.Errorf("%w: it has no annotation %sname", ErrNotBin, binPrefix)
	}
	if err := checkBinName(b.Name); err != nil {
		return fmt.Errorf("%w: annotation %sname: %w", ErrNotBin, binPrefix, err)
	}
	b.binary = path.Join("/", note("path"), b.Name)
	b.usage = note("usage")
	b.usageTold = b.usage != ""
	if !b.usageTold {
		b.usage = "/USAGE.md"
	}
	b.usage = path.Join("/", b.usage)
	b.tree = tree{store: b.store, budget: newBudget()}
	if len(m.Layers) > maxLayers {
		return fmt.Errorf("%d layers, more than %d: %w", len(m.Layers), maxLayers, ErrLimit)
	}
	for _, l := range m.Layers {
		if err := checkDescriptor(l, maxUnpacked); err != nil {
			return fmt.Errorf("layer: %w", err)
		}
		switch {
		case compression(l.MediaType) != "":
			b.tree.layers = append(b.tree.layers, l)
		case l.MediaType == MediaTypeMarkdown:
			b.markdown = append(b.markdown, l)
		default:
			b.tree.skipped = append(b.tree.skipped, l.MediaType)
		}
	}
	return nil
}

// Binary finds the binary without reading it out.
func (b *Bin) Binary(ctx context.Context) (BinaryInfo, error) {
	e, err := b.tree.find(ctx, b.binary)
	if err != nil {
		return BinaryInfo{}, fmt.Errorf("%s: binary %s: %w", b.Name, b.binary, err)
	}
	return BinaryInfo{Layer: b.tree.layers[e.layer].Digest, Path: "/" + e.path, Size: e.size}, nil
}

// WriteBinary writes the binary to w. What was written may be used only when the error is nil.
func (b *Bin) WriteBinary(ctx context.Context, w io.Writer) error {
	e, err := b.tree.find(ctx, b.binary)
	if err == nil {
		err = b.tree.write(ctx, e, w)
	}
	if err != nil {
		return fmt.Errorf("%s: binary %s: %w", b.Name, b.binary, err)
	}
	return nil
}

// NewPuller is a Puller over the images that open finds; it remembers nothing.
func NewPuller(open Opener, opts BinOptions) Puller {
	return func(ctx context.Context, ref spec.Reference, w io.Writer) error {
		return NewPrograms(open, opts).Pull(ctx, ref, w)
	}
}

// NewUsageFetcher is a UsageFetcher over the images that open finds.
func NewUsageFetcher(open Opener, opts BinOptions) UsageFetcher {
	return func(ctx context.Context, ref spec.Reference) (string, error) {
		return NewPrograms(open, opts).Usage(ctx, ref)
	}
}

// NewLabelReader is a LabelReader over the images that open finds.
func NewLabelReader(open Opener, opts BinOptions) LabelReader {
	return func(ctx context.Context, ref spec.Reference) (map[string]string, error) {
		return NewPrograms(open, opts).Labels(ctx, ref)
	}
}
