package system_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/internal/gate"
	ocireg "github.com/otters-sh/otters/registry"
	"github.com/otters-sh/otters/system"
)

// listed is a target that is filled by a test.
type listed struct{ *memory.Store }

// put stores data and returns its descriptor.
func (l listed) put(t *testing.T, mediaType string, data []byte) ocispec.Descriptor {
	t.Helper()
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if err := l.Push(t.Context(), desc, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	return desc
}

func (l listed) putJSON(t *testing.T, mediaType string, v any) ocispec.Descriptor {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return l.put(t, mediaType, data)
}

// Invariant: an image is as large as all that its name leads to, each part counted once. Worst
// inputs: an index, a layer that two manifests share, a part that is not here.
func TestTheSizeOfAnIndexCountsWhatItsManifestsName(t *testing.T) {
	t.Parallel()
	store := memory.New()
	l := listed{store}
	layer := l.put(t, ocispec.MediaTypeImageLayer, make([]byte, 5000))
	var manifests []ocispec.Descriptor
	want := layer.Size
	for i := range 2 {
		config := l.put(t, ocispec.MediaTypeImageConfig, bytes.Repeat([]byte{'x'}, 100+i))
		m := l.putJSON(t, ocispec.MediaTypeImageManifest, ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, Config: config, Layers: []ocispec.Descriptor{layer}})
		manifests = append(manifests, m)
		want += config.Size + m.Size
	}
	gone := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("elsewhere"), Size: 77}
	manifests = append(manifests, gone)
	index := l.putJSON(t, ocispec.MediaTypeImageIndex, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: manifests})
	want += index.Size + gone.Size
	if err := store.Tag(t.Context(), index, "tool:1"); err != nil {
		t.Fatal(err)
	}
	info, err := system.NewRegistry(l, "127.0.0.1:1", nil).Inspect(t.Context(), "tool:1")
	if err != nil || info.Size != want {
		t.Errorf("size %d, %v; want %d", info.Size, err, want)
	}
}

// unlisted is a target without a listing and deleting of its own.
type unlisted struct{ oras.Target }

func TestTheRegistryUsesItsTargetAndTheAddressForWhatThatHasNot(t *testing.T) {
	t.Parallel()
	store, err := ocireg.Open(t.TempDir(), ocireg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	handler := store.Handler(ocireg.HandlerOptions{TokenHash: gate.TokenHash("tok")})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.SetBasicAuth("any", "tok")
		handler.ServeHTTP(w, r)
	}))
	defer srv.Close()
	ctx, addr := t.Context(), strings.TrimPrefix(srv.URL, "http://")
	if _, err := oras.Copy(ctx, image(t, plain), "latest", store, "tested/agent:one", oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
	when := func(repo, tag string) int64 {
		if repo != "tested/agent" {
			t.Errorf("asked for %s:%s", repo, tag)
		}
		return 77
	}
	for name, c := range map[string]struct {
		target oras.Target
		addr   string
		when   system.CreatedAtFunc
		lists  bool
	}{
		"the target's own":         {store, "", when, true},
		"the address":              {unlisted{store}, addr, nil, true},
		"neither":                  {unlisted{store}, "", nil, false},
		"the target's own, though": {store, "127.0.0.1:1", nil, true},
	} {
		r := system.NewRegistry(c.target, c.addr, c.when)
		if r.BuildTarget() != c.target {
			t.Errorf("%s: builds go to %v", name, r.BuildTarget())
		}
		if err := r.Tag(ctx, "tested/agent:one", "tested/agent:two"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		desc, err := r.Resolve(ctx, "tested/agent:two")
		if err != nil {
			t.Fatal(err)
		}
		body, err := r.Fetch(ctx, desc)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(body); err != nil || int64(len(text)) != desc.Size {
			t.Errorf("%s: fetched %d of %d bytes, %v", name, len(text), desc.Size, err)
		}
		body.Close()
		refs, listErr := r.List(ctx)
		info, inspectErr := r.Inspect(ctx, "tested/agent:two")
		removeErr := r.Remove(ctx, "tested/agent:two")
		if !c.lists {
			for _, err := range []error{listErr, inspectErr, removeErr} {
				if !errors.Is(err, executor.ErrNotImplemented) {
					t.Errorf("%s: %v", name, err)
				}
			}
			continue
		}
		if listErr != nil || strings.Join(refs, " ") != "tested/agent:one tested/agent:two" {
			t.Errorf("%s: listed %v, %v", name, refs, listErr)
		}
		want := int64(0)
		if c.when != nil {
			want = 77
		}
		if inspectErr != nil || info.Digest != desc.Digest.String() || info.Size <= desc.Size || info.CreatedUnix != want || info.Ref != "tested/agent:two" {
			t.Errorf("%s: inspected %+v, %v", name, info, inspectErr)
		}
		if removeErr != nil {
			t.Errorf("%s: %v", name, removeErr)
		}
		if _, err := r.Resolve(ctx, "tested/agent:two"); !errors.Is(err, executor.ErrRefNotFound) {
			t.Errorf("%s: a removed tag resolves: %v", name, err)
		}
		if _, err := r.Resolve(ctx, "tested/agent:one"); err != nil {
			t.Errorf("%s: the image's other tag went too: %v", name, err)
		}
		if err := r.Remove(ctx, "tested/agent:two"); !errors.Is(err, executor.ErrRefNotFound) {
			t.Errorf("%s: removed twice: %v", name, err)
		}
	}
}
