package main

import (
	"encoding/binary"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bindAttacks open doors on the host.
func bindAttacks() []attack {
	bind := func(id, name, covers string, kind, port int, address [4]byte) attack {
		return attack{id: id, name: name, covers: covers, twin: "pipe", run: func(t targets) result {
			if ownNamespace("net", t["ns.net"]) && t["ns.net"] != "" {
				return denied("is in a network namespace of its own")
			}
			fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return denied("socket: %v", err)
			}
			defer unix.Close(fd)
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: address}); err != nil {
				return denied("bind: %v", err)
			}
			if kind == unix.SOCK_STREAM {
				err = unix.Listen(fd, 1)
			}
			return verdict(err, "listened on the host")
		}}
	}
	return []attack{
		bind("listen-everywhere", "listen on all of the host's addresses", "N11", unix.SOCK_STREAM, 0, [4]byte{}),
		bind("listen-loopback", "listen on the host's loopback", "N11", unix.SOCK_STREAM, 0, [4]byte{127, 0, 0, 1}),
		bind("listen-udp", "take datagrams on all of the host's addresses", "N11", unix.SOCK_DGRAM, 0, [4]byte{}),
		bind("listen-privileged", "listen on a port of the host's services", "N11", unix.SOCK_STREAM, 623, [4]byte{127, 0, 0, 1}),
		{id: "listen-unbound", name: "listen without binding, past rules for bind", covers: "N11", twin: "pipe", run: func(t targets) result {
			if t["ns.net"] != "" && ownNamespace("net", t["ns.net"]) {
				return denied("is in a network namespace of its own")
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return denied("socket: %v", err)
			}
			defer unix.Close(fd)
			return verdict(unix.Listen(fd, 1), "the kernel chose a port of the host")
		}},
		{id: "listen-stolen", name: "share the port of a server of the host", covers: "N9", needs: []string{"tcp4"}, twin: "pipe", run: func(t targets) result {
			if t["ns.net"] != "" && ownNamespace("net", t["ns.net"]) {
				return denied("is in a network namespace of its own")
			}
			sa, family, err := sockaddr(t["tcp4"])
			if err != nil {
				return broken("%v", err)
			}
			fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return denied("socket: %v", err)
			}
			defer unix.Close(fd)
			err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
			if err == nil {
				err = unix.Bind(fd, sa)
			}
			if err == nil {
				err = unix.Listen(fd, 1)
			}
			return verdict(err, "listens beside it")
		}},
		{id: "interfaces", name: "see the host's network interfaces", covers: "N1", twin: "pipe", run: func(t targets) result {
			if t["ns.net"] != "" && ownNamespace("net", t["ns.net"]) {
				return denied("is in a network namespace of its own")
			}
			if b, err := os.ReadFile("/proc/self/net/dev"); err == nil {
				return won("read %d bytes of /proc/self/net/dev", len(b))
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return denied("socket: %v", err)
			}
			defer unix.Close(fd)
			const first = 1
			var req [40]byte
			binary.NativeEndian.PutUint32(req[unix.IFNAMSIZ:], first)
			_, err = call(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFNAME, uintptr(unsafe.Pointer(&req[0])))
			return verdict(err, "the first is %s", unix.ByteSliceToString(req[:unix.IFNAMSIZ]))
		}},
		{id: "interface-down", name: "switch an interface off", covers: "N1", twin: "pipe", run: func(targets) result {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return denied("socket: %v", err)
			}
			defer unix.Close(fd)
			// The flags of an interface that is not there: the right is looked at first.
			var req [40]byte
			copy(req[:], "otters-none")
			_, err = call(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req[0])))
			if errors.Is(err, unix.ENODEV) {
				return nodevIsNoRight()
			}
			return permitted(err, "SIOCSIFFLAGS")
		}},
	}
}

// nodevIsNoRight asks again for the loopback, with the flags that it has.
func nodevIsNoRight() result {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return denied("socket: %v", err)
	}
	defer unix.Close(fd)
	var req [40]byte
	copy(req[:], "lo")
	if _, err := call(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFFLAGS, uintptr(unsafe.Pointer(&req[0]))); err != nil {
		return denied("SIOCGIFFLAGS: %v", err)
	}
	if binary.NativeEndian.Uint16(req[16:])&unix.IFF_LOOPBACK == 0 {
		return broken("lo is no loopback")
	}
	_, err = call(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req[0])))
	return verdict(err, "set the flags that lo had")
}
