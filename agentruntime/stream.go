package agentruntime

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxLeft bounds what is read of a pipe once nobody is waited for any more, in bytes: as much as a pipe holds
// that an ordinary user made.
const maxLeft = 1 << 20

// stream is a pipe from a program to a writer. What was in the pipe when stop is called is still read, however
// late the reader comes to it.
type stream struct {
	program *os.File // the program's end
	ours    *os.File
	done    chan struct{} // closed when all is read
}

func newStream() (*stream, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &stream{program: w, ours: r, done: make(chan struct{})}, nil
}

// read copies what comes to a writer that does not fail, until the program's end is closed everywhere or stop
// was called. It closes the one that is here.
func (s *stream) read(to io.Writer) {
	_ = s.program.Close()
	go func() {
		defer close(s.done)
		if _, err := io.Copy(to, s.ours); errors.Is(err, os.ErrDeadlineExceeded) {
			s.rest(to)
		}
	}()
}

// stop has read wait for nobody.
func (s *stream) stop() { _ = s.ours.SetReadDeadline(time.Unix(1, 0)) }

// rest reads what is in the pipe.
func (s *stream) rest(to io.Writer) {
	conn, err := s.ours.SyscallConn()
	if err == nil {
		err = s.ours.SetReadDeadline(time.Time{}) // one that is over would let nothing be read
	}
	for left, buf := maxLeft, make([]byte, 32<<10); left > 0 && err == nil; {
		n := 0
		rerr := conn.Read(func(fd uintptr) bool {
			for {
				if n, err = unix.Read(int(fd), buf); err != unix.EINTR {
					return true // not waited for
				}
			}
		})
		if err = errors.Join(err, rerr); err != nil || n <= 0 {
			return
		}
		_, err = to.Write(buf[:n])
		left -= n
	}
}

// close closes both ends.
func (s *stream) close() {
	_ = s.program.Close()
	_ = s.ours.Close()
}
