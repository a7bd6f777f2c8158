package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/cgroup"
	"github.com/otters-sh/otters/sandbox/internal/wire"
)

const (
	// answerTime bounds the wait for a monitor's answer where the context does not.
	answerTime = 10 * time.Second
	// overdue is how long after the grace a monitor may take to report the end. One that takes
	// longer does not run (stopped by a signal, for instance) and is killed with all below it.
	overdue = 5 * time.Second
	// endTime bounds the wait for processes that were killed already.
	endTime = 2 * time.Second
)

// Process is a program under its monitor, controlled over the monitor's socket. It is safe for
// concurrent use, and several, in one process or more, may control the same program. Its owner
// calls Close.
type Process struct {
	conn    *wire.Conn
	dir     string
	status  wire.Status
	monitor *pidfd // nil where it had ended before it could be held
	program *pidfd
	// group is nil where the program has none; unread tells why it is not known.
	group  *cgroup.Group
	unread error

	done chan struct{}
	over chan struct{} // the connection has ended
	wg   sync.WaitGroup

	mu     sync.Mutex
	exit   Exit
	last   int64
	calls  map[string]chan answer
	closed bool
}

type answer struct {
	msg wire.Message
	fds []int
}

func newProcess(conn *wire.Conn, monitor *pidfd, dir string) *Process {
	return &Process{
		conn: conn, monitor: monitor, dir: dir,
		done: make(chan struct{}), over: make(chan struct{}), calls: make(map[string]chan answer),
	}
}

// run serves the connection from now on. fds came with the status; run owns them.
func (p *Process) run(s wire.Status, fds []int) {
	p.status = s
	if len(fds) > 0 {
		// What the monitor calls the program is its id inside.
		p.status.PID = hostID(fds[0])
		p.program, _ = newPidfd(fds[0])
		wire.CloseAll(fds[1:])
	} else {
		// Held while the monitor, its parent, says that it runs; else it has ended.
		p.program, _ = openPidfd(s.PID, s.Start)
	}
	p.wg.Add(1)
	go p.read()
}

// read passes answers on until the connection ends, and then finds out why it has.
func (p *Process) read() {
	defer p.wg.Done()
	var exit *Exit
	for {
		m, fds, err := p.conn.Recv()
		if err != nil {
			break
		}
		if m.Get(wire.Event) == wire.EventExit {
			e := exitOf(m)
			exit = &e
			wire.CloseAll(fds)
			continue
		}
		p.mu.Lock()
		reply := p.calls[m.Get(wire.ID)]
		delete(p.calls, m.Get(wire.ID))
		p.mu.Unlock()
		if reply == nil {
			wire.CloseAll(fds)
			continue
		}
		reply <- answer{m, fds}
	}
	defer close(p.over)
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed && exit == nil {
		return
	}
	if exit == nil {
		exit = p.settle()
	}
	if exit == nil {
		return
	}
	p.clearUp(exit.Lost)
	if p.monitor != nil && p.monitor.wait(time.Now().Add(endTime)) == nil {
		p.monitor.reap() // it is a child of this process where a Launcher of it was closed
	}
	p.mu.Lock()
	p.exit = *exit
	p.mu.Unlock()
	close(p.done)
}

// settle tells how the program ended whose monitor has closed the connection without a word.
func (p *Process) settle() *Exit {
	if p.monitor != nil && p.monitor.wait(time.Time{}) != nil {
		return nil // let go
	}
	if e, ok, err := ReadExit(p.dir); err == nil && ok && !e.Lost && !e.At.Before(p.status.At) {
		return &e
	}
	// The kernel kills the program with its monitor, and nobody what it has started.
	if p.program != nil {
		p.program.kill()
		_ = p.program.wait(time.Now().Add(endTime))
	}
	sweep(p.status.PID, p.status.Start)
	e := lost()
	return &e
}

// PID is the program's process id on the host.
func (p *Process) PID() int { return p.status.PID }

// MonitorPID is the monitor's process id on the host.
func (p *Process) MonitorPID() int { return p.status.Monitor }

// StartedAt is when the program was started, in UTC.
func (p *Process) StartedAt() time.Time { return p.status.At }

// Done is closed when the program and all it started are gone and the record of the exit is
// written, or its monitor is lost. It is not closed by Close.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is how the program ended, the zero value before Done is closed.
func (p *Process) Exit() Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

// Signal sends sig, a syscall.Signal, to the program alone. The error wraps ErrNotRunning where it
// has ended.
func (p *Process) Signal(ctx context.Context, sig os.Signal) error {
	n, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("signal %v: not a signal of this system", sig)
	}
	var m wire.Message
	m.Add(wire.Op, wire.OpSignal)
	m.AddInt(wire.Signal, int64(n))
	_, err := p.call(ctx, m)
	if err != nil {
		return fmt.Errorf("signal %v: %w", sig, err)
	}
	return nil
}

// Stop sends SIGTERM to the program and, where it still runs after grace, SIGKILL to all that it
// ever started; a grace of 0 or less kills at once. The monitor carries it out even where the
// caller dies. Stop returns nil when all is gone, also if that was so before, and the error of ctx
// where that ends first; the program is stopped nevertheless. Of several graces the shortest
// stands. A monitor that does not report the end within five seconds after the grace is killed
// too, and the exit is Lost.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	grace = max(grace, 0)
	var m wire.Message
	m.Add(wire.Op, wire.OpStop)
	m.AddInt(wire.Grace, int64((grace+time.Millisecond-1)/time.Millisecond))
	late := time.NewTimer(grace + overdue)
	defer late.Stop()
	short, cancel := context.WithTimeout(ctx, overdue)
	defer cancel()
	_, err := p.call(short, m)
	unheard := short.Err() != nil && ctx.Err() == nil
	if err != nil && !unheard && !errors.Is(err, ErrNotRunning) {
		return fmt.Errorf("stop: %w", err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop: %w", ctx.Err())
	case <-p.over:
		select {
		case <-p.done:
			return nil
		default:
			return fmt.Errorf("stop: %w: let go meanwhile", ErrNotRunning)
		}
	case <-late.C:
	}
	if p.monitor != nil {
		killAll(p.status.Monitor, p.monitor)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop: %w", ctx.Err())
	}
}

// Files returns new descriptors of the spec's Files and Held by name; the caller closes them. They
// share offset and flags with the program's.
func (p *Process) Files(ctx context.Context) (map[string]*os.File, error) {
	var m wire.Message
	m.Add(wire.Op, wire.OpFiles)
	a, err := p.call(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("files of the program: %w", err)
	}
	names := a.msg.All(wire.Name)
	if len(names) != len(a.fds) {
		wire.CloseAll(a.fds)
		return nil, fmt.Errorf("files of the program: %d descriptors for %d names", len(a.fds), len(names))
	}
	files := make(map[string]*os.File, len(names))
	for i, name := range names {
		files[name] = os.NewFile(uintptr(a.fds[i]), name)
	}
	return files, nil
}

// Close lets go of the program without stopping it. It returns when nothing of p runs.
func (p *Process) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.conn.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil
	}
	for _, fd := range []*pidfd{p.monitor, p.program} {
		if fd != nil {
			_ = fd.f.SetReadDeadline(time.Unix(1, 0))
		}
	}
	p.wg.Wait()
	for _, fd := range []*pidfd{p.monitor, p.program} {
		if fd != nil {
			fd.close()
		}
	}
	return err
}

// call sends a request and waits for its answer.
func (p *Process) call(ctx context.Context, m wire.Message, fds ...int) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	reply := make(chan answer, 1)
	p.mu.Lock()
	p.last++
	m.AddInt(wire.ID, p.last)
	id := m.Get(wire.ID)
	p.calls[id] = reply
	p.mu.Unlock()
	if err := p.conn.Send(m, fds...); err != nil {
		p.forget(id, reply)
		if errors.Is(err, wire.ErrSlow) {
			return answer{}, fmt.Errorf("the monitor does not answer: %w", err)
		}
		return answer{}, ErrNotRunning
	}
	select {
	case a := <-reply:
		return a.taken()
	case <-p.over:
		select {
		case a := <-reply: // it came before the end
			return a.taken()
		default:
		}
		p.forget(id, reply)
		return answer{}, ErrNotRunning
	case <-ctx.Done():
		p.forget(id, reply)
		return answer{}, fmt.Errorf("the monitor does not answer: %w", ctx.Err())
	}
}

// taken is the answer, or the error that it tells.
func (a answer) taken() (answer, error) {
	if a.msg.Get(wire.Error) != "" {
		wire.CloseAll(a.fds)
		return answer{}, refused(a.msg)
	}
	return a, nil
}

// forget drops a call nobody waits for any more, and an answer that has come all the same.
func (p *Process) forget(id string, reply chan answer) {
	p.mu.Lock()
	delete(p.calls, id)
	p.mu.Unlock()
	select {
	case a := <-reply:
		wire.CloseAll(a.fds)
	default:
	}
}

func exitOf(m wire.Message) Exit {
	e := wire.ExitOf(m)
	return Exit{Code: e.Code, Signal: e.Signal, At: e.At, Stderr: e.Stderr, Asked: e.Asked, OutOfMemory: e.OOM}
}

func lost() Exit { return Exit{Code: -1, At: time.Now().UTC(), Lost: true} }

// alive tells whether the monitor of the record runs.
func (r processRecord) alive() bool {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || strings.TrimSpace(string(boot)) != r.Boot {
		return false
	}
	s, err := wire.ReadStat(r.Monitor)
	return err == nil && s.Start == r.MonitorStart && s.State != 'Z' && s.State != 'X'
}

// connect opens the control socket of a state folder.
func connect(ctx context.Context, stateDir string) (*wire.Conn, error) {
	dir, err := openState(stateDir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir, wire.ControlSocket)
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
		select { // its queue is full; connecting has no readiness to wait for
		case <-ctx.Done():
			_ = unix.Close(fd)
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", wire.ControlSocket, err)
	}
	return wire.NewConn(fd, wire.MaxMessage, true)
}

// Attach takes over a program by the monitor that answers in stateDir. The error wraps
// ErrNotRunning where none does; ReadExit may then tell how the program ended. ctx bounds the
// wait, which is ten seconds at most.
func Attach(ctx context.Context, stateDir string) (*Process, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := connect(ctx, stateDir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("attach %s: %w: %w", stateDir, ErrNotRunning, err)
	}
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", stateDir, err)
	}
	p, err := attach(ctx, conn, stateDir)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("attach %s: %w", stateDir, err)
	}
	return p, nil
}

func attach(ctx context.Context, conn *wire.Conn, stateDir string) (*Process, error) {
	uid, pid, err := conn.Peer()
	if err != nil {
		return nil, err
	}
	if uid != 0 && uid != unix.Geteuid() {
		return nil, fmt.Errorf("the monitor is user %d's", uid)
	}
	// Held before it answers: what answers is then what is held.
	monitor, err := openPidfd(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	s, fds, err := askStatus(ctx, conn)
	if err == nil && s.Monitor != pid {
		wire.CloseAll(fds)
		err = fmt.Errorf("the monitor is process %d and says it is %d", pid, s.Monitor)
	}
	if err != nil {
		monitor.close()
		return nil, err
	}
	p := newProcess(conn, monitor, stateDir)
	groups, err := readGroups(stateDir)
	p.group, p.unread = groups.Group, err
	p.run(s, fds)
	return p, nil
}

// askStatus is the first exchange with a monitor, before anything else reads the connection.
func askStatus(ctx context.Context, conn *wire.Conn) (wire.Status, []int, error) {
	var m wire.Message
	m.Add(wire.Op, wire.OpStatus)
	m.Add(wire.ID, "0")
	if err := conn.Send(m); err != nil {
		return wire.Status{}, nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	m, fds, err := conn.Recv()
	refuse := func(err error) (wire.Status, []int, error) {
		wire.CloseAll(fds)
		return wire.Status{}, nil, err
	}
	if !stop() {
		return refuse(fmt.Errorf("the monitor does not answer: %w", ctx.Err()))
	}
	if errors.Is(err, wire.ErrVersion) {
		return refuse(err)
	}
	if err != nil {
		return refuse(fmt.Errorf("%w: %w", ErrNotRunning, err))
	}
	if m.Get(wire.Event) == wire.EventExit {
		return refuse(fmt.Errorf("%w: it is ending", ErrNotRunning))
	}
	if m.Get(wire.Error) != "" {
		return refuse(refused(m))
	}
	if m.Get(wire.Pidfd) == "" {
		wire.CloseAll(fds)
		fds = nil
	}
	return wire.StatusOf(m), fds, nil
}
