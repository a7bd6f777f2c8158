package daemon

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/crane"
	crname "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	crremote "github.com/google/go-containerregistry/pkg/v1/remote"
	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/registry"
)

// save returns the archive of images.
func (d *testDaemon) save(images ...string) ([]byte, error) {
	d.t.Helper()
	s, err := d.images().SaveImage(d.t.Context(), &daemonv1.SaveImageRequest{Images: images})
	if err != nil {
		return nil, err
	}
	var out []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, m.GetArchive()...)
	}
}

func (d *testDaemon) load(archive []byte, tags ...string) (*daemonv1.LoadImageResponse, error) {
	d.t.Helper()
	s, err := d.images().LoadImage(d.t.Context())
	if err != nil {
		return nil, err
	}
	err = s.Send(&daemonv1.LoadImageRequest{Part: &daemonv1.LoadImageRequest_Options{Options: &daemonv1.LoadImageOptions{Tags: tags}}})
	for len(archive) > 0 && err == nil {
		n := min(len(archive), 1<<20)
		err = s.Send(&daemonv1.LoadImageRequest{Part: &daemonv1.LoadImageRequest_Archive{Archive: archive[:n]}})
		archive = archive[n:]
	}
	return s.CloseAndRecv()
}

func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide:1", guide)
	archive, err := d.save("guide:1", "otters/tools/cat")
	if err != nil {
		t.Fatal(err)
	}
	again, err := d.save("guide:1", "otters/tools/cat")
	if err != nil || !bytes.Equal(archive, again) {
		t.Errorf("another archive of the same images: %v", err)
	}
	other := boot(t, emptyHome(t), func(c *Config) { c.Programs = emptyPrograms(t) })
	r, err := other.load(archive)
	if err != nil || len(r.GetImages()) != 2 {
		t.Fatal(r, err)
	}
	for _, name := range []string{"guide:1", "otters/tools/cat"} {
		if other.digest(name) != d.digest(name) {
			t.Errorf("%s has another digest", name)
		}
	}
	one, err := d.save("guide:1")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := other.load(one, "x", "y:2"); err != nil || len(r.GetImages()) != 2 || other.digest("y:2") != d.digest("guide:1") {
		t.Error(r, err)
	}
	if _, err := other.load(archive, "x"); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// entries changes an archive.
func entries(t *testing.T, archive []byte, change func(h *tar.Header, body []byte) []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, r := tar.NewWriter(&out), tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if body = change(h, body); body == nil {
			continue
		}
		h.Size = int64(len(body))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// store tells all that is in the registry: what has a name, and how much there is with what has none.
func (d *testDaemon) store() string {
	d.t.Helper()
	c, err := d.Daemon.images.store.Check(d.t.Context(), registry.CheckOptions{})
	if err != nil || len(c.Problems) > 0 {
		d.t.Fatal(c, err)
	}
	return fmt.Sprintf("%d contents of %d bytes, %d orphans, named %q", c.Contents, c.Bytes, c.Orphans, d.names())
}

// layoutOf is an archive of an image whose manifest is made of the descriptor of a blob, and of one that
// gives it another size.
func layoutOf(t *testing.T, form string) []byte {
	t.Helper()
	blob, media := []byte("{}"), ocispec.MediaTypeImageManifest
	desc := func(mediaType string, b []byte, size int) string {
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, mediaType, digest.FromBytes(b), size)
	}
	parts := [][]byte{blob}
	config := desc("application/json", blob, len(blob))
	var manifest []byte
	if form == "artifact" {
		artifact := []byte(`{"mediaType":"application/vnd.oci.artifact.manifest.v1+json","layers":[]}`)
		parts = append(parts, artifact)
		manifest = fmt.Appendf(nil, `{"schemaVersion":2,"config":%s,"layers":[%s]}`, config, desc("application/vnd.oci.artifact.manifest.v1+json", artifact, len(artifact)))
	} else {
		manifest = []byte(strings.NewReplacer("%[1]s", config, "%[2]s", desc("application/json", blob, 3)).Replace(form))
	}
	parts = append(parts, manifest)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, b []byte) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(b))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	add("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	named := strings.TrimSuffix(desc(media, manifest, len(manifest)), "}") + `,"annotations":{"org.opencontainers.image.ref.name":"x:1"}}`
	add("index.json", []byte(`{"schemaVersion":2,"manifests":[`+named+`]}`))
	for _, b := range parts {
		add("blobs/sha256/"+digest.FromBytes(b).Encoded(), b)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// folderOf is an archive of a build folder with a file and a link out of it.
func folderOf(t *testing.T, agentfile string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeReg, Name: "Agentfile", Mode: 0o644, Size: int64(len(agentfile))},
		{Typeflag: tar.TypeReg, Name: "a", Mode: 0o644},
		{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "/etc/passwd", Mode: 0o777},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Name == "Agentfile" {
			if _, err := io.WriteString(w, agentfile); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// P1, P2, P9 and a wrong blob: an archive that is not right stores nothing at all.
func TestLoadRefusesAndChangesNothing(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide:1", guide)
	archive, err := d.save("guide:1")
	if err != nil {
		t.Fatal(err)
	}
	other := boot(t, emptyHome(t), func(c *Config) { c.Programs = emptyPrograms(t) })
	before, first := other.store(), true
	for what, bad := range map[string][]byte{
		"no archive": []byte("hello"), "nothing": nil, "cut": archive[:len(archive)/2],
		"a blob with other bytes": entries(t, archive, func(h *tar.Header, b []byte) []byte {
			if strings.HasPrefix(h.Name, "blobs/") && bytes.HasPrefix(b, []byte("# Rivers")) {
				return bytes.ToUpper(b)
			}
			return b
		}),
		"a blob that is not there": entries(t, archive, func(h *tar.Header, b []byte) []byte {
			if strings.HasPrefix(h.Name, "blobs/") && first {
				first = false
				return nil
			}
			return b
		}),
		"P1 a name that leaves": entries(t, archive, func(h *tar.Header, b []byte) []byte {
			if h.Name == "oci-layout" {
				h.Name = "../oci-layout"
			}
			return b
		}),
		"P9 an index over its bound": entries(t, archive, func(h *tar.Header, b []byte) []byte {
			if h.Name == "index.json" {
				return append(b, bytes.Repeat([]byte(" "), 5<<20)...)
			}
			return b
		}),
		"P2 a link in place of a blob": entries(t, archive, func(h *tar.Header, b []byte) []byte {
			if h.Name == "index.json" {
				h.Typeflag, h.Linkname = tar.TypeSymlink, "/etc/passwd"
				return []byte{}
			}
			return b
		}),
	} {
		if r, err := other.load(bad); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v %v", what, r, err)
		}
	}
	// What the registry would refuse when the rest is stored already.
	for what, manifest := range map[string]string{
		"a manifest with a key twice":  `{"schemaVersion":2,"schemaVersion":2,"config":%[1]s,"layers":[%[1]s]}`,
		"a manifest of another schema": `{"schemaVersion":1,"config":%[1]s,"layers":[%[1]s]}`,
		"a part of two sizes":          `{"schemaVersion":2,"config":%[1]s,"layers":[%[2]s]}`,
		"an artifact that is none":     "artifact",
	} {
		if r, err := other.load(layoutOf(t, manifest)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v %v", what, r, err)
		}
	}
	for what, file := range map[string]string{"a file that is not there": "FROM scratch\nADD a\nADD b\n", "P10 a link out": "FROM scratch\nADD a\nADD out\n", "S1 itself": "FROM self\nADD a\n"} {
		s, err := other.api.Build(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = s.Send(&daemonv1.BuildRequest{Part: &daemonv1.BuildRequest_Options{Options: &daemonv1.BuildOptions{Tags: []string{"self"}}}})
		if err == nil {
			err = s.Send(&daemonv1.BuildRequest{Part: &daemonv1.BuildRequest_Archive{Archive: folderOf(t, file)}})
		}
		if _, closed := s.CloseAndRecv(); err != nil || status.Code(closed) != codes.InvalidArgument && status.Code(closed) != codes.NotFound {
			t.Errorf("%s: %v %v", what, err, closed)
		}
	}
	if after := other.store(); after != before {
		t.Errorf("the store was %s and is %s", before, after)
	}
	if _, err := other.load(layoutOf(t, `{"schemaVersion":2,"config":%[1]s,"layers":[%[1]s]}`)); err != nil || other.digest("x:1") == "" {
		t.Errorf("the allowed twin of the manifests: %v", err)
	}
	if _, err := other.load(archive); err != nil || other.digest("guide:1") != d.digest("guide:1") {
		t.Errorf("the allowed twin: %v", err)
	}
}

// Copies by another program's library: out by the archive and by the registry, and in again.
func TestOrasCopiesOutAndIn(t *testing.T) {
	t.Parallel()
	d, e := boot(t, newHome(t)), newElsewhere(t)
	d.image("guide:1", guide)
	archive, err := d.save("guide:1", "otters/tools/cat")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "guide.tar")
	if err := os.WriteFile(file, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	layout, err := oci.NewFromTar(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := remote.NewRepository(e.host + "/copied")
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	desc, err := oras.Copy(t.Context(), layout, "guide:1", repo, "1", oras.DefaultCopyOptions)
	if err != nil || desc.Digest.String() != d.digest("guide:1") {
		t.Fatal(desc, err)
	}
	if out, err := d.pull(e.host + "/copied:1"); err != nil || out.digest != d.digest("guide:1") {
		t.Error(out, err)
	}
	if desc, err := oras.Copy(t.Context(), layout, "otters/tools/cat:latest", repo, "cat", oras.DefaultCopyOptions); err != nil || desc.Digest.String() != d.digest("otters/tools/cat") {
		t.Error(desc, err)
	}
	// What oras writes is loaded.
	dir := t.TempDir()
	back, err := oci.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := oras.Copy(t.Context(), repo, "1", back, "back:1", oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	if r, err := d.load(packed.Bytes()); err != nil || len(r.GetImages()) != 1 || d.digest("back:1") != d.digest("guide:1") {
		t.Error(r, err)
	}
}

// craneReadsTheArchive pushes what save wrote, unpacked, as crane push does with a folder. The archive itself
// crane takes for a tarball of docker's form, which it is not.
func (d *testDaemon) craneReadsTheArchive(to, name string) {
	d.t.Helper()
	archive, err := d.save(name)
	if err != nil {
		d.t.Fatal(err)
	}
	file, dir := filepath.Join(d.t.TempDir(), "saved.tar"), d.t.TempDir()
	if err := os.WriteFile(file, archive, 0o600); err != nil {
		d.t.Fatal(err)
	}
	if _, err := crane.Load(file); err == nil {
		d.t.Error("crane reads the archive as it is; docs/image-format.md says that it does not")
	}
	entries(d.t, archive, func(h *tar.Header, body []byte) []byte {
		path := filepath.Join(dir, h.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, body, 0o600)); err != nil {
			d.t.Fatal(err)
		}
		return body
	})
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		d.t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		d.t.Fatal(m, err)
	}
	ref, err := crname.ParseReference(to, crname.Insecure)
	if err != nil {
		d.t.Fatal(err)
	}
	if hash := m.Manifests[0].Digest; m.Manifests[0].MediaType.IsIndex() {
		inner, err := index.ImageIndex(hash)
		if err := errors.Join(err, crremote.WriteIndex(ref, inner)); err != nil {
			d.t.Error(err)
		}
	} else {
		img, err := index.Image(hash)
		if err := errors.Join(err, crremote.Write(ref, img)); err != nil {
			d.t.Error(err)
		}
	}
	if got, err := crane.Digest(to, crane.Insecure); err != nil || got != d.digest(name) {
		d.t.Errorf("%s out of its archive is %s, %v; want %s", name, got, err, d.digest(name))
	}
}

// crane's library copies an agent and a tool out of the embedded registry, into another, into an
// archive and back, with their digests.
func TestCraneCopiesOutAndIn(t *testing.T) {
	t.Parallel()
	d, e := boot(t, newHome(t)), newElsewhere(t)
	d.image("guide:1", guide)
	own := []crane.Option{crane.Insecure, crane.WithAuth(&authn.Basic{Username: "otters", Password: d.Daemon.images.token})}
	for name, image := range map[string]string{"guide:1": "guide", "otters/tools/cat": "otters/tools/cat"} {
		want := d.digest(name)
		here := d.Registry() + "/" + image + "@" + want
		// Out of ours, and into another registry: as crane copy, with credentials for ours alone.
		remote, err := crane.Get(here, own...)
		if err != nil {
			t.Fatal(err)
		}
		there := e.host + "/crane/" + image + ":1"
		archive := t.TempDir()
		saved, err := layout.Write(archive, empty.Index)
		if err != nil {
			t.Fatal(err)
		}
		named := layout.WithAnnotations(map[string]string{ocispec.AnnotationRefName: "copied:1"})
		to, err := crname.ParseReference(there, crname.Insecure)
		if err != nil {
			t.Fatal(err)
		}
		if remote.MediaType.IsIndex() {
			index, err := remote.ImageIndex()
			if err := errors.Join(err, crremote.WriteIndex(to, index), saved.AppendIndex(index, named)); err != nil {
				t.Fatal(err)
			}
		} else {
			img, err := remote.Image()
			if err := errors.Join(err, crremote.Write(to, img), saved.AppendImage(img, named)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := crane.Digest(there, crane.Insecure); err != nil || got != want {
			t.Errorf("%s elsewhere is %s, %v; want %s", name, got, err, want)
		}
		if out, err := d.pull(there); err != nil || out.digest != want {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
		var packed bytes.Buffer
		w := tar.NewWriter(&packed)
		if err := errors.Join(w.AddFS(os.DirFS(archive)), w.Close()); err != nil {
			t.Fatal(err)
		}
		if r, err := d.load(packed.Bytes()); err != nil || len(r.GetImages()) != 1 || r.GetImages()[0].GetDigest() != want {
			t.Errorf("%s: %v, %v; want %s", name, r, err, want)
		}
		d.craneReadsTheArchive(e.host+"/saved/"+image+":1", name)
		// And into ours.
		back := d.Registry() + "/back/" + image + ":1"
		if err := crane.Tag(here, "again", own...); err != nil {
			t.Error(err)
		}
		if err := crane.Copy(here, back, own...); err != nil || d.digest("back/"+image+":1") != want || d.digest(image+":again") != want {
			t.Errorf("%s into ours: %v", name, err)
		}
	}
}
