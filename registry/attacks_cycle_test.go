package registry

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

// R6: digests make a cycle of manifests impossible to push. Should a database have one all the same, every
// walk ends: of indexes that refer to each other, of one that refers to itself, and of subjects in a ring.
func TestR6ACycleInADatabaseEnds(t *testing.T) {
	t.Parallel()
	ctx := t.Context() // go test bounds what does not end
	s := openTest(t, t.TempDir())
	var ids [3]int64
	var descs [3]ocispec.Descriptor
	for i, name := range []string{"a", "b", "c"} {
		data := []byte(`{"schemaVersion":2,"mediaType":"` + ocispec.MediaTypeImageIndex + `","manifests":[],"annotations":{"n":"` + name + `"}}`)
		descs[i] = content.NewDescriptorFromBytes(ocispec.MediaTypeImageIndex, data)
		if err := s.Push(ctx, descs[i], bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if err := s.row(ctx, "SELECT id FROM contents WHERE digest = ?", []any{string(descs[i].Digest)}, []any{&ids[i]}); err != nil {
			t.Fatal(err)
		}
	}
	err := s.commits.do(0, func(w *writer) error {
		var errs []error
		for i := range ids {
			next := string(descs[(i+1)%len(descs)].Digest)
			for _, child := range []string{next, string(descs[i].Digest)} {
				errs = append(errs, w.exec("INSERT INTO edges(parent, child, kind) VALUES (?, ?, 1)", ids[i], child))
			}
			errs = append(errs, w.exec("UPDATE manifests SET subject = ? WHERE content = ?", next, ids[i]))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Tag(ctx, descs[0], "ring:v1"); err != nil {
		t.Error(err)
	}
	repo, err := s.Repository("ring")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range descs {
		// Itself and the one before, which are in the repository since the tag leads to them.
		if list, err := repo.Predecessors(ctx, d); err != nil || len(list) != 2 {
			t.Errorf("predecessors: %v %v", list, err)
		}
		pages := 0
		if err := repo.Referrers(ctx, d, "", func([]ocispec.Descriptor) error { pages++; return nil }); err != nil || pages != 1 {
			t.Errorf("referrers: %d pages, %v", pages, err)
		}
		if err := s.Delete(ctx, d); !errors.Is(err, ErrInUse) {
			t.Errorf("delete: %v", err)
		}
		w := httptest.NewRecorder()
		s.Handler(HandlerOptions{AnonymousPull: true}).ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/v2/ring/manifests/"+string(d.Digest), nil))
		if w.Code != http.StatusOK {
			t.Errorf("GET: %d", w.Code)
		}
	}
	for _, untag := range [][]string{nil, {"ring:v1"}} {
		if done, err := s.Collect(ctx, CollectOptions{Untag: untag}); err != nil || done.Manifests != 0 {
			t.Errorf("collect: %+v %v", done, err)
		}
	}
	c, err := s.Check(ctx, CheckOptions{})
	if err != nil || len(c.Problems) != len(descs) || !strings.Contains(c.Problems[0], "noted wrongly") {
		t.Errorf("check: %v %q", err, c.Problems)
	}
}
