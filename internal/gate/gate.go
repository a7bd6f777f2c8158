// Package gate is the check in front of every listener of the daemon: Unix sockets that only their
// owner and root can use, HTTP requests that no web page can forge, and tokens compared in constant
// time. Invariant: whatever a check does not know, it refuses. It imports none of ours, knows no
// gRPC and is free to every package.
package gate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Sentinels of this package; every refusal wraps one of them.
var (
	// ErrInUse: something answers on that socket already.
	ErrInUse = errors.New("address in use")
	// ErrUnsafePath: another user could replace what lies at that path, or it is not what it
	// should be.
	ErrUnsafePath = errors.New("unsafe path")
	// ErrPathTooLong: the kernel takes no socket path of that length.
	ErrPathTooLong = errors.New("path too long for a socket")
	// ErrPeer: the process at the other end has another user id, or it cannot be told.
	ErrPeer = errors.New("peer refused")
	// ErrHost: the request names a host that this listener is not.
	ErrHost = errors.New("host not allowed")
)

// CheckAuthority checks the :authority values of a gRPC request, as metadata.MD.Get gives them,
// against the exact host[:port] names in hosts; an empty list allows none. A request without an
// authority or with several is refused. Errors wrap ErrHost.
func CheckAuthority(authority []string, hosts []string) error {
	if len(authority) != 1 {
		return fmt.Errorf("%w: want one :authority, got %d", ErrHost, len(authority))
	}
	if !hostIn(authority[0], hosts) {
		return fmt.Errorf("%w: %q is not a name of this listener; use %s", ErrHost, clip(authority[0]), nameHosts(hosts))
	}
	return nil
}

func hostIn(host string, hosts []string) bool {
	return host != "" && slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

func nameHosts(hosts []string) string {
	if len(hosts) == 0 {
		return "a listener that has one"
	}
	return strings.Join(hosts, " or ")
}

// maxShown bounds what a refusal repeats of a request: enough to recognise it, too little to flood
// a log.
const maxShown = 100

func clip(s string) string {
	if len(s) > maxShown {
		return s[:maxShown] + "…"
	}
	return s
}
