package monitor

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

const (
	landlockRead = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// landlockFile is what a rule about a file, which is no folder, may hold.
	landlockFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	landlockDevice   = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	landlockRulePort = 2 // LANDLOCK_RULE_NET_PORT
)

// landlockABI is the version that the kernel has in force; 0 for none.
func landlockABI() int {
	n, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0
	}
	return int(n)
}

// fileAccess is every right that a version knows; what a ruleset handles is denied without a rule.
func fileAccess(abi int) uint64 {
	all := uint64(1)<<13 - 1
	for _, later := range []struct {
		abi int
		bit uint64
	}{{2, unix.LANDLOCK_ACCESS_FS_REFER}, {3, unix.LANDLOCK_ACCESS_FS_TRUNCATE}, {5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV}} {
		if abi >= later.abi {
			all |= later.bit
		}
	}
	return all
}

// ruleset is a Landlock ruleset in the making.
type ruleset struct {
	fd    int
	files uint64
}

func newRuleset(abi int, limited bool) (*ruleset, error) {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: fileAccess(abi)}
	size := uintptr(8)
	if abi >= wire.LimitedABI {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
		size = 24
	}
	if limited {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	fd, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if e != 0 {
		return nil, &startError{"Landlock ruleset", e}
	}
	return &ruleset{fd: int(fd), files: attr.Handled_access_fs}, nil
}

// allow grants access below path.
func (r *ruleset) allow(path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &startError{path, err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &startError{path, err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= landlockFile
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: access & r.files, Parent_fd: int32(fd)}
	if _, _, e := unix.RawSyscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0); e != 0 {
		return &startError{"Landlock rule for " + path, e}
	}
	return nil
}

// port grants access, to connect or to bind, for a TCP port.
func (r *ruleset) port(port int, access uint64) error {
	attr := struct{ access, port uint64 }{access, uint64(port)}
	if _, _, e := unix.RawSyscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), landlockRulePort, uintptr(unsafe.Pointer(&attr)), 0, 0, 0); e != 0 {
		return &startError{"Landlock rule for a port", e}
	}
	return nil
}

// restrict puts the ruleset in force for the calling thread. It needs no_new_privs.
func (r *ruleset) restrict() error {
	defer unix.Close(r.fd)
	if _, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(r.fd), 0, 0); e != 0 {
		return &startError{"Landlock", e}
	}
	return nil
}

// confineFiles puts Landlock's rules in force for the calling thread and tells their version. At
// strict they repeat what the mounts say and are left out where the kernel has none.
func confineFiles(spec *wire.Spec, limited bool) (int, error) {
	abi := landlockABI()
	if limited && abi < wire.LimitedABI {
		return 0, &startError{"Landlock version 6 or later (Linux 6.12)", syscall.ENOTSUP}
	}
	if abi == 0 {
		return 0, nil
	}
	r, err := newRuleset(abi, limited)
	if err != nil {
		return 0, err
	}
	if limited {
		for _, name := range deviceNames {
			if err == nil {
				err = r.allow("/dev/"+name, landlockDevice)
			}
		}
		for _, port := range spec.Ports {
			if err == nil {
				err = r.port(port, unix.LANDLOCK_ACCESS_NET_CONNECT_TCP)
			}
		}
		for _, port := range spec.Serve {
			if err == nil {
				err = r.port(port, unix.LANDLOCK_ACCESS_NET_BIND_TCP)
			}
		}
	} else if err = r.allow("/", landlockRead); err == nil {
		err = r.allow("/dev", landlockDevice)
	}
	for _, b := range spec.Binds {
		access, path := r.files, b.Target
		if limited {
			path = b.Source
		}
		if b.ReadOnly {
			access = landlockRead
		}
		if err == nil && (limited || !b.ReadOnly) {
			err = r.allow(path, access)
		}
	}
	if err != nil {
		_ = unix.Close(r.fd)
		return 0, err
	}
	return abi, r.restrict()
}
