package agentoci

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/spec"
)

// Invariant: what WriteBinary and Usage give lies in a layer whose digest is right and that the image
// shows, and in no other place. The three worst inputs: a symlink out of the image, a layer that
// unpacks to everything, a blob that is another one than its digest says.

var (
	amd64 = ocispec.Platform{OS: "linux", Architecture: "amd64"}
	arm64 = ocispec.Platform{OS: "linux", Architecture: "arm64"}
)

func program(p ocispec.Platform, text string, links ...string) Program {
	return Program{Platform: p, Name: "multi", Links: links, Size: int64(len(text)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(text)), nil
	}}
}

func packIndex(t testing.TB, store oras.Target, tag string) (ocispec.Descriptor, error) {
	t.Helper()
	l, err := PackLayer(t.Context(), store, program(amd64, "binary", "cat"))
	if err != nil {
		t.Fatal(err)
	}
	return PackBin(t.Context(), store, BinImage{Name: "cat", Layers: []Layer{l}, Tags: []string{tag}})
}

func TestPackBinSharesALayerAndIsDeterministic(t *testing.T) {
	t.Parallel()
	var digests [][2]string
	for kind, store := range stores(t) {
		var layers []Layer
		for _, p := range []Program{program(arm64, "arm binary", "wc", "cat"), program(amd64, "amd binary", "cat", "wc")} {
			l, err := PackLayer(t.Context(), store, p)
			if err != nil {
				t.Fatal(kind, err)
			}
			layers = append(layers, l)
		}
		var d [2]string
		for i, name := range []string{"cat", "wc"} {
			desc, err := PackBin(t.Context(), store, BinImage{
				Name: name, Description: "reads", Usage: name + " FILE\n", Layers: layers, Tags: []string{name + ":latest"},
				Labels: map[string]string{AnnotationListener: "inherit"},
			})
			if err != nil {
				t.Fatal(kind, err)
			}
			d[i] = desc.Digest.String()
		}
		digests = append(digests, d)
		var infos []BinaryInfo
		for i, name := range []string{"cat", "wc"} {
			b, err := OpenBin(t.Context(), store, name+":latest", BinOptions{Platform: &amd64})
			if err != nil {
				t.Fatal(kind, err)
			}
			if b.Name != name || b.Description != "reads" || b.Labels[AnnotationListener] != "inherit" || b.Digest.String() != d[i] {
				t.Errorf("%s: %+v", kind, b)
			}
			if usage, err := b.Usage(t.Context()); err != nil || usage != name+" FILE\n" {
				t.Errorf("%s: %q %v", kind, usage, err)
			}
			if b.tree.read != 1 {
				t.Errorf("%s: %d layers were read for the usage", kind, b.tree.read)
			}
			var out bytes.Buffer
			if err := b.WriteBinary(t.Context(), &out); err != nil || out.String() != "amd binary" {
				t.Errorf("%s: %q %v", kind, out.String(), err)
			}
			info, err := b.Binary(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			infos = append(infos, info)
		}
		if infos[0] != infos[1] || infos[0].Layer != layers[1].Descriptor.Digest || infos[0].Path != "/multi" || infos[0].Size != 10 {
			t.Errorf("%s: the two are not the same bytes: %+v", kind, infos)
		}
		b, err := OpenBin(t.Context(), store, "cat:latest", BinOptions{Platform: &arm64})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := b.WriteBinary(t.Context(), &out); err != nil || out.String() != "arm binary" {
			t.Errorf("%s: %q %v", kind, out.String(), err)
		}
		_, err = OpenBin(t.Context(), store, "cat:latest", BinOptions{Platform: &ocispec.Platform{OS: "plan9", Architecture: "386"}})
		wants(t, kind, err, ErrNoPlatform, "plan9/386; there is: linux/amd64, linux/arm64")
	}
	if !cmp.Equal(digests[0], digests[1]) {
		t.Error(digests)
	}
}

func TestPackRefuses(t *testing.T) {
	t.Parallel()
	store := memory.New()
	good := program(amd64, "binary", "cat")
	for name, change := range map[string]func(*Program){
		"a size that is too small": func(p *Program) { p.Size-- },
		"a size that is too large": func(p *Program) { p.Size++ },
		"a name that leads out":    func(p *Program) { p.Links = []string{"../cat"} },
		"a name twice":             func(p *Program) { p.Links = []string{"multi"} },
		"no name":                  func(p *Program) { p.Name = "" },
		"a program that is gone":   func(p *Program) { p.Open = func() (io.ReadCloser, error) { return nil, errors.New("gone") } },
		"a program that changes": func(p *Program) {
			n := 0
			p.Open = func() (io.ReadCloser, error) {
				n++
				return io.NopCloser(strings.NewReader(fmt.Sprintf("binar%d", n))), nil
			}
		},
	} {
		p := good
		change(&p)
		if _, err := PackLayer(t.Context(), store, p); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
	l, err := PackLayer(t.Context(), store, good)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]BinImage{
		"no layer":              {Name: "cat"},
		"a file it has not":     {Name: "wc", Layers: []Layer{l}},
		"two for one platform":  {Name: "cat", Layers: []Layer{l, l}},
		"a name that leads out": {Name: "..", Layers: []Layer{l}},
	} {
		if _, err := PackBin(t.Context(), store, b); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
}

func named(more ...string) map[string]string {
	notes := map[string]string{"io.openotters.bin.name": "tool"}
	for i := 0; i < len(more); i += 2 {
		notes[more[i]] = more[i+1]
	}
	return notes
}

func readBin(t *testing.T, store oras.ReadOnlyTarget, tag string) (binary, usage string, err error) {
	t.Helper()
	b, err := OpenBin(t.Context(), store, tag, BinOptions{})
	if err != nil {
		return "", "", err
	}
	var out bytes.Buffer
	if err = b.WriteBinary(t.Context(), &out); err == nil {
		usage, err = b.Usage(t.Context())
	}
	return out.String(), usage, err
}

func TestOpenBinReadsOrdinaryImages(t *testing.T) {
	t.Parallel()
	gz, zs := ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd
	tool := archive(t, file("tool", "bytes"))
	for name, tc := range map[string]struct {
		notes  map[string]string
		layers []blob
		usage  string
	}{
		"a plain layer":                           {named(), []blob{tarLayer(tool)}, ""},
		"a gzip layer":                            {named(), []blob{{mediaType: gz, data: gzipped(t, tool)}}, ""},
		"a zstd layer":                            {named(), []blob{{mediaType: zs, data: zstded(t, tool)}}, ""},
		"a docker layer":                          {named(), []blob{{mediaType: "application/vnd.docker.image.rootfs.diff.tar.gzip", data: gzipped(t, tool)}}, ""},
		"the older prefix":                        {map[string]string{"vnd.openotters.bin.name": "tool"}, []blob{tarLayer(tool)}, ""},
		"the newer prefix wins":                   {named("vnd.openotters.bin.name", "other"), []blob{tarLayer(tool)}, ""},
		"a path":                                  {named("io.openotters.bin.path", "/usr/bin/"), []blob{tarLayer(archive(t, file("usr/bin/tool", "bytes")))}, ""},
		"an absolute name in the layer":           {named(), []blob{tarLayer(archive(t, file("/tool", "bytes")))}, ""},
		"a usage file":                            {named(), []blob{tarLayer(archive(t, file("tool", "bytes"), file("USAGE.md", "how")))}, "how"},
		"a usage file elsewhere":                  {named("vnd.openotters.bin.usage", "doc/u.md"), []blob{tarLayer(archive(t, file("tool", "bytes"), file("doc/u.md", "how")))}, "how"},
		"a usage layer":                           {named(), []blob{tarLayer(tool), {MediaTypeMarkdown, []byte("how"), "/USAGE.md"}}, "how"},
		"the last layer wins":                     {named(), []blob{tarLayer(archive(t, file("tool", "old"))), {mediaType: gz, data: gzipped(t, tool)}}, ""},
		"a lower layer":                           {named(), []blob{tarLayer(tool), tarLayer(archive(t, file("other", "x")))}, ""},
		"a symlink inside":                        {named(), []blob{tarLayer(archive(t, symlink("tool", "/b/link"), symlink("b", "usr/bin"), symlink("usr/bin/link", "../../real"), file("real", "bytes")))}, ""},
		"a symlink to a lower layer":              {named(), []blob{tarLayer(archive(t, file("real", "bytes"))), tarLayer(archive(t, symlink("tool", "real")))}, ""},
		"P4 a symlink above the root stays in it": {named(), []blob{tarLayer(archive(t, symlink("tool", "../../../real"), file("real", "bytes")))}, ""},
		"P3 a hard link":                          {named(), []blob{tarLayer(archive(t, file("real", "bytes"), hardlink("tool", "real")))}, ""},
		"P5 only the bytes of a set-user-id file": {named(), []blob{tarLayer(archive(t, item{&tar.Header{Typeflag: tar.TypeReg, Name: "tool", Size: 5, Mode: 0o6755}, "bytes"}))}, ""},
		"P5 a device beside it":                   {named(), []blob{tarLayer(archive(t, special(tar.TypeChar, "dev/null"), file("tool", "bytes")))}, ""},
		"P8 a whiteout beside it":                 {named(), []blob{tarLayer(archive(t, file("tool", "bytes"), file("x", "y"))), tarLayer(archive(t, file(".wh.x", "")))}, ""},
		"P8 a whiteout below it":                  {named(), []blob{tarLayer(archive(t, file("tool", "old"))), tarLayer(archive(t, file(".wh.tool", ""), file("tool", "bytes")))}, ""},
		"P8 an opaque folder with it inside":      {named("io.openotters.bin.path", "b"), []blob{tarLayer(archive(t, file("b/tool", "old"))), tarLayer(archive(t, file("b/.wh..wh..opq", ""), file("b/tool", "bytes")))}, ""},
	} {
		for kind, store := range stores(t) {
			image(t, store, "x", tc.notes, tc.layers...)
			binary, usage, err := readBin(t, store, "x")
			if err != nil || binary != "bytes" || usage != tc.usage {
				t.Errorf("%s (%s): %q %q %v", name, kind, binary, usage, err)
			}
		}
	}
}

func TestOpenBinRefuses(t *testing.T) {
	t.Parallel()
	tool := file("tool", "bytes")
	layer := func(items ...item) []blob { return []blob{tarLayer(archive(t, items...))} }
	for name, tc := range map[string]struct {
		notes  map[string]string
		layers []blob
		is     error
		want   string
	}{
		"no name":                             {map[string]string{}, layer(tool), ErrNotBin, "no annotation io.openotters.bin.name"},
		"a name that leads out":               {map[string]string{"io.openotters.bin.name": "../tool"}, layer(tool), ErrNotBin, "is not a name"},
		"no such file":                        {named(), layer(file("other", "x")), errAbsent, "binary /tool: it is not in the image"},
		"a layer of another kind":             {named(), []blob{{mediaType: MediaTypeFile, data: []byte("bytes")}}, errAbsent, `"application/octet-stream" were not looked into`},
		"a layer that is no archive":          {named(), []blob{tarLayer([]byte(strings.Repeat("no tar ", 200)))}, tar.ErrHeader, "layer 0"},
		"a gzip layer that is none":           {named(), []blob{{mediaType: ocispec.MediaTypeImageLayerGzip, data: archive(t, tool)}}, nil, "layer 0"},
		"a usage that the image says it has":  {named("io.openotters.bin.usage", "/u.md"), layer(tool), errAbsent, "usage /u.md"},
		"a usage that is not text":            {named(), layer(tool, file("USAGE.md", "\xff")), nil, "not UTF-8"},
		"a usage over its limit":              {named(), layer(tool, file("USAGE.md", strings.Repeat("x", maxUsage+1))), ErrLimit, "1048577 bytes"},
		"P1 a name that goes up":              {named(), layer(tool, file("../x", "y")), ErrUnsafe, ".."},
		"P2 a file through a symlink":         {named("io.openotters.bin.path", "a"), layer(symlink("a", "/etc"), file("a/tool", "y")), ErrUnsafe, `lies below "a"`},
		"P2 the same, the other way round":    {named("io.openotters.bin.path", "a"), layer(file("a/tool", "y"), symlink("a", "/etc")), ErrUnsafe, `lies below "a"`},
		"P3 a hard link to outside":           {named(), layer(hardlink("tool", "../etc/passwd")), ErrUnsafe, "hard link out"},
		"P3 a hard link to what is not there": {named(), layer(hardlink("tool", "/etc/passwd")), ErrUnsafe, "a hard link and no regular file"},
		"P4 a symlink out":                    {named(), layer(symlink("tool", "/etc/passwd")), errAbsent, "not in the image"},
		"P4 symlinks in a circle":             {named(), layer(symlink("tool", "b"), symlink("b", "tool")), ErrUnsafe, "circle"},
		"P4 an empty name":                    {named(), layer(item{Header: &tar.Header{Typeflag: tar.TypeReg}}), ErrUnsafe, "no name"},
		"P5 a device":                         {named(), layer(special(tar.TypeBlock, "tool")), ErrUnsafe, "a device and no regular file"},
		"P5 a FIFO":                           {named(), layer(special(tar.TypeFifo, "tool")), ErrUnsafe, "a FIFO"},
		"P5 a folder":                         {named(), layer(dir("tool")), ErrUnsafe, "a folder"},
		"P6 the same file twice":              {named(), layer(tool, file("./tool", "other")), ErrUnsafe, "twice"},
		"P8 a whiteout of the folder above":   {named(), layer(tool, file("a/.wh...", "")), ErrUnsafe, "whiteout"},
		"P8 a whiteout of its own folder":     {named(), layer(tool, file("a/.wh..", "")), ErrUnsafe, "whiteout"},
		"P8 a whiteout without a name":        {named(), layer(tool, file(".wh.", "")), ErrUnsafe, "whiteout"},
		"P8 a whiteout of it":                 {named(), append(layer(tool), tarLayer(archive(t, file(".wh.tool", "")))), errAbsent, "not in the image"},
		"P8 a whiteout of its folder":         {named("io.openotters.bin.path", "a/b"), append(layer(file("a/b/tool", "x")), tarLayer(archive(t, file(".wh.a", "")))), errAbsent, "not in the image"},
		"P8 an opaque folder":                 {named("io.openotters.bin.path", "a/b"), append(layer(file("a/b/tool", "x")), tarLayer(archive(t, file("a/.wh..wh..opq", "")))), errAbsent, "not in the image"},
		"P8 a folder that became a file":      {named("io.openotters.bin.path", "a"), append(layer(file("a/tool", "x")), tarLayer(archive(t, file("a", "")))), errAbsent, "not in the image"},
	} {
		store := memory.New()
		image(t, store, "x", tc.notes, tc.layers...)
		_, _, err := readBin(t, store, "x")
		wants(t, name, err, tc.is, tc.want)
	}
}

func TestOpenBinP9IsBounded(t *testing.T) {
	t.Parallel()
	store := memory.New()
	image(t, store, "x", named(), blob{mediaType: ocispec.MediaTypeImageLayerGzip, data: gzipped(t, archive(t, file("tool", "bytes"), file("zeros", strings.Repeat("\x00", 1<<20))))})
	for name, tc := range map[string]struct {
		budget budget
		want   string
	}{
		"bytes":   {budget{1 << 20, 2, 100}, "unpack to more than"},
		"entries": {budget{2 << 20, 1, 100}, "entries"},
		"names":   {budget{2 << 20, 2, 8}, "names of more than"},
		"":        {budget{2 << 20, 2, 9}, ""},
	} {
		b, err := OpenBin(t.Context(), store, "x", BinOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.tree.budget = &tc.budget
		err = b.WriteBinary(t.Context(), io.Discard)
		if name == "" {
			if err != nil {
				t.Error("within the budget:", err)
			}
			continue
		}
		wants(t, name, err, ErrLimit, tc.want)
	}

	// A sparse file says that it is larger than any bound, in a layer of a few blocks.
	for size, is := range map[string]error{"4611686018427387904": ErrLimit, "5": nil} {
		sparse := archive(t, item{&tar.Header{Typeflag: tar.TypeReg, Name: "tool", Size: 5, Format: tar.FormatPAX, PAXRecords: map[string]string{
			"GNX.sparse.size": size, "GNX.sparse.numblocks": "1", "GNX.sparse.map": "0,5",
		}}, "bytes"})
		image(t, store, "sparse", named(), tarLayer(bytes.ReplaceAll(sparse, []byte("GNX."), []byte("GNU."))))
		if _, _, err := readBin(t, store, "sparse"); !errors.Is(err, is) {
			t.Errorf("a sparse file of %s bytes: %v", size, err)
		}
	}

	// A frame may ask for a window of gigabytes, which the reader would have to keep.
	for window, is := range map[int]error{8 << 20: nil, 64 << 20: zstd.ErrWindowSizeExceeded} {
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithSingleSegment(false))
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(archive(t, file("tool", "bytes")))
		if err := errors.Join(err, w.Flush(), w.Close()); err != nil {
			t.Fatal(err)
		}
		image(t, store, "window", named(), blob{mediaType: ocispec.MediaTypeImageLayerZstd, data: b.Bytes()})
		if _, _, err := readBin(t, store, "window"); !errors.Is(err, is) {
			t.Errorf("a window of %d bytes: %v", window, err)
		}
	}
	for n, is := range map[int]error{maxLayers: nil, maxLayers + 1: ErrLimit} {
		layers := make([]blob, n)
		for i := range layers {
			layers[i] = tarLayer(archive(t))
		}
		layers[0] = tarLayer(archive(t, file("tool", "bytes")))
		image(t, store, "layers", named(), layers...)
		if _, _, err := readBin(t, store, "layers"); !errors.Is(err, is) {
			t.Errorf("%d layers: %v", n, err)
		}
	}

	// What a descriptor claims is looked at before it is fetched.
	var m ocispec.Manifest
	good, err := OpenBin(t.Context(), store, "x", BinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := fetchDocument(t.Context(), store, good.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*ocispec.Descriptor){
		"a huge layer":         func(d *ocispec.Descriptor) { d.Size = 1 << 60 },
		"a negative size":      func(d *ocispec.Descriptor) { d.Size = -1 },
		"an unknown algorithm": func(d *ocispec.Descriptor) { d.Digest = "md5:0123456789abcdef0123456789abcdef" },
		"no digest":            func(d *ocispec.Descriptor) { d.Digest = "" },
	} {
		m := m
		m.Layers = append([]ocispec.Descriptor(nil), m.Layers...)
		change(&m.Layers[0])
		manifest(t, store, "y", m)
		_, err := OpenBin(t.Context(), store, "y", BinOptions{})
		wants(t, name, err, nil, "layer: ")
	}
}

func TestR1ABlobThatIsAnotherIsNotBelieved(t *testing.T) {
	t.Parallel()
	store := memory.New()
	real := archive(t, file("tool", "bytes"))
	fake := archive(t, file("tool", "BYTES"))
	image(t, store, "x", named(), tarLayer(real))
	b, err := OpenBin(t.Context(), store, "x", BinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	layer := b.tree.layers[0].Digest
	for name, data := range map[string][]byte{"changed": fake, "cut": real[:len(real)-512], "longer": append(bytes.Clone(real), 0)} {
		_, _, err := readBin(t, lying{store, layer, data}, "x")
		wants(t, name, err, nil, layer.String())
		again, err := OpenBin(t.Context(), lying{store, layer, data}, "x", BinOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = again.Binary(t.Context())
		wants(t, name+", listed only", err, nil, layer.String())
	}
	// The same when the store lies only after the layer was listed.
	if _, err := b.Binary(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.tree.store = lying{store, layer, fake}
	wants(t, "the second time", b.WriteBinary(t.Context(), io.Discard), nil, layer.String())
	b.tree.store = store
	if err := b.WriteBinary(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.WriteBinary(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestR6AnIndexIsNotTakenForAManifest(t *testing.T) {
	t.Parallel()
	store := memory.New()
	put := func(tag, mediaType, text string) {
		desc, err := pushBytes(t.Context(), store, mediaType, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Tag(t.Context(), desc, tag); err != nil {
			t.Fatal(err)
		}
	}
	put("both", ocispec.MediaTypeImageIndex, `{"schemaVersion":2,"manifests":[],"layers":[]}`)
	put("other", ocispec.MediaTypeImageManifest, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`)
	put("silent", ocispec.MediaTypeImageManifest, `{"schemaVersion":2,"manifests":[]}`)
	put("empty", ocispec.MediaTypeImageIndex, `{"schemaVersion":2}`)
	put("nested", ocispec.MediaTypeImageIndex, fmt.Sprintf(`{"schemaVersion":2,"manifests":[{"mediaType":%q,"digest":"sha256:%064d","size":2,"platform":{"os":"linux","architecture":"amd64"}}]}`, ocispec.MediaTypeImageIndex, 0))
	put("blob", MediaTypeFile, "x")
	put("long", ocispec.MediaTypeImageManifest, `{"schemaVersion":2,"annotations":{"x":"`+strings.Repeat("x", maxManifest)+`"}}`)
	for tag, want := range map[string]string{
		"both": "parts of the other kind", "other": "it says it is", "silent": "parts of the other kind", "empty": "there is: none",
		"nested": "media type", "blob": "media type", "long": "more than 4194304", "gone": "not found",
	} {
		_, err := OpenBin(t.Context(), store, tag, BinOptions{Platform: &amd64})
		wants(t, tag, err, nil, want)
	}
	build(t, store, "FROM scratch", BuildOptions{Tags: []string{"agent"}})
	_, err := OpenBin(t.Context(), store, "agent", BinOptions{})
	wants(t, "an agent", err, ErrNotBin, "it is an agent")
}

func TestPullerUsageFetcherAndLabelReader(t *testing.T) {
	t.Parallel()
	store := memory.New()
	desc := image(t, store, "tool:latest", named("io.openotters.runtime.listener", "inherit"), tarLayer(archive(t, file("tool", "bytes"), file("USAGE.md", "how"))))
	if err := store.Tag(t.Context(), desc, desc.Digest.String()); err != nil {
		t.Fatal(err)
	}
	pull, usage, labels := NewPuller(in(store), BinOptions{}), NewUsageFetcher(in(store), BinOptions{}), NewLabelReader(in(store), BinOptions{})
	for _, s := range []string{"tool", "tool:latest", "tool@" + desc.Digest.String()} {
		ref, err := spec.ParseReference(s)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := pull(t.Context(), ref, &out); err != nil || out.String() != "bytes" {
			t.Errorf("%s: %q %v", s, out.String(), err)
		}
		if text, err := usage(t.Context(), ref); err != nil || text != "how" {
			t.Errorf("%s: %q %v", s, text, err)
		}
		if l, err := labels(t.Context(), ref); err != nil || l[AnnotationListener] != "inherit" {
			t.Errorf("%s: %v %v", s, l, err)
		}
	}
	wants(t, "an image that is not there", pull(t.Context(), spec.Reference{Name: "gone"}, io.Discard), nil, "pull gone: ")
	liar := func(context.Context, spec.Reference) (oras.ReadOnlyTarget, string, error) {
		return store, "tool:latest", nil
	}
	pinned := spec.Reference{Name: "tool", Digest: "sha256:" + strings.Repeat("0", 64)}
	wants(t, "another digest", NewPuller(liar, BinOptions{})(t.Context(), pinned, io.Discard), nil, "the store answered "+desc.Digest.String())
}

func FuzzLayer(f *testing.F) {
	tool := file("tool", "bytes")
	f.Add(archive(f, tool, file("USAGE.md", "how")), archive(f, file(".wh.tool", ""), symlink("a", "../b")), byte(0))
	f.Add(gzipped(f, archive(f, symlink("tool", "/b"), hardlink("b", "c"))), archive(f, dir("b")), byte(1))
	f.Add(zstded(f, archive(f, tool)), []byte{}, byte(2))
	types := []string{ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd}
	f.Fuzz(func(t *testing.T, lower, upper []byte, kind byte) {
		store := memory.New()
		image(t, store, "x", named(), blob{mediaType: types[int(kind)%3], data: lower}, tarLayer(upper))
		b, err := OpenBin(t.Context(), store, "x", BinOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.tree.budget = &budget{bytes: 1 << 20, entries: 1000, names: 1 << 20}
		var out bytes.Buffer
		if err := b.WriteBinary(t.Context(), &out); err == nil {
			info, err := b.Binary(t.Context())
			if err != nil || info.Size != int64(out.Len()) {
				t.Fatalf("%+v %d %v", info, out.Len(), err)
			}
		}
		if text, err := b.Usage(t.Context()); err == nil && len(text) > maxUsage {
			t.Fatal(len(text))
		}
	})
}
