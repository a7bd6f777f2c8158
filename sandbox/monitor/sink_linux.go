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
	torn  bool          // the file ends in the middle of a line
	lost  int           // lines since the last that could be written
	why   string
}

func newSink(fd int, limit int64) *sink {
	return &sink{fd: fd, limit: limit, torn: torn(fd), over: make(chan struct{}), moved: make(chan struct{})}
}

// torn tells whether a file ends in the middle of a line, as one of a monitor may that was killed while
// it wrote. Of one that can't be read nothing is known.
func torn(fd int) bool {
	var st unix.Stat_t
	if fd < 0 || unix.Fstat(fd, &st) != nil || st.Size == 0 {
		return false
	}
	var last [1]byte
	n, err := unix.Pread(fd, last[:], st.Size-1)
	return err == nil && n == 1 && last[0] != '\n'
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
	text := append(s.note(), b...)
	n, err := writeAll(s.fd, text)
	if err == nil {
		s.lost, s.torn = 0, false
		return
	}
	s.lost += count
	s.why = notWritten
	if n == 0 {
		return
	}
	// The disk has filled up in the middle of a line.
	end, err := unix.Seek(s.fd, 0, unix.SEEK_CUR)
	if err == nil {
		err = unix.Ftruncate(s.fd, end-int64(n))
	}
	if err != nil {
		s.torn = text[n-1] != '\n'
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

// note ends a line that is half there, and tells of lost ones; nil where there is nothing of either.
func (s *sink) note() []byte {
	var b []byte
	if s.torn {
		b = append(b, '\n')
	}
	if s.lost > 0 {
		b = appendLine(b, "monitor", []byte(strconv.Itoa(s.lost)+" lines lost: "+s.why), false)
	}
	return b
}

// to has all further lines go to fd, which the sink then owns, up to limit.
func (s *sink) to(fd int, limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
	}
	s.fd, s.limit, s.torn = fd, limit, torn(fd)
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
