//go:build unix

package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxSocketPath is the longest path of a Unix socket here, in bytes: 107 on Linux.
const MaxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1

// lockWait bounds how long another process may take to set its socket up in the same folder.
const lockWait = 10 * time.Second

// UnixConfig listens on Unix sockets, as net.ListenConfig does on others. The zero value works.
type UnixConfig struct {
	// Logger hears of every connection that is refused; nil means nobody does.
	Logger *slog.Logger
}

// ListenUnix is UnixConfig{}.Listen.
func ListenUnix(path string) (net.Listener, error) { return UnixConfig{}.Listen(path) }

// Listen makes a socket at path that nobody but this user and root can use. The folder is made with
// mode 0700 if it is missing. One that is a symlink, belongs to another user or is writable by
// others is refused, as is one that another user could swap through a folder above it (ErrUnsafePath). What lies at path is
// replaced only when it is a socket of ours that nobody answers on: a live one is ErrInUse, anything
// else, a symlink too, ErrUnsafePath. The socket has mode 0600 before it takes its first connection.
//
// The listener yields *Conn of this user and root only; others are closed. Its Close removes the
// socket if it is still the one it made.
func (c UnixConfig) Listen(path string) (net.Listener, error) {
	l, err := c.listen(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", clip(path), err)
	}
	return l, nil
}

func (c UnixConfig) listen(path string) (*unixListener, error) {
	if path == "" || strings.ContainsRune(path, 0) {
		return nil, fmt.Errorf("%w: empty or with a zero byte; name a file", ErrUnsafePath)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if len(path) > MaxSocketPath {
		return nil, fmt.Errorf("%w: %d bytes where %d are allowed; choose a shorter folder", ErrPathTooLong, len(path), MaxSocketPath)
	}
	unlock, err := lockFolder(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := clearStale(path); err != nil {
		return nil, err
	}
	inner, err := bindPrivate(path)
	if err != nil {
		return nil, err
	}
	made, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return &unixListener{checked: checked{inner, c.Logger}, inner: inner, path: path, made: made}, nil
}

// bindPrivate binds path with mode 0600 from the first moment on Linux, where a socket takes its
// file's mode from its descriptor; elsewhere the folder, which is ours alone, covers the moment.
func bindPrivate(path string) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), 0o600) })
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	inner := l.(*net.UnixListener)
	inner.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, inner.Close(), os.Remove(path))
	}
	return inner, nil
}

// lockFolder makes dir if it is missing, checks it and holds it against other processes that set a
// socket up in it, until the returned function is called.
func lockFolder(dir string) (unlock func(), err error) {
	if err := makeFolder(dir); err != nil {
		return nil, err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is a symlink or no folder; use a folder of your own", ErrUnsafePath, dir)
	}
	f := os.NewFile(uintptr(fd), dir)
	if err := checkFolder(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("lock folder %s for at most %s: %w", dir, lockWait, err), f.Close())
		}
	}
}

func makeFolder(dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// checkFolder refuses a folder in which, or above which, another user could replace the socket.
func checkFolder(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if uid := ownerOf(info); uid != os.Geteuid() {
		return fmt.Errorf("%w: folder %s belongs to user id %d; use one of your own", ErrUnsafePath, f.Name(), uid)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("%w: folder %s has mode %04o and is writable by others; chmod 0700 it", ErrUnsafePath, f.Name(), mode)
	}
	real, err := filepath.EvalSymlinks(f.Name())
	if err != nil {
		return err
	}
	// The path as it is written and the one it leads to may have different folders above them.
	if err := checkAbove(f.Name()); err != nil {
		return err
	}
	return checkAbove(real)
}

func checkAbove(path string) error {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		if uid := ownerOf(info); uid != 0 && uid != os.Geteuid() {
			return fmt.Errorf("%w: %s above it belongs to user id %d; use a folder below those of root and your own", ErrUnsafePath, dir, uid)
		}
		if info.Mode().Perm()&0o002 != 0 && info.Mode()&(fs.ModeSticky|fs.ModeSymlink) == 0 {
			return fmt.Errorf("%w: %s above it is writable by everybody; use a folder elsewhere", ErrUnsafePath, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func ownerOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// clearStale removes a socket of ours that nobody answers on.
func clearStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%w: what is there is no socket but %s; remove it or choose another path", ErrUnsafePath, info.Mode().Type())
	case ownerOf(info) != os.Geteuid():
		return fmt.Errorf("%w: the socket there belongs to user id %d; choose another path", ErrUnsafePath, ownerOf(info))
	}
	d := net.Dialer{Timeout: lockWait}
	conn, err := d.Dial("unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%w: another process answers there; stop it or choose another path", ErrInUse)
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("%w: the socket there is neither dead nor answering: %w", ErrInUse, err)
}

// unixListener is a checked listener that owns its file.
type unixListener struct {
	checked
	inner *net.UnixListener
	path  string
	made  fs.FileInfo
	once  sync.Once
	err   error
}

// Close stops listening, and removes the socket unless another has taken its place.
func (l *unixListener) Close() error {
	l.once.Do(func() {
		// While the socket still listens no other process takes it for dead, so the one that is
		// compared is the one that is removed.
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.made) {
			l.err = os.Remove(l.path)
		}
		l.err = errors.Join(l.err, l.inner.Close())
	})
	return l.err
}
