package sandbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/cgroup"
	"github.com/otters-sh/otters/sandbox/internal/wire"
)

const (
	monitorName = "otters-sandbox"
	maxWarm     = 16
	// undoTime is how long a monitor whose start was cancelled may take to undo it before it is
	// killed.
	undoTime = 2 * time.Second
)

var errClosed = errors.New("launcher is closed")

// Launcher starts programs, each under a monitor of its own. It is safe for concurrent use.
//
// Monitors are its children, and it reaps them. Of those that end after Close, the ones that a
// Process of the caller controls are reaped by that; the rest stay zombies until the caller ends.
type Launcher struct {
	path   string
	logger *slog.Logger
	null   *os.File
	want   int
	// groups are the control groups that can be had.
	groups *cgroup.Host

	wg sync.WaitGroup // reaping and refilling

	mu     sync.Mutex
	closed bool
	kinds  [kinds]pool
	come   *sync.Cond // a monitor ahead is there, or none will be
	alive  map[*child]struct{}

	probe sync.Mutex
	lacks map[Level]error // of the levels that were tried; nil where the host gives one
}

// child is a monitor that this process has started.
type child struct {
	pid  int
	conn *wire.Conn
	fd   *pidfd
	kind kind
	// mounts are the host's as they were when the monitor got a copy of them.
	mounts [sha256.Size]byte
}

// NewLauncher finds the monitor's program and starts the first monitors ahead. The error wraps
// ErrNoMonitor where the program is not there.
func NewLauncher(opts LauncherOptions) (*Launcher, error) {
	path, err := findMonitor(opts.Monitor)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	l := &Launcher{
		path: path, logger: opts.Logger, null: null, want: min(max(opts.Warm, 0), maxWarm),
		alive: make(map[*child]struct{}), lacks: make(map[Level]error),
	}
	if opts.Warm == 0 {
		l.want = 1
	}
	if l.logger == nil {
		l.logger = slog.New(slog.DiscardHandler)
	}
	// Before there are monitors, which could be in the way of finding them.
	l.groups = cgroup.Find()
	l.mu.Lock()
	l.come = sync.NewCond(&l.mu)
	l.refill(kindOf(opts.Level))
	l.mu.Unlock()
	return l, nil
}

func findMonitor(path string) (string, error) {
	if path == "" {
		if self, err := os.Executable(); err == nil {
			beside := filepath.Join(filepath.Dir(self), monitorName)
			if _, err := exec.LookPath(beside); err == nil {
				return beside, nil
			}
		}
		path = monitorName
	}
	found, err := exec.LookPath(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w: put %s beside this program or into PATH, or name it", ErrNoMonitor, err, monitorName)
	}
	return filepath.Abs(found)
}

// smallPages is all of a monitor's environment, and the program gets none of it. Where the host makes
// huge pages of its own accord, a Go heap of 300 KiB is 2 to 4 MiB of memory.
const smallPages = "GODEBUG=disablethp=1"

// spawn starts a monitor that waits for its request.
func (l *Launcher) spawn(k kind) (*child, error) {
	conn, end, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	defer unix.Close(end)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = conn.Close()
		return nil, errClosed
	}
	null := l.null.Fd()
	fd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &fd}
	c := &child{conn: conn, kind: k}
	if k == enclosed {
		// With the memory of this process until it is another program: a copy of what a daemon has
		// takes longer than its start. Go copies where a child waits for its ids; this one gets its later.
		sys.Cloneflags, sys.AmbientCaps = namespaces|unix.CLONE_VFORK|unix.CLONE_VM, monitorCaps
		c.mounts = hostMounts()
	}
	pid, err := syscall.ForkExec(l.path, []string{monitorName}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null, null, null, uintptr(end)}, Sys: sys, Env: []string{smallPages},
	})
	if err == nil && fd < 0 {
		err = fmt.Errorf("%w: the kernel has no pidfd (Linux 5.4)", ErrUnsupported)
	}
	if err != nil && k == enclosed && !passing(err) {
		err = fmt.Errorf("level %s: %w: namespaces of its own: %w", Strict, ErrUnsupported, err)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("start monitor %s: %w", l.path, err)
	}
	p, err := newPidfd(fd)
	if err != nil {
		_ = conn.Close() // it ends, and stays a zombie until this process does
		return nil, err
	}
	c.pid, c.fd = pid, p
	l.alive[c] = struct{}{}
	l.wg.Add(1)
	go l.reap(c)
	return c, nil
}

// reap collects a monitor once it has ended, or lets go of it at Close.
func (l *Launcher) reap(c *child) {
	defer l.wg.Done()
	if c.fd.wait(time.Time{}) == nil {
		c.fd.reap()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.alive, c)
	if p := &l.kinds[c.kind]; slices.Contains(p.warm, c) {
		p.warm = slices.DeleteFunc(p.warm, func(w *child) bool { return w == c })
		_ = c.conn.Close()
	}
	c.fd.close()
}

// hand gives a monitor its request.
func (c *child) hand(spec Spec, req *request) error {
	var m wire.Message
	m.AddInt(wire.HostPID, int64(c.pid))
	if c.kind == enclosed {
		if err := c.mapIDs(spec.UID, spec.GID); err != nil {
			if c.fd.ended() {
				return unix.EPIPE
			}
			return err
		}
	}
	return c.conn.Send(m, req.fds...)
}

// Start runs the program of spec, and returns when it runs or could not be started: the error then
// wraps ErrStart and the cause, such as fs.ErrNotExist, or ErrUnsupported for a level that can't
// be had, and nothing is left behind. Cancelling ctx while Start waits undoes the start. The files
// of spec stay the caller's; the monitor has copies.
func (l *Launcher) Start(ctx context.Context, spec Spec) (*Process, error) {
	return l.startWith(ctx, spec, func() (*child, error) { return l.take(kindOf(spec.Level), func() {}) })
}

// startWith is Start with a way to come by a monitor.
func (l *Launcher) startWith(ctx context.Context, spec Spec, take func() (*child, error)) (*Process, error) {
	if err := known(spec.Level); err != nil {
		return nil, err
	}
	if err := check(spec); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	by, err := l.planFor(spec.Level, spec.Limits)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	undo, err := by.makeGroup(spec.StateDir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	p, err := l.start(ctx, spec, by, take)
	if err != nil {
		undo()
	}
	return p, err
}

// start is Start once the group of the program is made.
func (l *Launcher) start(ctx context.Context, spec Spec, by plan, take func() (*child, error)) (*Process, error) {
	req, err := by.request(spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	defer req.close()
	k := kindOf(spec.Level)
	c, err := take()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	if err = c.hand(spec, req); errors.Is(err, unix.EPIPE) {
		// A monitor that waited here was killed; it has not got the request.
		_ = c.conn.Close()
		if c, err = l.spawn(k); err == nil {
			err = c.hand(spec, req)
		}
	}
	if err != nil {
		if c != nil {
			_ = c.conn.Close()
		}
		return nil, fmt.Errorf("%w: hand over to the monitor: %w", ErrStart, err)
	}
	m, fds, err := c.started(ctx)
	l.mu.Lock()
	l.refillSoon(k)
	l.mu.Unlock()
	if err == nil {
		s := wire.StatusOf(m)
		if err = errors.Join(enforced(s), eachBounded(s)); err == nil {
			err = by.held(Limits{Memory: s.Facts.MemoryLimit, PIDs: s.Facts.PIDLimit})
		}
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrStart, err)
			c.undo()
		}
	}
	if err != nil {
		wire.CloseAll(fds)
		_ = c.conn.Close()
		return nil, err
	}
	return l.adopt(c, m, fds, spec.StateDir, by)
}

// adopt makes the Process of a monitor that has started its program.
func (l *Launcher) adopt(c *child, m wire.Message, fds []int, stateDir string, by plan) (*Process, error) {
	fd, err := c.fd.dup()
	if err != nil {
		// Ended already, reaped by us: the record tells how.
		fd = nil
	}
	p := newProcess(c.conn, fd, stateDir)
	p.group = by.group
	p.run(wire.StatusOf(m), fds)
	return p, nil
}

// started waits for the monitor's word; with it come descriptors that the caller owns.
func (c *child) started(ctx context.Context) (wire.Message, []int, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	m, fds, err := c.conn.Recv()
	if !stop() && (err != nil || m.Get(wire.Started) != "") {
		c.undo()
		return m, fds, ctx.Err()
	}
	if errors.Is(err, io.EOF) {
		return m, fds, fmt.Errorf("%w: the monitor ended without a word", ErrStart)
	}
	if err != nil {
		return m, fds, fmt.Errorf("%w: the monitor's answer: %w", ErrStart, err)
	}
	if m.Get(wire.Started) == "" {
		return m, fds, fmt.Errorf("%w: %w", ErrStart, refused(m))
	}
	return m, fds, nil
}

// undo stops what a monitor has started or is about to, and returns when it is gone.
func (c *child) undo() {
	var m wire.Message
	m.Add(wire.Op, wire.OpStop)
	m.AddInt(wire.Grace, 0)
	_ = c.conn.Send(m)
	fd, err := c.fd.dup()
	if err != nil {
		return // reaped
	}
	defer fd.close()
	if fd.wait(time.Now().Add(undoTime)) != nil {
		// The kernel kills the program with its monitor, and nobody what that has started.
		killAll(c.pid, fd)
		_ = fd.wait(time.Now().Add(undoTime))
	}
}

// refused is the error of a refusal, with the kernel's number where it came with one.
func refused(m wire.Message) error {
	text := m.Get(wire.Error)
	if n := m.Int(wire.Errno); n > 0 {
		return &kernelError{text, syscall.Errno(n)}
	}
	return errors.New(text)
}

// kernelError is an error of another process.
type kernelError struct {
	text  string
	errno syscall.Errno
}

func (e *kernelError) Error() string { return e.text }
func (e *kernelError) Unwrap() error { return e.errno }

// Close ends the monitors started ahead and leaves running programs alone: a later Attach finds
// them. It returns when nothing of the Launcher runs.
func (l *Launcher) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.wg.Wait()
		return nil
	}
	l.closed = true
	l.come.Broadcast()
	var warm []*child
	for i := range l.kinds {
		warm = append(warm, l.kinds[i].warm...)
		l.kinds[i].warm = nil
		if t := l.kinds[i].timer; t != nil && t.Stop() {
			l.wg.Done()
		}
	}
	for _, c := range warm {
		_ = c.conn.Close()
		fd, err := c.fd.dup()
		if err != nil {
			continue
		}
		l.wg.Add(1)
		go func() { // its end is reaped before this process lets go
			defer l.wg.Done()
			defer fd.close()
			if fd.wait(time.Now().Add(undoTime)) != nil {
				fd.kill()
				_ = fd.wait(time.Now().Add(undoTime))
			}
			fd.reap()
		}()
	}
	l.mu.Unlock()
	l.letGo()
	l.wg.Wait()
	return l.null.Close()
}

// letGo ends the wait for monitors that still run.
func (l *Launcher) letGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.alive {
		_ = c.fd.f.SetReadDeadline(time.Unix(1, 0))
	}
}
