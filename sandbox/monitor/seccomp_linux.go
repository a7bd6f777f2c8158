package monitor

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data: the number, the architecture, and the low words of the arguments.
const (
	seccompNr   = 0
	seccompArch = 4
	seccompArgs = 16
)

const (
	seccompSetModeFilter = 1 // SECCOMP_SET_MODE_FILTER
	seccompAllow         = 0x7fff0000
	seccompErrno         = 0x00050000
	seccompKill          = 0x80000000
	// x32 calls of an x86-64 kernel carry this bit and would slip past a list of numbers.
	x32Bit = 0x40000000
	// cloneNamespaces are the flags of clone(2) that make namespaces.
	cloneNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	ioctlTIOCSTI   = 0x5412
	ioctlTIOCLINUX = 0x541c
	// The numbers of what is asked of a socket, 0x8900 to 0x89ff, of which the first 16 are its own.
	ioctlSockets = 0xffffff00
	ioctlSocket  = 0x8900
	ioctlDevices = 0xf0
	sockTypeMask = 0xf
	protoMPTCP   = 262
	fsSetXAttr   = 0x401c5820 // FS_IOC_FSSETXATTR
	ioprioUser   = 3          // IOPRIO_WHO_USER
)

// deniedCalls are refused with EPERM at every level but off: what changes the host or the
// namespaces, what looks into other processes, and what has been the way into many kernels.
var deniedCalls = append([]uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_OPEN_TREE_ATTR, unix.SYS_LISTMOUNT, unix.SYS_STATMOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP,
	unix.SYS_PIDFD_GETFD, unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_PERSONALITY,
	unix.SYS_NFSSERVCTL, unix.SYS_LOOKUP_DCOOKIE,
}, deniedHere...)

// deniedLimited are refused at limited as well. Landlock has no rule for the change of a file's mode,
// owner, times or attributes by its path, which would reach what belongs to the same user outside
// (by a descriptor it does not: that has to be opened first), nor for what the kernel shares
// between all processes of a user without a namespace.
var deniedLimited = append([]uint32{
	unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWNAT, unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_SETXATTRAT,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR,
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL,
	unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
}, deniedLimitedHere...)

// onlySelf are calls that may name no process but the caller, which is 0: the kernel lets any
// process of a user change the others', an ordinary user's monitor among them. The number is the
// argument's. user, where it is not 0, is what the first argument may not be: it stands for all of a
// user's.
var onlySelf = []struct {
	nr, arg, user uint32
}{
	{unix.SYS_PRLIMIT64, 0, 0}, {unix.SYS_SCHED_SETAFFINITY, 0, 0}, {unix.SYS_SCHED_SETSCHEDULER, 0, 0}, {unix.SYS_SCHED_SETPARAM, 0, 0},
	{unix.SYS_SCHED_SETATTR, 0, 0}, {unix.SYS_SETPRIORITY, 1, unix.PRIO_USER}, {unix.SYS_IOPRIO_SET, 1, ioprioUser},
}

// assembler builds a filter whose jumps are all to the next few instructions.
type assembler []unix.SockFilter

func (a *assembler) load(offset uint32) {
	*a = append(*a, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset})
}

func (a *assembler) and(mask uint32) {
	*a = append(*a, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask})
}

func (a *assembler) ret(k uint32) {
	*a = append(*a, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k})
}

func (a *assembler) refuse(e syscall.Errno) { a.ret(seccompErrno | uint32(e)) }

// unless skips the next n instructions where the loaded word is not k.
func (a *assembler) unless(k uint32, n int) {
	*a = append(*a, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: uint8(n)})
}

// when skips the next n instructions where the loaded word is k.
func (a *assembler) when(k uint32, n int) {
	*a = append(*a, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: uint8(n)})
}

// call compiles what is done where the call is nr; the body loads what it needs, and falls through
// to allow.
func (a *assembler) call(nr uint32, body func(*assembler)) {
	var b assembler
	body(&b)
	b.ret(seccompAllow)
	a.load(seccompNr)
	a.unless(nr, len(b))
	*a = append(*a, b...)
}

// rules are what a filter depends on.
type rules struct {
	// limited is the level. The families of sockets differ: with a network namespace of its own a
	// program reaches nobody by any of these three, without one Landlock has a rule for TCP alone.
	limited bool
	// Of limited: whether the program may listen, and connect; whether a deputy judges what a filter
	// can't; whether others run with its user id.
	listens, connects, judged, shared bool
}

// deputised tells whether there is something that a deputy must do.
func (r rules) deputised() bool { return r.judged && (r.connects || r.listens || r.shared) }

// filter is the program of r.
func filter(r rules) []unix.SockFilter {
	var a assembler
	a.load(seccompArch)
	a.when(auditArch, 1)
	a.ret(seccompKill)
	a.load(seccompNr)
	a = append(a, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: x32Bit, Jf: 1})
	a.refuse(unix.ENOSYS)
	for _, nr := range deniedCalls {
		a.unless(nr, 1)
		a.refuse(unix.EPERM)
	}
	if r.limited {
		a.limited(r)
	}
	for _, c := range onlySelf {
		a.call(c.nr, func(b *assembler) {
			if c.user != 0 {
				b.load(seccompArgs)
				b.unless(c.user, 1)
				b.refuse(unix.EPERM)
			}
			b.load(seccompArgs + 8*c.arg)
			b.when(0, 1)
			b.refuse(unix.EPERM)
		})
	}
	a.load(seccompNr)
	// Its flags lie in memory, which a filter can't read; C libraries go on to clone(2).
	a.unless(unix.SYS_CLONE3, 1)
	a.refuse(unix.ENOSYS)
	a.call(unix.SYS_CLONE, func(b *assembler) {
		b.load(seccompArgs)
		b.and(cloneNamespaces)
		b.when(0, 1)
		b.refuse(unix.EPERM)
	})
	a.call(unix.SYS_IOCTL, func(b *assembler) { ioctls(b, r) })
	a.call(unix.SYS_SOCKET, func(b *assembler) { sockets(b, r.limited) })
	a.call(unix.SYS_SOCKETPAIR, func(b *assembler) {
		b.load(seccompArgs)
		b.when(unix.AF_UNIX, 1)
		b.refuse(unix.EAFNOSUPPORT)
	})
	a.ret(seccompAllow)
	return a
}

// sends are the calls that send, and which argument their flags are.
var sends = []struct {
	nr  uint32
	arg uint32
}{{unix.SYS_SENDTO, 3}, {unix.SYS_SENDMSG, 2}, {unix.SYS_SENDMMSG, 3}}

// waysAround are options of a socket, with their level, by which what is sent to 127.0.0.1 leaves the
// host: a device to send by, and options of IP, a route among them.
var waysAround = []struct{ level, name uint32 }{
	{unix.SOL_SOCKET, unix.SO_BINDTODEVICE}, {unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX}, {unix.IPPROTO_IP, unix.IP_OPTIONS},
}

// limited compiles what level limited refuses beside; the number is loaded.
func (a *assembler) limited(r rules) {
	switch {
	case !r.connects:
		a.unless(unix.SYS_CONNECT, 1)
		a.refuse(unix.EACCES)
	case r.judged:
		a.unless(unix.SYS_CONNECT, 1)
		a.ret(unix.SECCOMP_RET_USER_NOTIF)
	}
	if r.shared {
		for _, nr := range []uint32{unix.SYS_FCHOWN, unix.SYS_FSETXATTR, unix.SYS_FREMOVEXATTR} {
			a.unless(nr, 1)
			a.refuse(unix.EPERM)
		}
	}
	if r.shared && r.judged {
		a.unless(unix.SYS_FCHMOD, 1)
		a.ret(unix.SECCOMP_RET_USER_NOTIF)
	}
	// Landlock has a rule for bind(2), and the kernel binds a socket that listens without it.
	for _, nr := range []uint32{unix.SYS_BIND, unix.SYS_LISTEN} {
		switch {
		case !r.listens:
			a.unless(nr, 1)
			a.refuse(unix.EACCES)
		case r.judged:
			a.unless(nr, 1)
			a.ret(unix.SECCOMP_RET_USER_NOTIF)
		}
	}
	for _, nr := range deniedLimited {
		a.unless(nr, 1)
		a.refuse(unix.EPERM)
	}
	for _, c := range sends {
		a.call(c.nr, func(b *assembler) {
			// It connects, for which Landlock has a rule in connect(2) alone. Who gets this error
			// goes on to that.
			b.load(seccompArgs + 8*c.arg)
			b.and(unix.MSG_FASTOPEN)
			b.when(0, 1)
			b.refuse(unix.EOPNOTSUPP)
		})
	}
	a.call(unix.SYS_SETSOCKOPT, socketOptions)
	a.call(unix.SYS_UTIMENSAT, func(b *assembler) {
		// Without a path it is about a descriptor. Both words of the pointer are looked at.
		b.load(seccompArgs + 8)
		b.when(0, 1)
		b.refuse(unix.EPERM)
		b.load(seccompArgs + 12)
		b.when(0, 1)
		b.refuse(unix.EPERM)
		if r.shared && r.judged {
			b.ret(unix.SECCOMP_RET_USER_NOTIF)
		}
	})
}

func ioctls(b *assembler, r rules) {
	b.load(seccompArgs + 8)
	b.unless(ioctlTIOCSTI, 1)
	b.refuse(unix.EPERM)
	b.unless(ioctlTIOCLINUX, 1)
	b.refuse(unix.EPERM)
	if r.shared {
		for _, attribute := range []uint32{unix.FS_IOC_SETFLAGS, fsSetXAttr, unix.FS_IOC_ENABLE_VERITY} {
			b.unless(attribute, 1)
			b.refuse(unix.EPERM)
		}
	}
	if r.limited {
		// From 0x8910 on they are about the host's devices, addresses and neighbours.
		b.and(ioctlSockets)
		b.unless(ioctlSocket, 4)
		b.load(seccompArgs + 8)
		b.and(ioctlDevices)
		b.when(0, 1)
		b.refuse(unix.EPERM)
	}
}

func socketOptions(b *assembler) {
	for _, o := range waysAround {
		b.load(seccompArgs + 8)
		b.unless(o.level, 3)
		b.load(seccompArgs + 16)
		b.unless(o.name, 1)
		b.refuse(unix.EPERM)
	}
}

func sockets(b *assembler, limited bool) {
	b.load(seccompArgs)
	if !limited {
		b.when(unix.AF_UNIX, 3)
	}
	b.when(unix.AF_INET, 2)
	b.when(unix.AF_INET6, 1)
	b.refuse(unix.EAFNOSUPPORT)
	if limited {
		b.load(seccompArgs + 8)
		b.and(sockTypeMask)
		b.when(unix.SOCK_STREAM, 1)
		b.refuse(unix.EACCES)
		b.load(seccompArgs + 16)
		b.when(0, 2)
		b.when(unix.IPPROTO_TCP, 1)
		b.refuse(unix.EACCES)
		return
	}
	b.load(seccompArgs + 8)
	b.and(sockTypeMask)
	b.unless(unix.SOCK_RAW, 1)
	b.refuse(unix.EPERM)
	b.load(seccompArgs + 16)
	b.unless(protoMPTCP, 1)
	b.refuse(unix.EPROTONOSUPPORT)
}

// installFilter filters the calls of the calling thread and of what it starts. It needs
// no_new_privs. Where there are calls for a deputy it returns what they come by, else -1.
func installFilter(r rules) (int, error) {
	if auditArch == 0 {
		return -1, &startError{"seccomp filter: not known for this processor", syscall.ENOTSUP}
	}
	f := filter(r)
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	flags := uintptr(0)
	if r.deputised() {
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	fd, _, e := unix.RawSyscall(unix.SYS_SECCOMP, seccompSetModeFilter, flags, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return -1, &startError{"seccomp filter", e}
	}
	if flags == 0 {
		return -1, nil
	}
	return int(fd), nil
}
