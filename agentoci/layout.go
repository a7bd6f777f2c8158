package agentoci

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
)

const (
	// annotationImageName is where other tools note an image's whole name beside ref.name.
	annotationImageName = "io.containerd.image.name"
	// maxParts and maxIndexes bound the graph of an image: its blobs, and indexes in indexes.
	maxParts   = 100_000
	maxIndexes = 10
)

// LayoutImage is an image of an OCI image layout. Name is empty where the layout names none.
type LayoutImage struct {
	Name       string
	Descriptor ocispec.Descriptor
}

// WriteLayout writes images of store as a tar archive of an OCI image layout. The same images give
// the same bytes. Each blob is there once and was checked when err is nil.
func WriteLayout(ctx context.Context, w io.Writer, store content.Fetcher, images []LayoutImage) error {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	var roots []ocispec.Descriptor
	for _, i := range images {
		d := i.Descriptor
		d.Annotations = maps.Clone(d.Annotations)
		if d.Annotations == nil {
			d.Annotations = map[string]string{}
		}
		d.Annotations[ocispec.AnnotationRefName] = i.Name
		d.Annotations[annotationImageName] = i.Name
		index.Manifests = append(index.Manifests, d)
		roots = append(roots, i.Descriptor)
	}
	var parts []ocispec.Descriptor
	if err := walk(ctx, store, roots, func(d ocispec.Descriptor) error { parts = append(parts, d); return nil }); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	indexBlob, err := json.Marshal(index)
	if err != nil {
		return err
	}
	layoutBlob, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	file := func(name string, size int64, r io.Reader) error {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	}
	if err := file(ocispec.ImageLayoutFile, int64(len(layoutBlob)), bytes.NewReader(layoutBlob)); err != nil {
		return err
	}
	if err := file(ocispec.ImageIndexFile, int64(len(indexBlob)), bytes.NewReader(indexBlob)); err != nil {
		return err
	}
	written := map[string]bool{}
	for _, d := range parts {
		name := blobPath(d)
		if written[name] {
			continue
		}
		written[name] = true
		r, err := fetch(ctx, store, d, maxBlob)
		if err != nil {
			return fmt.Errorf("save: %w", err)
		}
		err = file(name, d.Size, r)
		if err := errors.Join(err, r.Close()); err != nil {
			return fmt.Errorf("save: %s: %w", d.Digest, err)
		}
	}
	return tw.Close()
}

func blobPath(d ocispec.Descriptor) string {
	return path.Join(ocispec.ImageBlobsDir, d.Digest.Algorithm().String(), d.Digest.Encoded())
}

// Layout is an OCI image layout in a folder, all of whose images were read and checked.
type Layout struct {
	Images []LayoutImage

	files fs.FS
}

// OpenLayout reads the OCI image layout in files, such as an *Archive, and checks every blob of every
// image against its digest, and every manifest and index with check, which may be nil: what the store
// that they are for has to say of them. What is over a bound is ErrLimit.
func OpenLayout(ctx context.Context, files fs.FS, check func(desc ocispec.Descriptor, data []byte) error) (*Layout, error) {
	l := &Layout{files: files}
	if err := l.open(ctx, check); err != nil {
		return nil, fmt.Errorf("image layout: %w", err)
	}
	return l, nil
}

func (l *Layout) open(ctx context.Context, check func(ocispec.Descriptor, []byte) error) error {
	var version ocispec.ImageLayout
	if err := l.document(ctx, ocispec.ImageLayoutFile, &version); err != nil {
		return err
	}
	if version.Version != ocispec.ImageLayoutVersion {
		return fmt.Errorf("%s: version %.40q is not known here; %s is", ocispec.ImageLayoutFile, version.Version, ocispec.ImageLayoutVersion)
	}
	var index ocispec.Index
	if err := l.document(ctx, ocispec.ImageIndexFile, &index); err != nil {
		return err
	}
	if len(index.Manifests) == 0 {
		return errors.New("it has no image")
	}
	var roots []ocispec.Descriptor
	for _, d := range index.Manifests {
		if !isIndex(d.MediaType) && !isManifest(d.MediaType) {
			return fmt.Errorf("%.100q: its media type %.100q is that of no image", string(d.Digest), d.MediaType)
		}
		name := d.Annotations[annotationImageName]
		if name == "" {
			name = d.Annotations[ocispec.AnnotationRefName]
		}
		d.Annotations, d.Platform, d.Data, d.URLs = nil, nil, nil, nil
		l.Images = append(l.Images, LayoutImage{Name: name, Descriptor: d})
		roots = append(roots, d)
	}
	return walk(ctx, l, roots, func(d ocispec.Descriptor) error {
		if isDocument(d.MediaType) && check != nil {
			data, err := fetchAll(ctx, l, d, maxManifest)
			if err != nil {
				return err
			}
			return check(d, data)
		}
		r, err := fetch(ctx, l, d, maxBlob)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r)
		return errors.Join(err, r.Close())
	})
}

func (l *Layout) document(ctx context.Context, name string, v any) error {
	f, err := l.files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no %s: it is no archive of images", name)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(newLimitReader(contextReader{ctx, f}, maxManifest))
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Fetch opens a blob; it is the caller's to check it.
func (l *Layout) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %.100q: %w", string(d.Digest), err)
	}
	f, err := l.files.Open(blobPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: it is not in the archive: %w", d.Digest, errdef.ErrNotFound)
	}
	return f, err
}

// CopyTo stores all images in target, and tags none.
func (l *Layout) CopyTo(ctx context.Context, target oras.Target) error {
	var roots []ocispec.Descriptor
	for _, i := range l.Images {
		roots = append(roots, i.Descriptor)
	}
	return walk(ctx, l, roots, func(d ocispec.Descriptor) error {
		return push(ctx, target, d, func() (io.ReadCloser, error) { return fetch(ctx, l, d, maxBlob) })
	})
}

// walk visits all parts of images, each once, and a manifest after its parts.
func walk(ctx context.Context, store content.Fetcher, roots []ocispec.Descriptor, visit func(ocispec.Descriptor) error) error {
	type part struct {
		digest   string
		manifest bool
	}
	seen := map[part]bool{}
	sizes := map[string]int64{}
	var node func(d ocispec.Descriptor, depth int) error
	node = func(d ocispec.Descriptor, depth int) error {
		if size, ok := sizes[string(d.Digest)]; ok && size != d.Size {
			return fmt.Errorf("%.100q: it has %d bytes in one place and %d in another", string(d.Digest), size, d.Size)
		}
		sizes[string(d.Digest)] = d.Size
		manifest := isDocument(d.MediaType)
		key := part{string(d.Digest), manifest}
		if seen[key] {
			return nil
		}
		seen[key] = true
		if len(seen) > maxParts {
			return fmt.Errorf("more than %d parts: %w", maxParts, ErrLimit)
		}
		if manifest {
			if depth > maxIndexes {
				return fmt.Errorf("indexes in indexes more than %d deep: %w", maxIndexes, ErrLimit)
			}
			if err := checkDescriptor(d, maxManifest); err != nil {
				return err
			}
			// The document is read twice, here for the checks that successors lack.
			if err := fetchDocument(ctx, store, d, new(document)); err != nil {
				return err
			}
			parts, err := content.Successors(ctx, store, d)
			if err != nil {
				return err
			}
			for _, p := range parts {
				if err := node(p, depth+1); err != nil {
					return err
				}
			}
		}
		if err := checkDescriptor(d, maxBlob); err != nil {
			return err
		}
		return visit(d)
	}
	for _, r := range roots {
		if err := node(r, 0); err != nil {
			return err
		}
	}
	return nil
}
