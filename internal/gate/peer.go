package gate

import (
	"fmt"
	"log/slog"
	"net"
	"os"
)

// Conn is a connection on a Unix socket whose other end is known.
type Conn struct {
	*net.UnixConn
	// UID is the user id that the peer had when it connected.
	UID int
}

// CheckPeers makes of l, a listener on a Unix socket, one that yields *Conn of this process's
// effective user and of root. Connections of others, and those whose peer the system does not tell,
// are closed at once and reported to log, which may be nil.
func CheckPeers(l net.Listener, log *slog.Logger) net.Listener { return checked{l, log} }

type checked struct {
	net.Listener
	log *slog.Logger
}

// Accept waits for the next connection that passes.
func (c checked) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, err := CheckPeer(conn)
		if err == nil {
			return peer, nil
		}
		_ = conn.Close()
		if c.log != nil {
			c.log.Warn("connection refused", "listener", c.Addr().String(), "error", err)
		}
	}
}

// PeerUID is the user id that the other end of conn, a connection on a Unix socket, had when it connected.
func PeerUID(conn *net.UnixConn) (int, error) { return peerUID(conn) }

// CheckPeer tells who is at the other end of a connection on a Unix socket, and refuses everybody
// but this process's effective user and root. A client uses it to know that it speaks to the daemon
// of its own user. Errors wrap ErrPeer.
func CheckPeer(conn net.Conn) (*Conn, error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%w: not a unix socket", ErrPeer)
	}
	uid, err := peerUID(uc)
	if err != nil {
		return nil, fmt.Errorf("%w: its user id cannot be told: %w", ErrPeer, err)
	}
	if uid != 0 && uid != os.Geteuid() {
		return nil, fmt.Errorf("%w: user id %d; only %d and root may connect", ErrPeer, uid, os.Geteuid())
	}
	return &Conn{uc, uid}, nil
}
