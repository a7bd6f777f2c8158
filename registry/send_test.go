package registry

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// sendfile is an answer that can be given a file.
type sendfile struct {
	*httptest.ResponseRecorder
	files int
}

func (k *sendfile) ReadFrom(r io.Reader) (int64, error) {
	if l, ok := r.(*io.LimitedReader); ok {
		if _, ok := l.R.(*os.File); ok {
			k.files++
		}
	}
	return io.Copy(k.ResponseRecorder, r)
}

// Whichever way content is sent, every byte of it comes, and of a part that part alone. Only a file
// below copyFrom is the kernel's to send; the worst inputs are the sizes at either side of a bound.
func TestContentIsSentWholeEitherWay(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	repo, err := s.Repository("r")
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler(HandlerOptions{AnonymousPull: true})
	data := make([]byte, copyFrom+1)
	for i := range data {
		data[i] = byte(i / 251)
	}
	for size, files := range map[int]int{1: 0, rowLimit: 0, rowLimit + 1: 1, copyFrom - 1: 1, copyFrom: 0, copyFrom + 1: 0} {
		d := digest.FromBytes(data[:size])
		if err := repo.Push(t.Context(), ocispec.Descriptor{Digest: d, Size: int64(size)}, bytes.NewReader(data[:size])); err != nil {
			t.Fatal(err)
		}
		for _, part := range []struct{ header, want string }{{"", string(data[:size])}, {fmt.Sprintf("bytes=%d-", size/2), string(data[size/2 : size])}} {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2/r/blobs/"+string(d), nil)
			if part.header != "" {
				req.Header.Set("Range", part.header)
			}
			k := &sendfile{ResponseRecorder: httptest.NewRecorder()}
			h.ServeHTTP(k, req)
			if k.Code/100 != 2 || k.Body.String() != part.want || k.files != files {
				t.Errorf("%d bytes, %q: %d with %d bytes, want %d; %d files for the kernel, want %d", size, part.header, k.Code, k.Body.Len(), len(part.want), k.files, files)
			}
		}
	}
}
