package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/errdef"

	"github.com/otters-sh/otters/registry"
)

// The invariant of the store, and the three worst inputs it is tested with: a folder that a crash
// left half written, content that is not what its descriptor says, and a manifest whose parts are
// missing or go.

func push(t testing.TB, target content.Pusher, mediaType string, data []byte) ocispec.Descriptor {
	t.Helper()
	desc := content.NewDescriptorFromBytes(mediaType, data)
	if err := target.Push(context.Background(), desc, bytes.NewReader(data)); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
		t.Fatal(err)
	}
	return desc
}

func pushImage(t testing.TB, target content.Pusher, layers ...[]byte) ocispec.Descriptor {
	t.Helper()
	config := push(t, target, ocispec.MediaTypeImageConfig, []byte("{}"))
	var descs []ocispec.Descriptor
	for _, l := range layers {
		descs = append(descs, push(t, target, ocispec.MediaTypeImageLayer, l))
	}
	return push(t, target, ocispec.MediaTypeImageManifest, image(config, descs, nil, nil))
}

func fetch(t testing.TB, target content.Fetcher, desc ocispec.Descriptor) []byte {
	t.Helper()
	data, err := content.FetchAll(context.Background(), target, desc)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func TestCopyInAndOutKeepsEveryByte(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	source := memory.New()
	small, big, empty := []byte("small"), bigBlob("a"), []byte{}
	desc := pushImage(t, source, small, big, empty)
	if err := source.Tag(ctx, desc, "v1"); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, t.TempDir(), registry.Options{})
	if _, err := oras.Copy(ctx, source, "v1", store, "team/app:v1", oras.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	back := memory.New()
	if _, err := oras.Copy(ctx, store, "team/app:v1", back, "again", oras.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{small, big, empty} {
		if got := fetch(t, back, content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, data)); !bytes.Equal(got, data) {
			t.Errorf("layer of %d bytes came back as %d others", len(data), len(got))
		}
	}
	got, err := store.Resolve(ctx, "team/app@"+string(desc.Digest))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(desc, got); diff != "" {
		t.Error(diff)
	}
}

func TestReopenKeepsEverythingAndCleansUp(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "new", "store with ?#% in its name")
	now := time.Unix(1700000000, 0)
	store, err := registry.Open(dir, registry.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	big := bigBlob("b")
	desc := pushImage(t, store, []byte("small"), big)
	if err := store.Tag(ctx, desc, "app:v1"); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	leftover := filepath.Join(dir, "tmp", "blob-123")
	if err := os.WriteFile(leftover, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	store = openStore(t, dir, registry.Options{})
	if _, err := os.Stat(leftover); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("leftover: %v, want it removed", err)
	}
	if got, err := store.Resolve(ctx, "app:v1"); err != nil || got.Digest != desc.Digest {
		t.Errorf("resolve: %v %v", got, err)
	}
	if got := fetch(t, store, content.NewDescriptorFromBytes("", big)); !bytes.Equal(got, big) {
		t.Error("large blob changed")
	}
	if got := store.CreatedAt("app", "v1"); got != now.Unix() {
		t.Errorf("created at %d, want %d", got, now.Unix())
	}
	if got := store.CreatedAt("app", "v2"); got != 0 {
		t.Errorf("created at %d of an unknown tag, want 0", got)
	}
}

func TestSecondOpenerIsRefusedUntilClose(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := registry.Open(dir, registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = registry.Open(dir, registry.Options{})
	wantError(t, err, registry.ErrLocked)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	openStore(t, dir, registry.Options{})
	_, err = first.Resolve(context.Background(), "app:v1")
	wantError(t, err, registry.ErrClosed)
	data := []byte("late")
	err = first.Push(context.Background(), content.NewDescriptorFromBytes("", data), bytes.NewReader(data))
	wantError(t, err, registry.ErrClosed)
}

func TestR1PushThatIsNotItsDescriptorStoresNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir := t.TempDir()
	store := openStore(t, dir, registry.Options{MaxBlob: 1 << 20})
	big := bigBlob("c")
	good := content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, big)
	other := content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, bigBlob("d"))
	short, long := good, good
	short.Size--
	long.Size++
	for name, c := range map[string]struct {
		desc ocispec.Descriptor
		data []byte
		want error
	}{
		"other digest":     {other, big, errdef.ErrInvalidDigest},
		"size too small":   {short, big, content.ErrMismatchedDigest},
		"size too large":   {long, big, content.ErrMismatchedDigest},
		"over the limit":   {content.NewDescriptorFromBytes("", make([]byte, 1<<20+1)), make([]byte, 1<<20+1), errdef.ErrSizeExceedsLimit},
		"unknown digest":   {ocispec.Descriptor{Digest: "md5:d41d8cd98f00b204e9800998ecf8427e"}, nil, errdef.ErrInvalidDigest},
		"no digest":        {ocispec.Descriptor{}, nil, errdef.ErrInvalidDigest},
		"manifest too big": {ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: good.Digest, Size: 50 << 20}, nil, errdef.ErrSizeExceedsLimit},
	} {
		if err := store.Push(ctx, c.desc, bytes.NewReader(c.data)); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
		if ok, err := store.Exists(ctx, c.desc); ok || err != nil {
			t.Errorf("%s: exists %v %v", name, ok, err)
		}
	}
	for _, sub := range []string{"tmp", "blobs"} {
		if left, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(left) > 0 {
			t.Errorf("%s holds %v %v, want nothing", sub, left, err)
		}
	}
	if err := store.Push(ctx, good, bytes.NewReader(big)); err != nil {
		t.Fatal(err)
	}
	wantError(t, store.Push(ctx, good, bytes.NewReader(big)), errdef.ErrAlreadyExists)
}

func TestPushEndsWithItsContext(t *testing.T) {
	t.Parallel()
	store := openStore(t, t.TempDir(), registry.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	desc := ocispec.Descriptor{Digest: digest.FromString("never"), Size: 1 << 30}
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write([]byte("first"))
		cancel()
		_, _ = w.Write([]byte("second"))
		_ = w.Close()
	}()
	wantError(t, store.Push(ctx, desc, r), context.Canceled)
	_ = r.Close()
}

func TestUntagLeavesOtherTagsAndContent(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := openStore(t, t.TempDir(), registry.Options{})
	desc := pushImage(t, store, []byte("layer"))
	for _, ref := range []string{"b/app:v2", "a:v1", "b/app:v1"} {
		if err := store.Tag(ctx, desc, ref); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Untag(ctx, "b/app:v1"); err != nil {
		t.Fatal(err)
	}
	wantError(t, store.Untag(ctx, "b/app:v1"), errdef.ErrNotFound)
	wantError(t, store.Untag(ctx, "b/app"), errdef.ErrInvalidReference)
	got, err := store.References(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a:v1", "b/app:v2"}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := store.Resolve(ctx, "b/app@"+string(desc.Digest)); err != nil {
		t.Errorf("resolve by digest: %v", err)
	}
}

func TestDeleteRefusesWhatIsInUseAndFreesTheRest(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir := t.TempDir()
	store := openStore(t, dir, registry.Options{})
	big := bigBlob("e")
	desc := pushImage(t, store, big)
	layer := content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, big)
	top := push(t, store, ocispec.MediaTypeImageIndex, index(desc))
	if err := store.Tag(ctx, top, "app:v1"); err != nil {
		t.Fatal(err)
	}
	wantError(t, store.Delete(ctx, layer), registry.ErrInUse)
	wantError(t, store.Delete(ctx, desc), registry.ErrInUse)
	got, err := store.Predecessors(ctx, desc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]ocispec.Descriptor{top}, got); diff != "" {
		t.Error(diff)
	}
	r, err := store.Fetch(ctx, layer)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, d := range []ocispec.Descriptor{top, desc, layer} {
		if err := store.Delete(ctx, d); err != nil {
			t.Fatal(err)
		}
		wantError(t, store.Delete(ctx, d), errdef.ErrNotFound)
	}
	if data, err := io.ReadAll(r); err != nil || !bytes.Equal(data, big) {
		t.Errorf("open reader: %d bytes, %v", len(data), err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "blobs")); err != nil || len(left) > 0 {
		t.Errorf("blobs holds %v %v, want nothing", left, err)
	}
	_, err = store.Resolve(ctx, "app:v1")
	wantError(t, err, errdef.ErrNotFound)
}

func TestTagShowsTheWholeImageInItsRepositoryOnly(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := openStore(t, t.TempDir(), registry.Options{})
	a, _ := store.Repository("a")
	b, _ := store.Repository("b")
	layer := content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, []byte("layer"))
	desc := pushImage(t, store, []byte("layer"))
	top := push(t, store, ocispec.MediaTypeImageIndex, index(desc))
	wantError(t, a.Tag(ctx, top, "v1"), errdef.ErrNotFound)
	wantError(t, store.Tag(ctx, layer, "a:v1"), errdef.ErrNotFound)
	if err := store.Tag(ctx, top, "a:v1"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []ocispec.Descriptor{layer, desc, top} {
		if got := fetch(t, a, d); len(got) == 0 {
			t.Error("nothing fetched")
		}
		_, err := b.Fetch(ctx, d)
		wantError(t, err, errdef.ErrNotFound)
	}
	if _, err := a.Resolve(ctx, string(desc.Digest)); err != nil {
		t.Error(err)
	}
	wantError(t, store.Tag(ctx, top, "c@"+string(desc.Digest)), errdef.ErrInvalidReference)
	if err := store.Tag(ctx, top, "c@"+string(top.Digest)); err != nil {
		t.Error(err)
	}
	c, _ := store.Repository("c")
	fetch(t, c, layer)
	wantError(t, c.Tag(ctx, top, string(desc.Digest)), errdef.ErrInvalidReference)
	if err := c.Tag(ctx, top, string(top.Digest)); err != nil {
		t.Error(err)
	}
	_, err := b.Resolve(ctx, string(desc.Digest))
	wantError(t, err, errdef.ErrNotFound)
	// What b lacks must be pushed to it, whatever the store holds.
	err = b.Push(ctx, top, bytes.NewReader(index(desc)))
	wantError(t, err, errdef.ErrNotFound)
	pushImage(t, b, []byte("layer"))
	if err := b.Push(ctx, top, bytes.NewReader(index(desc))); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(ctx, top); err != nil {
		t.Fatal(err)
	}
	if ok, err := a.Exists(ctx, top); !ok || err != nil {
		t.Errorf("in a: %v %v", ok, err)
	}
}

func TestReferrersAndTagsOfARepository(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := openStore(t, t.TempDir(), registry.Options{})
	repo, err := store.Repository("app")
	if err != nil {
		t.Fatal(err)
	}
	subject := pushImage(t, repo, []byte("layer"))
	config := content.NewDescriptorFromBytes("application/x.config", []byte("{}"))
	var want []string
	for i := range 3 {
		note := map[string]string{"n": fmt.Sprint(i)}
		d := push(t, repo, ocispec.MediaTypeImageManifest, image(config, nil, &subject, note))
		want = append(want, string(d.Digest))
	}
	var got []string
	err = repo.Referrers(ctx, subject, "application/x.config", func(page []ocispec.Descriptor) error {
		for _, d := range page {
			got = append(got, string(d.Digest))
			if d.Annotations["n"] == "" || d.ArtifactType != "application/x.config" {
				t.Errorf("descriptor %v lacks annotation or artifact type", d)
			}
		}
		return nil
	})
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, tag := range []string{"b", "B", "a", "C", "_"} {
		if err := repo.Tag(ctx, subject, tag); err != nil {
			t.Fatal(err)
		}
	}
	var tags []string
	err = repo.Tags(ctx, "a", func(page []string) error { tags = append(tags, page...); return nil })
	if diff := cmp.Diff([]string{"B", "b", "C"}, tags); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestR8ConcurrentPushesOfOneBlobKeepOneFile(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir := t.TempDir()
	store := openStore(t, dir, registry.Options{})
	big := bigBlob("f")
	desc := content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, big)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := store.Push(ctx, desc, bytes.NewReader(big)); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
				t.Error(err)
			}
			if ok, err := store.Exists(ctx, desc); !ok || err != nil {
				t.Errorf("after push: %v %v", ok, err)
			}
		})
	}
	wg.Wait()
	if left, err := os.ReadDir(filepath.Join(dir, "blobs")); err != nil || len(left) != 1 {
		t.Errorf("blobs holds %v %v, want one file", left, err)
	}
	if got := fetch(t, store, desc); !bytes.Equal(got, big) {
		t.Error("content changed")
	}
}

func TestR3NamesTagsAndDigestsFollowTheGrammar(t *testing.T) {
	t.Parallel()
	store := openStore(t, t.TempDir(), registry.Options{})
	hex := strings.Repeat("a", 64)
	for _, ref := range []string{
		"app:v1", "a/b/c:V_1.0-x", "a__b.c---d:_", "app@sha256:" + hex, "app@sha512:" + hex + hex,
		strings.Repeat("a", 255) + ":v1", "app:" + strings.Repeat("t", 128),
	} {
		if _, err := store.Resolve(context.Background(), ref); !errors.Is(err, errdef.ErrNotFound) {
			t.Errorf("%.40q: %v, want only not found", ref, err)
		}
	}
	for _, ref := range []string{
		"", ":", "app", ":v1", "app:", "..:v1", "a//b:v1", "a/../b:v1", "/a:v1", "a/:v1", "_:v1", "a___b:v1", "a..b:v1", "A:v1", "a\x00:v1",
		"a%2fb:v1", "é:v1", "app:..", "app:.v", "app:-v", "app:v/1", "app:v\n", "app\n:v1", strings.Repeat("a", 256) + ":v1", "app:" + strings.Repeat("t", 129),
	} {
		if _, err := store.Resolve(context.Background(), ref); !errors.Is(err, errdef.ErrInvalidReference) {
			t.Errorf("%.40q: %v, want invalid reference", ref, err)
		}
	}
	for _, d := range []string{"sha256:", "sha256:" + hex[1:], "sha256:" + strings.ToUpper(hex), "sha384:" + hex, "md5:" + hex, ":" + hex, hex, "sha256:../" + hex[3:]} {
		if _, err := store.Resolve(context.Background(), "app@"+d); !errors.Is(err, errdef.ErrInvalidDigest) {
			t.Errorf("%.40q: %v, want invalid digest", d, err)
		}
	}
	if _, err := store.Repository("../etc"); !errors.Is(err, errdef.ErrInvalidReference) {
		t.Errorf("repository: %v", err)
	}
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	store := openStore(t, dir, registry.Options{})
	push(t, store, "", bigBlob("g"))
	seen := 0
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		seen++
		return err
	})
	if err != nil || seen < 6 {
		t.Errorf("%d files seen, %v", seen, err)
	}
}

// What a crash leaves is the folder as it is, without Close: the database's log not merged, and
// perhaps a file that no row names.
func TestR11AcknowledgedSurvivesWithoutClose(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir, crashed := t.TempDir(), t.TempDir()
	store := openStore(t, dir, registry.Options{})
	big := bigBlob("h")
	desc := pushImage(t, store, []byte("small"), big)
	if err := store.Tag(ctx, desc, "app:v1"); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	unseen := bigBlob("unseen")
	name := filepath.Join(crashed, "blobs", fmt.Sprintf("sha256-%s-0123456789abcdef", digest.FromBytes(unseen).Encoded()))
	if err := os.WriteFile(name, unseen, 0o600); err != nil {
		t.Fatal(err)
	}
	after := openStore(t, crashed, registry.Options{})
	for _, d := range []ocispec.Descriptor{desc, content.NewDescriptorFromBytes("", big), content.NewDescriptorFromBytes("", []byte("small"))} {
		fetch(t, after, d)
	}
	if got, err := after.Resolve(ctx, "app:v1"); err != nil || got.Digest != desc.Digest {
		t.Errorf("resolve: %v %v", got, err)
	}
	half := content.NewDescriptorFromBytes("", unseen)
	if ok, err := after.Exists(ctx, half); ok || err != nil {
		t.Errorf("a file without a row exists: %v %v", ok, err)
	}
	push(t, after, "", unseen)
	fetch(t, after, half)
}
