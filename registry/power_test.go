package registry

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
)

// Invariant: before an answer says that something is stored, its file is synced, renamed, and the folder
// synced, in this order, and then the row committed; before a file is removed, the commit that no longer
// names it, or names another in its place, is done. So whatever a loss of power takes of what was not synced, the store is consistent and
// has what was acknowledged. Worst: the loss between a rename and the folder's sync, between that and the
// commit, and between a commit and a removal.
//
// That a commit is on disk when it returns is SQLite's part (WAL, synchronous=FULL), which is trusted.

const powerToken = "power"

// powerLoss is a disk that notes what happens, and at each moment what a loss of power then would leave.
type powerLoss struct {
	realDisk
	t   *testing.T
	dir string

	mu     sync.Mutex
	events []string
	synced map[string][]byte // by the name of a file in tmp/ or blobs/, what of it was synced
	named  map[string]bool   // files of blobs/ whose names were synced
	// wanted and gone are what was acknowledged by now.
	wanted map[digest.Digest]string
	gone   map[digest.Digest]bool
	losses []loss
}

// loss is what a loss of power leaves, at the least and at the most, and what it must leave.
type loss struct {
	after       string
	database    map[string][]byte
	least, most map[string][]byte
	wanted      map[digest.Digest]string
	gone        map[digest.Digest]bool
}

func (p *powerLoss) note(event string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event)
	l := loss{after: strings.Join(p.events, " "), database: map[string][]byte{}, least: map[string][]byte{}, most: map[string][]byte{}, wanted: maps.Clone(p.wanted), gone: maps.Clone(p.gone)}
	for _, name := range []string{"registry.db", "registry.db-wal"} {
		data, err := os.ReadFile(filepath.Join(p.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.t.Error(err)
		}
		l.database[name] = data
	}
	there, err := os.ReadDir(filepath.Join(p.dir, "blobs"))
	if err != nil {
		p.t.Error(err)
	}
	for _, e := range there {
		// What was not synced of a file is as good as lost, though its name may be there.
		l.most[e.Name()] = p.synced[e.Name()]
		if p.named[e.Name()] {
			l.least[e.Name()] = p.synced[e.Name()]
		}
	}
	p.losses = append(p.losses, l)
}

func (p *powerLoss) syncFile(f *os.File) error {
	err := p.realDisk.syncFile(f)
	data, readErr := os.ReadFile(f.Name())
	if readErr != nil {
		p.t.Error(readErr)
	}
	p.mu.Lock()
	p.synced[filepath.Base(f.Name())] = data
	p.mu.Unlock()
	p.note("sync")
	return err
}

func (p *powerLoss) rename(from, to string) error {
	err := p.realDisk.rename(from, to)
	p.mu.Lock()
	p.synced[filepath.Base(to)] = p.synced[filepath.Base(from)]
	p.mu.Unlock()
	p.note("rename")
	return err
}

func (p *powerLoss) syncFolder(f *os.File) error {
	err := p.realDisk.syncFolder(f)
	if filepath.Base(f.Name()) != "blobs" {
		return err
	}
	there, readErr := os.ReadDir(f.Name())
	if readErr != nil {
		p.t.Error(readErr)
	}
	p.mu.Lock()
	p.named = map[string]bool{}
	for _, e := range there {
		p.named[e.Name()] = true
	}
	p.mu.Unlock()
	p.note("folder")
	return err
}

func (p *powerLoss) remove(path string) error {
	err := p.realDisk.remove(path)
	p.note("remove")
	return err
}

func (p *powerLoss) commit(exec func() error) error {
	p.note("begin")
	err := exec()
	p.note("commit")
	return err
}

// powered is a store on such a disk, with its API.
type powered struct {
	*powerLoss

	store   *Store
	handler http.Handler
	now     time.Time
}

func newPowered(t *testing.T) *powered {
	t.Helper()
	d := &powerLoss{t: t, dir: t.TempDir(), synced: map[string][]byte{}, named: map[string]bool{}, wanted: map[digest.Digest]string{}, gone: map[digest.Digest]bool{}}
	p := &powered{powerLoss: d, now: time.Now()}
	s, err := Open(d.dir, Options{disk: d, Now: func() time.Time { return p.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	p.store, p.handler = s, s.Handler(HandlerOptions{TokenHash: sha256.Sum256([]byte(powerToken))})
	return p
}

// answering notes when an answer is given.
type answering struct {
	*httptest.ResponseRecorder

	answered func(status int)
}

func (a answering) WriteHeader(status int) {
	a.answered(status)
	a.ResponseRecorder.WriteHeader(status)
}

// do makes a request whose answer acknowledges what is stored and deleted, and compares what happened.
func (p *powered) do(method, path string, body []byte, contentType, events string, stored map[digest.Digest]string, deleted ...digest.Digest) string {
	p.t.Helper()
	req := httptest.NewRequestWithContext(p.t.Context(), method, path, bytes.NewReader(body))
	req.SetBasicAuth("any", powerToken)
	req.Header.Set("Content-Type", contentType)
	before := len(p.events)
	// What is about to go need not be there any more, nor be gone yet; what comes may be back.
	for _, d := range deleted {
		delete(p.wanted, d)
	}
	for d := range stored {
		delete(p.gone, d)
	}
	w := answering{httptest.NewRecorder(), func(status int) {
		if status/100 != 2 {
			p.t.Errorf("%s %s: %d", method, path, status)
		}
		maps.Copy(p.wanted, stored)
		for _, d := range deleted {
			p.gone[d] = true
		}
		p.note("answer")
	}}
	p.handler.ServeHTTP(w, req)
	if got := strings.Join(p.events[before:], " "); got != events {
		p.t.Errorf("%s %s: %s, want %s", method, path, got, events)
	}
	return w.Header().Get("Location")
}

func TestR11WhatIsAcknowledgedOutlivesALossOfPower(t *testing.T) {
	t.Parallel()
	p := newPowered(t)
	large, chunked, small := bytes.Repeat([]byte("large "), 12000), bytes.Repeat([]byte("chunked "), 12000), []byte("{}")
	blob := func(data []byte) (digest.Digest, map[digest.Digest]string) {
		d := digest.FromBytes(data)
		return d, map[digest.Digest]string{d: "/v2/r/blobs/" + string(d)}
	}
	const file = "sync rename folder begin commit answer"
	d, stored := blob(large)
	p.do("POST", "/v2/r/blobs/uploads/?digest="+string(d), large, "", file, stored)
	d, stored = blob(chunked)
	at := p.do("POST", "/v2/r/blobs/uploads/", nil, "", "answer", nil)
	p.do("PATCH", at, chunked[:70000], "", "answer", nil)
	p.do("PATCH", at, chunked[70000:], "", "answer", nil)
	p.do("PUT", at+"?digest="+string(d), nil, "", file, stored)
	d, stored = blob(small)
	p.do("POST", "/v2/r/blobs/uploads/?digest="+string(d), small, "", "begin commit answer", stored)
	p.do("POST", "/v2/other/blobs/uploads/?mount="+string(d)+"&from=r", nil, "", "begin commit answer", nil)
	manifest := func(layer []byte) ([]byte, digest.Digest, map[digest.Digest]string) {
		data := marshalManifest(t, small, layer)
		d := digest.FromBytes(data)
		return data, d, map[digest.Digest]string{d: "/v2/r/manifests/" + string(d)}
	}
	data, first, stored := manifest(large)
	p.do("PUT", "/v2/r/manifests/one", data, ocispec.MediaTypeImageManifest, "begin commit answer", stored)
	data, _, stored = manifest(chunked)
	p.do("PUT", "/v2/r/manifests/two", data, ocispec.MediaTypeImageManifest, "begin commit answer", stored)
	d, stored = blob(chunked)
	p.do("POST", "/v2/r/blobs/uploads/?digest="+string(d), chunked, "", "sync rename folder begin commit remove answer", stored)
	p.do("DELETE", "/v2/r/manifests/"+string(first), nil, "", "begin commit answer", nil, first)
	p.do("DELETE", "/v2/r/blobs/"+string(digest.FromBytes(large)), nil, "", "begin commit answer", nil, digest.FromBytes(large))
	before := len(p.events)
	p.now = p.now.Add(time.Hour)
	if _, err := p.store.Collect(t.Context(), CollectOptions{Roots: []digest.Digest{digest.FromBytes(small)}}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(p.events[before:], " "); got != "begin commit remove" {
		t.Errorf("collect: %s", got)
	}
	d, stored = blob(large)
	p.do("POST", "/v2/r/blobs/uploads/?digest="+string(d), large, "", file, stored)
	// Moments at which the same would be left are one.
	for i := 0; i < len(p.losses); i++ {
		l := p.losses[i]
		for ; i+1 < len(p.losses) && l.same(p.losses[i+1]); i++ {
			maps.Copy(l.wanted, p.losses[i+1].wanted)
			maps.Copy(l.gone, p.losses[i+1].gone)
		}
		l.restore(t, l.least)
		if !maps.EqualFunc(l.least, l.most, bytes.Equal) {
			l.restore(t, l.most)
		}
		if t.Failed() {
			t.Fatalf("after %s", l.after)
		}
	}
}

func (l loss) same(o loss) bool {
	return maps.EqualFunc(l.database, o.database, bytes.Equal) && maps.EqualFunc(l.least, o.least, bytes.Equal) && maps.EqualFunc(l.most, o.most, bytes.Equal)
}

func marshalManifest(t testing.TB, config, layer []byte) []byte {
	t.Helper()
	data, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: content.NewDescriptorFromBytes(ocispec.MediaTypeImageConfig, config),
		Layers: []ocispec.Descriptor{content.NewDescriptorFromBytes(ocispec.MediaTypeImageLayer, layer)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// restore opens what a loss left and looks for what it must have.
func (l loss) restore(t *testing.T, files map[string][]byte) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "blobs"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(under string, files map[string][]byte) {
		for name, data := range files {
			if err := os.WriteFile(filepath.Join(dir, under, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("", l.database)
	write("blobs", files)
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	c, err := s.Check(t.Context(), CheckOptions{})
	if err != nil || len(c.Problems) > 0 {
		t.Errorf("check: %v %v", err, c.Problems)
	}
	h := s.Handler(HandlerOptions{AnonymousPull: true})
	for d, path := range l.wanted {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != http.StatusOK || digest.FromBytes(w.Body.Bytes()) != d {
			t.Errorf("%s was acknowledged: %d", path, w.Code)
		}
	}
	for d := range l.gone {
		for _, kind := range []string{"blobs", "manifests"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/v2/r/"+kind+"/"+string(d), nil))
			if w.Code != http.StatusNotFound {
				t.Errorf("%s was deleted: %d", d, w.Code)
			}
		}
	}
}
