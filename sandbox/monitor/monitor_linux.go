package monitor

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

const (
	// drainTime bounds the wait for the rest of the output once everything is dead; only a log or
	// output that takes nothing needs it.
	drainTime = time.Second
	// roomTime is how long a full log is waited for that a daemon may be about to rotate, when the
	// program is to end or has ended.
	roomTime = drainTime / 2
	// maxGrace keeps a grace from a controller within reason.
	maxGrace = 24 * time.Hour
)

// monitor supervises one program. The goroutine of Main alone starts, signals and reaps it.
type monitor struct {
	spec    wire.Spec
	status  wire.Status
	started time.Time

	launch   *wire.Conn
	listener *os.File
	requests chan request
	child    chan os.Signal
	term     chan os.Signal
	busy     chan struct{} // closed when there is something to run

	// Open files, 0 where there is none yet. lockFD locks the state folder, spare is the room
	// reserved for the record of the exit.
	dir, lockFD, spare int
	files, held        []int
	tees               [2]int
	stdin              int // -1 for none
	group              group

	// judged tells of level limited that this process makes the calls that a filter can't judge.
	judged bool

	// Of level strict: the monitor's id on the host, the ids of its namespaces, and the program.
	hostPID    int
	namespaces string
	program    int

	sink  *sink
	tail  tail
	pumps sync.WaitGroup

	asked    bool
	killAt   time.Time
	deadline *time.Timer

	mu    sync.Mutex
	conns map[*wire.Conn]struct{}
}

// supervise returns when the program has ended and is not reaped yet.
func (m *monitor) supervise() {
	m.join(m.launch)
	untied := make(chan struct{})
	go func() {
		m.serve(m.launch)
		if m.spec.Tied {
			close(untied)
		}
	}()
	go m.acceptAll()
	m.deadline = time.NewTimer(maxGrace)
	m.deadline.Stop()
	for !m.reap() {
		select {
		case <-m.child:
		case <-m.term:
			m.stop(wire.DefaultGrace)
		case <-untied:
			untied = nil
			m.stop(0)
		case r := <-m.requests:
			m.handle(r)
		case <-m.deadline.C:
			_ = unix.Kill(-m.status.PID, unix.SIGKILL)
			_ = unix.Kill(m.status.PID, unix.SIGKILL) // it may have changed its group
		}
	}
}

// reap buries what the program has left behind and tells whether the program itself has ended.
func (m *monitor) reap() bool {
	for {
		// The program's own end is only looked at: as long as it is not reaped, its id, and its
		// group's, are nobody else's.
		var info siginfo
		err := waitid(unix.P_PID, m.status.PID, &info, waitOptions)
		if err != nil || info.pid != 0 {
			return true
		}
		err = waitid(unix.P_ALL, 0, &info, waitOptions)
		if err != nil || info.pid == 0 {
			return false
		}
		if int(info.pid) != m.status.PID {
			_, _ = unix.Wait4(int(info.pid), nil, unix.WNOHANG|unix.WALL, nil)
		}
	}
}

// signal sends a signal to the program alone.
func (m *monitor) signal(n int64) error {
	if n < 1 || n > 64 {
		return &startError{"signal", syscall.EINVAL}
	}
	if err := unix.Kill(m.status.PID, syscall.Signal(n)); err != nil {
		return &startError{"signal", err}
	}
	return nil
}

// stop asks the program to end and sets the time of its death; an earlier time stands.
func (m *monitor) stop(grace time.Duration) {
	at := time.Now().Add(grace)
	if m.asked && !at.Before(m.killAt) {
		return
	}
	m.asked, m.killAt = true, at
	// What it says last must not wait for its death.
	time.AfterFunc(min(grace/2, roomTime), m.sink.release)
	if grace > 0 {
		_ = unix.Kill(m.status.PID, unix.SIGTERM)
		_ = unix.Kill(m.status.PID, unix.SIGCONT) // a stopped program could not obey
	}
	m.deadline.Reset(grace)
}

func grace(ms int64) time.Duration {
	return min(max(time.Duration(min(ms, int64(maxGrace/time.Millisecond)))*time.Millisecond, 0), maxGrace)
}

// finish reaps the program, kills what it has left, records the exit and tells of it.
func (m *monitor) finish() {
	_ = unix.Kill(-m.status.PID, unix.SIGKILL)
	exit := m.reapAll()
	exit.Asked = m.asked
	exit.OOM = exit.Signal == "SIGKILL" && !m.asked && m.group.oomKills() > 0
	m.drain()
	exit.Stderr = m.tail.lines()
	m.record(exit)
	m.remove()
	_ = unix.Close(m.lockFD)
	m.tell(exit)
}

// reapAll kills and reaps until no child is left, the program among them. All that it started
// becomes a child of the monitor, the subreaper, as its parents die.
func (m *monitor) reapAll() wire.Exit {
	exit := wire.Exit{Code: -1, At: time.Now().UTC()}
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		for {
			var ws unix.WaitStatus
			pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil { // ECHILD: nobody is left
				return exit
			}
			if pid == 0 {
				break
			}
			if pid == m.status.PID {
				exit.At = time.Now().UTC()
				if ws.Signaled() {
					exit.Signal = unix.SignalName(ws.Signal())
				} else {
					exit.Code = ws.ExitStatus()
				}
			}
		}
		m.group.killAll()
		killBelow(unix.Getpid())
		time.Sleep(wait)
	}
}

// killBelow kills all descendants of root once. A group is killed as one where its leader is a
// child of root, which can't vanish unreaped: that stops even what forks without end.
func killBelow(root int) {
	all, err := wire.Processes()
	if err != nil {
		return
	}
	for _, s := range wire.Descendants(all, root) {
		if s.Parent == root && s.Group == s.PID {
			_ = unix.Kill(-s.PID, unix.SIGKILL)
		}
		wire.Kill(s)
	}
}

// drain waits for the last output, within drainTime.
func (m *monitor) drain() {
	done := make(chan struct{})
	go func() {
		m.pumps.Wait()
		close(done)
	}()
	for _, wait := range []time.Duration{roomTime, drainTime - roomTime} {
		select {
		case <-done:
			m.sink.close()
			return
		case <-time.After(wait):
			m.sink.release()
		}
	}
}
