package registry

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A store that has nothing to write any more tells so, whatever became of the blobs; the step of
// write-back grows with the writers, until there are so many that none is made.
func TestWritersAreCounted(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	large := bytes.Repeat([]byte("x"), rowLimit+1)
	desc := ocispec.Descriptor{MediaType: "application/x", Digest: digest.FromBytes(large), Size: int64(len(large))}
	wrong := desc
	wrong.Digest = digest.FromString("other")
	for what, push := range map[string]func() error{
		"stored": func() error { return s.Push(t.Context(), desc, bytes.NewReader(large)) },
		"refused": func() error {
			if err := s.Push(t.Context(), wrong, bytes.NewReader(large)); err == nil {
				return errors.New("it was taken")
			}
			return nil
		},
		"a row": func() error {
			return s.Push(t.Context(), ocispec.Descriptor{MediaType: "application/x", Digest: digest.FromString("row"), Size: 3}, strings.NewReader("row"))
		},
	} {
		if err := push(); err != nil || s.writing.Load() != 0 {
			t.Errorf("%s: %v, %d writers are left", what, err, s.writing.Load())
		}
	}
	g := s.newIngest(digest.SHA256)
	if _, err := g.Write(large); err != nil || s.writing.Load() != 1 {
		t.Errorf("%v, %d writers while one writes", err, s.writing.Load())
	}
	g.discard()
	g.discard()
	if s.writing.Load() != 0 {
		t.Errorf("%d writers are left", s.writing.Load())
	}
	for writers, want := range map[int64]int64{0: writeBack, 1: writeBack, 7: writeBack, 8: 2 * writeBack, 15: 3 * writeBack, 16: 0, 1000: 0} {
		s.writing.Store(writers)
		if got := s.writeBackStep(); got != want {
			t.Errorf("%d writers: a step of %d, want %d", writers, got, want)
		}
	}
	s.writing.Store(0)
}
