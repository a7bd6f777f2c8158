package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
)

// wantCutFileRefused cuts the end off a blob's file, and puts it on again.
func wantCutFileRefused(t *testing.T, s *Store, data []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.blobsPath(), "sha256-"+digest.FromBytes(data).Encoded()+"-*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	h := s.Handler(HandlerOptions{AnonymousPull: true})
	for _, c := range []struct {
		data []byte
		code int
	}{{data[:len(data)-1], http.StatusInternalServerError}, {data, http.StatusOK}} {
		if err := os.WriteFile(files[0], c.data, 0o600); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/v2/r/blobs/"+string(digest.FromBytes(data)), nil))
		if w.Code != c.code {
			t.Errorf("a file of %d bytes of %d is served: %d", len(c.data), len(data), w.Code)
		}
	}
}

// A caller whose rename came while a sync was under way waits for the next one.
func TestAFolderSyncThatBeganEarlierDoesNotCount(t *testing.T) {
	t.Parallel()
	d := &slowDisk{began: make(chan struct{}), end: make(chan struct{})}
	s, err := newFolderSync(t.TempDir(), d)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	call := func(name string) {
		wg.Go(func() {
			if err := s.sync(); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
		})
	}
	asked := func(n uint64) {
		for done := false; !done; {
			s.mu.Lock()
			done = s.asked == n
			s.mu.Unlock()
		}
	}
	call("first")
	<-d.began
	call("late")
	asked(2)
	call("later")
	asked(3)
	d.end <- struct{}{}
	<-d.began
	wait := func(n int) {
		for done := false; !done; {
			mu.Lock()
			done = len(order) == n
			mu.Unlock()
		}
	}
	wait(1)
	if !slices.Equal(order, []string{"first"}) {
		t.Errorf("%q returned before the second sync ended", order)
	}
	d.end <- struct{}{}
	wg.Wait()
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if d.syncs != 2 {
		t.Errorf("%d syncs for three callers, want 2", d.syncs)
	}
}

// A caller that runs again only after the next sync is told all the same that its own failed.
func TestAFolderSyncThatFailedIsNotMadeGoodByTheNext(t *testing.T) {
	t.Parallel()
	d := &failing{}
	s, err := newFolderSync(t.TempDir(), d)
	if err != nil {
		t.Fatal(err)
	}
	d.fail("folder", false)
	if err := s.sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("the sync that failed: %v", err)
	}
	d.fail("", false)
	if err := s.sync(); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if err := s.outcome(1); !errors.Is(err, unix.EIO) {
		t.Errorf("who waited for the first hears then: %v", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

type slowDisk struct {
	realDisk
	began, end chan struct{}
	syncs      int
}

func (d *slowDisk) syncFolder(*os.File) error {
	d.syncs++
	d.began <- struct{}{}
	<-d.end
	return nil
}

// folders is a disk that notes which folders are synced.
type folders struct {
	realDisk
	synced []string
}

func (d *folders) syncFolder(f *os.File) error {
	d.synced = append(d.synced, f.Name())
	return d.realDisk.syncFolder(f)
}

// The folders above a new store are there after a loss of power too: of each that was made, the one above
// it was synced. Worst: several that are missing, and none.
func TestR11TheFoldersOfANewStoreAreSynced(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b", "c")
	for _, want := range [][]string{{top, filepath.Join(top, "a"), filepath.Join(top, "a", "b"), dir}, {dir}} {
		d := &folders{}
		s, err := Open(dir, Options{disk: d})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(d.synced, want) {
			t.Errorf("synced %q, want %q", d.synced, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// failing is a disk on which one kind of step fails with EIO, before or after it was done.
type failing struct {
	mu         sync.Mutex
	step       string
	afterwards bool
	happened   int
}

func (f *failing) try(step string, do func() error) error {
	f.mu.Lock()
	fails, afterwards := f.step == step, f.afterwards
	if fails {
		f.happened++
	}
	f.mu.Unlock()
	if !fails {
		return do()
	}
	if afterwards {
		_ = do()
	}
	return &fs.PathError{Op: step, Path: "x", Err: unix.EIO}
}

func (f *failing) syncFile(o *os.File) error { return f.try("sync", func() error { return o.Sync() }) }
func (f *failing) rename(a, b string) error {
	return f.try("rename", func() error { return os.Rename(a, b) })
}
func (f *failing) syncFolder(o *os.File) error {
	return f.try("folder", func() error { return o.Sync() })
}
func (f *failing) remove(p string) error {
	return f.try("remove", func() error { return os.Remove(p) })
}
func (f *failing) commit(exec func() error) error { return f.try("commit", exec) }

func (f *failing) fail(step string, afterwards bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step, f.afterwards, f.happened = step, afterwards, 0
}

// R11: an error of the disk (EIO) at any step is told, loses nothing that was acknowledged, leaves the store
// consistent, and the same push succeeds when the disk works again. A commit whose error came after it was done
// may have stored the blob, whole, but no more.
func TestR11ADiskErrorAtEachStep(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir := t.TempDir()
	d := &failing{}
	s, err := Open(dir, Options{disk: d})
	if err != nil {
		t.Fatal(err)
	}
	h := s.Handler(HandlerOptions{TokenHash: sha256.Sum256([]byte(powerToken))})
	do := func(method, path string, body []byte) int {
		w := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
		req.SetBasicAuth("any", powerToken)
		h.ServeHTTP(w, req)
		if w.Code >= 500 && strings.Contains(w.Body.String(), dir) {
			t.Errorf("%s tells a path: %s", path, w.Body)
		}
		return w.Code
	}
	var stored [][]byte
	n := 0
	for _, step := range []string{"", "sync", "rename", "folder", "commit"} {
		for _, afterwards := range []bool{false, true} {
			n++
			data := bytes.Repeat([]byte(fmt.Sprint(n, " ")), 40000)
			sum := string(digest.FromBytes(data))
			d.fail(step, afterwards)
			code := do("POST", "/v2/r/blobs/uploads/?digest="+sum, data)
			hit := d.happened > 0
			d.fail("", false)
			if hit != (step != "") || hit && code != http.StatusInternalServerError || !hit && code != http.StatusCreated {
				t.Errorf("%s: status %d", step, code)
			}
			want := http.StatusNotFound
			if step == "" || step == "commit" && afterwards {
				want = http.StatusOK
			}
			if code := do("GET", "/v2/r/blobs/"+sum, nil); code != want {
				t.Errorf("%s: then GET gives %d, want %d", step, code, want)
			}
			if code := do("POST", "/v2/r/blobs/uploads/?digest="+sum, data); code != http.StatusCreated {
				t.Errorf("%s: the next push gives %d", step, code)
			}
			stored = append(stored, data)
		}
	}
	// A removal that fails leaves a file that belongs to nothing.
	victim := digest.FromBytes(stored[0])
	d.fail("remove", false)
	if err := s.Delete(ctx, ocispec.Descriptor{Digest: victim, Size: int64(len(stored[0]))}); err != nil {
		t.Errorf("delete: %v", err)
	}
	d.fail("", false)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir)
	wantCutFileRefused(t, s, stored[1])
	c, err := s.Check(ctx, CheckOptions{})
	if err != nil || len(c.Problems) > 0 || c.Orphans == 0 {
		t.Errorf("check: %v %+v", err, c)
	}
	for _, data := range stored {
		r, err := s.Fetch(ctx, content.NewDescriptorFromBytes("", data))
		if digest.FromBytes(data) == victim {
			if !errors.Is(err, errdef.ErrNotFound) {
				t.Errorf("what was deleted: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%.5q: %d bytes, %v", data, len(got), err)
		}
		_ = r.Close()
	}
	if done, err := s.Collect(ctx, CollectOptions{Grace: leaseTime}); err != nil || done.Orphans != c.Orphans || done.Blobs != 0 {
		t.Errorf("collect: %+v %v", done, err)
	}
}

// R11: an error of the disk while a blob that is there is pushed again leaves it there, by the one file or the
// other.
func TestR11ADiskErrorAtAPushOfWhatIsThere(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	d := &failing{}
	s, err := Open(dir, Options{disk: d})
	if err != nil {
		t.Fatal(err)
	}
	repo, err := s.Repository("r")
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("there "), 20000)
	desc := content.NewDescriptorFromBytes("application/octet-stream", data)
	if err := repo.Push(ctx, desc, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"sync", "rename", "folder", "commit", "remove"} {
		for _, afterwards := range []bool{false, true} {
			d.fail(step, afterwards)
			if err := s.pushBlob(ctx, "r", desc, bytes.NewReader(data)); errors.Is(err, unix.EIO) != (step != "remove") || d.happened == 0 {
				t.Errorf("%s: %v, %d steps", step, err, d.happened)
			}
			d.fail("", false)
			if got, err := content.FetchAll(ctx, repo, desc); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s: then it has %d bytes, %v", step, len(got), err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir)
	c, err := s.Check(ctx, CheckOptions{})
	if err != nil || len(c.Problems) > 0 {
		t.Errorf("check: %v %q", err, c.Problems)
	}
	if done, err := s.Collect(ctx, CollectOptions{Grace: leaseTime}); err != nil || done.Orphans != c.Orphans || c.Orphans == 0 {
		t.Errorf("collect: %+v %v", done, err)
	}
	if left, err := os.ReadDir(s.blobsPath()); err != nil || len(left) != 1 {
		t.Errorf("files %v %v", left, err)
	}
}

// Whoever found a content before it was pushed again, or deleted, reads what is there then, or is told so; and
// what a check found before it says nothing of what is there after it.
func TestWhatWasFoundBeforeAPush(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openTest(t, t.TempDir())
	for _, data := range [][]byte{[]byte("a row"), bytes.Repeat([]byte("a file "), 20000)} {
		desc := content.NewDescriptorFromBytes("application/octet-stream", data)
		if err := s.Push(ctx, desc, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		before, err := s.find(ctx, findInStore, true, string(desc.Digest))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.pushBlob(ctx, "", desc, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		if err := s.noteDamage(ctx, before); err != nil {
			t.Fatal(err)
		}
		if ok, err := s.Exists(ctx, desc); !ok || err != nil {
			t.Errorf("exists: %v %v", ok, err)
		}
		s.damage.clear(keptAs(before))
		r, err := s.open(ctx, before)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if err := errors.Join(r.Close(), s.Delete(ctx, desc)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.open(ctx, before); before.file.Valid && !errors.Is(err, errdef.ErrNotFound) {
			t.Errorf("what was deleted: %v", err)
		}
	}
}
