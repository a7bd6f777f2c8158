package daemon

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	otherregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: what comes in from another registry or an archive has the digest it had there; an error
// moves no name. The other registry is of another project.

// elsewhere is that registry, with what was asked of it.
type elsewhere struct {
	host string
	// user and password are asked for where user is set.
	user, password string
	// cut is how many times a blob's answer breaks off after its first half.
	cut atomic.Int32
	// cutPush is how many times the connection breaks in the middle of a blob that is sent.
	cutPush atomic.Int32
	// wrong changes the bytes of every blob.
	wrong atomic.Bool
	// together keeps each blob back, asked for or sent, until so many are under way at once.
	together atomic.Int32
	underWay atomic.Int32

	mu    sync.Mutex
	asked []string
}

func newElsewhere(t *testing.T) *elsewhere {
	t.Helper()
	e := &elsewhere{}
	inner := otherregistry.New(otherregistry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.asked = append(e.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Range")))
		user, password := e.user, e.password
		e.mu.Unlock()
		if u, p, _ := r.BasicAuth(); user != "" && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="elsewhere"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
			return
		}
		blob := r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:")
		if blob {
			w.Header().Set("Accept-Ranges", "bytes")
		}
		if n := e.together.Load(); n > 0 && (blob || r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/")) {
			e.underWay.Add(1)
			for ctx := r.Context(); e.underWay.Load() < n && ctx.Err() == nil; {
				time.Sleep(time.Millisecond)
			}
		}
		switch {
		case r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/") && r.ContentLength > 1<<20-1 && e.cutPush.Add(-1) >= 0:
			_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
			panic(http.ErrAbortHandler)
		case r.Method == http.MethodHead && strings.HasPrefix(r.URL.Path, "/v2/b/") && strings.Contains(r.URL.Path, "/blobs/"):
			// It keeps all blobs in one place, where a repository of most registries has its own.
			w.WriteHeader(http.StatusNotFound)
		case r.Method == http.MethodPost && r.URL.Query().Get("mount") != "":
			w.Header().Set("Docker-Content-Digest", r.URL.Query().Get("mount"))
			w.WriteHeader(http.StatusCreated)
		case blob && e.wrong.Load():
			rec := httptest.NewRecorder()
			inner.ServeHTTP(rec, r)
			body := rec.Body.Bytes()
			for i := range body {
				body[i] ^= 1 // as many, but others
			}
			for k, v := range rec.Header() {
				w.Header()[k] = v
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(body)
		case blob && r.Header.Get("Range") == "" && e.cut.Add(-1) >= 0:
			rec := httptest.NewRecorder()
			inner.ServeHTTP(rec, r)
			for k, v := range rec.Header() {
				w.Header()[k] = v
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		default:
			inner.ServeHTTP(w, r)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.Close)
	e.host = strings.TrimPrefix(s.URL, "http://")
	return e
}

// count tells how many requests had a part in their method and address.
func (e *elsewhere) count(part string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(e.asked), func(s string) bool { return !strings.Contains(s, part) }))
}

func (d *testDaemon) images() daemonv1.ImageServiceClient {
	return daemonv1.NewImageServiceClient(testConn(d.t, d.socket))
}

// moved is what came of a push or pull.
type moved struct {
	ref, digest string
	states      map[string]int
}

func (d *testDaemon) moved(s grpc.ServerStreamingClient[daemonv1.TransferResponse], err error) (moved, error) {
	d.t.Helper()
	out := moved{states: map[string]int{}}
	for err == nil {
		var m *daemonv1.TransferResponse
		if m, err = s.Recv(); err == nil {
			if m.GetTransfer() != nil {
				out.states[m.GetTransfer().GetState()]++
			}
			out.ref, out.digest = m.GetReference(), m.GetDigest()
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return out, err
}

func (d *testDaemon) push(image, to string) (moved, error) {
	s, err := d.images().PushImage(d.t.Context(), &daemonv1.PushImageRequest{Image: image, Destination: to})
	return d.moved(s, err)
}

func (d *testDaemon) pull(image string) (moved, error) {
	s, err := d.images().PullImage(d.t.Context(), &daemonv1.PullImageRequest{Image: image})
	return d.moved(s, err)
}

func (d *testDaemon) digest(image string) string {
	d.t.Helper()
	r, err := d.images().InspectImage(d.t.Context(), &daemonv1.InspectImageRequest{Image: image})
	if status.Code(err) == codes.NotFound {
		return ""
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return r.GetImage().GetDigest()
}

// large is an agent with a file that is no row of the database.
func large(t *testing.T) map[string]string {
	t.Helper()
	b := make([]byte, 1<<20)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nNAME large\nADD b\n", "b": string(b)}
}

// ordinaryRuntime pushes the runtime as any other project would make an image of a program: one manifest,
// without an artifact type, with layers of gzip, the upper of which removes what the lower has too much.
func ordinaryRuntime(t *testing.T, name string) string {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(built.For(t), runtimeProgram))
	if err != nil {
		t.Fatal(err)
	}
	layer := func(files ...string) v1.Layer {
		var packed bytes.Buffer
		z, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(z)
		for i := 0; i < len(files); i += 2 {
			err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: files[i], Mode: 0o755, Size: int64(len(files[i+1]))}))
			_, werr := io.WriteString(w, files[i+1])
			err = errors.Join(err, werr)
		}
		if err := errors.Join(err, w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		return static.NewLayer(packed.Bytes(), types.OCILayer)
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layer("opt/"+runtimeProgram, "old", "opt/USAGE.md", "old"), layer("opt/.wh.USAGE.md", "", "opt/"+runtimeProgram, string(program)))
	if err != nil {
		t.Fatal(err)
	}
	noted := mutate.Annotations(img, map[string]string{"io.openotters.bin.name": runtimeProgram, "io.openotters.bin.path": "/opt", "io.openotters.runtime.listener": "inherit"})
	if err := crane.Push(noted.(v1.Image), name, crane.Insecure); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestPushAndPull(t *testing.T) {
	t.Parallel()
	d, e := boot(t, newHome(t)), newElsewhere(t)
	files := maps.Clone(guide)
	files["Agentfile"] += "RUNTIME " + ordinaryRuntime(t, e.host+"/runtime:1") + "\n"
	d.image("guide", files)
	want := d.digest("guide")
	name := e.host + "/team/guide:1"
	// The config and the layers move at once: none of the first three is answered before the third came.
	e.together.Store(3)
	out, err := d.push("guide", name)
	if err != nil || out.digest != want || out.ref != name || out.states["done"] == 0 {
		t.Fatalf("%+v %v; want %s", out, err, want)
	}
	if out, err = d.push("guide", name); err != nil || out.states["done"] != 0 || out.states["exists"] == 0 {
		t.Errorf("a second push sent something: %+v %v", out, err)
	}
	if n := e.underWay.Swap(0); n < 3 {
		t.Errorf("%d blobs were sent; the test shows nothing", n)
	}
	other := boot(t, newHome(t))
	if out, err = other.pull(name); err != nil || out.digest != want || out.ref != name || e.underWay.Load() < 3 {
		t.Fatalf("%+v %v", out, err)
	}
	e.together.Store(0)
	list, err := other.api.ListImages(t.Context(), &daemonv1.ListImagesRequest{})
	if err != nil || !slices.ContainsFunc(list.GetImages(), func(i *daemonv1.Image) bool { return i.GetReference() == name && i.GetDigest() == want }) {
		t.Errorf("not listed as it is named: %v %v", list, err)
	}
	// An image that is not here yet is pulled by create with its RUNTIME, and runs.
	third := boot(t, newHome(t))
	third.create(&daemonv1.CreateAgentRequest{Image: name, Name: "g"})
	third.await("g", "ready")
	if got := third.get("g").GetSummary(); got.GetDigest() != want || got.GetImage() != name {
		t.Errorf("%v", got)
	}
}

func TestPullGoesOnAfterABrokenConnection(t *testing.T) {
	t.Parallel()
	d, e := boot(t, newHome(t)), newElsewhere(t)
	d.image("large", large(t))
	name := e.host + "/large:1"
	if _, err := d.push("large", name); err != nil {
		t.Fatal(err)
	}
	e.cut.Store(3)
	other := boot(t, newHome(t))
	if out, err := other.pull(name); err != nil || out.digest != d.digest("large") {
		t.Fatalf("%+v %v", out, err)
	}
	if e.cut.Load() > 0 || e.count(" bytes=") == 0 {
		t.Error("nothing was cut or gone on with; the test shows nothing")
	}
}

func TestPushGoesOnAfterABrokenConnection(t *testing.T) {
	t.Parallel()
	d, e := boot(t, emptyHome(t), func(c *Config) { c.Programs = emptyPrograms(t) }), newElsewhere(t)
	d.image("large", large(t))
	e.cutPush.Store(2)
	if out, err := d.push("large", e.host+"/large:1"); err != nil || out.digest != d.digest("large") {
		t.Fatalf("%+v %v", out, err)
	}
	if e.cutPush.Load() > 0 {
		t.Error("nothing was cut; the test shows nothing")
	}
	e.cutPush.Store(1000)
	d.image("other", large(t))
	if _, err := d.push("other", e.host+"/twin:1"); status.Code(err) != codes.Unavailable {
		t.Errorf("a connection that always breaks: %v", err)
	}
}

// What was pulled by digest has no tag there. It is kept and listed here until it is removed.
func TestPullByDigestIsKept(t *testing.T) {
	t.Parallel()
	d, e := boot(t, emptyHome(t), func(c *Config) { c.Programs = emptyPrograms(t) }), newElsewhere(t)
	d.image("a", map[string]string{"Agentfile": "FROM scratch\nNAME a\n"})
	if _, err := d.push("a", e.host+"/a:1"); err != nil {
		t.Fatal(err)
	}
	name := e.host + "/a@" + d.digest("a")
	if out, err := d.pull(name); err != nil || out.digest != d.digest("a") || out.ref != name {
		t.Fatalf("%+v %v", out, err)
	}
	list, err := d.api.ListImages(t.Context(), &daemonv1.ListImagesRequest{})
	if err != nil || !slices.ContainsFunc(list.GetImages(), func(i *daemonv1.Image) bool { return i.GetReference() == name }) {
		t.Errorf("not listed as it is named: %v %v", list, err)
	}
	other := e.host + "/b@" + d.digest("a")
	if _, err := d.images().RemoveImage(t.Context(), &daemonv1.RemoveImageRequest{Images: []string{other}}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	r, err := d.images().RemoveImage(t.Context(), &daemonv1.RemoveImageRequest{Images: []string{name}})
	if err != nil || !slices.Equal(r.GetReferences(), []string{name}) || slices.ContainsFunc(d.names(), func(s string) bool { return strings.Contains(s, "pinned") }) {
		t.Errorf("%v %v; left %q", r, err, d.names())
	}
}

func TestPullRefusesWhatIsNotWhatItSays(t *testing.T) {
	t.Parallel()
	d, e := boot(t, newHome(t)), newElsewhere(t)
	d.image("large", large(t))
	name := e.host + "/large:1"
	if _, err := d.push("large", name); err != nil {
		t.Fatal(err)
	}
	e.wrong.Store(true)
	other := boot(t, newHome(t))
	if _, err := other.pull(name); err == nil || other.digest(name) != "" {
		t.Fatalf("blobs that are not what they say: %v", err)
	}
	e.wrong.Store(false)
	if _, err := other.pull(name); err != nil || other.digest(name) != d.digest("large") {
		t.Errorf("the allowed twin: %v", err)
	}
	for image, want := range map[string]codes.Code{
		e.host + "/large:2":                   codes.NotFound,
		e.host + "/none@" + d.digest("large"): codes.NotFound,
		"127.0.0.1:1/x:1":                     codes.Unavailable,
		"large":                               codes.InvalidArgument,
		"[::1]:1/x":                           codes.Unavailable,
	} {
		if _, err := other.pull(image); status.Code(err) != want {
			t.Errorf("%s: %v, want %v", image, err, want)
		}
	}
}

func TestPushMountsAcrossRepositories(t *testing.T) {
	t.Parallel()
	d, e := boot(t, newHome(t)), newElsewhere(t)
	d.image("large", large(t))
	if _, err := d.push("large", e.host+"/a/large:1"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.pull(e.host + "/a/large:1"); err != nil {
		t.Fatal(err)
	}
	out, err := d.push("large", e.host+"/b/large:1")
	if err != nil || out.states["mounted"] == 0 || out.states["done"] != 1 || e.count("from=a") == 0 {
		t.Errorf("%+v %v", out, err)
	}
}

// Ten tools share a layer: it is fetched once.
func TestTenToolsFetchTheirLayerOnce(t *testing.T) {
	t.Parallel()
	d, e := boot(t, newHome(t)), newElsewhere(t)
	file := "FROM scratch\nMODEL offline/otter\nNAME tools\n"
	list, err := d.api.ListImages(t.Context(), &daemonv1.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	tools := 0
	for _, i := range list.GetImages() {
		tool, ok := strings.CutPrefix(i.GetReference(), "otters/tools/")
		if tool, _, _ = strings.Cut(tool, ":"); !ok || tools == 10 {
			continue
		}
		tools++
		if _, err := d.push(i.GetReference(), e.host+"/tools/"+tool+":1"); err != nil {
			t.Fatal(err)
		}
		file += "BIN " + tool + " " + e.host + "/tools/" + tool + ":1\n"
	}
	r, err := d.images().InspectImage(t.Context(), &daemonv1.InspectImageRequest{Image: "otters/tools/cat"})
	if err != nil || len(r.GetParts()) != 1 {
		t.Fatal(r, err)
	}
	m, err := d.images().InspectImage(t.Context(), &daemonv1.InspectImageRequest{Image: "otters/tools/cat@" + r.GetParts()[0].GetDigest()})
	if err != nil || len(m.GetParts()) < 2 {
		t.Fatal(m, err)
	}
	// A home that has no tools of its own.
	bare := t.TempDir()
	if err := os.Chmod(bare, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{runtimeProgram, monitorProgram} {
		if err := os.Symlink(filepath.Join(built.For(t), program), filepath.Join(bare, program)); err != nil {
			t.Fatal(err)
		}
	}
	other := boot(t, emptyHome(t), func(c *Config) { c.Programs = bare })
	other.image("tools", map[string]string{"Agentfile": file})
	other.create(&daemonv1.CreateAgentRequest{Image: "tools", Name: "t"})
	other.await("t", "ready")
	layer := m.GetParts()[1].GetDigest()
	n := 0
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.asked {
		if strings.HasPrefix(a, "GET ") && strings.HasSuffix(a, "/blobs/"+layer) {
			n++
		}
	}
	if n != 1 || tools != 10 {
		t.Errorf("the shared layer was asked for %d times for %d tools", n, tools)
	}
}

func TestFromAParentElsewhereIsPinned(t *testing.T) {
	t.Parallel()
	d, e := boot(t, newHome(t)), newElsewhere(t)
	d.image("base", map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nNAME base\n"})
	base := e.host + "/base:1"
	if _, err := d.push("base", base); err != nil {
		t.Fatal(err)
	}
	other := boot(t, newHome(t))
	other.image("child", map[string]string{"Agentfile": "FROM " + base + "\nNAME child\n"})
	r, err := other.images().InspectImage(t.Context(), &daemonv1.InspectImageRequest{Image: "child"})
	if err != nil || r.GetAnnotations()[ocispec.AnnotationBaseImageDigest] != d.digest("base") ||
		len(r.GetParents()) != 1 || !r.GetParents()[0].GetPresent() || r.GetParents()[0].GetName() != base {
		t.Errorf("%v %v", r, err)
	}
	if !strings.Contains(r.GetDefinition(), `"model":"offline/otter"`) || !strings.HasPrefix(r.GetSource(), "FROM "+base) {
		t.Errorf("%v", r)
	}
}

// emptyPrograms is a folder with the monitor alone.
func emptyPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(built.For(t), monitorProgram), filepath.Join(dir, monitorProgram)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The credentials come from DOCKER_CONFIG. The variable is the process's, so this test runs alone.
func TestCredentialsOfDockerConfig(t *testing.T) {
	e := newElsewhere(t)
	e.user, e.password = "otter", "secret-fish"
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	d := boot(t, emptyHome(t), func(c *Config) { c.Programs = emptyPrograms(t) })
	d.image("a", map[string]string{"Agentfile": "FROM scratch\nNAME a\n"})
	name := e.host + "/a:1"
	_, err := d.push("a", name)
	if status.Code(err) != codes.PermissionDenied {
		t.Fatalf("without credentials: %v", err)
	}
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, []byte(`{"auths":{"`+e.host+`":{"auth":"b3R0ZXI6c2VjcmV0LWZpc2g="}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.push("a", name); err != nil {
		t.Errorf("with a file: %v", err)
	}
	bin := t.TempDir()
	helper := "#!/bin/sh\nread host\necho \"{\\\"ServerURL\\\":\\\"$host\\\",\\\"Username\\\":\\\"otter\\\",\\\"Secret\\\":\\\"secret-fish\\\"}\"\n"
	if err := writeProgram(filepath.Join(bin, "docker-credential-otters"), helper); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if err := os.WriteFile(config, []byte(`{"credHelpers":{"`+e.host+`":"otters"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.pull(name); err != nil {
		t.Errorf("with a helper: %v", err)
	}
	if err := os.WriteFile(config, []byte(`{`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.pull(name); status.Code(err) != codes.FailedPrecondition || strings.Contains(err.Error(), "fish") {
		t.Errorf("a file that is none: %v", err)
	}
}
