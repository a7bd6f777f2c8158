package registry_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/otters-sh/otters/registry"
)

const token = "right-token"

// openStore opens a store that the test closes.
func openStore(t testing.TB, dir string, opts registry.Options) *registry.Store {
	t.Helper()
	s, err := registry.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// server is a store behind a listener, with the connections of a client of its own: a port that was another
// server's before has none that are left of that.
type server struct {
	t      testing.TB
	store  *registry.Store
	host   string
	client *http.Transport
}

// serve listens on the loopback. Nothing of it ends for the machine's being slow: servePipes is for what is timed.
func serve(t testing.TB, s *registry.Store, opts registry.HandlerOptions) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if opts.BodyIdle == 0 {
		opts.BodyIdle = time.Hour
	}
	opts.TokenHash = sha256.Sum256([]byte(token))
	api := s.Handler(opts)
	return serveOn(t, s, l, (&net.Dialer{}).DialContext, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		api.ServeHTTP(w, r)
		// A server cuts the connection of who still sends half a second after the answer; a client that
		// did not run in it may see the cut first.
		_, _ = io.Copy(io.Discard, r.Body)
	}))
}

func serveOn(t testing.TB, s *registry.Store, l net.Listener, dial func(context.Context, string, string) (net.Conn, error), h http.Handler) *server {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Hour}
	client := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 64, ExpectContinueTimeout: time.Hour}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		client.CloseIdleConnections()
		_ = srv.Close()
		<-done
	})
	return &server{t: t, store: s, host: l.Addr().String(), client: client}
}

func newServer(t testing.TB) *server {
	t.Helper()
	return serve(t, openStore(t, t.TempDir(), registry.Options{}), registry.HandlerOptions{})
}

// answer is a response read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) code() string {
	var e struct{ Errors []struct{ Code string } }
	if json.Unmarshal(a.body, &e) != nil || len(e.Errors) != 1 {
		return fmt.Sprintf("no error body: %.200s", a.body)
	}
	return e.Errors[0].Code
}

// do sends a request with the right token; header holds name and value in turn. A Content-Length
// of "-" streams the body.
func (s *server) do(method, path string, body []byte, header ...string) answer {
	s.t.Helper()
	a, err := s.try(method, path, body, header...)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func (s *server) try(method, path string, body []byte, header ...string) (answer, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+s.host+path, r)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Content-Length" && header[i+1] == "-" {
			req.ContentLength = -1
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, data}, err
}

// want checks status and, for an error, its code.
func (s *server) want(a answer, status int, code string) answer {
	s.t.Helper()
	if a.status != status || code != "" && a.code() != code {
		s.t.Fatalf("status %d %.300s, want %d %s", a.status, a.body, status, code)
	}
	return a
}

func (s *server) pushBlob(repo string, data []byte) ocispec.Descriptor {
	s.t.Helper()
	d := digest.FromBytes(data)
	s.want(s.do("POST", "/v2/"+repo+"/blobs/uploads/?digest="+string(d), data), 201, "")
	return content.NewDescriptorFromBytes("application/octet-stream", data)
}

// pushImage pushes an image of the blobs given and tags it.
func (s *server) pushImage(repo, tag string, layers ...[]byte) ocispec.Descriptor {
	s.t.Helper()
	config := s.pushBlob(repo, []byte("{}"))
	config.MediaType = ocispec.MediaTypeImageConfig
	var descs []ocispec.Descriptor
	for _, l := range layers {
		descs = append(descs, s.pushBlob(repo, l))
	}
	return s.pushManifest(repo, tag, image(config, descs, nil, nil))
}

func (s *server) pushManifest(repo, tag string, data []byte) ocispec.Descriptor {
	s.t.Helper()
	s.want(s.do("PUT", "/v2/"+repo+"/manifests/"+tag, data, "Content-Type", mediaTypeOf(data)), 201, "")
	return content.NewDescriptorFromBytes(mediaTypeOf(data), data)
}

func mediaTypeOf(data []byte) string {
	var m struct{ MediaType string }
	_ = json.Unmarshal(data, &m)
	return m.MediaType
}

func image(config ocispec.Descriptor, layers []ocispec.Descriptor, subject *ocispec.Descriptor, annotations map[string]string) []byte {
	if layers == nil {
		layers = []ocispec.Descriptor{}
	}
	return marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config, Layers: layers, Subject: subject, Annotations: annotations,
	})
}

func index(manifests ...ocispec.Descriptor) []byte {
	return marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: manifests,
	})
}

func marshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// bigBlob is larger than a row may be.
func bigBlob(seed string) []byte { return []byte(strings.Repeat(seed+"-0123456789abcdef", 20000)) }
