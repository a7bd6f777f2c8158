//go:build !unix

package gate

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
)

// MaxSocketPath is the longest path of a Unix socket, in bytes.
const MaxSocketPath = 107

// UnixConfig listens on Unix sockets where the system tells who connects to them, which this one
// does not.
type UnixConfig struct {
	// Logger hears of every connection that is refused.
	Logger *slog.Logger
}

// ListenUnix is UnixConfig{}.Listen.
func ListenUnix(path string) (net.Listener, error) { return UnixConfig{}.Listen(path) }

// Listen refuses: this system does not tell who is at the other end of a socket.
func (UnixConfig) Listen(path string) (net.Listener, error) {
	return nil, fmt.Errorf("listen on %s: this system does not tell who connects: %w", clip(path), errors.ErrUnsupported)
}
