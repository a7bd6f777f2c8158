package agentoci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/memory"
)

// Invariant: an image layout is believed only when every blob of every image is what it says; what is
// written is read back with the same digests.

func layoutOf(t testing.TB) ([]byte, ocispec.Descriptor) {
	t.Helper()
	store := memory.New()
	folder := fstest.MapFS{"a.txt": {Data: []byte("a file")}}
	b := build(t, store, "FROM scratch\nNAME a\nADD a.txt\nCONTEXT C <<E\ntext\nE\n", BuildOptions{Folder: folder, Tags: []string{"a:1"}})
	var out bytes.Buffer
	if err := WriteLayout(t.Context(), &out, store, []LayoutImage{{"a:1", b.Descriptor}, {"b:2", b.Descriptor}}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), b.Descriptor
}

func openLayout(ctx context.Context, data []byte) (*Layout, error) {
	files, err := ReadArchive(ctx, bytes.NewReader(data), ArchiveOptions{MaxBytes: 1 << 20, MaxEntries: 100})
	if err != nil {
		return nil, err
	}
	defer files.Close()
	l, err := OpenLayout(ctx, files, nil)
	if err != nil {
		return nil, err
	}
	return l, l.CopyTo(ctx, memory.New())
}

func TestLayoutIsReadBack(t *testing.T) {
	t.Parallel()
	data, desc := layoutOf(t)
	files, err := ReadArchive(t.Context(), bytes.NewReader(data), ArchiveOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	l, err := OpenLayout(t.Context(), files, nil)
	if err != nil || len(l.Images) != 2 || l.Images[0].Name != "a:1" || l.Images[1].Name != "b:2" || l.Images[1].Descriptor.Digest != desc.Digest {
		t.Fatalf("%+v %v", l, err)
	}
	to := memory.New()
	if err := l.CopyTo(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if err := to.Tag(t.Context(), l.Images[0].Descriptor, "a"); err != nil {
		t.Fatal(err)
	}
	if img, err := Load(t.Context(), to, "a"); err != nil || img.Agentfile.Contexts[0].Content != "text\n" {
		t.Fatal(img, err)
	}
	if n := bytes.Count(data, []byte("a file")); n != 1 {
		t.Errorf("a blob is there %d times", n)
	}
}

func TestLayoutRefuses(t *testing.T) {
	t.Parallel()
	manifest := []byte(`{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageManifest + `","config":` + jsonOf(t, describe(MediaTypeConfig, []byte("{}"))) + `,"layers":[]}`)
	both := []byte(`{"schemaVersion":2,"manifests":[],"layers":[]}`)
	index := func(d ...ocispec.Descriptor) string {
		return jsonOf(t, ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: d})
	}
	blobs := func(list ...[]byte) fstest.MapFS {
		out := fstest.MapFS{ocispec.ImageLayoutFile: {Data: []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
		for _, b := range list {
			out[blobPath(describe("", b))] = &fstest.MapFile{Data: b}
		}
		return out
	}
	huge := describe(ocispec.MediaTypeImageManifest, manifest)
	huge.Size = maxManifest + 1
	short := describe(ocispec.MediaTypeImageManifest, manifest)
	short.Size--
	for _, c := range []struct {
		name, index, want string
		files             fstest.MapFS
	}{
		{"no index", "", "there is no index.json", blobs()},
		{"no image", index(), "it has no image", blobs()},
		{"an image that is not there", index(describe(ocispec.MediaTypeImageManifest, manifest)), "not in the archive", blobs()},
		{"a part that is not there", index(describe(ocispec.MediaTypeImageManifest, manifest)), "not in the archive", blobs(manifest)},
		{"no image's type", index(describe("text/plain", manifest)), "that of no image", blobs(manifest)},
		{"P9 a manifest over its bound", index(huge), "over the limit", blobs(manifest)},
		{"another size", index(short), "", blobs(manifest, []byte("{}"))},
		{"an index and a manifest in one", index(describe(ocispec.MediaTypeImageManifest, both)), "parts of the other kind", blobs(both)},
		{"a digest that leaves", index(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: "sha256:../../etc/passwd", Size: 1}), "digest", blobs()},
	} {
		if c.index != "" {
			c.files[ocispec.ImageIndexFile] = &fstest.MapFile{Data: []byte(c.index)}
		}
		if _, err := OpenLayout(t.Context(), c.files, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
	good := blobs(manifest, []byte("{}"))
	good[ocispec.ImageIndexFile] = &fstest.MapFile{Data: []byte(index(describe(ocispec.MediaTypeImageManifest, manifest)))}
	if _, err := OpenLayout(t.Context(), good, nil); err != nil {
		t.Errorf("the allowed twin: %v", err)
	}
	deep := blobs()
	d := ocispec.Descriptor{}
	for range maxIndexes + 2 {
		var list []ocispec.Descriptor
		if d.Digest != "" {
			list = append(list, d)
		}
		b, err := json.Marshal(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: list})
		if err != nil {
			t.Fatal(err)
		}
		d = describe(ocispec.MediaTypeImageIndex, b)
		deep[blobPath(d)] = &fstest.MapFile{Data: b}
	}
	deep[ocispec.ImageIndexFile] = &fstest.MapFile{Data: []byte(index(d))}
	if _, err := OpenLayout(t.Context(), deep, nil); !errors.Is(err, ErrLimit) {
		t.Errorf("indexes in indexes: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OpenLayout(gone, good, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzLayout(f *testing.F) {
	data, _ := layoutOf(f)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := openLayout(t.Context(), data)
		if err == nil && len(l.Images) == 0 {
			t.Fatal("a layout without an image")
		}
	})
}

func TestCheckStatic(t *testing.T) {
	t.Parallel()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other := "s390x"
	if runtime.GOARCH == other {
		other = "arm64"
	}
	if err := CheckStatic(f, ocispec.Platform{OS: "linux", Architecture: other}); err == nil || !strings.Contains(err.Error(), "give the one for linux/"+other) {
		t.Error(err)
	}
	script := strings.NewReader("#!/bin/sh\n")
	if err := CheckStatic(script, ocispec.Platform{OS: "linux", Architecture: "amd64"}); err == nil || !strings.Contains(err.Error(), "no ELF program") {
		t.Error(err)
	}
	if err := CheckStatic(script, ocispec.Platform{OS: "windows", Architecture: "amd64"}); err != nil {
		t.Error(err)
	}
}
