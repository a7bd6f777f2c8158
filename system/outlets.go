package system

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/otters-sh/otters/internal/gate"
	"github.com/otters-sh/otters/sandbox"
)

// outlet is a listener that somebody in this process serves the agent on. At level strict the monitor
// opens it on a loopback that is the agent's alone, elsewhere it is on the host's. The monitor keeps
// it for whoever takes the agent over.
type outlet struct {
	// name is that of the descriptor, port where it is at strict.
	name string
	port int
	// accept takes it.
	accept func(net.Listener)
}

const (
	gatewayPort = 5528
	proxyPort   = 5529
)

// outlets are those that the agent has, in the order in which they are handed up.
func (a *Agent) outlets() []outlet {
	var all []outlet
	if a.gateway != nil {
		all = append(all, outlet{gatewayFile, gatewayPort, a.gateway})
	}
	if len(a.allowNet) > 0 && a.egress != nil {
		all = append(all, outlet{proxyFile, proxyPort, a.acceptProxy})
	}
	return all
}

// checkAllowNet refuses destinations that nobody would open.
func (a *Agent) checkAllowNet() error {
	switch {
	case len(a.allowNet) == 0:
		return nil
	case !a.monitored:
		return fmt.Errorf("%w: destinations can't be opened for an agent without a monitor", ErrConfig)
	case a.egress == nil:
		return fmt.Errorf("%w: destinations are to be opened, and no WithEgress says who serves the proxy", ErrConfig)
	}
	return nil
}

// openOutlets reserves the addresses and hands the listeners up, ahead of the model resolver, which
// answers the gateway's.
func (a *Agent) openOutlets() error {
	if !a.monitored {
		return nil
	}
	if err := a.checkAllowNet(); err != nil {
		return err
	}
	for _, o := range a.outlets() {
		if a.opened(o.name) != nil {
			continue
		}
		var ln net.Listener = newLateListener(o.port)
		if a.sandboxLevel() != sandbox.Strict {
			var err error
			if ln, err = (loopback{}).ReserveListener(); err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
		}
		if o.name == proxyFile {
			if err := a.newProxyToken(); err != nil {
				return errors.Join(err, ln.Close())
			}
		}
		a.keep(o.name, ln)
		o.accept(ln)
	}
	return nil
}

// opened is the listener of an outlet; nil where there is none yet.
func (a *Agent) opened(name string) net.Listener {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open[name]
}

func (a *Agent) keep(name string, ln net.Listener) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = make(map[string]net.Listener)
	}
	a.open[name] = ln
}

func (a *Agent) closeOutlets() {
	a.mu.Lock()
	open := a.open
	a.open, a.proxyToken = nil, ""
	a.mu.Unlock()
	for _, ln := range open {
		_ = ln.Close()
	}
}

// handDownOutlets has the monitor open the listeners inside, or keep those that are there.
func (a *Agent) handDownOutlets(s *sandbox.Spec, files *openFiles) error {
	for _, o := range a.outlets() {
		ln := a.opened(o.name)
		if _, late := ln.(*lateListener); late {
			s.Listen = append(s.Listen, sandbox.Listen{Name: o.name, Port: o.port})
			continue
		}
		if ln == nil {
			continue
		}
		f, err := files.add(listenerFile(ln))
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		s.Held = append(s.Held, sandbox.File{Name: o.name, File: f})
		port, err := portOf(ln.Addr().String())
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		s.Ports = append(s.Ports, port)
	}
	return nil
}

// deliverOutlets hands the listeners that the monitor has opened inside to whoever serves them.
func (a *Agent) deliverOutlets(ctx context.Context, proc *sandbox.Process) error {
	late := make(map[string]*lateListener)
	a.mu.Lock()
	for name, ln := range a.open {
		if l, ok := ln.(*lateListener); ok {
			late[name] = l
		}
	}
	a.mu.Unlock()
	if len(late) == 0 {
		return nil
	}
	files, err := proc.Files(ctx)
	if errors.Is(err, sandbox.ErrNotRunning) {
		return nil // the runtime has ended already, and its exit tells why
	}
	if err != nil {
		return fmt.Errorf("listeners inside: %w", err)
	}
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	for name, l := range late {
		ln, err := asListener(files[name])
		if err == nil && ln == nil {
			err = errors.New("the monitor has no listener")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.found(ln)
	}
	return nil
}

// newProxyToken makes the credential of the next start.
func (a *Agent) newProxyToken() error {
	token, err := gate.NewToken(proxyTokenPrefix)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	hash := gate.TokenHash(token)
	a.proxyToken = token
	a.handle.ProxyHash = hash[:]
	return nil
}

// acceptProxy hands the proxy's listener up with what it is for.
func (a *Agent) acceptProxy(ln net.Listener) {
	e := Egress{Destinations: slices.Clone(a.allowNet)}
	a.mu.Lock()
	// What is no hash lets nobody in.
	copy(e.TokenHash[:], a.handle.ProxyHash)
	a.mu.Unlock()
	a.egress(e, ln)
}

const (
	proxyTokenPrefix = "otr_"
	proxyUser        = "agent"
)

// proxyEnv tells the runtime of its proxy; the caller holds mu.
func (a *Agent) proxyEnv() []string {
	ln := a.open[proxyFile]
	if ln == nil {
		return nil
	}
	url := "http://" + proxyUser + ":" + a.proxyToken + "@" + ln.Addr().String()
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		env = append(env, name+"="+url, strings.ToLower(name)+"="+url)
	}
	// The gateway and what the agent serves itself are not behind the proxy.
	const direct = "localhost,127.0.0.1,::1"
	env = append(env, "NO_PROXY="+direct, "no_proxy="+direct)
	if a.authorities {
		env = append(env, "SSL_CERT_FILE="+path.Join(a.view().Root, authoritiesFile))
	}
	return env
}

// withDestinations says of a confinement what the proxy lets out to.
func (a *Agent) withDestinations(c sandbox.Confinement) sandbox.Confinement {
	if len(a.allowNet) == 0 {
		return c
	}
	list := strings.Join(a.allowNet, ", ")
	if c.Level == sandbox.Off {
		c.Open = append(slices.Clone(c.Open), "network: a proxy opens "+list+" alone, and nothing makes the agent use it")
	} else {
		c.Enforced = append(slices.Clone(c.Enforced), "network: beyond that a proxy in the daemon opens "+list)
	}
	return c
}

// lateListener stands for a listener that is only there once the runtime's namespace is. Accept
// waits for it.
type lateListener struct {
	addr net.Addr
	set  chan struct{}
	gone chan struct{}
	once sync.Once

	mu   sync.Mutex
	real net.Listener
}

func newLateListener(port int) *lateListener {
	return &lateListener{
		addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port},
		set:  make(chan struct{}), gone: make(chan struct{}),
	}
}

// found hands the listener over.
func (l *lateListener) found(ln net.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.gone:
		_ = ln.Close()
	default:
		l.real = ln
		close(l.set)
	}
}

// Accept waits for the listener and then for a connection.
func (l *lateListener) Accept() (net.Conn, error) {
	select {
	case <-l.set:
		return l.real.Accept()
	case <-l.gone:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (l *lateListener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.gone)
		if err = nil; l.real != nil {
			err = l.real.Close()
		}
	})
	return err
}

// Addr is the address as the agent sees it.
func (l *lateListener) Addr() net.Addr { return l.addr }
