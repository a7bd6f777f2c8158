package main

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setTimes gives an open file or folder its times. Not by its path, which sandbox level limited
// refuses.
func setTimes(f *os.File, at time.Time) error {
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return err
	}
	both := [2]unix.Timespec{ts, ts}
	if _, _, e := syscall.Syscall6(unix.SYS_UTIMENSAT, f.Fd(), 0, uintptr(unsafe.Pointer(&both)), 0, 0, 0); e != 0 {
		return &os.PathError{Op: "utimensat", Path: f.Name(), Err: e}
	}
	return nil
}
