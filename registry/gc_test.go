package registry_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"oras.land/oras-go/v2/errdef"

	"github.com/otters-sh/otters/registry"
)

// clock is a store's clock that a test moves.
type clock struct{ seconds atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1_700_000_000+c.seconds.Load(), 0) }
func (c *clock) forward(d time.Duration) { c.seconds.Add(int64(d / time.Second)) }

// files lists the blobs kept as files.
func files(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func collect(t testing.TB, s *registry.Store, opts registry.CollectOptions) registry.Collected {
	t.Helper()
	done, err := s.Collect(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// wantConsistent checks the whole store.
func wantConsistent(t testing.TB, s *registry.Store) *registry.Check {
	t.Helper()
	c, err := s.Check(context.Background(), registry.CheckOptions{})
	if err != nil || len(c.Problems) > 0 {
		t.Fatalf("check: %v, problems %q", err, c.Problems)
	}
	return c
}

// Collection keeps what tags, roots, indexes, subjects and grace lead to, and removes the rest.
func TestCollectKeepsWhatIsNeededAndRemovesTheRest(t *testing.T) {
	t.Parallel()
	c := &clock{}
	dir := t.TempDir()
	s := serve(t, openStore(t, dir, registry.Options{Now: c.now}), registry.HandlerOptions{})
	kept, rooted := s.pushImage("app", "kept", []byte("a"), bigBlob("kept")), s.pushImage("app", "rooted", bigBlob("rooted"))
	entry := s.pushImage("app", "entry", bigBlob("entry"))
	s.pushManifest("app", "index", index(entry))
	config := s.pushBlob("app", []byte("{}"))
	note := s.pushManifest("app", "note", image(config, nil, &kept, map[string]string{"n": "1"}))
	gone := s.pushImage("app", "gone", bigBlob("gone"), bigBlob("kept"))
	goneNote := s.pushManifest("app", "gone-note", image(config, []ocispec.Descriptor{s.pushBlob("app", bigBlob("note"))}, &gone, nil))
	for _, tag := range []string{"rooted", "entry", "note", "gone", "gone-note"} {
		s.want(s.do("DELETE", "/v2/app/manifests/"+tag, nil), 202, "")
	}
	if done := collect(t, s.store, registry.CollectOptions{Grace: time.Hour}); done.Manifests+done.Blobs != 0 {
		t.Errorf("within the grace: %+v", done)
	}
	c.forward(2 * time.Hour)
	done := collect(t, s.store, registry.CollectOptions{Grace: time.Hour, Roots: []digest.Digest{rooted.Digest, digest.FromString("absent")}})
	if done.Manifests != 2 || done.Blobs != 2 || done.Bytes == 0 {
		t.Errorf("%+v, want 2 manifests and 2 blobs", done)
	}
	for _, ref := range []string{"kept", "index", string(rooted.Digest), string(entry.Digest), string(note.Digest)} {
		s.want(s.do("GET", "/v2/app/manifests/"+ref, nil), 200, "")
	}
	for _, d := range []digest.Digest{gone.Digest, goneNote.Digest} {
		s.want(s.do("GET", "/v2/app/manifests/"+string(d), nil), 404, "")
	}
	for seed, status := range map[string]int{"kept": 200, "rooted": 200, "entry": 200, "gone": 404, "note": 404} {
		s.want(s.do("GET", "/v2/app/blobs/"+string(digest.FromBytes(bigBlob(seed))), nil), status, "")
	}
	if n := len(files(t, dir)); n != 3 {
		t.Errorf("%d files, want 3", n)
	}
	wantConsistent(t, s.store)
	if again := collect(t, s.store, registry.CollectOptions{Roots: []digest.Digest{rooted.Digest}}); again.Manifests+again.Blobs != 0 {
		t.Errorf("a second time: %+v", again)
	}
}

// R10: what a pusher pushed, mounted or was told to be there stays until its manifest may come.
func TestR10CollectLeavesPushesInFlightAlone(t *testing.T) {
	t.Parallel()
	for name, touch := range map[string]func(s *server, d digest.Digest){
		"head":   func(s *server, d digest.Digest) { s.want(s.do("HEAD", "/v2/app/blobs/"+string(d), nil), 200, "") },
		"pushed": func(s *server, d digest.Digest) { s.pushBlob("app", []byte("layer")) },
		"mounted": func(s *server, d digest.Digest) {
			s.want(s.do("POST", "/v2/other/blobs/uploads/?from=app&mount="+string(d), nil), 201, "")
		},
		"exists": func(s *server, d digest.Digest) {
			if ok, err := s.store.Exists(context.Background(), ocispec.Descriptor{Digest: d, Size: 5}); !ok || err != nil {
				s.t.Fatal(ok, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &clock{}
			s := serve(t, openStore(t, t.TempDir(), registry.Options{Now: c.now}), registry.HandlerOptions{})
			layer, other := s.pushBlob("app", []byte("layer")), s.pushBlob("app", []byte("other"))
			c.forward(2 * time.Hour)
			touch(s, layer.Digest)
			collect(t, s.store, registry.CollectOptions{Grace: time.Hour})
			s.want(s.do("GET", "/v2/app/blobs/"+string(layer.Digest), nil), 200, "")
			s.want(s.do("GET", "/v2/app/blobs/"+string(other.Digest), nil), 404, "")
			s.pushManifest("app", "v1", image(layer, nil, nil, nil))
			c.forward(2 * time.Hour)
			collect(t, s.store, registry.CollectOptions{Grace: time.Hour})
			s.want(s.do("GET", "/v2/app/blobs/"+string(layer.Digest), nil), 200, "")
		})
	}
}

// R10: pushers that skip what they are told is there, removers, and a collector without rest: no
// push that found or pushed its blobs is refused, and every tag leads to a whole image.
func TestR10CollectWhileOthersPush(t *testing.T) {
	t.Parallel()
	if os.Getenv("OTTERS_LOAD") == "" {
		t.Skip("it takes long; make load runs it")
	}
	c := &clock{}
	dir := t.TempDir()
	s := serve(t, openStore(t, dir, registry.Options{Now: c.now}), registry.HandlerOptions{})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var background, pushers sync.WaitGroup
	var inFlight sync.RWMutex // time passes between pushes
	runs := 0
	background.Go(func() {
		for ; ctx.Err() == nil; runs++ {
			if _, err := s.store.Collect(ctx, registry.CollectOptions{Grace: time.Hour}); err != nil && ctx.Err() == nil {
				t.Errorf("collect: %v", err)
				return
			}
		}
	})
	for p := range 4 {
		pushers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(p), 1))
			for i := range 25 {
				inFlight.RLock()
				err := pushSkipping(s, fmt.Sprintf("t%d", rnd.IntN(6)), rnd.IntN(8), i)
				inFlight.RUnlock()
				if err != nil {
					t.Error(err)
					return
				}
				inFlight.Lock()
				c.forward(2 * time.Hour)
				inFlight.Unlock()
				_, _ = s.try("DELETE", fmt.Sprintf("/v2/app/manifests/t%d", rnd.IntN(6)), nil)
			}
		})
	}
	pushers.Wait()
	stop()
	background.Wait()
	if runs == 0 {
		t.Error("nothing was collected meanwhile")
	}
	wantConsistent(t, s.store)
	c.forward(25 * time.Hour)
	collect(t, s.store, registry.CollectOptions{})
	refs, err := s.store.References(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, ref := range refs {
		desc, err := s.store.Resolve(context.Background(), ref)
		if err != nil {
			t.Fatal(err)
		}
		list, err := content.Successors(context.Background(), s.store, desc)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			fetch(t, s.store, d)
			if d.Size > 64<<10 {
				want[string(d.Digest)] = true
			}
		}
	}
	if n := len(files(t, dir)); n != len(want) {
		t.Errorf("%d files, %d are needed", n, len(want))
	}
}

// pushSkipping pushes an image as clients do: a blob only where HEAD does not find it.
func pushSkipping(s *server, tag string, layer, n int) error {
	blobs := [][]byte{[]byte("{}"), []byte(fmt.Sprint("small", layer)), bigBlob(fmt.Sprint(layer))}
	var descs []ocispec.Descriptor
	for _, data := range blobs {
		desc := content.NewDescriptorFromBytes("application/octet-stream", data)
		a, err := s.try("HEAD", "/v2/app/blobs/"+string(desc.Digest), nil)
		if err == nil && a.status == 404 {
			a, err = s.try("POST", "/v2/app/blobs/uploads/?digest="+string(desc.Digest), data)
		}
		if err != nil || a.status != 200 && a.status != 201 {
			return fmt.Errorf("blob: status %d, %v", a.status, err)
		}
		descs = append(descs, desc)
	}
	data := image(descs[0], descs[1:], nil, map[string]string{"n": fmt.Sprint(n % 3)})
	a, err := s.try("PUT", "/v2/app/manifests/"+tag, data, "Content-Type", ocispec.MediaTypeImageManifest)
	if err != nil || a.status != 201 {
		return fmt.Errorf("manifest: status %d %s, %v", a.status, a.body, err)
	}
	return nil
}

func TestCollectRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	s := openStore(t, t.TempDir(), registry.Options{})
	for _, opts := range []registry.CollectOptions{{Grace: -1}, {Grace: 25 * time.Hour}, {Roots: []digest.Digest{"x"}}} {
		if _, err := s.Collect(context.Background(), opts); err == nil {
			t.Errorf("%+v: no error", opts)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Collect(ctx, registry.CollectOptions{})
	wantError(t, err, context.Canceled)
	collect(t, s, registry.CollectOptions{})
}

// A file whose push ended between rename and commit, or whose row went before it, is an orphan:
// told by the check, removed by a collection, while one that a row names stays.
func TestOrphansAreToldAndRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openStore(t, dir, registry.Options{})
	desc := push(t, s, "application/octet-stream", bigBlob("kept"))
	for _, name := range []string{"sha256-" + strings.Repeat("a", 64) + "-0123456789abcdef", "stray"} {
		if err := os.WriteFile(filepath.Join(dir, "blobs", name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if c := wantConsistent(t, s); c.Orphans != 2 {
		t.Errorf("%d orphans, want 2", c.Orphans)
	}
	if done := collect(t, s, registry.CollectOptions{Grace: time.Hour}); done.Orphans != 2 || done.Kept != 1 {
		t.Errorf("%+v", done)
	}
	fetch(t, s, desc)
	if c := wantConsistent(t, s); c.Orphans != 0 {
		t.Errorf("%d orphans, want 0", c.Orphans)
	}
}

// Damage of each kind is found, and a store without is not accused.
func TestCheckFindsDamage(t *testing.T) {
	t.Parallel()
	execute := func(query string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			db, err := sql.Open("sqlite", filepath.Join(dir, "registry.db"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = db.Exec(query)
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	change := func(f func(path string) error) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := f(filepath.Join(dir, "blobs", files(t, dir)[0])); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		damage func(*testing.T, string)
		want   string
	}{
		"none":         {func(*testing.T, string) {}, ""},
		"file missing": {change(os.Remove), "is missing"},
		"file cut":     {change(func(p string) error { return os.Truncate(p, 70000) }), "has 70000 bytes, 360000 are noted"},
		"file altered": {change(func(p string) error {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			return os.WriteFile(p, bytes.Replace(data, []byte("0"), []byte("1"), 1), 0o600)
		}), "the content has digest"},
		"row altered":     {execute("UPDATE contents SET data = 'other' WHERE digest = '" + string(digest.FromString("layer")) + "'"), "the content has digest"},
		"blob lost":       {execute("PRAGMA foreign_keys=0; DELETE FROM contents WHERE digest = '" + string(digest.FromString("layer")) + "'"), "which is missing"},
		"edge lost":       {execute("DELETE FROM edges"), "is not noted"},
		"subject altered": {execute("UPDATE manifests SET subject = 'sha256:x'"), "noted wrongly"},
		"member lost":     {execute("DELETE FROM members WHERE manifest = 1"), "names what is no manifest"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s, err := registry.Open(dir, registry.Options{})
			if err != nil {
				t.Fatal(err)
			}
			desc := pushImage(t, s, []byte("layer"), bigBlob("x"))
			if err := errors.Join(s.Tag(context.Background(), desc, "app:v1"), s.Close()); err != nil {
				t.Fatal(err)
			}
			test.damage(t, dir)
			c, err := openStore(t, dir, registry.Options{}).Check(context.Background(), registry.CheckOptions{})
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(c.Problems, "\n")
			if test.want == "" && text != "" || !strings.Contains(text, test.want) {
				t.Errorf("problems %q, want %q", text, test.want)
			}
			if c.Contents < 3 {
				t.Errorf("%d contents looked at, want 3 or more", c.Contents)
			}
		})
	}
}

func TestCheckMayLeaveFilesUnread(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openStore(t, dir, registry.Options{})
	push(t, s, "application/octet-stream", bigBlob("x"))
	name := filepath.Join(dir, "blobs", files(t, dir)[0])
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, make([]byte, info.Size()), 0o600); err != nil {
		t.Fatal(err)
	}
	for skip, want := range map[bool]int{true: 0, false: 1} {
		c, err := s.Check(context.Background(), registry.CheckOptions{SkipFiles: skip})
		if err != nil || len(c.Problems) != want {
			t.Errorf("skip %v: %v %q, want %d problems", skip, err, c.Problems, want)
		}
	}
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		t.Error("the check removed a file")
	}
}

// A dry run tells what a collection then removes, and removes no name either.
func TestADryRunTellsWhatACollectionRemoves(t *testing.T) {
	t.Parallel()
	c := &clock{}
	s := serve(t, openStore(t, t.TempDir(), registry.Options{Now: c.now}), registry.HandlerOptions{})
	kept, gone := s.pushImage("app", "kept", bigBlob("kept")), s.pushImage("app", "gone", bigBlob("gone"))
	c.forward(2 * time.Hour)
	fresh := s.pushImage("app", "fresh", bigBlob("fresh"))
	opts := registry.CollectOptions{Grace: time.Hour, Untag: []string{"app:gone", "app:fresh", "app:absent", "other:x"}, DryRun: true}
	told := collect(t, s.store, opts)
	for _, tag := range []string{"kept", "gone", "fresh"} {
		s.want(s.do("GET", "/v2/app/manifests/"+tag, nil), 200, "")
	}
	opts.DryRun = false
	done := collect(t, s.store, opts)
	if told != done || done.Manifests != 1 || done.Blobs != 1 || done.Fresh != 2 || done.FreshBytes < int64(len(bigBlob("fresh"))) {
		t.Errorf("told %+v, done %+v", told, done)
	}
	s.want(s.do("GET", "/v2/app/manifests/"+string(kept.Digest), nil), 200, "")
	s.want(s.do("GET", "/v2/app/manifests/"+string(fresh.Digest), nil), 200, "")
	s.want(s.do("GET", "/v2/app/manifests/fresh", nil), 404, "")
	s.want(s.do("GET", "/v2/app/manifests/"+string(gone.Digest), nil), 404, "")
	wantConsistent(t, s.store)
	for _, ref := range []string{"app", "app@" + string(kept.Digest), "App:x"} {
		if _, err := s.store.Collect(context.Background(), registry.CollectOptions{Untag: []string{ref}}); !errors.Is(err, errdef.ErrInvalidReference) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
