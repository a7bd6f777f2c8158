package agentoci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	digest "github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/content/oci"

	"github.com/otters-sh/otters/spec"
)

// stores are the kinds of store that the tests run against.
func stores(t *testing.T) map[string]oras.Target {
	t.Helper()
	layout, err := oci.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]oras.Target{"memory": memory.New(), "layout": layout}
}

func pushBytes(ctx context.Context, target oras.Target, mediaType string, blob []byte) (ocispec.Descriptor, error) {
	var parts stage
	desc := parts.bytes("", mediaType, blob)
	return desc, parts.store(ctx, target)
}

func pushDocument(ctx context.Context, target oras.Target, mediaType string, v any) (ocispec.Descriptor, error) {
	var parts stage
	desc, err := parts.document(mediaType, v, 0)
	return desc, errors.Join(err, parts.store(ctx, target))
}

// in opens every reference in one store, under its identifier after its name.
func in(store oras.ReadOnlyTarget) Opener {
	return func(_ context.Context, ref spec.Reference) (oras.ReadOnlyTarget, string, error) {
		if ref.Digest != "" {
			return store, ref.Digest, nil
		}
		return store, ref.WithDefaultTag("latest").String(), nil
	}
}

// item is an entry of an archive with its text.
type item struct {
	*tar.Header
	text string
}

func file(name, text string) item {
	return item{&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o644}, text}
}

func dir(name string) item {
	return item{Header: &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func symlink(name, to string) item {
	return item{Header: &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}}
}

func hardlink(name, to string) item {
	return item{Header: &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o644}}
}

func special(kind byte, name string) item {
	return item{Header: &tar.Header{Typeflag: kind, Name: name, Mode: 0o644}}
}

func archive(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		if err := w.WriteHeader(i.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, i.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// blob is a layer of a hand-made image.
type blob struct {
	mediaType string
	data      []byte
	title     string
}

func tarLayer(data []byte) blob { return blob{mediaType: ocispec.MediaTypeImageLayer, data: data} }

// image stores a hand-made manifest and tags it.
func image(t testing.TB, store oras.Target, tag string, notes map[string]string, blobs ...blob) ocispec.Descriptor {
	t.Helper()
	ctx := t.Context()
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: ArtifactTypeBin, Annotations: notes}
	var err error
	if m.Config, err = pushBytes(ctx, store, ocispec.MediaTypeEmptyJSON, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs {
		desc, err := pushBytes(ctx, store, b.mediaType, b.data)
		if err != nil {
			t.Fatal(err)
		}
		if b.title != "" {
			desc.Annotations = map[string]string{ocispec.AnnotationTitle: b.title}
		}
		m.Layers = append(m.Layers, desc)
	}
	return manifest(t, store, tag, m)
}

func manifest(t testing.TB, store oras.Target, tag string, m ocispec.Manifest) ocispec.Descriptor {
	t.Helper()
	desc, err := pushDocument(t.Context(), store, m.MediaType, m)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Tag(t.Context(), desc, tag); err != nil {
		t.Fatal(err)
	}
	return desc
}

// lying answers one blob with other bytes.
type lying struct {
	oras.ReadOnlyTarget
	about digest.Digest
	bytes []byte
}

func (l lying) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if desc.Digest == l.about {
		return io.NopCloser(bytes.NewReader(l.bytes)), nil
	}
	return l.ReadOnlyTarget.Fetch(ctx, desc)
}

func wants(t *testing.T, name string, err, is error, text string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: it was taken", name)
	case is != nil && !errors.Is(err, is):
		t.Errorf("%s: %v is not %v", name, err, is)
	case !strings.Contains(err.Error(), text):
		t.Errorf("%s: %v does not say %q", name, err, text)
	}
}

func build(t testing.TB, store oras.Target, src string, opts BuildOptions) *BuildResult {
	t.Helper()
	r, err := Build(t.Context(), store, []byte(src), opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
