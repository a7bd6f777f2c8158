package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/cgroup"
	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// request is a checked Spec on its way to a monitor, with copies of its descriptors.
type request struct{ fds []int }

// The limits are in by, and files places the program in its group; nil where it has none.
func newRequest(s Spec, by plan, group *cgroup.Files) (*request, error) {
	w := wire.Spec{
		Level: string(s.Level), Path: s.Path, Dir: s.Dir, Args: s.Args, Env: s.Env, UID: s.UID, GID: s.GID,
		Log: s.Log != nil, Stdin: s.Stdin != nil, Stdout: s.Stdout != nil, Stderr: s.Stderr != nil,
		Tied: s.Tied, Ports: s.Ports, Serve: s.Serve, Memory: by.rlimits.Memory, PIDs: by.rlimits.PIDs, LogLimit: s.LogLimit,
	}
	for _, b := range s.Binds {
		w.Binds = append(w.Binds, wire.Bind(b))
	}
	for _, l := range s.Listen {
		w.ListenNames, w.ListenPorts = append(w.ListenNames, l.Name), append(w.ListenPorts, l.Port)
	}
	for _, l := range s.Relay {
		w.RelayNames, w.RelayPorts = append(w.RelayNames, l.Name), append(w.RelayPorts, l.Port)
	}
	files := []*os.File{s.Log, s.Stdin, s.Stdout, s.Stderr}
	for _, f := range s.Files {
		w.Files = append(w.Files, f.Name)
		files = append(files, f.File)
	}
	for _, f := range s.Held {
		w.Held = append(w.Held, f.Name)
		files = append(files, f.File)
	}
	if group != nil {
		w.Groups, w.Into, w.KillFile, w.OOMEvents = len(group.Enter), group.Into != nil, group.Kill != nil, group.Events != nil
		files = append(files, group.Into, group.Kill, group.Events)
		for i := range group.Enter {
			files = append(files, group.Enter[i], group.Leave[i])
		}
	}
	r := &request{}
	if err := r.fill(w, s.StateDir, files); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *request) fill(w wire.Spec, dir string, files []*os.File) error {
	// The spec goes in memory of its own, for it may be larger than a message.
	b := w.Marshal()
	if len(b) > wire.MaxSpec {
		return fmt.Errorf("arguments and environment: %d bytes, more than %d", len(b), wire.MaxSpec)
	}
	mem, err := unix.MemfdCreate("spec", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	r.fds = append(r.fds, mem)
	for len(b) > 0 {
		n, err := unix.Write(mem, b)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("write", err)
		}
		b = b[max(n, 0):]
	}
	if _, err := unix.Seek(mem, 0, 0); err != nil {
		return os.NewSyscallError("lseek", err)
	}
	state, err := openState(dir)
	if err != nil {
		return err
	}
	r.fds = append(r.fds, state)
	for _, f := range files {
		if f == nil {
			continue
		}
		fd, err := dup(f)
		if err != nil {
			return fmt.Errorf("file %s: %w", f.Name(), err)
		}
		r.fds = append(r.fds, fd)
	}
	return nil
}

func (r *request) close() {
	wire.CloseAll(r.fds)
	r.fds = nil
}

// openState opens a state folder, which nobody but the caller may enter.
func openState(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open state folder", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return -1, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&0o077 != 0 || int(st.Uid) != unix.Geteuid() {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("state folder %s: mode %04o of user %d: it must be 0700 and this user's own", dir, st.Mode&0o7777, st.Uid)
	}
	return fd, nil
}

// dup copies a file's descriptor without making it blocking, as Fd would.
func dup(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	var fd int
	if e := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return -1, e
	}
	return fd, os.NewSyscallError("fcntl", err)
}

func check(s Spec) error {
	for _, p := range []struct{ what, path string }{{"program", s.Path}, {"working folder", s.Dir}, {"state folder", s.StateDir}} {
		if !filepath.IsAbs(p.path) {
			return fmt.Errorf("%s %q: not an absolute path", p.what, p.path)
		}
	}
	for _, list := range [][]string{{s.Path, s.Dir}, s.Args, s.Env} {
		for _, v := range list {
			if strings.ContainsRune(v, 0) {
				return fmt.Errorf("%q: has a NUL byte", v)
			}
		}
	}
	for _, e := range s.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			return errors.New("environment: an entry is not NAME=VALUE")
		}
	}
	if s.LogLimit < 0 {
		return fmt.Errorf("log limit: %d bytes", s.LogLimit)
	}
	if s.Log != nil {
		if err := checkAppend(s.Log); err != nil {
			return err
		}
	}
	if err := checkConfinement(s); err != nil {
		return err
	}
	names := make([]string, 0, len(s.Files)+len(s.Held)+len(s.Listen))
	for _, f := range append(append([]File(nil), s.Files...), s.Held...) {
		if f.File == nil {
			return fmt.Errorf("file %q: not open", f.Name)
		}
		names = append(names, f.Name)
	}
	for _, l := range s.Listen {
		names = append(names, l.Name)
	}
	return checkNames(names)
}

// checkConfinement looks at what the levels treat differently.
func checkConfinement(s Spec) error {
	for _, b := range s.Binds {
		if !filepath.IsAbs(b.Source) || s.Level == Strict && (!filepath.IsAbs(b.Target) || filepath.Clean(b.Target) == "/") {
			return fmt.Errorf("bind %q at %q: not absolute paths below the root", b.Source, b.Target)
		}
		if strings.ContainsRune(b.Source+b.Target, 0) {
			return fmt.Errorf("bind %q at %q: has a NUL byte", b.Source, b.Target)
		}
	}
	for _, l := range append(append([]Listen(nil), s.Listen...), s.Relay...) {
		if l.Port < 1 || l.Port > 65535 {
			return fmt.Errorf("listener %q: no port %d", l.Name, l.Port)
		}
	}
	for _, l := range s.Relay {
		if !slices.ContainsFunc(s.Held, func(f File) bool { return f.Name == l.Name }) {
			return fmt.Errorf("relay %q: not among the files held", l.Name)
		}
	}
	for _, p := range append(append([]int(nil), s.Ports...), s.Serve...) {
		if p < 1 || p > 65535 {
			return fmt.Errorf("no port %d", p)
		}
	}
	uid := s.UID
	if uid < 0 {
		uid = unix.Geteuid()
	}
	switch {
	case s.Level != Strict && len(s.Listen)+len(s.Relay) > 0:
		return fmt.Errorf("listener inside: level %s has no network of its own", s.Level)
	case s.Level != Off && (uid == 0 || s.UID == 0 || s.GID == 0 || s.UID > 0 && s.GID < 0):
		return fmt.Errorf("level %s does not run a program as root: give it a user id and a group id", s.Level)
	}
	return s.Limits.Check()
}

func checkAppend(f *os.File) error {
	fd, err := dup(f)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	defer unix.Close(fd)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	if flags&unix.O_APPEND == 0 || flags&unix.O_ACCMODE == unix.O_RDONLY {
		return fmt.Errorf("log %s: not opened for appending", f.Name())
	}
	return nil
}

func checkNames(names []string) error {
	if len(names) > wire.MaxFiles {
		return fmt.Errorf("%d files: at most %d can be handed over", len(names), wire.MaxFiles)
	}
	seen := make(map[string]bool)
	for _, name := range names {
		bad := strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' })
		if name == "" || len(name) > 255 || bad >= 0 {
			return fmt.Errorf("file name %q: must be 1 to 255 printable ASCII characters without a colon", name)
		}
		if seen[name] {
			return fmt.Errorf("file name %q: used twice", name)
		}
		seen[name] = true
	}
	return nil
}
