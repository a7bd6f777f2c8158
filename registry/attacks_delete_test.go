package registry_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/otters-sh/otters/registry"
)

// R9: a deletion takes nothing from another repository, nor from what refers to it or reads it. Worst: the
// same image in two repositories, a collection right after, and a reader in the middle of the blob.
func TestR9ADeletionTakesNothingFromOthers(t *testing.T) {
	t.Parallel()
	c := &clock{}
	s := serve(t, openStore(t, t.TempDir(), registry.Options{Now: c.now}), registry.HandlerOptions{})
	// More than the connection holds by itself.
	layer := bytes.Repeat([]byte("sixteen bytes  \n"), 1<<20)
	desc := s.pushImage("mine", "v1", layer)
	s.pushImage("theirs", "v1", layer)
	blob, manifest := "/blobs/"+string(s.pushBlob("mine", layer).Digest), "/manifests/"+string(desc.Digest)
	top := s.pushManifest("mine", "top", index(desc))
	note := s.pushManifest("mine", "note", image(s.pushBlob("mine", []byte("{}")), nil, &desc, nil))

	s.want(s.do("DELETE", "/v2/mine"+blob, nil), 405, "DENIED")
	s.want(s.do("DELETE", "/v2/mine"+manifest, nil), 405, "DENIED")
	s.want(s.do("DELETE", "/v2/mine/manifests/"+string(top.Digest), nil), 202, "")
	gone := make(chan int, 8)
	var wg sync.WaitGroup
	for range cap(gone) {
		wg.Go(func() { gone <- s.do("DELETE", "/v2/mine"+manifest, nil).status })
	}
	wg.Wait()
	close(gone)
	counts := map[int]int{}
	for status := range gone {
		counts[status]++
	}
	if counts[202] != 1 || counts[404] != 7 {
		t.Errorf("eight at once: %v, want one 202 and else 404", counts)
	}
	s.want(s.do("GET", "/v2/mine/manifests/v1", nil), 404, "MANIFEST_UNKNOWN")
	if list, _ := s.referrers("/v2/mine/referrers/" + string(desc.Digest)); len(list.Manifests) != 1 || list.Manifests[0].Digest != note.Digest {
		t.Errorf("referrers of what was deleted: %v", list.Manifests)
	}
	s.want(s.do("DELETE", "/v2/mine"+blob, nil), 202, "")
	s.want(s.do("GET", "/v2/theirs/manifests/v1", nil), 200, "")
	reader := s.reading("/v2/theirs" + blob)
	if got := s.want(s.do("GET", "/v2/theirs"+blob, nil), 200, ""); !bytes.Equal(got.body, layer) {
		t.Errorf("the other repository's blob has %d bytes", len(got.body))
	}

	for _, path := range []string{manifest, blob} {
		s.want(s.do("DELETE", "/v2/theirs"+path, nil), 202, "")
	}
	c.forward(time.Hour)
	if done := collect(t, s.store, registry.CollectOptions{}); done.Blobs == 0 {
		t.Errorf("nothing was collected: %+v", done)
	}
	s.want(s.do("GET", "/v2/theirs"+blob, nil), 404, "BLOB_UNKNOWN")
	if rest, err := io.ReadAll(reader); err != nil || !bytes.Equal(rest, layer) {
		t.Errorf("who was reading got %d bytes, %v", len(rest), err)
	}
	_ = reader.Close()
	wantConsistent(t, s.store)
}

// reading is the body of an answer that nothing was read of.
func (s *server) reading(path string) io.ReadCloser {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), "GET", "http://"+s.host+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := s.client.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatal(resp, err)
	}
	return resp.Body
}

// R9: whoever may push to a repository deletes nothing in another, by no way of naming it.
func TestR9ADeletionStaysInItsRepository(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	desc := s.pushImage("a/b", "v1", []byte("layer"))
	s.pushImage("a", "v1", []byte("other layer"))
	for _, path := range []string{"/v2/a/manifests/" + string(desc.Digest), "/v2/a/blobs/" + string(s.pushBlob("a/b", []byte("layer")).Digest), "/v2/a/b/c/manifests/v1"} {
		if got := s.do("DELETE", path, nil).status; got != 404 {
			t.Errorf("%s: %d", path, got)
		}
	}
	s.want(s.do("DELETE", "/v2/a/manifests/..%2fb%2fv1", nil), 400, "NAME_INVALID")
	bearer := s.issue("repository:a:push,pull,delete")
	s.want(s.do("DELETE", "/v2/a/b/manifests/v1", nil, "Authorization", bearer), 401, "UNAUTHORIZED")
	s.want(s.do("GET", "/v2/a/b/manifests/v1", nil), 200, "")
	s.want(s.do("DELETE", "/v2/a/manifests/v1", nil, "Authorization", bearer), 202, "")
	s.want(s.do("GET", "/v2/a/b/blobs/"+string(s.pushBlob("a/b", []byte("layer")).Digest), nil), 200, "")
	if tags, _ := s.tags("/v2/a/b/tags/list"); fmt.Sprint(tags) != "[v1]" {
		t.Errorf("tags %v", tags)
	}
}
