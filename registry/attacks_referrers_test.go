package registry_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/otters-sh/otters/registry"
)

// R7: an index under the fallback tag adds nothing to the referrers, a page is bounded however much
// its referrers carry, and no cursor leads round.
func TestR7ReferrersAreWhatSubjectsSay(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	subject := s.pushImage("app", "v1", []byte("layer"))
	config := s.pushBlob("app", []byte("{}"))
	other := s.pushManifest("app", "other", image(config, nil, nil, map[string]string{"signature": "of nothing"}))
	s.pushManifest("app", strings.Replace(string(subject.Digest), ":", "-", 1), index(other))
	if idx, _ := s.referrers("/v2/app/referrers/" + string(subject.Digest)); len(idx.Manifests) != 0 {
		t.Errorf("the tag poisoned the list: %v", idx.Manifests)
	}
	// A referrer in another repository is none in this one.
	s.pushBlob("evil", []byte("{}"))
	s.pushManifest("evil", "v1", image(config, nil, &subject, nil))
	if idx, _ := s.referrers("/v2/app/referrers/" + string(subject.Digest)); len(idx.Manifests) != 0 {
		t.Errorf("another repository's referrers: %v", idx.Manifests)
	}
	if idx, _ := s.referrers("/v2/evil/referrers/" + string(subject.Digest)); len(idx.Manifests) != 1 {
		t.Errorf("the repository's own: %v", idx.Manifests)
	}
}

func TestR7PagesAreBoundedAndEnd(t *testing.T) {
	t.Parallel()
	if os.Getenv("OTTERS_LOAD") == "" {
		t.Skip("it takes long; make load runs it")
	}
	s := newServer(t)
	config := s.pushBlob("app", []byte("{}"))
	subject := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, []byte("absent"))
	const count = 6
	for i := range count {
		s.pushManifest("app", fmt.Sprint("t", i), image(config, nil, &subject, map[string]string{"text": strings.Repeat("\u0001", 100000), "i": fmt.Sprint(i)}))
	}
	base := "/v2/app/referrers/" + string(subject.Digest)
	seen, pages := map[digest.Digest]bool{}, 0
	for path := base; path != ""; pages++ {
		idx, a := s.referrers(path)
		if len(a.body) > 4<<20 || pages > count {
			t.Fatalf("page %d has %d bytes", pages, len(a.body))
		}
		for _, d := range idx.Manifests {
			if seen[d.Digest] {
				t.Errorf("%s comes twice", d.Digest)
			}
			seen[d.Digest] = true
		}
		path = next(a)
	}
	if len(seen) != count {
		t.Errorf("%d referrers, want %d", len(seen), count)
	}
	for after, status := range map[string]int{fmt.Sprint(math.MaxInt64): 200, "0": 200, "-1": 400, "x": 400, "9" + strings.Repeat("9", 40): 400} {
		a := s.do("GET", base+"?after="+after, nil)
		if a.status != status || after != "0" && a.header.Get("Link") != "" {
			t.Errorf("after %s: status %d, link %q", after, a.status, a.header.Get("Link"))
		}
	}
}

// R6: chains of indexes and of referrers as long as anybody likes are no trouble for a collection.
func TestR6CollectionOfDeepChains(t *testing.T) {
	t.Parallel()
	if os.Getenv("OTTERS_LOAD") == "" {
		t.Skip("it takes long; make load runs it")
	}
	ctx := context.Background()
	c := &clock{}
	s := openStore(t, t.TempDir(), registry.Options{Now: c.now})
	kept := pushImage(t, s, []byte("kept"))
	config := push(t, s, ocispec.MediaTypeImageConfig, []byte("{}"))
	for _, root := range []ocispec.Descriptor{kept, pushImage(t, s, []byte("gone"))} {
		for deep, last := 0, root; deep < 150; deep++ {
			last = push(t, s, ocispec.MediaTypeImageIndex, index(last))
		}
		for long, last := 0, root; long < 150; long++ {
			last = push(t, s, ocispec.MediaTypeImageManifest, image(config, nil, &last, map[string]string{"n": fmt.Sprint(long)}))
		}
	}
	if err := s.Tag(ctx, kept, "app:v1"); err != nil {
		t.Fatal(err)
	}
	c.forward(registry.DefaultGrace * 2)
	done := collect(t, s, registry.CollectOptions{Grace: registry.DefaultGrace})
	// All indexes go, for none is tagged; the referrers of what is kept stay.
	if done.Manifests != 150+1+150+150 || done.Kept != 150+3 {
		t.Errorf("%+v", done)
	}
	wantConsistent(t, s)
}
