package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrHomeInUse is wrapped when another daemon runs on the same home; the error names its pid.
var ErrHomeInUse = errors.New("another daemon runs on this home")

// home is the folder that holds everything of one daemon. Its paths are the daemon's own: nothing
// below it but agents/ID/root is ever writable for an agent.
type home struct {
	dir  string
	lock *os.File
}

func (h *home) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

// openHome makes the layout where it is missing, sets its modes and takes the lock.
func openHome(dir string) (*home, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("home %q: not an absolute path; set OTTERS_HOME or --home to one", dir)
	}
	h := &home{dir: filepath.Clean(dir)}
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return nil, fmt.Errorf("home: %w", err)
	}
	if err := checkOwner(h.dir); err != nil {
		return nil, err
	}
	mode := homeMode()
	if err := os.Chmod(h.dir, mode); err != nil {
		return nil, fmt.Errorf("home: %w", err)
	}
	if os.Geteuid() == 0 {
		if err := checkTraversable(h.dir); err != nil {
			return nil, err
		}
	}
	if err := h.acquire(); err != nil {
		return nil, err
	}
	if err := h.makeFolders(mode); err != nil {
		return nil, errors.Join(err, h.release())
	}
	return h, nil
}

func (h *home) makeFolders(pass fs.FileMode) error {
	// What a daemon that was killed left of builds in progress is of no use.
	if err := os.RemoveAll(h.path("builds")); err != nil {
		return fmt.Errorf("home: %w", err)
	}
	for name, mode := range map[string]fs.FileMode{"agents": pass, "logs": 0o700, "registry": 0o700, "builds": 0o700} {
		if err := makeDir(h.path(name), mode); err != nil {
			return err
		}
	}
	return nil
}

// homeMode lets the users that a root daemon gives its agents pass through to their own trees;
// everything else below is closed by its own mode.
func homeMode() fs.FileMode {
	if os.Geteuid() == 0 {
		return 0o711
	}
	return 0o700
}

func makeDir(path string, mode fs.FileMode) error {
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("home: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("home: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("home: %s is not a folder; move it away", path)
	}
	if info.Mode().Perm() == mode {
		return nil
	}
	if err := os.Chmod(path, mode); err != nil {
		return fmt.Errorf("home: %w", err)
	}
	return nil
}

func checkOwner(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("home %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("home %s: not a folder; choose another with OTTERS_HOME", dir)
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("home %s: belongs to user %d, and this is user %d; choose another with OTTERS_HOME", dir, st.Uid, os.Geteuid())
	}
	return nil
}

// checkTraversable finds the parent that would keep agents' own users out of their trees.
func checkTraversable(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("home %s: %w", dir, err)
	}
	for p := filepath.Dir(real); ; p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err != nil {
			return fmt.Errorf("home %s: %w", dir, err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("home %s: agents run under users of their own, and %s (mode %04o) lets no other user through; choose a home such as /var/lib/otters", dir, p, info.Mode().Perm())
		}
		if p == filepath.Dir(p) {
			return nil
		}
	}
}

// acquire takes the lock of this home. The file stays when the daemon ends: only the lock on it
// means anything.
func (h *home) acquire() error {
	f, err := os.OpenFile(h.path("lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock home: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock home %s: %w", h.dir, err)
		}
		return fmt.Errorf("home %s: %w: pid %s; stop it with `otters daemon stop` or choose another OTTERS_HOME", h.dir, ErrHomeInUse, lockHolder(f))
	}
	pid := strconv.Itoa(os.Getpid()) + "\n"
	if err := errors.Join(f.Truncate(0), writeAt(f, pid)); err != nil {
		return errors.Join(fmt.Errorf("lock home: %w", err), f.Close())
	}
	h.lock = f
	return nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func lockHolder(f *os.File) string {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n]))); err == nil {
		return strconv.Itoa(pid)
	}
	return "unknown"
}

func (h *home) release() error {
	if h.lock == nil {
		return nil
	}
	// A child that was forked and has not executed its program yet has the descriptor too, so
	// closing it here would not be enough.
	err := errors.Join(unix.Flock(int(h.lock.Fd()), unix.LOCK_UN), h.lock.Close())
	h.lock = nil
	return err
}
