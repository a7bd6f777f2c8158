package registry

import (
	"os"

	"golang.org/x/sys/unix"
)

// startWriteBack asks the kernel to begin writing n bytes of f to the disk. It is only a hint: the
// sync at the end is what counts.
func startWriteBack(f *os.File, from, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), from, n, unix.SYNC_FILE_RANGE_WRITE)
}
