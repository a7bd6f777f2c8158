package registry_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/crane"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
)

// interop is a client program, where the machine has it, with a login to a server of its own and an
// image in an OCI layout.
type interop struct {
	*server

	*ociLayout

	program, home string
	env           []string
}

// newInterop passes over a program that is not there.
func newInterop(t *testing.T, program string) *interop {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed", program)
	}
	p := &interop{server: newServer(t), ociLayout: newLayout(t), program: path, home: t.TempDir()}
	login := base64.StdEncoding.EncodeToString([]byte("any:" + token))
	config := filepath.Join(p.home, ".config", "containers")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(p.home, "config.json"): fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, p.host, login),
		// Podman and skopeo are to go neither by what the machine has of these, nor by what others do there.
		filepath.Join(config, "policy.json"):     `{"default":[{"type":"insecureAcceptAnything"}]}`,
		filepath.Join(config, "registries.conf"): "",
		filepath.Join(config, "containers.conf"): fmt.Sprintf("[engine]\nlock_type = \"file\"\nevents_logger = \"none\"\ntmp_dir = %q\n[network]\nnetwork_config_dir = %[1]q\n", filepath.Join(p.home, "tmp")),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + p.home, "TMPDIR=" + p.home, "XDG_RUNTIME_DIR=" + p.home, "DOCKER_CONFIG=" + p.home,
		"REGISTRY_AUTH_FILE=" + filepath.Join(p.home, "config.json"), "CONTAINERS_CONF=" + filepath.Join(config, "containers.conf"),
	}
	return p
}

// ociLayout is a folder with one image.
type ociLayout struct {
	layout string
	image  ocispec.Descriptor
}

func (p *ociLayout) path() layout.Path { return layout.Path(p.layout) }

func (p *ociLayout) hash() v1.Hash {
	return v1.Hash{Algorithm: string(p.image.Digest.Algorithm()), Hex: p.image.Digest.Encoded()}
}

func newLayout(t *testing.T) *ociLayout {
	t.Helper()
	ctx := context.Background()
	p := &ociLayout{layout: filepath.Join(t.TempDir(), "layout")}
	store, err := oci.New(p.layout)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	// Random, so that it stays larger than a row may be; and another each time: podman and skopeo remember,
	// for all of the machine, where they saw a layer.
	data := make([]byte, 300<<10)
	_, _ = rand.Read(data) // it never fails
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "data", Mode: 0o644, Size: int64(len(data))})
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(layer.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	layerDesc := push(t, store, ocispec.MediaTypeImageLayerGzip, packed.Bytes())
	config := marshal(ocispec.Image{
		Platform: ocispec.Platform{Architecture: "amd64", OS: "linux"},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer.Bytes())}},
	})
	configDesc := push(t, store, ocispec.MediaTypeImageConfig, config)
	p.image = push(t, store, ocispec.MediaTypeImageManifest, marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: configDesc, Layers: []ocispec.Descriptor{layerDesc},
	}))
	if err := store.Tag(ctx, p.image, "v1"); err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs the program and gives what it printed to standard output.
func (p *interop) run(args ...string) string {
	p.t.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

func (p *interop) try(args ...string) (string, error) {
	cmd := exec.Command(p.program, args...)
	cmd.Dir = p.home
	cmd.Env = p.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %q: %w: %s%s", filepath.Base(p.program), args, err, out.String(), errs.String())
	}
	return out.String(), nil
}

// wantTags compares what the server has.
func (p *interop) wantTags(repo string, want ...string) {
	p.t.Helper()
	got, _ := p.tags("/v2/" + repo + "/tags/list")
	if fmt.Sprint(got) != fmt.Sprint(want) {
		p.t.Errorf("tags of %s are %v, want %v", repo, got, want)
	}
}

func TestInteropCrane(t *testing.T) {
	t.Parallel()
	p := newInterop(t, "crane")
	ref := p.host + "/team/app"
	p.run("push", "--insecure", p.layout, ref+":v1")
	if got := p.run("ls", "--insecure", ref); strings.TrimSpace(got) != "v1" {
		t.Errorf("ls: %q", got)
	}
	if got := strings.TrimSpace(p.run("digest", "--insecure", ref+":v1")); got != string(p.image.Digest) {
		t.Errorf("digest %q", got)
	}
	p.run("copy", "--insecure", ref+":v1", p.host+"/other/app:v2")
	p.run("pull", "--insecure", "--format", "oci", p.host+"/other/app:v2", filepath.Join(p.home, "back"))
	p.run("validate", "--insecure", "--remote", p.host+"/other/app:v2")
	if got := p.run("catalog", "--insecure", p.host); got != "other/app\nteam/app\n" {
		t.Errorf("catalog: %q", got)
	}
	p.run("delete", "--insecure", ref+":v1")
	p.wantTags("team/app")
	p.wantTags("other/app", "v2")
}

// The library of crane copies as the program does, which few machines have.
func TestInteropCraneLibrary(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	layout := newLayout(t)
	image, err := layout.path().Image(layout.hash())
	if err != nil {
		t.Fatal(err)
	}
	opts := []crane.Option{crane.Insecure, crane.WithTransport(s.client), crane.WithAuth(&authn.Basic{Username: "any", Password: token})}
	ref := s.host + "/team/app"
	if err := crane.Push(image, ref+":v1", opts...); err != nil {
		t.Fatal(err)
	}
	if tags, err := crane.ListTags(ref, opts...); err != nil || len(tags) != 1 || tags[0] != "v1" {
		t.Errorf("tags %q, %v", tags, err)
	}
	if err := crane.Copy(ref+":v1", s.host+"/other/app:v2", opts...); err != nil {
		t.Fatal(err)
	}
	if d, err := crane.Digest(s.host+"/other/app:v2", opts...); err != nil || d != string(layout.image.Digest) {
		t.Errorf("digest %s, %v", d, err)
	}
	back, err := crane.Pull(s.host+"/other/app:v2", opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(back); err != nil {
		t.Error(err)
	}
	if list, err := crane.Catalog(s.host, opts...); err != nil || fmt.Sprint(list) != "[other/app team/app]" {
		t.Errorf("catalog %q, %v", list, err)
	}
	if err := crane.Delete(ref+":v1", opts...); err != nil {
		t.Fatal(err)
	}
	if tags, err := crane.ListTags(s.host+"/other/app", opts...); err != nil || fmt.Sprint(tags) != "[v2]" {
		t.Errorf("tags %q, %v", tags, err)
	}
	wrong := []crane.Option{crane.Insecure, crane.WithTransport(s.client), crane.WithAuth(&authn.Basic{Username: "any", Password: "wrong"})}
	if _, err := crane.Digest(s.host+"/other/app:v2", wrong...); err == nil {
		t.Error("a wrong token is taken")
	}
}

func TestInteropOras(t *testing.T) {
	t.Parallel()
	p := newInterop(t, "oras")
	ref := p.host + "/team/app"
	p.run("copy", "--from-oci-layout", p.layout+":v1", "--to-plain-http", ref+":v1")
	if err := os.WriteFile(filepath.Join(p.home, "note.txt"), bigBlob("note"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.run("attach", "--plain-http", "--artifact-type", "application/x.note", ref+":v1", "note.txt:text/plain")
	if got := p.run("discover", "--plain-http", ref+":v1"); !strings.Contains(got, "application/x.note") {
		t.Errorf("discover: %s", got)
	}
	if got := p.run("repo", "tags", "--plain-http", ref); strings.TrimSpace(got) != "v1" {
		t.Errorf("tags: %q", got)
	}
	p.run("copy", "-r", "--from-plain-http", "--to-plain-http", ref+":v1", p.host+"/other/app:v2")
	p.run("manifest", "fetch", "--plain-http", p.host+"/other/app:v2")
	if idx, _ := p.referrers("/v2/other/app/referrers/" + string(p.image.Digest)); len(idx.Manifests) != 1 {
		t.Errorf("referrers that were copied: %v", idx.Manifests)
	}
	p.run("manifest", "delete", "--force", "--plain-http", ref+"@"+string(p.image.Digest))
	p.wantTags("team/app")
	p.wantTags("other/app", "v2")
}

func TestInteropSkopeo(t *testing.T) {
	t.Parallel()
	p := newInterop(t, "skopeo")
	ref := "docker://" + p.host + "/team/app"
	p.run("copy", "--preserve-digests", "--dest-tls-verify=false", "oci:"+p.layout+":v1", ref+":v1")
	if got := p.run("list-tags", "--tls-verify=false", ref); !strings.Contains(got, `"v1"`) {
		t.Errorf("list-tags: %s", got)
	}
	raw := p.run("inspect", "--raw", "--tls-verify=false", ref+":v1")
	if content.NewDescriptorFromBytes("", []byte(raw)).Digest != p.image.Digest {
		t.Errorf("inspect: %s", raw)
	}
	p.run("copy", "--src-tls-verify=false", "--dest-tls-verify=false", ref+":v1", "docker://"+p.host+"/other/app:v2")
	p.run("copy", "--src-tls-verify=false", "docker://"+p.host+"/other/app:v2", "oci:back:v2")
	p.run("delete", "--tls-verify=false", ref+":v1")
	p.wantTags("team/app")
	p.wantTags("other/app", "v2")
}

func TestInteropPodman(t *testing.T) {
	t.Parallel()
	p := newInterop(t, "podman")
	podman := func(args ...string) (string, error) {
		return p.try(append([]string{"--root", filepath.Join(p.home, "root"), "--runroot", filepath.Join(p.home, "run"), "--storage-driver", "vfs"}, args...)...)
	}
	if _, err := podman("info"); err != nil {
		t.Skipf("podman does not work here: %v", err)
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := podman(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	t.Cleanup(func() {
		// It keeps the modes of the image's folders, from which a user other than root can't remove anything then.
		err := filepath.WalkDir(filepath.Join(p.home, "root"), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = os.Chmod(path, 0o700)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	must("login", "--tls-verify=false", "-u", "any", "-p", token, p.host)
	// It makes a name of the path, and names have no upper case.
	if err := os.Symlink(p.layout, filepath.Join(p.home, "image")); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(must("pull", "oci:image:v1"))
	must("push", "--tls-verify=false", id, p.host+"/team/app:v1")
	p.wantTags("team/app", "v1")
	if got := must("search", "--tls-verify=false", "--list-tags", p.host+"/team/app"); !strings.HasSuffix(strings.TrimSpace(got), " v1") {
		t.Errorf("list of tags: %s", got)
	}
	must("rmi", "--force", id)
	must("pull", "--tls-verify=false", p.host+"/team/app:v1")
	must("push", "--tls-verify=false", p.host+"/team/app:v1", p.host+"/other/app:v2")
	p.wantTags("other/app", "v2")
	must("logout", p.host)
	if out, err := podman("pull", "--tls-verify=false", p.host+"/other/app:v2"); err == nil {
		t.Errorf("without a login it pulls: %s", out)
	}
}

// docker's client reads registries by itself; pulls and pushes are its engine's part.
func TestInteropDocker(t *testing.T) {
	t.Parallel()
	p := newInterop(t, "docker")
	docker := func(args ...string) (string, error) { return p.try(append([]string{"--config", p.home}, args...)...) }
	if _, err := docker("manifest", "--help"); err != nil {
		t.Skipf("this docker has no manifest command: %v", err)
	}
	image, err := p.ociLayout.path().Image(p.hash())
	if err != nil {
		t.Fatal(err)
	}
	ref := p.host + "/team/app"
	if err := crane.Push(image, ref+":v1", crane.Insecure, crane.WithTransport(p.client), crane.WithAuth(&authn.Basic{Username: "any", Password: token})); err != nil {
		t.Fatal(err)
	}
	out, err := docker("manifest", "inspect", "--insecure", "--verbose", ref+":v1")
	if err != nil || !strings.Contains(out, string(p.image.Digest)) {
		t.Errorf("inspect: %s %v", out, err)
	}
	if _, err := docker("manifest", "create", "--insecure", ref+":list", ref+":v1"); err != nil {
		t.Fatal(err)
	}
	if out, err = docker("manifest", "push", "--insecure", ref+":list"); err != nil || !strings.HasPrefix(out, "sha256:") {
		t.Errorf("push: %s %v", out, err)
	}
	p.wantTags("team/app", "list", "v1")
	if _, err := docker("version", "--format", "{{.Server.Version}}"); err != nil {
		t.Logf("no engine answers, so it pulls and pushes nothing: %v", err)
		return
	}
	for _, args := range [][]string{{"pull", ref + ":v1"}, {"tag", ref + ":v1", p.host + "/other/app:v2"}, {"push", p.host + "/other/app:v2"}, {"rmi", ref + ":v1", p.host + "/other/app:v2"}} {
		if out, err := docker(args...); err != nil {
			t.Errorf("%q: %s %v", args, out, err)
		}
	}
	p.wantTags("other/app", "v2")
}
