package system_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/memory"

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
