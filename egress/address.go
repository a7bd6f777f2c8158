package egress

import (
	"fmt"
	"net"
	"net/netip"
)

// special are the addresses that lead elsewhere than to a host of the internet, or to one that serves
// this machine alone, and what they are. The first that fits counts.
var special = []struct {
	net  netip.Prefix
	what string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.169.254/32"), "a cloud's metadata service"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a cloud's metadata service"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared by a provider's customers"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.0.2.0/24"), "for documentation"},
	{netip.MustParsePrefix("198.51.100.0/24"), "for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "for documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "of a tunnel"},
	{netip.MustParsePrefix("198.18.0.0/15"), "for benchmarks"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},

	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"},
	{netip.MustParsePrefix("fc00::/7"), "private"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
	{netip.MustParsePrefix("2001::/23"), "of a tunnel or reserved"},
	{netip.MustParsePrefix("2001:db8::/32"), "for documentation"},
	{netip.MustParsePrefix("3fff::/20"), "for documentation"},
	{netip.MustParsePrefix("2002::/16"), "of a tunnel"},
}

var (
	globalSix = netip.MustParsePrefix("2000::/3")
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
)

// embedded is the IPv4 address that a mapped address, or one of NAT64's well-known prefix (RFC 6052),
// leads to; any other is what it is.
func embedded(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

// kind tells what an address is, empty for a host of the internet.
func kind(a netip.Addr) string {
	a = a.Unmap()
	if a.Zone() != "" {
		return "of one interface"
	}
	if b := embedded(a); b != a {
		return kind(b)
	}
	for _, s := range special {
		if s.net.Contains(a) {
			return s.what
		}
	}
	if a.Is6() && !globalSix.Contains(a) {
		return "reserved"
	}
	return ""
}

// unreachable is why nothing can be dialled at an address at all, empty where that is possible.
func unreachable(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "the unspecified address is no destination"
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "an address of many hosts is no destination"
	case a.Is6() && a.IsLinkLocalUnicast():
		return "a link-local IPv6 address needs a zone, and none can be named"
	}
	return ""
}

// ownAddresses are the addresses of this machine's interfaces.
func ownAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this machine: %w", err)
	}
	var out []netip.Addr
	for _, one := range all {
		if n, ok := one.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, a.Unmap())
			}
		}
	}
	return out, nil
}
