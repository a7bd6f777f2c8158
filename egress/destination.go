package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// MaxDestinations is how many an agent may have.
const MaxDestinations = 100

// usualPorts are those of a destination that names none: HTTP and HTTPS.
var usualPorts = []uint16{80, 443}

const localhost = "localhost"

// Destination is something that an agent may reach: a name or an address, and a port of it.
type Destination struct {
	// host is a lower-case name without a dot at its end, ".example.com" for all names below
	// example.com; empty where there is an address.
	host string
	addr netip.Addr
	// port is 0 for the usual ports.
	port uint16
}

// ParseDestination reads host[:port]: a name, *.name for every name below one, an IPv4 address or an
// IPv6 address, in brackets where a port follows. Without a port it is ports 80 and 443.
func ParseDestination(text string) (Destination, error) {
	bad := func(why string) (Destination, error) {
		return Destination{}, fmt.Errorf("destination %s: %s", clip(text), why)
	}
	const want = "want host[:port], such as example.com, *.example.com, 192.0.2.1:8080 or [2001:db8::1]:443"
	if strings.Contains(text, "://") || strings.ContainsAny(text, "/@?#") {
		return bad("a host is opened, not a URL; " + want)
	}
	host, port := text, ""
	if i := strings.LastIndexByte(text, ':'); i >= 0 && (strings.Count(text, ":") == 1 || strings.HasSuffix(text[:i], "]")) {
		if host, port = text[:i], text[i+1:]; port == "" {
			return bad("the port is missing; " + want)
		}
	}
	var d Destination
	if port != "" {
		n, err := parsePort(port)
		if err != nil {
			return bad(err.Error())
		}
		d.port = n
	}
	name, below := strings.CutPrefix(host, "*.")
	host, addr, err := parseHost(name)
	switch {
	case err != nil && (name == "" || name == "*"):
		return bad("it names no host, and there is no way to open them all; " + want)
	case err != nil:
		return bad(err.Error() + "; " + want)
	case below && addr.IsValid():
		return bad("there is nothing below an address; " + want)
	case below && (!strings.Contains(host, ".") || host == localhost):
		return bad("it would open a whole top-level domain; name more of it, such as *.example.com")
	case addr.IsValid() && unreachable(addr) != "":
		return bad(unreachable(addr))
	case below:
		host = "." + host
	}
	d.host, d.addr = host, addr
	return d, nil
}

// ParseDestinations reads several, drops those that are there twice, and refuses more than
// MaxDestinations.
func ParseDestinations(texts []string) ([]Destination, error) {
	if len(texts) > MaxDestinations {
		return nil, fmt.Errorf("%d destinations: at most %d can be opened", len(texts), MaxDestinations)
	}
	var out []Destination
	for _, text := range texts {
		d, err := ParseDestination(text)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out, nil
}

// String is the canonical form; ParseDestination reads it back.
func (d Destination) String() string {
	host := d.host
	switch {
	case d.addr.Is6() && d.port != 0:
		host = "[" + d.addr.String() + "]"
	case d.addr.IsValid():
		host = d.addr.String()
	case strings.HasPrefix(host, "."):
		host = "*" + host
	}
	if d.port == 0 {
		return host
	}
	return host + ":" + strconv.Itoa(int(d.port))
}

func (d Destination) coversPort(port uint16) bool {
	return d.port == port || d.port == 0 && slices.Contains(usualPorts, port)
}

// covers tells whether what was asked for, a name or an address, is this destination.
func (d Destination) covers(host string, addr netip.Addr, port uint16) bool {
	switch {
	case !d.coversPort(port):
		return false
	case addr.IsValid() || d.addr.IsValid():
		return d.addr == addr
	case strings.HasPrefix(d.host, "."):
		return strings.HasSuffix(host, d.host) && len(host) > len(d.host)
	}
	return d.host == host
}

// parseHost reads a name or an address, in brackets or not, to its canonical form. An IPv4 address
// in the shape of an IPv6 one becomes what it is.
func parseHost(text string) (string, netip.Addr, error) {
	inside, closed := strings.CutSuffix(text, "]")
	inside, open := strings.CutPrefix(inside, "[")
	if open != closed {
		return "", netip.Addr{}, errors.New("a bracket is missing")
	}
	if addr, err := netip.ParseAddr(inside); err == nil {
		switch {
		case addr.Zone() != "":
			return "", netip.Addr{}, errors.New("an address with a zone can't be named")
		case open && addr.Is4():
			return "", netip.Addr{}, errors.New("brackets are for IPv6 addresses")
		}
		return "", addr.Unmap(), nil
	}
	if open || strings.Contains(text, ":") {
		return "", netip.Addr{}, errors.New("it is no address")
	}
	name, err := parseName(text)
	return name, netip.Addr{}, err
}

// parseName reads the name of a host. What the C library takes for an address though it does not look
// like one, such as 127.1, 0x7f000001 or 2130706433, is no name.
func parseName(text string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	if name == "" || len(name) > 253 {
		return "", errors.New("a name has 1 to 253 characters")
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return "", errors.New("a part of the name is empty, longer than 63 characters, or begins or ends with a hyphen")
		}
		for _, c := range []byte(label) {
			if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				return "", errors.New("a name has letters, digits, hyphens, underscores and dots; write one of another script in its xn-- form")
			}
		}
	}
	last := labels[len(labels)-1]
	if last[0] >= '0' && last[0] <= '9' {
		if _, err := strconv.ParseUint(last, 0, 64); err == nil || strings.Trim(last, "0123456789") == "" {
			return "", errors.New("it ends like an address and is none")
		}
	}
	return name, nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %s: want a number from 1 to 65535", clip(text))
	}
	return uint16(n), nil
}

// clip quotes what somebody else has written.
func clip(text string) string {
	const most = 80
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return strconv.Quote(text)
}
