package registry

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/errdef"
)

// The kernel is told to start on a file while it is written, so that the sync at the end finds little
// left: each time writeBack bytes came, and more for each writer of the store beyond a few. Of many
// files that are written at once, small steps would lie in pieces between each other on the disk, which
// costs it up to half its rate; with manyWriters the kernel has begun by itself, and knows better.
const (
	writeBack   = 512 << 10
	fewWriters  = 4
	manyWriters = 16
)

// copyBuffers hold what passes from a reader to a writer.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// copyAll copies r to w through one of them, whatever ways of their own the two have.
func copyAll(w io.Writer, r io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, *buf)
}

// ingest receives one blob: into memory up to rowLimit, then into a temporary file. Nothing of it
// is visible before finish and a commit. It has one user at a time.
type ingest struct {
	store     *Store
	algorithm digest.Algorithm
	hash      hash.Hash
	size      int64
	row       []byte
	file      *os.File
	path      string // of the file, wherever it is now
	name      string // below blobs/, once placed
	started   int64  // bytes handed to write-back
}

func (s *Store) newIngest(algorithm digest.Algorithm) *ingest {
	return &ingest{store: s, algorithm: algorithm, hash: algorithm.Hash()}
}

// Write adds p. A blob over the store's limit gives errdef.ErrSizeExceedsLimit.
func (g *ingest) Write(p []byte) (int, error) {
	if int64(len(p)) > g.store.opts.MaxBlob-g.size {
		return 0, fmt.Errorf("blob is larger than the limit of %d bytes: %w", g.store.opts.MaxBlob, errdef.ErrSizeExceedsLimit)
	}
	if g.file == nil && g.size+int64(len(p)) <= rowLimit {
		g.row = append(g.row, p...)
	} else if err := g.toFile(p); err != nil {
		return 0, err
	}
	g.hash.Write(p)
	g.size += int64(len(p))
	return len(p), nil
}

// writeBackStep is how much of a file is written before the kernel is told; 0 is never.
func (s *Store) writeBackStep() int64 {
	writers := s.writing.Load()
	if writers >= manyWriters {
		return 0
	}
	return writeBack * max(1, writers/fewWriters)
}

func (g *ingest) toFile(p []byte) error {
	if g.file == nil {
		f, err := os.CreateTemp(g.store.tempPath(), "blob-")
		if err != nil {
			return err
		}
		g.file, g.path = f, f.Name()
		g.store.writing.Add(1)
		if _, err := f.Write(g.row); err != nil {
			return err
		}
		g.row = nil
	}
	if _, err := g.file.Write(p); err != nil {
		return err
	}
	if n, step := g.size+int64(len(p)), g.store.writeBackStep(); step > 0 && n-g.started >= step {
		startWriteBack(g.file, g.started, n-g.started)
		g.started = n
	}
	return nil
}

// readFrom adds all of r.
func (g *ingest) readFrom(r io.Reader) error {
	_, err := copyAll(g, r)
	return err
}

// finish checks the digest and makes a file durable under its final name. The caller then commits
// the row, or discards.
func (g *ingest) finish(expected digest.Digest) error {
	if err := checkDigest(expected); err != nil {
		return err
	}
	if expected.Algorithm() != g.algorithm {
		if err := g.rehash(expected.Algorithm()); err != nil {
			return err
		}
	}
	if got := digest.NewDigest(g.algorithm, g.hash); got != expected {
		return fmt.Errorf("content of %d bytes has digest %s, want %s: %w", g.size, got, expected, errdef.ErrInvalidDigest)
	}
	if g.file == nil {
		return nil
	}
	return g.place(expected)
}

// rehash reads back what was hashed with another algorithm: the digest that a chunked upload ends
// with is not known when it starts.
func (g *ingest) rehash(algorithm digest.Algorithm) error {
	g.algorithm, g.hash = algorithm, algorithm.Hash()
	if g.file == nil {
		g.hash.Write(g.row)
		return nil
	}
	_, err := copyAll(g.hash, io.NewSectionReader(g.file, 0, g.size))
	return err
}

func (g *ingest) place(d digest.Digest) error {
	if err := g.store.opts.disk.syncFile(g.file); err != nil {
		return err
	}
	if err := g.file.Close(); err != nil {
		return err
	}
	var unique [8]byte
	if _, err := rand.Read(unique[:]); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-%s", d.Algorithm(), d.Encoded(), hex.EncodeToString(unique[:]))
	path := filepath.Join(g.store.blobsPath(), name)
	g.store.leases.placing(name)
	g.name = name
	if err := g.store.opts.disk.rename(g.path, path); err != nil {
		return err
	}
	g.path = path
	return g.store.folder.sync()
}

// discard removes the file, if any; a second call does nothing.
func (g *ingest) discard() {
	if g.file != nil {
		_ = g.file.Close()
		_ = os.Remove(g.path)
		g.letGo()
		g.store.leases.placed(g.name)
	}
	g.row = nil
}

// keep leaves the file to the row that was committed for it.
func (g *ingest) keep() {
	if g.file != nil {
		g.letGo()
		g.store.leases.placed(g.name)
	}
}

func (g *ingest) letGo() {
	g.file = nil
	g.store.writing.Add(-1)
}

// keepUncertain leaves the file to a row that only the next opening of the store will show or not;
// until then nobody may take it for an orphan.
func (g *ingest) keepUncertain() {
	if g.file != nil {
		g.letGo()
	}
}

// digestOfFile is the digest in the name that place gives a file; "" for any other name.
func digestOfFile(name string) string {
	parts := strings.Split(name, "-")
	if len(parts) != 3 {
		return ""
	}
	return parts[0] + ":" + parts[1]
}

// folderSync makes renames into a folder durable. Callers that arrive during a sync share the next
// one.
type folderSync struct {
	disk   disk
	folder *os.File

	mu      sync.Mutex
	cond    *sync.Cond
	running bool
	asked   uint64 // calls made
	synced  uint64 // calls covered by a finished sync
	failed  uint64 // calls covered when a sync last failed
	err     error  // of that one
}

func newFolderSync(path string, d disk) (*folderSync, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &folderSync{disk: d, folder: f}
	s.cond = sync.NewCond(&s.mu)
	return s, nil
}

// sync returns when a sync that began after the call is done.
func (s *folderSync) sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	mine := s.asked
	for s.synced < mine {
		if s.running {
			s.cond.Wait()
			continue
		}
		s.running = true
		covers := s.asked
		s.mu.Unlock()
		err := s.disk.syncFolder(s.folder)
		s.mu.Lock()
		s.running, s.synced = false, covers
		if err != nil {
			s.failed, s.err = covers, err
		}
		s.cond.Broadcast()
	}
	return s.outcome(mine)
}

// outcome is that of a call. The kernel tells an error once and then takes what it lost for synced, so
// a later sync that succeeds, before the caller runs again, makes nothing good.
func (s *folderSync) outcome(call uint64) error {
	if call <= s.failed {
		return s.err
	}
	return nil
}

func (s *folderSync) close() error { return s.folder.Close() }
