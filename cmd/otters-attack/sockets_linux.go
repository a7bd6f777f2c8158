package main

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// answerTime bounds a wait for an answer, where silence is the refusal.
var answerTime = unix.Timeval{Sec: 20}

// sockaddr reads host:port, and which family it is of.
func sockaddr(address string) (unix.Sockaddr, int, error) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, 0, err
	}
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}, unix.AF_INET, nil
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}, unix.AF_INET6, nil
}

// dial connects a socket to host:port.
func dial(kind, protocol int, address string) (int, error) {
	sa, family, err := sockaddr(address)
	if err != nil {
		return -1, err
	}
	return dialAs(family, kind, protocol, sa)
}

func dialAs(family, kind, protocol int, sa unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &answerTime)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &answerTime)
	if err := unix.Connect(fd, sa); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("connect: %w", err)
	}
	return fd, nil
}

// heard reads the secret from a connected socket; a datagram socket says something first.
func heard(fd int, err error, t targets, speak bool) result {
	if err != nil {
		return denied("%v", err)
	}
	defer unix.Close(fd)
	if speak {
		if _, err := unix.Write(fd, []byte("otters?")); err != nil {
			return denied("send: %v", err)
		}
	}
	var said []byte
	for b := make([]byte, 512); ; {
		n, err := unix.Read(fd, b)
		said = append(said, b[:max(n, 0)]...)
		if strings.Contains(string(said), t["secret"]) {
			break
		}
		if n <= 0 || speak || len(said) > 4096 {
			return denied("connected, but heard %d bytes: %v", len(said), err)
		}
	}
	return won("heard the secret of a server of the host")
}

// socketAttacks reach for servers outside.
func socketAttacks() []attack {
	to := func(id, name, target string, kind, protocol int) attack {
		return attack{id: id, name: name, covers: "N1", needs: []string{target}, twin: "gateway", run: func(t targets) result {
			fd, err := dial(kind, protocol, t[target])
			return heard(fd, err, t, kind != unix.SOCK_STREAM)
		}}
	}
	return append([]attack{
		to("tcp-loopback", "connect to a server on the host's loopback", "tcp4", unix.SOCK_STREAM, 0),
		to("tcp6-loopback", "connect to a server on the host's IPv6 loopback", "tcp6", unix.SOCK_STREAM, 0),
		to("tcp-host", "connect to a server on another address of the host", "tcphost", unix.SOCK_STREAM, 0),
		to("udp-loopback", "ask a server on the host's loopback by UDP", "udp4", unix.SOCK_DGRAM, 0),
		to("udp6-loopback", "ask a server on the host's IPv6 loopback by UDP", "udp6", unix.SOCK_DGRAM, 0),
		to("mptcp-loopback", "connect by MPTCP, which rules for TCP may forget", "tcp4", unix.SOCK_STREAM, 262),
		to("sctp", "connect by SCTP", "tcp4", unix.SOCK_STREAM, unix.IPPROTO_SCTP),
		to("udplite", "ask by UDP-Lite", "udp4", unix.SOCK_DGRAM, 136),
		{id: "tcp-mapped", name: "connect to IPv4 by an IPv6 address", covers: "N1 N4", needs: []string{"tcp4"}, twin: "gateway", run: func(t targets) result {
			ap, err := netip.ParseAddrPort(t["tcp4"])
			if err != nil {
				return broken("%v", err)
			}
			sa := &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
			fd, err := dialAs(unix.AF_INET6, unix.SOCK_STREAM, 0, sa)
			return heard(fd, err, t, false)
		}},
		{id: "tcp-any-address", name: "connect to the loopback by 0.0.0.0", covers: "N4", needs: []string{"tcp4"}, twin: "gateway", run: func(t targets) result {
			ap, err := netip.ParseAddrPort(t["tcp4"])
			if err != nil {
				return broken("%v", err)
			}
			fd, err := dialAs(unix.AF_INET, unix.SOCK_STREAM, 0, &unix.SockaddrInet4{Port: int(ap.Port())})
			return heard(fd, err, t, false)
		}},
		{id: "tcp-fast-open", name: "connect by sending (TCP fast open), past rules for connect", covers: "N1", needs: []string{"tcp4"}, twin: "gateway", run: func(t targets) result {
			sa, family, err := sockaddr(t["tcp4"])
			if err != nil {
				return broken("%v", err)
			}
			fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return denied("socket: %v", err)
			}
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &answerTime)
			if err := unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, sa); err != nil {
				_ = unix.Close(fd)
				return denied("send: %v", err)
			}
			return heard(fd, nil, t, false)
		}},
		{id: "smc", name: "connect by SMC, which falls back to TCP", covers: "N1", needs: []string{"tcp4"}, twin: "gateway", run: func(t targets) result {
			sa, _, err := sockaddr(t["tcp4"])
			if err != nil {
				return broken("%v", err)
			}
			fd, err := dialAs(unix.AF_SMC, unix.SOCK_STREAM, 0, sa)
			return heard(fd, err, t, false)
		}},
		{id: "udp-unconnected", name: "send a datagram without connecting", covers: "N1", needs: []string{"udp4"}, twin: "gateway", run: func(t targets) result {
			sa, family, err := sockaddr(t["udp4"])
			if err != nil {
				return broken("%v", err)
			}
			fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return denied("socket: %v", err)
			}
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &answerTime)
			// Without it nobody tells a socket that is not connected that nobody listens.
			_ = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVERR, 1)
			if err := unix.Sendto(fd, []byte("otters?"), 0, sa); err != nil {
				_ = unix.Close(fd)
				return denied("send: %v", err)
			}
			return heard(fd, nil, t, false)
		}},
		route("route-internet", "have a way to the internet", "N1", "192.0.2.1:443"),
		route("route-metadata", "have a way to a cloud's metadata service", "N4", "169.254.169.254:80"),
		route("route-private", "have a way to a private network", "N4", "10.255.255.1:80"),
		route("route-internet6", "have a way to the internet by IPv6", "N1", "[2001:db8::1]:443"),
		{id: "dns", name: "ask the host's resolver", covers: "N2", twin: "gateway", run: func(targets) result { return resolver() }},
		{id: "other-runtime", name: "connect to another agent's runtime", covers: "N9", needs: []string{"tcp.other"}, twin: "gateway", run: func(t targets) result {
			fd, err := dial(unix.SOCK_STREAM, 0, t["tcp.other"])
			if err == nil {
				_ = unix.Close(fd)
			}
			return verdict(err, "connected to %s", t["tcp.other"])
		}},
		{id: "other-gateway", name: "connect to another agent's gateway", covers: "N9", needs: []string{"tcp.othergateway"}, twin: "gateway", run: func(t targets) result {
			// The address may be its own gateway's as well; the other one tells the secret.
			fd, err := dial(unix.SOCK_STREAM, 0, t["tcp.othergateway"])
			if err == nil {
				_, err = unix.Write(fd, []byte("GET /v1/models HTTP/1.0\r\n\r\n"))
			}
			return heard(fd, err, t, false)
		}},
		{id: "proxy", name: "use the proxy's address without its credential", covers: "N1 N4", needs: []string{"tcp4"}, twin: "gateway", run: func(t targets) result {
			return throughProxy(t, "127.0.0.1:5529")
		}},
		{id: "other-proxy", name: "use another agent's proxy", covers: "N9", needs: []string{"tcp4", "tcp.otherproxy"}, twin: "gateway", run: func(t targets) result {
			return throughProxy(t, t["tcp.otherproxy"])
		}},
	}, familyAttacks()...)
}

// throughProxy asks a proxy for a tunnel, without a credential and with one that it makes up.
func throughProxy(t targets, address string) result {
	var last result
	for _, credential := range []string{"", "Proxy-Authorization: Basic YWdlbnQ6b3RyXw==\r\n"} { // agent:otr_
		fd, err := dial(unix.SOCK_STREAM, 0, address)
		if err == nil {
			_, err = unix.Write(fd, []byte("CONNECT "+t["tcp4"]+" HTTP/1.1\r\nHost: "+t["tcp4"]+"\r\n"+credential+"\r\n"))
		}
		if last = heard(fd, err, t, false); last.Outcome == outcomeSucceeded {
			return last
		}
	}
	return last
}

// route asks the kernel for a way to an address that belongs to nobody. Nothing is sent.
func route(id, name, covers, address string) attack {
	return attack{id: id, name: name, covers: covers, twin: "gateway", run: func(targets) result {
		fd, err := dial(unix.SOCK_DGRAM, 0, address)
		if err == nil {
			_ = unix.Close(fd)
		}
		return verdict(err, "the kernel knows a way to %s", address)
	}}
}

// resolver looks for a way to each server of resolv.conf. Nothing is sent.
func resolver() result {
	f, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return denied("%v", err)
	}
	defer f.Close()
	last := denied("resolv.conf names no server")
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		addr, err := netip.ParseAddr(fields[1])
		if err != nil {
			continue
		}
		fd, err := dial(unix.SOCK_DGRAM, 0, netip.AddrPortFrom(addr.WithZone(""), 53).String())
		if err == nil {
			_ = unix.Close(fd)
			return won("the kernel knows a way to %s", addr)
		}
		last = denied("%s: %v", addr, err)
	}
	return last
}

// familyAttacks ask for kinds of sockets that no agent needs.
func familyAttacks() []attack {
	open := func(id, name string, family, kind, protocol int) attack {
		return attack{id: id, name: name, covers: "N1", twin: "pipe", run: func(targets) result {
			fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
			if err == nil {
				_ = unix.Close(fd)
			}
			return verdict(err, "has the socket")
		}}
	}
	const allProtocols = 0x0300 // ETH_P_ALL in network order
	rare := []int{
		unix.AF_AX25, unix.AF_IPX, unix.AF_APPLETALK, unix.AF_X25, unix.AF_ROSE, unix.AF_KEY, unix.AF_RDS, unix.AF_PPPOX, unix.AF_LLC, unix.AF_IB, unix.AF_MPLS,
		unix.AF_CAN, unix.AF_TIPC, unix.AF_BLUETOOTH, unix.AF_RXRPC, unix.AF_ISDN, unix.AF_PHONET, unix.AF_IEEE802154, unix.AF_NFC, unix.AF_KCM, unix.AF_QIPCRTR, unix.AF_XDP, unix.AF_MCTP,
	}
	return []attack{
		open("icmp", "send ICMP by a ping socket", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
		open("raw", "send packets of its own making (raw)", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW),
		open("raw6", "send IPv6 packets of its own making", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6),
		open("packet", "see every packet (packet socket)", unix.AF_PACKET, unix.SOCK_RAW, allProtocols),
		open("netlink-route", "ask about and change the network (netlink)", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
		open("netlink-audit", "speak to the kernel's audit", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT),
		open("netlink-netfilter", "reach the kernel's packet filter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER),
		open("vsock", "speak to the hypervisor (vsock)", unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		open("crypto", "use the kernel's ciphers (AF_ALG)", unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		{id: "rare-families", name: "open a socket of a family that nobody uses", covers: "N1", twin: "pipe", run: func(targets) result {
			for _, family := range rare {
				for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
					if fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0); err == nil {
						_ = unix.Close(fd)
						return won("has a socket of family %d, kind %d", family, kind)
					}
				}
			}
			return denied("none of %d families", len(rare))
		}},
	}
}
