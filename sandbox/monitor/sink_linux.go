package monitor

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lastRoom is what a log may take beyond its limit once the program is to end or has ended: more
	// than both pipes hold of what it said last.
	lastRoom = 512 << 10
	// nudgePause is how often a log that waits for its next file is touched.
	nudgePause = time.Second
)

// Why lines are lost.
const (
	notWritten = "the log could not be written"
	noRoom     = "the log was full"
)

// sink is the log. A write that blocks, or has no room until the log goes on in another file, holds the
// pumps up, they the pipes, these the program.
type sink struct {
	// turn is held by the one pump that writes or waits for room.
	turn sync.Mutex
	over chan struct{} // closed once the program is to end, or has ended: nothing waits any more
	once sync.Once

	// mu is never held while something waits for room.
	mu    sync.Mutex
	fd    int           // -1 drops all
	limit int64         // bytes from which on a file takes no more; 0 is none
	moved chan struct{} // closed when fd is another
	lost  int           // lines since the last that could be written
	why   string
}

func newSink(fd int, limit int64) *sink {
	return &sink{fd: fd, limit: limit, over: make(chan struct{}), moved: make(chan struct{})}
}

// write appends whole lines, count of them, or none. A file is larger than its limit, and lastRoom, by
// one write at most.
func (s *sink) write(b []byte, count int) {
	if len(b) == 0 {
		return
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	room := s.await()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return
	}
	if !room {
		s.lost += count
		s.why = noRoom
		return
	}
	n, err := writeAll(s.fd, append(s.note(), b...))
	if err == nil {
		s.lost = 0
		return
	}
	s.lost += count
	s.why = notWritten
	if end, err := unix.Seek(s.fd, 0, unix.SEEK_CUR); err == nil && n > 0 {
		_ = unix.Ftruncate(s.fd, end-int64(n)) // the disk has filled up in the middle of a line
	}
}

// await waits until the log has room, false where it gets none any more. It returns with s.mu held.
func (s *sink) await() bool {
	s.mu.Lock()
	for s.full(0) {
		select {
		case <-s.over:
			return !s.full(lastRoom)
		default:
		}
		if !s.linked() {
			return false // removed by hand: what nobody can read is not worth a wait
		}
		s.nudge()
		moved := s.moved
		s.mu.Unlock()
		again := time.NewTimer(nudgePause)
		select {
		case <-moved:
		case <-s.over:
		case <-again.C:
		}
		again.Stop()
		s.mu.Lock()
	}
	return true
}

func (s *sink) full(more int64) bool {
	if s.fd < 0 || s.limit <= 0 {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(s.fd, &st) == nil && st.Size >= s.limit+more
}

func (s *sink) linked() bool {
	var st unix.Stat_t
	return unix.Fstat(s.fd, &st) != nil || st.Nlink > 0
}

// nudge tells whoever watches the log that it has changed, since one that was slow, could not rotate it
// or has just come gets no other sign from a log that stands still. The first way needs no right but that
// of a descriptor to write, and a monitor at strict has no other; some file systems know the second alone.
func (s *sink) nudge() {
	if unix.Fallocate(s.fd, unix.FALLOC_FL_KEEP_SIZE, 0, 1) == nil {
		return
	}
	_, _, _ = unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(s.fd), 0, 0, 0, 0, 0)
}

// note is the line that tells of lost ones, nil where there are none.
func (s *sink) note() []byte {
	if s.lost == 0 {
		return nil
	}
	return appendLine(nil, "monitor", []byte(strconv.Itoa(s.lost)+" lines lost: "+s.why), false)
}

// to has all further lines go to fd, which the sink then owns, up to limit.
func (s *sink) to(fd int, limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
	s.fd, s.limit = fd, limit
	close(s.moved)
	s.moved = make(chan struct{})
}

// release ends every wait for room, for good. It waits for nothing itself.
func (s *sink) release() { s.once.Do(func() { close(s.over) }) }

// close tells of lines lost last, whatever the limit is; nothing is written after it.
func (s *sink) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.note(); b != nil && s.fd >= 0 {
		_, _ = writeAll(s.fd, b)
	}
}

// writeAll writes b, waiting where fd takes no more for now, and tells how much it has written.
func writeAll(fd int, b []byte) (int, error) {
	for done := 0; ; {
		n, err := unix.Write(fd, b[done:])
		done += max(n, 0)
		switch {
		case err == nil && done == len(b):
			return done, nil
		case err == nil || errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN): // the caller's end of it is non-blocking
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		default:
			return done, err
		}
	}
}
