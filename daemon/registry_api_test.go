package daemon

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: a collection leaves alone what an agent needs, running or stopped, and on a home that a
// daemon has nothing works but the daemon. Worst inputs: an image without a tag whose agent is
// stopped, a grace out of range, a home in use.

func (d *testDaemon) registry() daemonv1.RegistryServiceClient {
	return daemonv1.NewRegistryServiceClient(testConn(d.t, d.socket))
}

// collected collects with no grace until something went: what was pushed or asked for within this second
// is not collected yet.
func (d *testDaemon) collected() *daemonv1.GCResponse {
	d.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		r, err := d.registry().GC(d.t.Context(), &daemonv1.GCRequest{GraceSeconds: new(int64)})
		if err != nil {
			d.t.Fatal(err)
		}
		if r.GetManifests() > 0 || time.Now().After(deadline) {
			return r
		}
	}
}

func TestCollectionKeepsTheImagesOfAgents(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	d := boot(t, home)
	d.image("kept:1", guide)
	d.image("gone:1", map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nNAME other\n"})
	a := d.create(&daemonv1.CreateAgentRequest{Image: "kept:1", Name: "a"})
	d.await("a", "ready")
	d.halt("a")
	for _, ref := range []string{"kept:1", "gone:1"} {
		if err := d.Daemon.images.store.Untag(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	if removed := d.collected().GetManifests(); removed != 1 {
		t.Errorf("%d manifests were removed, want that of gone:1", removed)
	}
	if _, err := d.Daemon.images.store.Resolve(t.Context(), "kept@"+a.GetDigest()); err != nil {
		t.Errorf("the image of a stopped agent: %v", err)
	}
	d.begin("a")
	if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: "a", Force: true}); err != nil {
		t.Fatal(err)
	}
	if r := d.collected(); r.GetManifests() != 1 || r.GetBytes() == 0 {
		t.Errorf("after the agent was removed: %v", r)
	}
	c, err := d.registry().Fsck(t.Context(), &daemonv1.FsckRequest{})
	if err != nil || len(c.GetProblems()) > 0 || c.GetContents() == 0 {
		t.Errorf("fsck: %v, %v", c, err)
	}
	for name, err := range map[string]error{
		"gc":    func() error { _, err := CollectRegistry(t.Context(), home, 0); return err }(),
		"fsck":  func() error { _, err := CheckRegistry(t.Context(), home, false); return err }(),
		"serve": ServeRegistry(t.Context(), RegistryConfig{Home: home}),
	} {
		if err == nil || !strings.Contains(err.Error(), ErrHomeInUse.Error()) {
			t.Errorf("%s of a home in use: %v", name, err)
		}
	}
	if err := d.end(); err != nil {
		t.Fatal(err)
	}
	if r, err := CollectRegistry(t.Context(), home, time.Hour); err != nil || r.GetKept() == 0 {
		t.Errorf("offline gc: %v, %v", r, err)
	}
	if c, err := CheckRegistry(t.Context(), home, true); err != nil || len(c.GetProblems()) > 0 || c.GetContents() == 0 {
		t.Errorf("offline fsck: %v, %v", c, err)
	}
}

func TestLoginTellsTheTokenThatTheRegistryTakes(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	r, err := d.registry().Login(t.Context(), &daemonv1.LoginRequest{})
	if err != nil || r.GetAddress() != d.Registry() {
		t.Fatal(r, err)
	}
	for password, want := range map[string]int{r.GetToken(): http.StatusOK, "": http.StatusUnauthorized, "wrong": http.StatusUnauthorized} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.GetAddress()+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if password != "" {
			req.SetBasicAuth(r.GetUsername(), password)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("status %d, want %d", resp.StatusCode, want)
		}
	}
	for _, seconds := range []int64{-1, 86401} {
		if _, err := d.registry().GC(t.Context(), &daemonv1.GCRequest{GraceSeconds: &seconds}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("grace of %d seconds: %v", seconds, err)
		}
	}
}

// kernel is an answer that can be given a file.
type kernel struct {
	*httptest.ResponseRecorder
	files int
}

func (k *kernel) ReadFrom(r io.Reader) (int64, error) {
	if l, ok := r.(*io.LimitedReader); ok {
		if _, ok := l.R.(*os.File); ok {
			k.files++
		}
	}
	return io.Copy(k.ResponseRecorder, r)
}

// A blob that is a file is handed to the kernel to send, through all that is before the registry.
func TestFilesAreSentByTheKernel(t *testing.T) {
	t.Parallel()
	d := boot(t, emptyHome(t), func(c *Config) { c.Programs = emptyPrograms(t) })
	d.image("large", large(t))
	d.image("small", map[string]string{"Agentfile": "FROM scratch\nNAME small\nADD b\n", "b": "small"})
	for name, want := range map[string]int{"large": 1, "small": 0} {
		r, err := d.images().InspectImage(t.Context(), &daemonv1.InspectImageRequest{Image: name})
		if err != nil {
			t.Fatal(err)
		}
		files := 0
		for _, p := range r.GetParts() {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+d.Registry()+"/v2/"+name+"/blobs/"+p.GetDigest(), nil)
			req.SetBasicAuth("any", d.Daemon.images.token)
			k := &kernel{ResponseRecorder: httptest.NewRecorder()}
			d.Daemon.images.server.Handler.ServeHTTP(k, req)
			if k.Code != http.StatusOK || int64(k.Body.Len()) != p.GetSize() {
				t.Errorf("%s: %d, %d bytes, want %d", p.GetTitle(), k.Code, k.Body.Len(), p.GetSize())
			}
			files += k.files
		}
		if files != want {
			t.Errorf("%s: %d files were handed on, want %d", name, files, want)
		}
	}
}
