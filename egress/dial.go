package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxAddresses is how many addresses a name may have; what has more is not looked through.
	maxAddresses = 64
	// leastDial is what each address gets of the time for all, however many there are.
	leastDial = 2 * time.Second
	// maxReported bounds a host in a report that is none, in bytes.
	maxReported = 255
	// maxMethod bounds a request's method, in bytes; RFC 9110 knows none of more than 7.
	maxMethod = 32
)

// refusal is an answer in place of a connection. problem is an error type of RFC 9209.
type refusal struct {
	status  int
	problem string
	reason  string
}

func (r *refusal) Error() string { return r.reason }

func deny(format string, args ...any) *refusal {
	return &refusal{http.StatusForbidden, "http_request_denied", fmt.Sprintf(format, args...)}
}

// dial checks, reports and makes a connection.
func (d *door) dial(ctx context.Context, method, host, port string) (net.Conn, error) {
	c := Connection{Agent: d.grant.Agent, Method: method}
	err := d.check(ctx, &c, host, port)
	if c.Allowed = err == nil; err != nil {
		c.Reason = err.Error()
	}
	if failed := d.proxy.opts.Reporter.Report(ctx, c); failed != nil && err == nil {
		err = &refusal{http.StatusServiceUnavailable, "proxy_internal_error", "the connection could not be recorded, so it is not made"}
	}
	if err != nil {
		return nil, err
	}
	return d.connect(ctx, c.Addresses, c.Port)
}

// check fills in c, and is nil where the connection is allowed.
func (d *door) check(ctx context.Context, c *Connection, host, port string) error {
	c.Host = strings.ToValidUTF8(host[:min(len(host), maxReported)], "")
	n, err := parsePort(port)
	if err != nil {
		return &refusal{http.StatusBadRequest, "http_request_error", err.Error()}
	}
	c.Port = n
	name, addr, err := parseHost(host)
	if err != nil {
		return &refusal{http.StatusBadRequest, "http_request_error", fmt.Sprintf("host %s: %s", clip(host), err)}
	}
	if c.Host = name; addr.IsValid() {
		c.Host = addr.String()
	}
	if c.Destination, err = d.named(c.Host, name, addr, n); err != nil {
		return err
	}
	if addr.IsValid() {
		c.Addresses = []netip.Addr{addr}
		return nil
	}
	if c.Addresses, err = d.proxy.resolve(ctx, name); err != nil {
		return err
	}
	return d.checkAddresses(c)
}

// named finds the destination that names a host.
func (d *door) named(shown, name string, addr netip.Addr, port uint16) (Destination, error) {
	other := false
	for _, dest := range d.grant.Destinations {
		if dest.covers(name, addr, port) {
			return dest, nil
		}
		// Its own port, so that the host alone decides.
		other = other || dest.covers(name, addr, dest.port)
	}
	if other {
		return Destination{}, deny("port %d of %s is not among the destinations of this agent (--allow-net)", port, shown)
	}
	return Destination{}, deny("%s is not among the destinations of this agent (--allow-net)", shown)
}

// resolve asks for the addresses of a name, once.
func (p *Proxy) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	if name == localhost {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.opts.ResolveTimeout)
	defer cancel()
	asked := name
	if strings.Contains(name, ".") {
		asked += "."
	}
	addrs, err := p.opts.Resolver.LookupNetIP(ctx, "ip", asked)
	var lookup *net.DNSError
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &lookup) && lookup.IsTimeout:
		return nil, &refusal{http.StatusGatewayTimeout, "dns_timeout", fmt.Sprintf("%s: no answer for the name within %s", name, p.opts.ResolveTimeout)}
	case errors.As(err, &lookup):
		return nil, &refusal{http.StatusBadGateway, "dns_error", fmt.Sprintf("%s: %s", name, lookup.Err)}
	case err != nil:
		return nil, &refusal{http.StatusBadGateway, "dns_error", fmt.Sprintf("%s: %s", name, err)}
	case len(addrs) == 0:
		return nil, &refusal{http.StatusBadGateway, "dns_error", name + ": the name has no address"}
	case len(addrs) > maxAddresses:
		return nil, &refusal{http.StatusBadGateway, "dns_error", fmt.Sprintf("%s: the name has %d addresses, more than %d", name, len(addrs), maxAddresses)}
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap()
	}
	return addrs, nil
}

// checkAddresses refuses a name that leads, by any of its addresses, to what is not public and not
// named itself.
func (d *door) checkAddresses(c *Connection) error {
	var own []netip.Addr
	for i, a := range c.Addresses {
		if c.Destination.host == localhost || d.namesAddress(a, c.Port) {
			continue
		}
		what := kind(a)
		if what == "" && own == nil {
			var err error
			if own, err = d.proxy.opts.own(); err != nil {
				return &refusal{http.StatusBadGateway, "proxy_internal_error", err.Error()}
			}
		}
		if what == "" && slices.Contains(own, embedded(a)) {
			what = "of the daemon's own machine"
		}
		if what == "" {
			continue
		}
		c.Addresses = c.Addresses[:i+1]
		return &refusal{http.StatusForbidden, "destination_ip_prohibited", fmt.Sprintf(
			"%s leads to %s, an address that is %s: such an address is opened only where it is named itself (--allow-net %s)",
			c.Host, a, what, Destination{addr: a, port: c.Port})}
	}
	return nil
}

func (d *door) namesAddress(a netip.Addr, port uint16) bool {
	return slices.ContainsFunc(d.grant.Destinations, func(dest Destination) bool { return dest.addr == a && dest.coversPort(port) })
}

// connect dials the addresses one after the other until one answers.
func (d *door) connect(ctx context.Context, addrs []netip.Addr, port uint16) (net.Conn, error) {
	deadline := time.Now().Add(d.proxy.opts.DialTimeout)
	var last error
	for i, a := range addrs {
		left := time.Until(deadline)
		if left <= 0 {
			break
		}
		share := min(max(left/time.Duration(len(addrs)-i), leastDial), left)
		one, cancel := context.WithTimeout(ctx, share)
		conn, err := d.proxy.dialer.DialContext(one, "tcp", net.JoinHostPort(a.String(), strconv.Itoa(int(port))))
		cancel()
		if err == nil {
			return conn, nil
		}
		last = err
	}
	var timeout net.Error
	if last == nil || errors.As(last, &timeout) && timeout.Timeout() {
		return nil, &refusal{http.StatusGatewayTimeout, "connection_timeout", fmt.Sprintf("no answer within %s", d.proxy.opts.DialTimeout)}
	}
	var op *net.OpError
	if errors.As(last, &op) {
		last = op.Err
	}
	return nil, &refusal{http.StatusBadGateway, "destination_unavailable", "not connected: " + last.Error()}
}
