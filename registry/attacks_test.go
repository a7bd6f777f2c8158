package registry_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/otters-sh/otters/registry"
)

// emptyFolder tells whether nothing is left in a folder of the store.
func emptyFolder(t testing.TB, path string) {
	t.Helper()
	left, err := os.ReadDir(path)
	if err != nil || len(left) > 0 {
		t.Errorf("%s holds %v %v, want nothing", path, left, err)
	}
}

func TestR1WrongDigestStoresNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, openStore(t, dir, registry.Options{}), registry.HandlerOptions{})
	for _, data := range [][]byte{[]byte("small"), bigBlob("a")} {
		lie := digest.FromString("something else")
		for form, send := range uploadForms {
			s.want(send(s, "/v2/r/blobs/uploads/", lie, data), 400, "DIGEST_INVALID")
			s.want(s.do("GET", "/v2/r/blobs/"+string(lie), nil), 404, "BLOB_UNKNOWN")
			s.want(s.do("GET", "/v2/r/blobs/"+string(digest.FromBytes(data)), nil), 404, "BLOB_UNKNOWN")
			if t.Failed() {
				t.Fatal(form)
			}
		}
		s.want(s.do("PUT", "/v2/r/manifests/"+string(lie), index(), "Content-Type", ocispec.MediaTypeImageIndex), 400, "DIGEST_INVALID")
		s.want(s.do("GET", "/v2/r/manifests/"+string(lie), nil), 404, "MANIFEST_UNKNOWN")
	}
	emptyFolder(t, dir+"/tmp")
	emptyFolder(t, dir+"/blobs")
	s.want(s.do("GET", "/v2/_catalog", nil), 200, "")
	s.pushBlob("r", bigBlob("a"))
}

// dial connects to the server as it listens. The test ends the connection.
func (s *server) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := s.client.DialContext(t.Context(), "tcp", s.host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// raw sends bytes as they are and gives what comes back, if anything.
func (s *server) raw(t *testing.T, text string, half bool) (int, string) {
	t.Helper()
	conn := s.dial(t)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	if half {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, answer{body: data}.code()
}

// blobRequest pushes a blob that is "whole", in a body that says it has length bytes.
func blobRequest(body string, length int) string {
	return fmt.Sprintf("POST /v2/r/blobs/uploads/?digest=%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", digest.FromString("whole"), token, length, body)
}

func TestR2TruncatedBodiesStoreNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, openStore(t, dir, registry.Options{}), registry.HandlerOptions{})
	blob := "/v2/r/blobs/" + string(digest.FromString("whole"))
	if status, code := s.raw(t, blobRequest("wh", 5), true); status != 400 || code != "SIZE_INVALID" {
		t.Errorf("half-closed: %d %s", status, code)
	}
	s.want(s.do("GET", blob, nil), 404, "BLOB_UNKNOWN")
	if status, _ := s.raw(t, blobRequest("whole+more", 5), false); status != 201 {
		t.Errorf("longer than its length: %d, want the length to count", status)
	}
	if got := s.do("GET", blob, nil); string(got.body) != "whole" {
		t.Errorf("stored %q", got.body)
	}
	emptyFolder(t, dir+"/tmp")
}

func TestR2UploadSessionsAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, openStore(t, dir, registry.Options{MaxUploads: 3}), registry.HandlerOptions{})
	var open []string
	for range 3 {
		open = append(open, s.start("/v2/r/blobs/uploads/"))
	}
	s.want(s.do("POST", "/v2/r/blobs/uploads/", nil), 429, "TOOMANYREQUESTS")
	s.want(s.do("DELETE", open[0], nil), 204, "")
	s.start("/v2/r/blobs/uploads/")
}

func TestR2BodiesOverTheirLimitAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, openStore(t, dir, registry.Options{MaxBlob: 100000}), registry.HandlerOptions{})
	big, most := make([]byte, 100001), make([]byte, 100000)
	for form, send := range uploadForms {
		if form == "streamed" {
			s.want(s.do("PATCH", s.start("/v2/r/blobs/uploads/"), big, "Content-Length", "-"), 413, "SIZE_INVALID")
			continue
		}
		s.want(send(s, "/v2/r/blobs/uploads/", digest.FromBytes(big), big), 413, "SIZE_INVALID")
		s.want(send(s, "/v2/r/blobs/uploads/", digest.FromBytes(most), most), 201, "")
	}
	emptyFolder(t, dir+"/tmp")
}

func TestR3AbsurdPathsAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.pushImage("a/b", "v1")
	for _, name := range []string{"..", "a//b", "a/../b", "a/./b", "_", "A", "a%2fb", "a%2F..%2Fb", "a%00", "a/", strings.Repeat("a", 256), "%2e%2e"} {
		s.want(s.do("GET", "/v2/"+name+"/manifests/v1", nil), 400, "NAME_INVALID")
		s.want(s.do("POST", "/v2/"+name+"/blobs/uploads/", nil), 400, "NAME_INVALID")
	}
	for _, tag := range []string{"..", ".v1", "-v1", "v%201", strings.Repeat("v", 129), "%C3%A9", ""} {
		s.want(s.do("GET", "/v2/a/b/manifests/"+tag, nil), 404, "MANIFEST_UNKNOWN")
		s.want(s.do("PUT", "/v2/a/b/manifests/"+tag, index(), "Content-Type", ocispec.MediaTypeImageIndex), 400, "MANIFEST_INVALID")
	}
	for _, d := range []string{"sha256:..", "sha256:", "sha256:baddigeststring", "sha256%3A" + strings.Repeat("A", 64)} {
		if a := s.do("GET", "/v2/a/b/manifests/"+d, nil); a.status != 400 {
			t.Errorf("manifest %s: %d", d, a.status)
		}
		if a := s.do("GET", "/v2/a/b/blobs/"+d, nil); a.status != 400 {
			t.Errorf("blob %s: %d", d, a.status)
		}
	}
	s.want(s.do("GET", "/v2/a/b/blobs/../../../etc/passwd", nil), 404, "UNSUPPORTED")
	s.want(s.do("GET", "/v2/a/b/manifests/v1", nil), 200, "")
	s.want(s.do("GET", "/v2/a/b/blobs/"+strings.Replace(string(digest.FromString("{}")), ":", "%3A", 1), nil), 200, "")
}

func TestR4UploadBelongsToItsRepository(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	at := s.start("/v2/mine/blobs/uploads/")
	theirs := strings.Replace(at, "/mine/", "/theirs/", 1)
	d := string(digest.FromString("x"))
	for _, method := range []string{"GET", "PATCH", "PUT", "DELETE"} {
		s.want(s.do(method, theirs+"?digest="+d, []byte("x")), 404, "BLOB_UPLOAD_UNKNOWN")
	}
	s.want(s.do("GET", at[:len(at)-1], nil), 404, "BLOB_UPLOAD_UNKNOWN")
	s.want(s.do("PUT", at+"?digest="+d, []byte("x")), 201, "")
	s.want(s.do("PUT", at+"?digest="+d, []byte("x")), 404, "BLOB_UPLOAD_UNKNOWN")
}

func TestR5BlobOfOneRepositoryIsNotReadThroughAnother(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	desc := s.pushImage("a", "v1", []byte("secret"))
	d := string(digest.FromString("secret"))
	s.pushImage("b", "v1")
	for _, method := range []string{"GET", "HEAD", "DELETE"} {
		if a := s.do(method, "/v2/b/blobs/"+d, nil); a.status != 404 {
			t.Errorf("%s blob: %d", method, a.status)
		}
		if a := s.do(method, "/v2/b/manifests/"+string(desc.Digest), nil); a.status != 404 {
			t.Errorf("%s manifest: %d", method, a.status)
		}
	}
	// A manifest that names it does not open it either.
	layer := content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, []byte("secret"))
	data := image(s.pushBlob("b", []byte("{}")), []ocispec.Descriptor{layer}, nil, nil)
	s.want(s.do("PUT", "/v2/b/manifests/v2", data, "Content-Type", ocispec.MediaTypeImageManifest), 404, "MANIFEST_BLOB_UNKNOWN")
	s.want(s.do("GET", "/v2/a/blobs/"+d, nil), 200, "")
	s.pushBlob("b", []byte("secret"))
	s.want(s.do("PUT", "/v2/b/manifests/v2", data, "Content-Type", ocispec.MediaTypeImageManifest), 201, "")
}

func TestR8ReadersOfAMovingTagSeeWholeImages(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	var images [][]byte
	for i := range 2 {
		config := s.pushBlob("app", []byte("{}"))
		layer := s.pushBlob("app", fmt.Appendf(nil, "layer %d", i))
		images = append(images, image(config, []ocispec.Descriptor{layer}, nil, nil))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, data := range images {
		wg.Go(func() {
			for range 30 {
				s.do("PUT", "/v2/app/manifests/moving", data, "Content-Type", ocispec.MediaTypeImageManifest)
				s.do("DELETE", "/v2/app/manifests/moving", nil)
			}
		})
	}
	seen := make(chan struct{})
	var once sync.Once
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			a := s.do("GET", "/v2/app/manifests/moving", nil)
			if a.status == 404 {
				continue
			}
			once.Do(func() { close(seen) })
			if !bytes.Equal(a.body, images[0]) && !bytes.Equal(a.body, images[1]) || digest.FromBytes(a.body) != digest.Digest(a.header.Get("Docker-Content-Digest")) {
				t.Errorf("status %d, %d bytes", a.status, len(a.body))
			}
		}
	})
	wg.Wait()
	s.want(s.do("PUT", "/v2/app/manifests/moving", images[0], "Content-Type", ocispec.MediaTypeImageManifest), 201, "")
	<-seen
	close(stop)
	readers.Wait()
	s.want(s.do("GET", "/v2/app/manifests/moving", nil), 200, "")
}

func TestR10BlobDeletedBetweenHeadAndManifestIsNoticed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	config, layer := s.pushBlob("app", []byte("{}")), s.pushBlob("app", bigBlob("g"))
	data := image(config, []ocispec.Descriptor{layer}, nil, nil)
	s.want(s.do("HEAD", "/v2/app/blobs/"+string(layer.Digest), nil), 200, "")
	if err := s.store.Delete(context.Background(), layer); err != nil {
		t.Fatal(err)
	}
	s.want(s.do("PUT", "/v2/app/manifests/v1", data, "Content-Type", ocispec.MediaTypeImageManifest), 404, "MANIFEST_BLOB_UNKNOWN")
	s.pushBlob("app", bigBlob("g"))
	s.want(s.do("PUT", "/v2/app/manifests/v1", data, "Content-Type", ocispec.MediaTypeImageManifest), 201, "")
	wantError(t, s.store.Delete(context.Background(), layer), registry.ErrInUse)
}

func TestR12UnknownAlgorithmsAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, d := range []string{"md5:d41d8cd98f00b204e9800998ecf8427e", "sha384:" + strings.Repeat("a", 96), "sha512:" + strings.Repeat("a", 64)} {
		s.want(s.do("POST", "/v2/r/blobs/uploads/?digest="+d, []byte("x")), 400, "DIGEST_INVALID")
		s.want(s.do("PUT", s.start("/v2/r/blobs/uploads/")+"?digest="+d, []byte("x")), 400, "DIGEST_INVALID")
		s.want(s.do("PUT", "/v2/r/manifests/"+d, index(), "Content-Type", ocispec.MediaTypeImageIndex), 400, "DIGEST_INVALID")
		s.want(s.do("GET", "/v2/r/blobs/"+d, nil), 400, "DIGEST_INVALID")
	}
	s.want(s.do("POST", "/v2/r/blobs/uploads/?digest-algorithm=md5", nil), 400, "DIGEST_INVALID")
	s.want(s.do("POST", "/v2/r/blobs/uploads/?digest-algorithm=sha512", nil), 202, "")
	s.want(s.do("POST", "/v2/r/blobs/uploads/?digest="+string(digest.SHA512.FromString("x")), []byte("x")), 201, "")
}

func TestR13Ranges(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	big := bigBlob("h")
	for _, data := range [][]byte{[]byte("0123456789"), big} {
		path := "/v2/r/blobs/" + string(s.pushBlob("r", data).Digest)
		n := len(data)
		for text, want := range map[string]struct {
			status int
			body   []byte
		}{
			"bytes=0-3":                           {206, data[:4]},
			"bytes=5-":                            {206, data[5:]},
			"bytes=-4":                            {206, data[n-4:]},
			"bytes=2-99999999999":                 {206, data[2:]},
			"bytes=-99999999":                     {206, data},
			fmt.Sprintf("bytes=%d-", n):           {416, nil},
			"bytes=5-2":                           {416, nil},
			"bytes=99999999999999999999-":         {416, nil},
			"bytes=0-3,2-5":                       {200, data},
			"bytes=" + strings.Repeat("0-,", 999): {200, data},
		} {
			a := s.do("GET", path, nil, "Range", text)
			if a.status != want.status || want.body != nil && !bytes.Equal(a.body, want.body) {
				t.Errorf("%.30s: status %d with %d bytes, want %d with %d", text, a.status, len(a.body), want.status, len(want.body))
			}
		}
		if a := s.do("HEAD", path, nil, "Range", "bytes=0-3"); a.status != 200 || a.header.Get("Content-Length") != fmt.Sprint(n) {
			t.Errorf("HEAD: %d %s", a.status, a.header.Get("Content-Length"))
		}
	}
}

func TestR14TokenIsNeededForEverything(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.pushImage("app", "v1")
	basic := func(password string) string {
		r, _ := http.NewRequest("GET", "/", nil)
		r.SetBasicAuth("any user", password)
		return r.Header.Get("Authorization")
	}
	for header, allowed := range map[string]bool{
		"Bearer " + token: true, "bearer " + token: true, basic(token): true,
		"": false, "Bearer": false, "Bearer ": false, "Bearer wrong": false, basic("wrong"): false, basic(""): false, token: false, "Digest " + token: false,
		"Bearer " + token + "x": false, "Basic !!!": false,
	} {
		for _, path := range []string{"/v2/", "/v2/app/manifests/v1", "/v2/_catalog", "/v2/app/tags/list"} {
			a := s.do("GET", path, nil, "Authorization", header)
			if allowed {
				s.want(a, 200, "")
			} else if c := s.want(a, 401, "UNAUTHORIZED").header.Values("Www-Authenticate"); len(c) != 2 ||
				!strings.HasPrefix(c[0], `Bearer realm="http://`+s.host+`/v2/token",service="`) || !strings.HasPrefix(c[1], "Basic realm=") {
				t.Errorf("%s: challenge %q", path, c)
			}
		}
	}
	for _, method := range []string{"GET", "PUT", "DELETE"} {
		s.want(s.do(method, "/nowhere", nil, "Authorization", ""), 401, "UNAUTHORIZED")
	}
}

func TestR14AnonymousPullDoesNotPush(t *testing.T) {
	t.Parallel()
	s := serve(t, openStore(t, t.TempDir(), registry.Options{}), registry.HandlerOptions{AnonymousPull: true})
	desc := s.pushImage("app", "v1", []byte("layer"))
	blob := "/v2/app/blobs/" + string(digest.FromString("layer"))
	upload := s.start("/v2/app/blobs/uploads/")
	for _, path := range []string{"/v2/", "/v2/app/manifests/v1", blob, "/v2/app/tags/list", "/v2/app/referrers/" + string(desc.Digest)} {
		s.want(s.do("GET", path, nil, "Authorization", ""), 200, "")
		s.want(s.do("GET", path, nil, "Authorization", "Bearer wrong"), 401, "UNAUTHORIZED")
	}
	for path, methods := range map[string][]string{
		"/v2/_catalog": {"GET"}, upload: {"GET", "PATCH", "PUT", "DELETE"}, "/v2/app/blobs/uploads/": {"POST"},
		blob: {"DELETE"}, "/v2/app/manifests/v1": {"PUT", "DELETE"},
	} {
		for _, method := range methods {
			s.want(s.do(method, path, nil, "Authorization", ""), 401, "UNAUTHORIZED")
		}
	}
}

func TestR14NoTokenHashMeansNoToken(t *testing.T) {
	t.Parallel()
	store := openStore(t, t.TempDir(), registry.Options{})
	w := newRecorder()
	r, _ := http.NewRequest("GET", "/v2/", nil)
	r.Header.Set("Authorization", "Bearer ")
	store.Handler(registry.HandlerOptions{}).ServeHTTP(w, r)
	if w.status != 401 {
		t.Errorf("status %d, want 401", w.status)
	}
}

type recorder struct {
	header http.Header
	status int
}

func newRecorder() *recorder                        { return &recorder{header: http.Header{}} }
func (w *recorder) Header() http.Header             { return w.header }
func (w *recorder) WriteHeader(status int)          { w.status = status }
func (w *recorder) Write(p []byte) (n int, e error) { return len(p), nil }

func TestErrorsKeepPathsToThemselves(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, openStore(t, dir, registry.Options{}), registry.HandlerOptions{})
	if err := os.RemoveAll(dir + "/tmp"); err != nil {
		t.Fatal(err)
	}
	d := string(digest.FromBytes(bigBlob("i")))
	a := s.want(s.do("POST", "/v2/r/blobs/uploads/?digest="+d, bigBlob("i")), 500, "UNKNOWN")
	if strings.Contains(string(a.body), dir) {
		t.Errorf("answer tells the folder: %s", a.body)
	}
	s.want(s.do("GET", "/v2/r/blobs/"+d, nil), 404, "BLOB_UNKNOWN")
}
