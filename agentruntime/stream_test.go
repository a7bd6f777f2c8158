package agentruntime

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// late is a writer that is not heard of until it is let go.
type late struct {
	got    []byte
	in, on chan struct{}
}

func (l *late) Write(p []byte) (int, error) {
	if len(l.got) == 0 {
		close(l.in)
		<-l.on
	}
	l.got = append(l.got, p...)
	return len(p), nil
}

// Invariant: all that a program wrote before its end is told, and nobody else who holds its pipe is waited
// for. Worst inputs: a reader that comes to it only when it is no more to wait; a full pipe.
func TestWhatWasWrittenIsReadHoweverLate(t *testing.T) {
	t.Parallel()
	s, err := newStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var ends [2]*os.File // the program's, and that of a process that has left its group
	for i := range ends {
		fd, err := unix.FcntlInt(s.program.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = os.NewFile(uintptr(fd), "end")
		defer ends[i].Close()
	}
	to := &late{in: make(chan struct{}), on: make(chan struct{})}
	s.read(to)
	if _, err := ends[0].WriteString("first"); err != nil {
		t.Fatal(err)
	}
	<-to.in
	rest := strings.Repeat("x", 4096)
	if _, err := ends[0].WriteString(rest); err != nil {
		t.Fatal(err)
	}
	if err := ends[0].Close(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	close(to.on)
	<-s.done
	if got := string(to.got); got != "first"+rest {
		t.Errorf("%d bytes were read, want %d", len(got), len("first"+rest))
	}
}
