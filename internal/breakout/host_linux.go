package breakout

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/system"
)

// host is everything there is to attack.
type host struct {
	opts    Options
	secret  string
	dir     string
	targets map[string]string

	provider *system.Provider
	attacker *system.Agent
	// proxyAt gets the address of the proxy of the agent that is attacked.
	proxyAt chan string
	// closers are called last one first.
	closers []func() error
}

func (h *host) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

func (h *host) close() error {
	var errs []error
	for i := len(h.closers) - 1; i >= 0; i-- {
		errs = append(errs, h.closers[i]())
	}
	return errors.Join(errs...)
}

// open makes the victims that are no agents.
func (h *host) open(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "otters-breakout-")
	if err != nil {
		return err
	}
	h.dir = dir
	h.closers = append(h.closers, func() error { return os.RemoveAll(dir) })
	for _, make := range []func() error{h.openFiles, h.openNamespaces, func() error { return h.openProcess(ctx) }, h.openServers, h.openNamed, h.openLocal, h.openShared, h.openTerminal} {
		if err := make(); err != nil {
			return err
		}
	}
	return nil
}

// openFiles makes the folders of a daemon and of the host's users.
func (h *host) openFiles() error {
	// A daemon's home is its user's alone, apart from what agents with users of their own must
	// get through.
	pass := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		pass = 0o711
	}
	for _, d := range []struct {
		name string
		mode os.FileMode
	}{{"", 0o711}, {"home", pass}, {"logs", 0o700}, {"private", 0o700}, {"public", 0o755}, {"public/world", 0o777 | os.ModeSticky}} {
		if d.name != "" {
			if err := os.Mkdir(h.path(d.name), 0o700); err != nil {
				return err
			}
		}
		if err := os.Chmod(h.path(d.name), d.mode); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		target, name string
		mode         os.FileMode
	}{
		{"file.private", "private/id", 0o600}, {"file.providers", "private/providers.yaml", 0o600}, {"file.database", "private/otters.db", 0o600},
		{"file.public", "public/file", 0o644},
	} {
		h.targets[f.target] = h.path(f.name)
		if err := os.WriteFile(h.path(f.name), []byte(h.secret), f.mode); err != nil {
			return err
		}
		if err := os.Chmod(h.path(f.name), f.mode); err != nil {
			return err
		}
	}
	// A descriptor as a daemon may have got it from whoever started it: without close-on-exec.
	fd, err := unix.Open(h.path("private/id"), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	h.closers = append(h.closers, func() error { return unix.Close(fd) })
	h.targets["secret"] = h.secret
	if pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err == nil && strings.HasPrefix(string(pattern), "|") {
		h.targets["core.handler"] = strings.TrimSpace(string(pattern))
	}
	h.targets["dir.home"] = h.path("home")
	h.targets["dir.world"] = h.path("public/world")
	h.targets["dir.logs"] = h.path("logs")
	h.targets["dir.store"] = h.path("home/.store")
	h.targets["file.seal"] = h.path("home/seal.key")
	return h.openSetuid()
}

// openSetuid makes a program that runs as root, where this process can.
func (h *host) openSetuid() error {
	if h.opts.Setuid != "" {
		h.targets["file.setuid"] = h.opts.Setuid
		return nil
	}
	if os.Geteuid() != 0 {
		return nil
	}
	h.targets["file.setuid"] = h.path("public/setuid")
	return CopySetuid(h.opts.Attack, h.path("public/setuid"))
}

// CopySetuid copies a program and makes the copy run as the user of this process.
func CopySetuid(from, to string) error {
	code, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, code, 0o755); err != nil {
		return err
	}
	return os.Chmod(to, 0o755|os.ModeSetuid)
}

func (h *host) openNamespaces() error {
	for _, ns := range []string{"pid", "net", "ipc", "mnt", "uts", "user"} {
		link, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return err
		}
		h.targets["ns."+ns] = link
	}
	return nil
}

// process names a process by its number and the time of its start.
func (h *host) process(name string, pid int) {
	h.targets["pid."+name] = strconv.Itoa(pid)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	if fields := strings.Fields(rest); len(fields) > 19 {
		h.targets["start."+name] = fields[19]
	}
}

// openProcess starts a process of the host with a secret.
func (h *host) openProcess(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, h.opts.Attack, "role-victim", "otters")
	cmd.Env = []string{secretVariable + "=" + h.secret}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	h.closers = append(h.closers, func() error { return errors.Join(in.Close(), cmd.Wait()) })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("process: %w", err)
	}
	h.process("foreign", cmd.Process.Pid)
	h.targets["address.foreign"] = strings.TrimSpace(address)
	return nil
}

// openServers starts servers that tell the secret to whoever connects.
func (h *host) openServers() error {
	for target, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0", "tcphost": otherAddress()} {
		if address == "" {
			continue
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue // a host without this family
		}
		h.targets[target] = l.Addr().String()
		h.serve(l)
	}
	for target, address := range map[string]string{"udp4": "127.0.0.1:0", "udp6": "[::1]:0"} {
		c, err := net.ListenPacket("udp", address)
		if err != nil {
			continue
		}
		h.targets[target] = c.LocalAddr().String()
		var wg sync.WaitGroup
		wg.Go(func() {
			b := make([]byte, 512)
			for {
				_, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo([]byte(h.secret), from)
			}
		})
		h.closers = append(h.closers, func() error { err := c.Close(); wg.Wait(); return err })
	}
	return nil
}

// otherAddress is an address of the host that is not on the loopback, with port 0; empty where it
// has none.
func otherAddress() string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return net.JoinHostPort(n.IP.String(), "0")
		}
	}
	return ""
}

// serve tells the secret to each connection.
func (h *host) serve(l net.Listener) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, h.secret)
			_ = c.Close()
		}
	})
	h.closers = append(h.closers, func() error { err := l.Close(); wg.Wait(); return err })
}

// openLocal makes the unix sockets of the host.
func (h *host) openLocal() error {
	for _, s := range []struct {
		target, address string
		mode            os.FileMode
	}{
		{"unix.daemon", h.path("private/ottersd.sock"), 0o600}, {"unix.public", h.path("public/socket"), 0o666}, {"unix.abstract", "@" + h.secret, 0},
	} {
		l, err := net.Listen("unix", s.address)
		if err != nil {
			return err
		}
		h.targets[s.target] = s.address
		h.serve(l)
		if s.mode == 0 {
			continue
		}
		if err := os.Chmod(s.address, s.mode); err != nil {
			return err
		}
	}
	path := h.path("public/datagram")
	c, err := net.ListenPacket("unixgram", path)
	if err != nil {
		return err
	}
	h.targets["unix.datagram"] = path
	h.closers = append(h.closers, c.Close)
	return os.Chmod(path, 0o666)
}

// openTerminal makes a terminal of the host's; a host without any has none to attack.
func (h *host) openTerminal() error {
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	h.closers = append(h.closers, f.Close)
	n, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCSPTLCK, 0); err == nil {
		h.targets["terminal"] = fmt.Sprintf("/dev/pts/%d", n)
	}
	return nil
}

// findStore finds a program that all agents share.
func (h *host) findStore() error {
	names, err := os.ReadDir(h.targets["dir.store"])
	if err != nil {
		return err
	}
	for _, e := range names {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			h.targets["file.store"] = filepath.Join(h.targets["dir.store"], e.Name())
			return nil
		}
	}
	return fmt.Errorf("%s holds no program", h.targets["dir.store"])
}

// serveBeside starts a server that says the secret at the port of an address of ours on another one.
func (h *host) serveBeside(address string) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return
	}
	if l, err := net.Listen("tcp", "127.0.0.2:"+port); err == nil {
		h.serve(l)
	}
}

// gateway is the model endpoint of an agent, which answers everything with its secret.
type gateway struct {
	secret string
	// beside, where it is there, is told of each address.
	beside func(address string)

	mu      sync.Mutex
	servers []*http.Server
	last    string
	wg      sync.WaitGroup
}

func (g *gateway) accept(l net.Listener) {
	s := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, g.secret) }),
		ReadHeaderTimeout: time.Minute,
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.servers, g.last = append(g.servers, s), l.Addr().String()
	if g.beside != nil {
		g.beside(g.last)
	}
	g.wg.Go(func() { _ = s.Serve(l) })
}

func (g *gateway) address() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

func (g *gateway) resolve(string) (string, string, error) {
	return "http://" + g.address() + "/v1", "otr_attack", nil
}

func (g *gateway) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, s := range g.servers {
		errs = append(errs, s.Close())
	}
	g.wg.Wait()
	return errors.Join(errs...)
}
