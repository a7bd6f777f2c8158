package monitor

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfo is what waitid(2) fills in; x/sys leaves the process id out. The padding before pid is
// for the alignment of the kernel's union.
type siginfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0)) - 4]byte
	pid                int32
	_                  [128]byte
}

// waitOptions look at any child that has ended, whatever signal it was cloned to send, and leave
// it to be reaped.
const waitOptions = unix.WEXITED | unix.WNOHANG | unix.WNOWAIT | unix.WALL

func waitid(kind, id int, info *siginfo, options int) error {
	*info = siginfo{}
	for {
		err := unix.Waitid(kind, id, (*unix.Siginfo)(unsafe.Pointer(info)), options, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
