package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/otters-sh/otters/registry"
	"github.com/otters-sh/otters/spec"
)

func openTestStore(t *testing.T) *registry.Store { return openStoreAt(t, nil) }

// openStoreAt opens a registry with a clock.
func openStoreAt(t *testing.T, now func() time.Time) *registry.Store {
	t.Helper()
	s, err := registry.Open(t.TempDir(), registry.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// pushTestImage puts an image with one layer under a tag.
func pushTestImage(t *testing.T, s *registry.Store, ref, layer string) ocispec.Descriptor {
	t.Helper()
	put := func(mediaType string, data []byte) ocispec.Descriptor {
		d := content.NewDescriptorFromBytes(mediaType, data)
		if ok, err := s.Exists(t.Context(), d); err != nil {
			t.Fatal(err)
		} else if !ok {
			if err := s.Push(t.Context(), d, bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: put("application/x.config", []byte("{}")), Layers: []ocispec.Descriptor{put("application/x.layer", []byte(layer))},
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	desc := put(m.MediaType, data)
	if err := s.Tag(t.Context(), desc, ref); err != nil {
		t.Fatal(err)
	}
	return desc
}

// through is a registry over a store that gets images of the server at url as a policy has it.
func through(t *testing.T, store *registry.Store, url, policy string) *imageRegistry {
	t.Helper()
	host := strings.TrimPrefix(url, "http://")
	u, err := parseUpstream(upstreamConfig{Registry: host, Policy: policy, PlainHTTP: true})
	if err != nil {
		t.Fatal(err)
	}
	return &imageRegistry{store: store, upstreams: map[string]*upstream{host: u}, stall: time.Minute}
}

func refAt(t *testing.T, url, rest string) spec.Reference {
	t.Helper()
	ref, err := spec.ParseReference(strings.TrimPrefix(url, "http://") + "/" + rest)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// listenApart listens on a port that the kernel gives nobody who asks for any: no other test can be about to ask
// whether somebody listens there still.
func listenApart(t *testing.T) net.Listener {
	t.Helper()
	for range 100 {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15_000+rand.IntN(15_000))); err == nil {
			return l
		}
	}
	t.Fatal("no port is free")
	return nil
}
