package system

import (
	"fmt"
	"net"
	"os"
)

// loopback allocates addresses by binding them: free ports of 127.0.0.1, or what open answers.
type loopback struct {
	open func() (net.Listener, error)
}

// Reserve picks a free loopback address, such as "127.0.0.1:51234". It is only free at the moment
// of the call; ReserveListener keeps it. Errors wrap ErrNoAddress.
func (l loopback) Reserve() (string, error) {
	ln, err := l.ReserveListener()
	if err != nil {
		return "", err
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoAddress, err)
	}
	return addr, nil
}

// ReserveListener binds a free loopback address and keeps it. Errors wrap ErrNoAddress.
func (l loopback) ReserveListener() (net.Listener, error) {
	if l.open != nil {
		return l.open()
	}
	return l.listen("127.0.0.1:0")
}

func (loopback) listen(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAddress, err)
	}
	return ln, nil
}

// listenerFile is a descriptor of ln for another process; the caller closes it.
func listenerFile(ln net.Listener) (*os.File, error) {
	f, ok := ln.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("listener %s has no descriptor", ln.Addr())
	}
	return f.File()
}
