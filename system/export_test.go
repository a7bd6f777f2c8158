package system

import "net"

// PlaceAuthorities does what a start does, and tells whether the runtime will be told of them.
func (a *Agent) PlaceAuthorities() (bool, error) {
	err := a.placeAuthorities()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.authorities, err
}

// Token is what the runtime would find in OTTERS_AGENT_TOKEN.
func (a *Agent) Token() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.agentToken
}

// Loopback allocates as a Provider does of itself, by what open answers in place of a listener at 127.0.0.1:0.
func Loopback(open func() (net.Listener, error)) LoopbackAllocator { return loopback{open} }
