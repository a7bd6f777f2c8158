package daemon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote/auth"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/registry"
)

// Invariant: an upstream fills the cache with what its digests say, or not at all, and makes the
// daemon talk to nobody it may not talk to. Worst inputs: content of another digest, more bytes than
// said, a redirect to an address of the host's own, an answer that stops.

func TestUpstreamPolicies(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	far, near := openTestStore(t), openStoreAt(t, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	server := httptest.NewServer(far.Handler(registry.HandlerOptions{AnonymousPull: true}))
	defer server.Close()
	first := pushTestImage(t, far, "tools/x:v1", strings.Repeat("first", 30000))
	// got is what a policy gives, "" for an error.
	got := func(policy, rest string) digest.Digest {
		store, name, err := through(t, near, server.URL, policy).opener(t.Context(), refAt(t, server.URL, rest))
		if err != nil {
			return ""
		}
		desc, err := store.Resolve(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := content.FetchAll(t.Context(), store, desc); err != nil {
			t.Fatal(err)
		}
		return desc.Digest
	}
	check := func(what, policy, rest string, want digest.Digest) {
		t.Helper()
		if d := got(policy, rest); d != want {
			t.Errorf("%s: %s gives %q, want %q", what, policy, d, want)
		}
	}
	check("nothing cached", policyNever, "tools/x:v1", "")
	check("not there", policyMissing, "tools/none:v1", "")
	check("first pull", policyMissing, "tools/x:v1", first.Digest)
	check("by digest", policyMissing, "tools/x@"+first.Digest.String(), first.Digest)
	second := pushTestImage(t, far, "tools/x:v1", "second")
	check("tag moved", policyNever, "tools/x:v1", first.Digest)
	check("tag moved", policyMissing, "tools/x:v1", first.Digest)
	check("tag moved", policyAlways, "tools/x:v1", second.Digest)
	server.Close()
	check("upstream gone", policyAlways, "tools/x:v1", "")
	check("upstream gone", policyMissing, "tools/x:v1", second.Digest)
	check("upstream gone", policyAlways, "tools/x@"+first.Digest.String(), first.Digest)
	ahead.Store(int64(time.Minute)) // what was pushed within this second is not collected anyway
	if done, err := near.Collect(t.Context(), registry.CollectOptions{}); err != nil || done.Manifests != 0 {
		t.Errorf("what was pulled is collected: %+v %v", done, err)
	}
	// Asked for by name, it comes whatever the policy is.
	again := httptest.NewServer(far.Handler(registry.HandlerOptions{AnonymousPull: true}))
	defer again.Close()
	if desc, err := through(t, near, again.URL, policyNever).pull(t.Context(), refAt(t, again.URL, "tools/x:v1"), nil); err != nil || desc.Digest != second.Digest {
		t.Errorf("a pull by hand: %v %v", desc, err)
	}
}

// R15: whatever an upstream answers, nothing of it is tagged, and the answer is over in time.
func TestR15MaliciousUpstreamFillsNothing(t *testing.T) {
	t.Parallel()
	manifest := func(layer ocispec.Descriptor) []byte {
		data, err := json.Marshal(ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			Config: content.NewDescriptorFromBytes("application/x.config", []byte("{}")), Layers: []ocispec.Descriptor{layer},
		})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	asked := make(chan string, 16)
	inner := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.URL.Path }))
	inner.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		select {
		case asked <- "a connection, which is " + state.String():
		default:
		}
	}
	_ = inner.Listener.Close()
	inner.Listener = listenApart(t)
	inner.Start()
	t.Cleanup(inner.Close)
	_, inside, _ := strings.Cut(strings.TrimPrefix(inner.URL, "http://"), ":")
	layer := content.NewDescriptorFromBytes("application/x.layer", []byte("layer"))
	huge := ocispec.Descriptor{MediaType: layer.MediaType, Digest: layer.Digest, Size: maxRemoteBytes + 1}
	serve := func(b string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, b) }
	}
	near := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "layer") }))
	t.Cleanup(near.Close)
	for name, c := range map[string]struct {
		manifest []byte
		blob     func(http.ResponseWriter, *http.Request)
		fine     bool
	}{
		"as it should be": {manifest(layer), serve("layer"), true},
		"redirect to a host that is named": {manifest(layer), func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, near.URL+"/layer", http.StatusFound)
		}, true},
		"other content": {manifest(layer), serve("later"), false},
		"too short":     {manifest(layer), serve("lay"), false},
		"never ending": {manifest(layer), func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}, false},
		"stops": {manifest(layer), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			_, _ = io.WriteString(w, "la")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, false},
		"oversize": {manifest(huge), serve("layer"), false},
		"redirect inside": {manifest(layer), func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inner.URL+"/secret", http.StatusFound)
		}, false},
		"redirect to metadata": {manifest(layer), func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest/", http.StatusFound)
		}, false},
		"redirect to a name of an address inside": {manifest(layer), func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://localhost:"+inside+"/secret", http.StatusFound)
		}, false},
		"redirect loop":      {manifest(layer), func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, false},
		"manifest too large": {append(manifest(layer), bytes.Repeat([]byte(" "), 5<<20)...), serve("layer"), false},
		"token from inside": {manifest(layer), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Www-Authenticate", fmt.Sprintf("Bearer realm=%q,service=\"x\"", inner.URL+"/token"))
			w.WriteHeader(http.StatusUnauthorized)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.Contains(r.URL.Path, "/manifests/"):
					w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
					w.Header().Set("Docker-Content-Digest", digest.FromBytes(c.manifest).String())
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(c.manifest))
				case strings.HasSuffix(r.URL.Path, string(layer.Digest)):
					c.blob(w, r)
				default:
					_, _ = io.WriteString(w, "{}")
				}
			}))
			t.Cleanup(evil.Close)
			store := openTestStore(t)
			r := through(t, store, evil.URL, policyMissing)
			r.upstreams[strings.TrimPrefix(evil.URL, "http://")].hosts[strings.TrimPrefix(near.URL, "http://")] = true
			if !c.fine {
				r.stall = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, _, err := r.opener(ctx, refAt(t, evil.URL, "x:v1"))
			if (err == nil) != c.fine || ctx.Err() != nil {
				t.Errorf("open: %v, %v", err, ctx.Err())
			}
			refs, err := store.References(t.Context())
			if err != nil || (len(refs) == 1) != c.fine {
				t.Errorf("references %v %v", refs, err)
			}
		})
	}
	t.Cleanup(func() {
		select {
		case path := <-asked:
			t.Errorf("an address inside was asked for %s", path)
		default:
		}
	})
}

// R14: credentials and contents go over https, and nobody is asked for what a registry may not point
// to, a proxy neither.
func TestR14WhereARegistryMayPointTo(t *testing.T) {
	t.Parallel()
	configured, err := parseUpstream(upstreamConfig{Registry: "harbor.example", Hosts: []string{"10.0.0.7:9000"}})
	if err != nil {
		t.Fatal(err)
	}
	near, err := parseUpstream(upstreamConfig{Registry: "127.0.0.1:5000", PlainHTTP: true, Hosts: []string{"127.0.0.1:5001", "10.0.0.7:9000"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		u    *upstream
		url  string
		fine bool
	}{
		{otherRegistry("ghcr.io"), "https://ghcr.io/v2/", true},
		{otherRegistry("ghcr.io"), "https://blobs.example/x", true},
		{otherRegistry("ghcr.io"), "https://8.8.8.8/x", true},
		{otherRegistry("ghcr.io"), "http://ghcr.io/v2/", false},
		{otherRegistry("ghcr.io"), "http://ghcr.io:443/token", false},
		{otherRegistry("ghcr.io"), "https://10.0.0.7:9000/x", false},
		{otherRegistry("ghcr.io"), "https://169.254.169.254/latest/", false},
		{otherRegistry("ghcr.io"), "https://[::1]/x", false},
		{otherRegistry("ghcr.io"), "file:///etc/passwd", false},
		{otherRegistry("10.0.0.7"), "https://10.0.0.7/v2/", true},
		{otherRegistry("10.0.0.7"), "https://10.0.0.7:8443/v2/", false},
		{otherRegistry("localhost:5000"), "http://localhost:5000/v2/", true},
		{otherRegistry("127.0.0.1:5000"), "http://127.0.0.1:5001/v2/", false},
		{otherRegistry("127.0.0.1:5000"), "http://8.8.8.8/token", false},
		{otherRegistry("127.0.0.1:5000"), "http://auth.example/token", false},
		{otherRegistry("127.0.0.1:5000"), "https://auth.example/token", true},
		{near, "http://127.0.0.1:5001/x", true},
		{near, "http://10.0.0.7:9000/x", false},
		{near, "https://10.0.0.7:9000/x", true},
		{configured, "https://10.0.0.7:9000/x", true},
		{configured, "https://10.0.0.8:9000/x", false},
		{configured, "http://10.0.0.7:9000/x", false},
	} {
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if err := newUpstreamClient(c.u, time.Minute).check(u); (err == nil) != c.fine || err != nil && !errors.Is(err, errRefused) {
			t.Errorf("%s to %s: %v", c.u.host, c.url, err)
		}
	}
}

// R14: credentials are the registry's alone. Whom it redirects to, on another port of its own machine too,
// gets none, neither with the request nor by asking for them; the registry itself does.
func TestR14ARedirectCarriesNoCredentials(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var told []string // what the other host was told
	var asks bool     // whether it asks for credentials
	var other *httptest.Server
	other = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_ = r.ParseForm()
		for _, text := range []string{r.Header.Get("Authorization"), r.Header.Get("Cookie"), r.PostForm.Get("password"), r.PostForm.Get("refresh_token")} {
			if text != "" {
				told = append(told, r.URL.Path+": "+text)
			}
		}
		if r.URL.Path == "/token" {
			told = append(told, "a token was asked for")
		}
		if asks {
			w.Header().Set("Www-Authenticate", fmt.Sprintf("Bearer realm=%q,service=\"x\"", other.URL+"/token"))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "layer")
	}))
	t.Cleanup(other.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, ok := r.BasicAuth()
		switch {
		case !ok || user != "me" || password != "secret":
			w.Header().Set("Www-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/away":
			http.Redirect(w, r, other.URL+"/layer", http.StatusTemporaryRedirect)
		case r.URL.Path == "/near":
			http.Redirect(w, r, "/layer", http.StatusTemporaryRedirect)
		default:
			_, _ = io.WriteString(w, "layer")
		}
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	u, err := parseUpstream(upstreamConfig{Registry: host, PlainHTTP: true, Hosts: []string{strings.TrimPrefix(other.URL, "http://")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		asks bool
		want int
	}{{"/layer", false, http.StatusOK}, {"/near", false, http.StatusOK}, {"/away", false, http.StatusOK}, {"/away", true, http.StatusUnauthorized}} {
		mu.Lock()
		asks = c.asks
		mu.Unlock()
		client := newUpstreamClient(u, time.Minute)
		t.Cleanup(client.close)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.client(auth.StaticCredential(host, auth.Credential{Username: "me", Password: "secret"})).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s, asking %v: %d, want %d", c.path, c.asks, resp.StatusCode, c.want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(told) > 0 {
		t.Errorf("the other host was told %q", told)
	}
}

// A registry on this machine may be one with a certificate of an authority of its own.
func TestUpstreamWithAnAuthorityOfItsOwn(t *testing.T) {
	t.Parallel()
	far := openTestStore(t)
	server := httptest.NewTLSServer(far.Handler(registry.HandlerOptions{AnonymousPull: true}))
	t.Cleanup(server.Close)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	want := pushTestImage(t, far, "x:v1", "layer")
	host := strings.TrimPrefix(server.URL, "https://")
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for ca, fine := range map[string]bool{file: true, "": false} {
		u, err := parseUpstream(upstreamConfig{Registry: host, CAFile: ca})
		if err != nil {
			t.Fatal(err)
		}
		r := &imageRegistry{store: openTestStore(t), upstreams: map[string]*upstream{host: u}, stall: time.Minute}
		desc, err := r.pull(t.Context(), refAt(t, host, "x:v1"), nil)
		if fine && (err != nil || desc.Digest != want.Digest) || !fine && (codeOf(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "certificate")) {
			t.Errorf("ca-file %q: %v %v", ca, desc, err)
		}
	}
}

func TestUpstreamsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"upstreams: [{registry: ghcr.io}]":                                                "",
		"upstreams: [{registry: 'localhost:5000', policy: always, plain-http: true}]":     "",
		"upstreams: [{registry: ghcr}]":                                                   "is not a host",
		"upstreams: [{registry: ''}]":                                                     "is not a host",
		"upstreams: [{registry: ghcr.io/x}]":                                              "is not a host",
		"upstreams: [{registry: ghcr.io, policy: often}]":                                 "not always, missing or never",
		"upstreams: [{registry: ghcr.io, plain-http: true}]":                              "loopback only",
		"upstreams: [{registry: ghcr.io}, {registry: ghcr.io}]":                           "twice",
		"upstreams: [{registry: ghcr.io, user: x}]":                                       `unknown field "user"`,
		"upstreams: [{registry: harbor.example, hosts: [auth.example, '10.0.0.7:9000']}]": "",
		"upstreams: [{registry: harbor.example, hosts: [auth]}]":                          "hosts: \"auth\" is not a host",
		"upstreams: [{registry: harbor.example, ca-file: /nonexistent.pem}]":              "ca-file: open /nonexistent.pem",
		"upstreams: [{registry: harbor.example, ca-file: /dev/null}]":                     "no certificate in PEM form",
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readSettings(path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for addr, want := range map[string]bool{
		"8.8.8.8": true, "2001:4860:4860::8888": true, "127.0.0.1": false, "::1": false, "10.0.0.1": false, "169.254.169.254": false,
		"::ffff:127.0.0.1": false, "100.64.0.1": false, "0.0.0.0": false, "fe80::1": false, "fd00::1": false, "224.0.0.1": false,
	} {
		if isPublic(netip.MustParseAddr(addr)) != want {
			t.Errorf("%s: public is %v", addr, !want)
		}
	}
}

// A build and an agent whose FROM, RUNTIME and BIN are at an upstream work again when the upstream is
// gone, and so does an agent of an image there.
func TestBuildFromAnUpstreamWorksOffline(t *testing.T) {
	t.Parallel()
	origin := boot(t, newHome(t))
	origin.image("base:1", guide)
	hash := sha256.Sum256([]byte("unused"))
	server := httptest.NewServer(origin.Daemon.images.store.Handler(registry.HandlerOptions{AnonymousPull: true, TokenHash: hash}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	home := emptyHome(t)
	writeHome(t, home, "config.yaml", fmt.Sprintf("upstreams:\n  - registry: %s\n    plain-http: true\n", host))
	d := boot(t, home)
	child := map[string]string{"Agentfile": "FROM " + host + "/base:1\nRUNTIME " + host + "/otters/runtime\nNAME child\nBIN head " + host + "/otters/tools/head\n"}
	d.image("child:1", child)
	d.create(&daemonv1.CreateAgentRequest{Image: "child:1", Name: "b"})
	d.await("b", "ready")
	d.create(&daemonv1.CreateAgentRequest{Image: host + "/base:1", Name: "far"})
	d.await("far", "ready")
	server.Close()
	d.create(&daemonv1.CreateAgentRequest{Image: host + "/base:1", Name: "again"})
	d.await("again", "ready")
	d.image("child:2", child)
	d.create(&daemonv1.CreateAgentRequest{Image: "child:2", Name: "c"})
	d.await("c", "ready")
}
