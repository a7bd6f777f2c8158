package registry

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	orasregistry "oras.land/oras-go/v2/registry"
)

var (
	// ErrLocked says that another process, or another Store of this one, has the folder open.
	ErrLocked = errors.New("store is in use")
	// ErrClosed says that the store was closed before the call was done.
	ErrClosed = errors.New("store is closed")
	// ErrSchema says that the folder was written by a newer version of this package.
	ErrSchema = errors.New("unknown schema version")
)

const (
	// rowLimit is the largest blob kept as a row; above it a file is cheaper to write and to send.
	rowLimit = 64 << 10
	// manifestLimit is the largest manifest taken: the size the specification asks registries to
	// support and clients cap theirs at.
	manifestLimit = 4 << 20
)

// Options of a Store; the zero value works.
type Options struct {
	// Now is the clock of creation times; nil means time.Now.
	Now func() time.Time
	// MaxBlob bounds a blob, in bytes; 0 means 16 GiB.
	MaxBlob int64
	// MaxUploads bounds the upload sessions open at once over HTTP; 0 means 256.
	MaxUploads int
	// UploadIdle is how long an upload session may rest before it is removed; 0 means 15 minutes.
	UploadIdle time.Duration

	disk disk
}

// Store is an OCI registry in one folder. Its references are "repository:tag" and
// "repository@digest". It may be used by many goroutines at once. Errors about content wrap the
// sentinels of oras errdef.
type Store struct {
	dir     string
	opts    Options
	lock    *os.File
	db      *sql.DB // readers
	commits *committer
	folder  *folderSync
	uploads *sessions
	leases  *leases
	opened  int64 // seconds since 1970
	// sweep is held for writing while a collection removes, and for reading by whoever takes a lease
	// on what is found present.
	sweep      sync.RWMutex
	collecting sync.Mutex
	stmts      sync.Map // of *sql.Stmt on db, by text
	closed     atomic.Bool
	writing    atomic.Int64 // files that are written now
	damage     damage

	closeOnce sync.Once
	closeErr  error
}

var (
	_ oras.GraphTarget            = (*Store)(nil)
	_ content.Untagger            = (*Store)(nil)
	_ content.Deleter             = (*Store)(nil)
	_ oras.GraphTarget            = (*Repository)(nil)
	_ content.Untagger            = (*Repository)(nil)
	_ content.Deleter             = (*Repository)(nil)
	_ orasregistry.TagLister      = (*Repository)(nil)
	_ orasregistry.ReferrerLister = (*Repository)(nil)
)

// Open opens the store in dir and makes it when it is missing. It takes the folder's lock, which
// Close or the end of the process frees; a folder in use gives ErrLocked. What a crash left half
// written is removed. The time Open takes does not grow with the content.
func Open(dir string, opts Options) (*Store, error) {
	s, err := open(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("open registry %s: %w", dir, err)
	}
	return s, nil
}

func open(dir string, opts Options) (_ *Store, err error) {
	if opts.MaxBlob < 0 || opts.MaxUploads < 0 || opts.UploadIdle < 0 {
		return nil, errors.New("options: negative limit")
	}
	opts = withDefaults(opts)
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := makeFolder(opts.disk, dir); err != nil {
		return nil, err
	}
	s := &Store{dir: dir, opts: opts, leases: newLeases(opts.Now), opened: opts.Now().Unix()}
	if s.lock, err = lockFolder(filepath.Join(dir, "lock")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.release()
		}
	}()
	if err := s.prepareFolders(); err != nil {
		return nil, err
	}
	writer, err := openDatabase(s.databasePath(), "")
	if err != nil {
		return nil, err
	}
	if s.commits, err = startCommitter(writer, opts.disk); err != nil {
		return nil, errors.Join(err, writer.Close())
	}
	if s.db, err = openDatabase(s.databasePath(), "_pragma=query_only(1)"); err != nil {
		return nil, err
	}
	s.db.SetMaxOpenConns(readers)
	s.db.SetMaxIdleConns(readers)
	if s.folder, err = newFolderSync(s.blobsPath(), opts.disk); err != nil {
		return nil, err
	}
	s.uploads = newSessions(opts.MaxUploads, opts.UploadIdle)
	return s, syncPath(opts.disk, dir)
}

func withDefaults(o Options) Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxBlob == 0 {
		o.MaxBlob = 16 << 30
	}
	if o.MaxUploads == 0 {
		o.MaxUploads = 256
	}
	if o.UploadIdle == 0 {
		o.UploadIdle = 15 * time.Minute
	}
	if o.disk == nil {
		o.disk = realDisk{}
	}
	return o
}

// Close removes the open uploads, waits for the writes already handed in, and frees the folder.
// Calls made later give ErrClosed. Readers obtained earlier stay readable.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.closed.Store(true)
		s.closeErr = s.release()
	})
	return s.closeErr
}

// release frees whatever open has reached, in reverse order; the lock goes last.
func (s *Store) release() error {
	var errs []error
	if s.uploads != nil {
		s.uploads.close()
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.commits != nil {
		errs = append(errs, s.commits.close())
	}
	if s.folder != nil {
		errs = append(errs, s.folder.close())
	}
	// A child that was forked and has not executed its program yet has the descriptor too.
	errs = append(errs, unix.Flock(int(s.lock.Fd()), unix.LOCK_UN), s.lock.Close())
	return errors.Join(errs...)
}

func (s *Store) databasePath() string { return filepath.Join(s.dir, "registry.db") }
func (s *Store) blobsPath() string    { return filepath.Join(s.dir, "blobs") }
func (s *Store) tempPath() string     { return filepath.Join(s.dir, "tmp") }

// prepareFolders makes the folders and empties the one of temporary files: with the lock held
// nothing in it belongs to a live upload.
func (s *Store) prepareFolders() error {
	if err := os.RemoveAll(s.tempPath()); err != nil {
		return err
	}
	for _, p := range []string{s.tempPath(), s.blobsPath()} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			return err
		}
	}
	// SQLite gives its other files the mode of this one.
	f, err := os.OpenFile(s.databasePath(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func lockFolder(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: another process holds %s; stop it, or use another folder", ErrLocked, path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
