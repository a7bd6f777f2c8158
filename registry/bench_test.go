package registry_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/otters-sh/otters/registry"
)

// BenchmarkPush pushes blobs in process, each durable when its push returns.
func BenchmarkPush(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		for _, writers := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%dKiB/%dwriters", size>>10, writers), func(b *testing.B) {
				store := openStore(b, b.TempDir(), registry.Options{})
				b.SetBytes(int64(size))
				var next atomic.Int64
				var wg sync.WaitGroup
				b.ResetTimer()
				for range writers {
					wg.Go(func() {
						data := make([]byte, size)
						for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
							binary.LittleEndian.PutUint64(data, uint64(n))
							desc := content.NewDescriptorFromBytes("", data)
							if err := store.Push(context.Background(), desc, bytes.NewReader(data)); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// BenchmarkManifest pushes a manifest under a tag of its own over HTTP, then reads it.
func BenchmarkManifest(b *testing.B) {
	s := newServer(b)
	config := s.pushBlob("app", []byte("{}"))
	b.Run("PUT", func(b *testing.B) {
		for i := range b.N {
			data := image(config, nil, nil, map[string]string{"n": fmt.Sprint(b.N, i)})
			s.want(s.do("PUT", fmt.Sprintf("/v2/app/manifests/t%d-%d", b.N, i), data, "Content-Type", ocispec.MediaTypeImageManifest), 201, "")
		}
	})
	b.Run("GET", func(b *testing.B) {
		s.pushManifest("app", "v1", image(config, nil, nil, nil))
		for b.Loop() {
			s.want(s.do("GET", "/v2/app/manifests/v1", nil), 200, "")
		}
	})
}
