//go:build linux

package sandbox_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

// attempt is one call that the program of a test tries.
type attempt struct {
	name string
	try  func() error
}

func call(nr uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
			return e
		}
		return nil
	}
}

func socket(domain, kind, proto int) func() error {
	return func() error {
		fd, err := unix.Socket(domain, kind, proto)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
}

// onSocket does something with a TCP socket of its own.
func onSocket(do func(fd int) error) func() error {
	return func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return do(fd)
	}
}

// attempts are what the role "attempts" tries, the host's address outside to dial in its argument.
func attempts(outside string) []attempt {
	return []attempt{
		{"tcp socket", socket(unix.AF_INET, unix.SOCK_STREAM, 0)},
		{"udp socket", socket(unix.AF_INET, unix.SOCK_DGRAM, 0)},
		{"unix socket", socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)},
		{"socket pair", func() error {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err == nil {
				_ = unix.Close(p[0])
				_ = unix.Close(p[1])
			}
			return err
		}},
		{"raw socket", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		{"packet socket", socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)},
		{"netlink socket", socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)},
		{"vsock socket", socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{"mptcp socket", socket(unix.AF_INET, unix.SOCK_STREAM, 262)},
		{"dial outside", func() error {
			c, err := net.Dial("tcp", outside)
			if err == nil {
				_ = c.Close()
			}
			return err
		}},
		{"listen", func() error {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				_ = l.Close()
			}
			return err
		}},
		{"listen unbound", onSocket(func(fd int) error { return unix.Listen(fd, 1) })},
		{"connect by sending", onSocket(func(fd int) error {
			addr := netip.MustParseAddrPort(outside)
			return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())})
		})},
		{"socket to a device", onSocket(func(fd int) error { return unix.BindToDevice(fd, "lo") })},
		{"socket to a device's number", onSocket(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, 1) })},
		{"the first device's name", onSocket(func(fd int) error {
			req := [40]byte{16: 1}
			return call(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFNAME, uintptr(unsafe.Pointer(&req)))()
		})},
		{"a question to a socket", onSocket(func(fd int) error {
			_, err := unix.IoctlGetInt(fd, unix.SIOCGPGRP)
			return err
		})},
		{"options of IP", onSocket(func(fd int) error {
			return unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x01")
		})},
		{"another option", onSocket(func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) })},
		{"getpid", call(unix.SYS_GETPID)},
		{"unshare user", call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER)},
		{"clone user", call(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))},
		{"clone3", call(unix.SYS_CLONE3, 0, 0)},
		{"setns", call(unix.SYS_SETNS, 0, 0)},
		{"mount", call(unix.SYS_MOUNT)},
		{"umount", call(unix.SYS_UMOUNT2)},
		{"pivot_root", call(unix.SYS_PIVOT_ROOT)},
		{"chroot", call(unix.SYS_CHROOT)},
		{"open_tree", call(unix.SYS_OPEN_TREE)},
		{"ptrace", call(unix.SYS_PTRACE, unix.PTRACE_TRACEME)},
		{"process_vm_readv", call(unix.SYS_PROCESS_VM_READV)},
		{"keyctl", call(unix.SYS_KEYCTL)},
		{"bpf", call(unix.SYS_BPF)},
		{"io_uring", call(unix.SYS_IO_URING_SETUP)},
		{"userfaultfd", call(unix.SYS_USERFAULTFD)},
		{"perf", call(unix.SYS_PERF_EVENT_OPEN)},
		{"modules", call(unix.SYS_FINIT_MODULE)},
		{"chmod by descriptor", func() error {
			f, err := os.Create("made")
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Chmod(0o666)
		}},
		{"chmod by path", func() error { return os.Chmod("made", 0o600) }},
		{"times by path", func() error { return os.Chtimes("made", time.Now(), time.Now()) }},
		{"own limits", func() error {
			var r unix.Rlimit
			return unix.Prlimit(0, unix.RLIMIT_CORE, nil, &r)
		}},
		{"another's limits", func() error {
			var r unix.Rlimit
			return unix.Prlimit(os.Getppid(), unix.RLIMIT_CORE, nil, &r)
		}},
		{"shared memory", call(unix.SYS_SHMGET, 0, 4096, 0o600)},
		{"TIOCSTI", call(unix.SYS_IOCTL, 0, unix.TIOCSTI)},
		{"TIOCSTI, high bits", call(unix.SYS_IOCTL, 0, unix.TIOCSTI|1<<40)},
		{"setuid root outside", func() error {
			if os.Geteuid() == 0 {
				return call(unix.SYS_SETUID, 1)()
			}
			return call(unix.SYS_SETUID, 0)()
		}},
		{"set-user-id program", func() error {
			b, err := os.ReadFile("/proc/self/status")
			if err != nil || !strings.Contains(string(b), "NoNewPrivs:\t1") {
				return nil
			}
			return unix.EPERM
		}},
	}
}

// attemptAll is the role that prints what came of each attempt.
func attemptAll() int {
	results := make(map[string]string)
	for _, a := range attempts(os.Args[1]) {
		results[a.name] = "allowed"
		if err := a.try(); err != nil {
			results[a.name] = err.Error()
			var e syscall.Errno
			if errors.As(err, &e) {
				results[a.name] = unix.ErrnoName(e)
			}
		}
	}
	if json.NewEncoder(os.Stdout).Encode(results) != nil {
		return 1
	}
	return 0
}

// K11, K12, K13, N1: calls and sockets, each denied one with the error that tells the filter's from
// the kernel's own.
func TestCallsAreFiltered(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		w := newWorld(t)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		spec := w.spec(t, level, "")
		program := copyProgram(t, self, filepath.Join(w.dir, "program"))
		spec.Binds = append(spec.Binds, sandbox.Bind{Source: program, Target: "/program", ReadOnly: true})
		spec.Path, spec.Args = program, []string{ln.Addr().String()}
		if level == sandbox.Strict {
			spec.Path = "/program"
		}
		spec.Env = []string{roleVariable + "=attempts", "GORACE=atexit_sleep_ms=0"}
		var got map[string]string
		if out := said(t, l, spec); json.Unmarshal([]byte(out), &got) != nil {
			t.Fatalf("%q", out)
		}
		want := map[string]string{
			"chmod by descriptor": "allowed", "own limits": "allowed", "another option": "allowed", "a question to a socket": "allowed",
			"tcp socket": "allowed", "socket pair": "allowed", "getpid": "allowed",
			"netlink socket": "EAFNOSUPPORT", "packet socket": "EAFNOSUPPORT", "vsock socket": "EAFNOSUPPORT",
			"clone3": "ENOSYS", "TIOCSTI": "EPERM",
			"udp socket": "EACCES", "unix socket": "EAFNOSUPPORT", "raw socket": "EACCES", "mptcp socket": "EACCES",
			"dial outside": "EACCES", "listen": "EACCES", "listen unbound": "EACCES", "connect by sending": "ENOTSUP",
		}
		if level == sandbox.Strict {
			for name, result := range map[string]string{
				"the first device's name": "allowed", "socket to a device": "allowed", "socket to a device's number": "allowed", "options of IP": "allowed",
				"chmod by path": "allowed", "times by path": "allowed", "another's limits": "EPERM", "shared memory": "allowed",
				"udp socket": "allowed", "unix socket": "allowed", "raw socket": "EPERM", "mptcp socket": "EPROTONOSUPPORT",
				"dial outside": "ECONNREFUSED", "listen": "allowed", "listen unbound": "allowed", "connect by sending": "ECONNREFUSED", "setuid root outside": "EINVAL",
			} {
				want[name] = result
			}
		} else {
			// /proc is out of reach at limited; the launcher reads the state back.
			want["set-user-id program"] = "allowed"
		}
		if got["connect by sending"] == "ENOTSUP" {
			want["connect by sending"] = "ENOTSUP" // the host may forbid it as well (tcp_fastopen)
		}
		for name, result := range got {
			expect, ok := want[name]
			if !ok {
				expect = "EPERM"
			}
			if result != expect {
				t.Errorf("%s: %s, want %s", name, result, expect)
			}
		}
		if len(got) != len(attempts("")) {
			t.Errorf("%d results", len(got))
		}
	})
}
