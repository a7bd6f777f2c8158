package monitor

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// maxControllers bounds how many connections are served at once; more are closed at once.
const maxControllers = 64

// request is a controller's message on its way to the supervising goroutine, which tells on sent
// what came of its answer.
type request struct {
	msg  wire.Message
	conn *wire.Conn
	sent chan error
}

type answer struct {
	msg wire.Message
	fds []int
}

// listen opens the control socket. The path through /proc has a length of its own, whatever the
// state folder's is.
func (m *monitor) listen() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	m.listener = os.NewFile(uintptr(fd), wire.ControlSocket)
	path := "/proc/self/fd/" + strconv.Itoa(m.dir) + "/" + wire.ControlSocket
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return err
	}
	if err := unix.Fchmodat(m.dir, wire.ControlSocket, 0o600, 0); err != nil {
		return err
	}
	return unix.Listen(fd, maxControllers)
}

// acceptAll serves controllers until the listener is closed. Only the monitor's own user and root
// get an answer.
func (m *monitor) acceptAll() {
	raw, err := m.listener.SyscallConn()
	if err != nil {
		return
	}
	for {
		fd, err := acceptFrom(raw)
		if err != nil {
			return
		}
		c, err := wire.NewConn(fd, wire.MaxRequest, true)
		if err != nil {
			continue
		}
		if uid, _, err := c.Peer(); err != nil || !m.mine(uid) || !m.join(c) {
			_ = c.Close()
			continue
		}
		go m.serve(c)
	}
}

// mine tells whether a peer is the monitor's own user or root. Inside a user namespace 0 is the
// program's user, and root of the host has no number that others without one have not; the state
// folder keeps these out.
func (m *monitor) mine(uid int) bool {
	return uid == unix.Geteuid() || uid == 0 && m.spec.Level != levelStrict
}

// join adds a controller, false where there are too many.
func (m *monitor) join(c *wire.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.conns) >= maxControllers {
		return false
	}
	if m.conns == nil {
		m.conns = make(map[*wire.Conn]struct{})
	}
	m.conns[c] = struct{}{}
	return true
}

// serve answers one controller until it goes, sends nonsense or stops reading. It ends with the
// process at the latest.
func (m *monitor) serve(c *wire.Conn) {
	defer func() {
		m.mu.Lock()
		delete(m.conns, c)
		m.mu.Unlock()
		_ = c.Close()
	}()
	sent := make(chan error)
	for {
		msg, fds, err := c.Recv()
		if err != nil {
			return
		}
		if msg.Get(wire.Op) == wire.OpLog {
			// Not in the supervising goroutine, which a log that takes nothing must not hold up.
			a := m.switchLog(msg, fds)
			err = c.Send(a.msg, a.fds...)
		} else {
			wire.CloseAll(fds)
			m.requests <- request{msg, c, sent}
			err = <-sent
		}
		if err != nil {
			return
		}
	}
}

// switchLog has the log go on in another file. Once it has answered nothing is written to the one
// before.
func (m *monitor) switchLog(msg wire.Message, fds []int) answer {
	var a answer
	if len(fds) != 1 {
		wire.CloseAll(fds)
		a.msg = refusal(errors.New("want one descriptor, got " + strconv.Itoa(len(fds))))
	} else {
		m.sink.to(fds[0], msg.Int(wire.Limit))
	}
	a.msg.Add(wire.ID, msg.Get(wire.ID))
	return a
}

// tell sends the exit to every controller that reads.
func (m *monitor) tell(e wire.Exit) {
	var msg wire.Message
	msg.Add(wire.Event, wire.EventExit)
	e.Fill(&msg)
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.conns {
		_ = c.Send(msg) // whoever does not read finds the record
	}
}

// handle carries a request out and answers it. It runs in the supervising goroutine, where the
// program can't be reaped meanwhile and its id can't become another's, and where an exit that the
// request brings about comes after its answer.
func (m *monitor) handle(r request) {
	var a answer
	a.msg.Add(wire.ID, r.msg.Get(wire.ID))
	var err error
	switch op := r.msg.Get(wire.Op); op {
	case wire.OpStatus:
		a.fds = m.fill(&a.msg)
	case wire.OpSignal:
		err = m.signal(r.msg.Int(wire.Signal))
	case wire.OpStop:
		m.stop(grace(r.msg.Int(wire.Grace)))
	case wire.OpFiles:
		a.msg.AddAll(wire.Name, m.spec.Files)
		a.msg.AddAll(wire.Name, m.spec.Held)
		a.fds = append(append(a.fds, m.files...), m.held...)
	default:
		err = errors.New("unknown request " + strconv.Quote(op))
	}
	if err != nil {
		a = answer{msg: refusal(err)}
		a.msg.Add(wire.ID, r.msg.Get(wire.ID))
	}
	r.sent <- r.conn.Send(a.msg, a.fds...)
}
