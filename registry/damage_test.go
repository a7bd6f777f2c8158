package registry_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/registry"
)

// Invariant: content that is known to be damaged is given to nobody, whoever asks before a push is told to
// push it, and a push puts it right for good, by any client; nothing else is touched. The three worst inputs:
// a file whose size is right and whose bytes are not, a manifest that is whole over a blob that is not, and
// a reader that looks for the file just when a push puts another in its place.

// fileOf is the file of a blob in a store's folder.
func fileOf(t testing.TB, dir string, data []byte) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256-"+digest.FromBytes(data).Encoded()+"-*"))
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	return list[0]
}

// alter changes a byte of a file.
func alter(path string) error {
	data, err := os.ReadFile(path)
	if err == nil {
		data[len(data)/2] ^= 1
		err = os.WriteFile(path, data, 0o600)
	}
	return err
}

func TestADamagedBlobIsPutRightByAPush(t *testing.T) {
	t.Parallel()
	damages := map[string]func(path string) error{
		"missing": os.Remove, "cut": func(p string) error { return os.Truncate(p, 70000) }, "longer": func(p string) error { return os.Truncate(p, 1<<20) }, "altered": alter,
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := serve(t, openStore(t, dir, registry.Options{}), registry.HandlerOptions{})
			good := bigBlob("twin")
			s.pushImage("app", "twin", good)
			for form, send := range uploadForms {
				bad := bigBlob("bad " + form)
				desc := s.pushImage("app", form, bad)
				if err := damage(fileOf(t, dir, bad)); err != nil {
					t.Fatal(err)
				}
				if c, err := s.store.Check(context.Background(), registry.CheckOptions{}); err != nil || len(c.Problems) != 1 || !strings.Contains(c.Problems[0], string(digest.FromBytes(bad))) {
					t.Errorf("check: %v %q", err, c.Problems)
				}
				wantFound(s, bad, form, desc, false)
				wantFound(s, good, "twin", s.resolve("app:twin"), true)
				s.want(send(s, "/v2/app/blobs/uploads/", digest.FromBytes(bad), bad), 201, "")
				wantFound(s, bad, form, desc, true)
				if c := wantConsistent(t, s.store); c.Orphans != 0 {
					t.Errorf("%d orphans", c.Orphans)
				}
			}
			if n := len(files(t, dir)); n != 1+len(uploadForms) {
				t.Errorf("%d files", n)
			}
		})
	}
}

func (s *server) resolve(ref string) ocispec.Descriptor {
	s.t.Helper()
	desc, err := s.store.Resolve(context.Background(), ref)
	if err != nil {
		s.t.Fatal(err)
	}
	return desc
}

// wantFound asks in every way for a layer of an image, which is whole or known to be damaged. The image's
// manifest is there in any case.
func wantFound(s *server, data []byte, tag string, manifest ocispec.Descriptor, whole bool) {
	s.t.Helper()
	ctx := context.Background()
	head, get, mount := 404, 500, 202
	if whole {
		head, get, mount = 200, 200, 201
	}
	layer := content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, data)
	blob := "/v2/app/blobs/" + string(layer.Digest)
	s.want(s.do("HEAD", blob, nil), head, "")
	if a := s.want(s.do("GET", blob, nil), get, ""); whole && !bytes.Equal(a.body, data) || !whole && !strings.Contains(string(a.body), "damaged: push it again") {
		s.t.Errorf("%d other bytes", len(a.body))
	}
	s.want(s.do("POST", "/v2/to/"+tag+"/blobs/uploads/?from=app&mount="+string(layer.Digest), nil), mount, "")
	s.want(s.do("HEAD", "/v2/app/manifests/"+tag, nil), 200, "")
	s.want(s.do("GET", "/v2/app/manifests/"+tag, nil), 200, "")
	repo, err := s.store.Repository("app")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, desc := range []ocispec.Descriptor{layer, manifest} {
		for _, target := range []oras.ReadOnlyTarget{s.store, repo} {
			if ok, err := target.Exists(ctx, desc); err != nil || ok != whole {
				s.t.Errorf("%s: exists: %v %v", desc.MediaType, ok, err)
			}
		}
	}
	r, err := s.store.Fetch(ctx, layer)
	if (err == nil) != whole {
		s.t.Errorf("fetch: %v", err)
	}
	if err == nil {
		err = r.Close()
	} else if !strings.Contains(err.Error(), "damaged") {
		s.t.Errorf("fetch: %v", err)
	} else {
		err = nil
	}
	if err != nil {
		s.t.Error(err)
	}
}

// A client that skips what is below a manifest that is there puts the image right as well, and it stays so.
func TestADamagedImageIsPutRightByACopy(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir, source := t.TempDir(), memory.New()
	layer := bigBlob("layer")
	image := pushImage(t, source, []byte("small"), layer)
	top := push(t, source, ocispec.MediaTypeImageIndex, index(image))
	if err := source.Tag(ctx, top, "v1"); err != nil {
		t.Fatal(err)
	}
	s, err := registry.Open(dir, registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	again := func() {
		t.Helper()
		if _, err := oras.Copy(ctx, source, "v1", s, "app:v1", oras.CopyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	again()
	damages := []func() error{
		func() error { return os.Remove(fileOf(t, dir, layer)) },
		func() error { return alter(fileOf(t, dir, layer)) },
	}
	// Rows: of a blob, of a manifest, and of an index.
	for _, d := range []digest.Digest{digest.FromString("small"), image.Digest, top.Digest} {
		damages = append(damages, func() error {
			db, err := sql.Open("sqlite", filepath.Join(dir, "registry.db"))
			if err == nil {
				_, err = db.Exec("UPDATE contents SET data = replace(data, 'm', 'M') WHERE digest = ?", string(d))
				err = errors.Join(err, db.Close())
			}
			return err
		})
	}
	for i, damage := range damages {
		if err := errors.Join(s.Close(), damage()); err != nil {
			t.Fatal(err)
		}
		if s, err = registry.Open(dir, registry.Options{}); err != nil {
			t.Fatal(err)
		}
		if c, err := s.Check(ctx, registry.CheckOptions{}); err != nil || len(c.Problems) == 0 {
			t.Errorf("%d: nothing is damaged: %v", i, err)
		}
		if ok, err := s.Exists(ctx, top); ok || err != nil {
			t.Errorf("%d: exists: %v %v", i, ok, err)
		}
		again()
		wantConsistent(t, s)
		if ok, err := s.Exists(ctx, top); !ok || err != nil {
			t.Errorf("%d: exists: %v %v", i, ok, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantConsistent(t, openStore(t, dir, registry.Options{}))
}

// Nobody hashes what is read: what nobody checked is damaged unseen, and put right by whoever pushes it all
// the same. A push of other bytes under its digest touches nothing.
func TestAPushPutsRightWhatNobodyChecked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, openStore(t, dir, registry.Options{}), registry.HandlerOptions{})
	data := bigBlob("unseen")
	blob := "/v2/app/blobs/" + string(s.pushBlob("app", data).Digest)
	if err := alter(fileOf(t, dir, data)); err != nil {
		t.Fatal(err)
	}
	s.want(s.do("HEAD", blob, nil), 200, "")
	if a := s.want(s.do("GET", blob, nil), 200, ""); bytes.Equal(a.body, data) {
		t.Error("it is not damaged; the test shows nothing")
	}
	before := fileOf(t, dir, data)
	s.want(s.do("POST", "/v2/app/blobs/uploads/?digest="+string(digest.FromBytes(data)), bigBlob("others")), 400, "DIGEST_INVALID")
	if fileOf(t, dir, data) != before {
		t.Error("a push that was refused replaced the file")
	}
	s.pushBlob("app", data)
	if a := s.want(s.do("GET", blob, nil), 200, ""); !bytes.Equal(a.body, data) {
		t.Error("it is damaged still")
	}
	wantConsistent(t, s.store)
}

// R8: who reads and asks while others push the same blob again and again never misses it.
func TestR8ABlobIsThereWhileItIsPushedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, openStore(t, dir, registry.Options{}), registry.HandlerOptions{})
	data := bigBlob("again")
	desc := s.pushImage("app", "v1", data)
	path := "/v2/app/blobs/" + string(digest.FromBytes(data))
	stop := make(chan struct{})
	var pushers, readers sync.WaitGroup
	for range 4 {
		pushers.Go(func() {
			for range 8 {
				if a, err := s.try("POST", "/v2/app/blobs/uploads/?digest="+string(digest.FromBytes(data)), data); err != nil || a.status != 201 {
					t.Errorf("push: %d %v", a.status, err)
				}
			}
		})
	}
	for _, method := range []string{"GET", "HEAD"} {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if a, err := s.try(method, path, nil); err != nil || a.status != 200 || method == "GET" && !bytes.Equal(a.body, data) {
					t.Errorf("%s: %d, %d bytes, %v", method, a.status, len(a.body), err)
				}
				if ok, err := s.store.Exists(context.Background(), desc); !ok || err != nil {
					t.Errorf("exists: %v %v", ok, err)
				}
			}
		})
	}
	pushers.Wait()
	close(stop)
	readers.Wait()
	if c := wantConsistent(t, s.store); c.Orphans != 0 || len(files(t, dir)) != 1 {
		t.Errorf("%d orphans among %d files", c.Orphans, len(files(t, dir)))
	}
}
