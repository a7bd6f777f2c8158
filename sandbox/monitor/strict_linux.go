package monitor

import (
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// What a program at strict sees beside its binds: these devices and this host name.
var deviceNames = []string{"null", "zero", "full", "random", "urandom"}

const (
	hostName = "agent"
	// skeletonSize bounds the filesystem that holds the root and /dev; nothing but folders, empty
	// files to mount on and links lies there.
	skeletonSize = "size=1m,nr_inodes=16k,mode=0755"
	// scaffold is a folder that every host has, and that the new root hangs on until it is the root.
	scaffold = "/dev"
)

// clone is a detached copy of a mount, made before the new root covers its path.
type clone struct {
	fd     int
	target string
	file   bool
	attr   uint64
}

// enclose makes the binds of the spec all that this process and its program see. The monitor was
// started in namespaces of its own with the ids of the program as their 0.
//
// The monitor keeps the user id it was started with, which is not mapped inside: as root's it
// reaches what an agent's user may not pass through, and the agent can't signal it.
func (m *monitor) enclose() error {
	clones, err := m.clones()
	defer func() {
		for _, c := range clones {
			_ = unix.Close(c.fd)
		}
	}()
	if err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		// What is made inside belongs to the program's user; an id that is not mapped could make
		// nothing there. The thread is of no use afterwards and ends with the goroutine.
		runtime.LockOSThread()
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, 0, 0, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0)
		done <- build(clones)
	}()
	if err := <-done; err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(hostName)); err != nil {
		return &startError{"host name", err}
	}
	return loopbackUp()
}

// clones copies the mounts of all that the program gets.
func (m *monitor) clones() ([]clone, error) {
	const safe = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	var all []clone
	add := func(source, target string, attr uint64) error {
		fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return &startError{"bind " + source, err}
		}
		c := clone{fd: fd, target: target, attr: attr}
		all = append(all, c)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return &startError{"bind " + source, err}
		}
		all[len(all)-1].file = st.Mode&unix.S_IFMT != unix.S_IFDIR
		return nil
	}
	for _, b := range m.spec.Binds {
		attr := uint64(safe)
		if b.ReadOnly {
			attr |= unix.MOUNT_ATTR_RDONLY
		}
		if err := add(b.Source, b.Target, attr); err != nil {
			return all, err
		}
	}
	for _, name := range deviceNames {
		if err := add("/dev/"+name, "/dev/"+name, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return all, err
		}
	}
	return all, nil
}

// build makes the new root of the clones and moves there.
func build(clones []clone) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return &startError{"private mounts", err}
	}
	if err := unix.Mount("tmpfs", scaffold, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, skeletonSize); err != nil {
		return &startError{"root filesystem", err}
	}
	root, err := unix.Open(scaffold, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &startError{"root filesystem", err}
	}
	defer unix.Close(root)
	if err := unix.Fchdir(root); err != nil {
		return &startError{"root filesystem", err}
	}
	for _, dir := range []string{"proc", "dev"} {
		if err := unix.Mkdirat(root, dir, 0o755); err != nil {
			return &startError{"/" + dir, err}
		}
	}
	for _, l := range [][2]string{{"/proc/self/fd", "dev/fd"}, {"/proc/self/fd/0", "dev/stdin"}, {"/proc/self/fd/1", "dev/stdout"}, {"/proc/self/fd/2", "dev/stderr"}} {
		if err := unix.Symlinkat(l[0], root, l[1]); err != nil {
			return &startError{"/" + l[1], err}
		}
	}
	for _, c := range clones {
		if err := c.attach(root); err != nil {
			return &startError{c.target, err}
		}
	}
	if err := unix.Mount("proc", "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return &startError{"/proc", err}
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	for _, dir := range []string{"proc", ""} {
		flags := uint(0)
		if dir == "" {
			flags = unix.AT_EMPTY_PATH
		}
		if err := unix.MountSetattr(root, dir, flags, &readOnly); err != nil {
			return &startError{"read-only /" + dir, err}
		}
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return &startError{"pivot_root", err}
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return &startError{"leave the host's files", err}
	}
	if err := unix.Chdir("/"); err != nil {
		return &startError{"/", err}
	}
	return nil
}

// attach mounts c below root.
func (c clone) attach(root int) error {
	attr := unix.MountAttr{Attr_set: c.attr, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(c.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return &startError{"mount_setattr, of Linux 5.12 and later", err}
	}
	at, err := place(root, c.target, c.file)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.MoveMount(c.fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// place opens target below root to mount on, and makes what is not there. Part of the way may lie
// in a folder that the program wrote in an earlier run: no link is followed.
func place(root int, target string, file bool) (int, error) {
	names := strings.Split(strings.Trim(path.Clean("/"+target), "/"), "/")
	dir, err := unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for i, name := range names {
		how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
		isFile := file && i == len(names)-1
		if !isFile {
			how.Flags |= unix.O_DIRECTORY
		}
		next, err := unix.Openat2(dir, name, &how)
		if err == unix.ENOENT {
			if isFile {
				var fd int
				if fd, err = unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600); err == nil {
					_ = unix.Close(fd)
				}
			} else {
				err = makeDir(dir, name)
			}
			if err == nil {
				next, err = unix.Openat2(dir, name, &how)
			}
		}
		_ = unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = next
	}
	return dir, nil
}

// makeDir makes a folder that is open to be passed through, whatever the umask.
func makeDir(dir int, name string) error {
	if err := unix.Mkdirat(dir, name, 0o755); err != nil {
		return err
	}
	return unix.Fchmodat(dir, name, 0o755, 0)
}

// loopbackUp starts the one interface of a new network namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return &startError{"loopback", err}
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return &startError{"loopback", err}
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return &startError{"loopback", err}
	}
	return nil
}

// listenInside opens the listeners that the spec wants on the loopback inside and keeps them with
// what is held.
func (m *monitor) listenInside() error {
	for i, name := range m.spec.ListenNames {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: m.spec.ListenPorts[i], Addr: [4]byte{127, 0, 0, 1}})
		}
		if err == nil {
			err = unix.Listen(fd, unix.SOMAXCONN)
		}
		if err != nil {
			return &startError{"listener " + name, err}
		}
		m.spec.Held = append(m.spec.Held, name)
		m.held = append(m.held, fd)
	}
	return nil
}

// namespaces are the ids of this process's namespaces. It is asked before the root changes.
func namespaces() string {
	var all []string
	for _, kind := range wire.NamespaceKinds {
		var b [64]byte
		n, err := unix.Readlink("/proc/self/ns/"+kind, b[:])
		if err != nil {
			n = 0
		}
		all = append(all, string(b[:n]))
	}
	return strings.Join(all, " ")
}

// Bits of securebits(7): uid 0 has no capabilities for being 0, none can be kept over a change of
// ids or made ambient, and all that is locked.
const strictBits = 1<<0 | 1<<1 | 1<<3 | 1<<5 | 1<<6 | 1<<7

// confineStrict takes everything from the calling thread that the program, its child, shall not
// have. The thread keeps its effective capabilities, by which the child takes its user id on; they
// end with the child's exec.
func confineStrict(spec *wire.Spec) (int, error) {
	if err := dropCapabilities(); err != nil {
		return 0, err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, &startError{"no_new_privs", err}
	}
	abi, err := confineFiles(spec, false)
	if err != nil {
		return 0, err
	}
	_, err = installFilter(rules{})
	return abi, err
}

func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return &startError{"ambient capabilities", err}
	}
	for c := uintptr(0); ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			if err == unix.EINVAL && c > 0 {
				break // beyond the last
			}
			return &startError{"bounding set", err}
		}
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, strictBits, 0, 0, 0); err != nil {
		return &startError{"securebits", err}
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return &startError{"capabilities", err}
	}
	for i := range data {
		data[i].Inheritable = 0
	}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return &startError{"inheritable capabilities", err}
	}
	return nil
}

// forkFrom starts the program from a thread that confine was called on. The thread stays for as
// long as the monitor, for the program dies with it.
func (m *monitor) forkFrom(confine func() error, null, out, errs int) (int, error) {
	type result struct {
		pid int
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		if err := confine(); err != nil {
			done <- result{err: err}
			return
		}
		pid, err := m.fork(null, out, errs)
		done <- result{pid, err}
		select {}
	}()
	r := <-done
	return r.pid, r.err
}
