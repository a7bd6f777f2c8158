package agentoci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/spec"
)

// Invariant: what is remembered of a layer is what a reading of it with a right digest gave, and an image
// pays for it as if it had been read. Worst inputs: the same bytes as another media type, a reader that
// goes away, a layer that is too much for an image together with its others.

// counting counts how often a blob is fetched.
type counting struct {
	oras.ReadOnlyTarget
	about digest.Digest
	n     *atomic.Int32
	// fail is the error of the first fetch.
	fail error
}

func (c counting) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if desc.Digest == c.about && c.n.Add(1) == 1 && c.fail != nil {
		return nil, c.fail
	}
	return c.ReadOnlyTarget.Fetch(ctx, desc)
}

// sharing makes ten tools whose programs are links to one in one layer.
func sharing(t *testing.T) (oras.ReadOnlyTarget, digest.Digest) {
	t.Helper()
	store := memory.New()
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("tool%d", i))
	}
	layer, err := PackLayer(t.Context(), store, program(amd64, "binary", names...))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := PackBin(t.Context(), store, BinImage{Name: name, Usage: "how", Layers: []Layer{layer}, Tags: []string{name + ":latest"}}); err != nil {
			t.Fatal(err)
		}
	}
	return store, layer.Descriptor.Digest
}

func TestTenToolsThatShareALayerReadItOnce(t *testing.T) {
	t.Parallel()
	store, layer := sharing(t)
	for what, first := range map[string]error{"read": nil, "first reading fails": errors.New("passing")} {
		n := new(atomic.Int32)
		p := NewPrograms(in(counting{store, layer, n, first}), BinOptions{Platform: &amd64})
		var same sync.Map
		var wg sync.WaitGroup
		var failed atomic.Int32
		for i := range 10 {
			wg.Go(func() {
				ref := spec.Reference{Name: fmt.Sprintf("tool%d", i)}
				info, err := p.Identify(t.Context(), ref)
				if err != nil {
					failed.Add(1)
					return
				}
				same.Store(info, true)
				if text, err := p.Usage(t.Context(), ref); err != nil || text != "how" {
					t.Errorf("%s: usage %q, %v", what, text, err)
				}
			})
		}
		wg.Wait()
		want := int32(1)
		if first != nil {
			want = 2 // one told its error, the next read it
		}
		programs := 0
		same.Range(func(k, _ any) bool {
			programs++
			if k.(BinaryInfo).Layer != layer || k.(BinaryInfo).Size != int64(len("binary")) {
				t.Errorf("%s: %+v", what, k)
			}
			return true
		})
		if n.Load() != want || failed.Load() != want-1 || programs != 1 {
			t.Errorf("%s: the layer was read %d times, %d failed, %d programs", what, n.Load(), failed.Load(), programs)
		}
		// Unpacking one of them reads it once more.
		var out bytes.Buffer
		if err := p.Pull(t.Context(), spec.Reference{Name: "tool3"}, &out); err != nil || out.String() != "binary" || n.Load() != want+1 {
			t.Errorf("%s: %q, %v, %d readings", what, out.String(), err, n.Load())
		}
	}
}

func TestListingsAreBoundedAndDoNotWaitForThoseWhoLeft(t *testing.T) {
	t.Parallel()
	l := &listings{busy: map[digest.Digest]chan struct{}{}}
	layer := func(i int) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString(fmt.Sprint(i)), Size: 1}
	}
	reads := 0
	get := func(d ocispec.Descriptor, entries int) {
		t.Helper()
		_, err := l.get(t.Context(), d, func() (scan, error) {
			reads++
			s := scan{entries: map[string]entry{}}
			for i := range entries {
				s.entries[fmt.Sprint(i)] = entry{}
			}
			return s, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxKnownLayers + 1 {
		get(layer(i), 1)
	}
	before := reads
	if get(layer(maxKnownLayers), 1); reads != before || len(l.list) != maxKnownLayers {
		t.Errorf("%d readings, want %d; %d are known", reads, before, len(l.list))
	}
	if get(layer(0), 1); reads != before+1 {
		t.Error("what was not used for longest was not forgotten")
	}
	other := layer(0)
	other.MediaType = ocispec.MediaTypeImageLayerGzip
	if get(other, 1); reads != before+2 {
		t.Error("another media type is taken for the same layer")
	}
	get(layer(1000), maxKnownEntries)
	get(layer(1001), maxKnownEntries+1)
	if len(l.list) != 1 || l.list[0].layer.Digest != layer(1000).Digest {
		t.Errorf("%d are known", len(l.list))
	}

	began := make(chan struct{})
	release := make(chan struct{})
	go func() {
		_, _ = l.get(context.Background(), layer(7), func() (scan, error) {
			close(began)
			<-release
			return scan{}, context.Canceled
		})
	}()
	<-began
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.get(gone, layer(7), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
	close(release)
	get(layer(7), 1)
}

func TestAKnownLayerCostsAnImageWhatItUnpacksTo(t *testing.T) {
	t.Parallel()
	store := memory.New()
	image(t, store, "tool:latest", named(), tarLayer(archive(t, file("other", "0123456789"))), tarLayer(archive(t, file("x", ""))))
	p := NewPrograms(in(store), BinOptions{})
	for range 2 {
		b, err := p.bin(t.Context(), spec.Reference{Name: "tool"})
		if err != nil {
			t.Fatal(err)
		}
		b.tree.budget = &budget{bytes: maxUnpacked, entries: 1, names: maxNames}
		_, err = b.Binary(t.Context())
		wants(t, "two entries where one may be", err, ErrLimit, "")
		b, err = p.bin(t.Context(), spec.Reference{Name: "tool"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Binary(t.Context())
		wants(t, "a program that is not there", err, errAbsent, "")
	}
}
