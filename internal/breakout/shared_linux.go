package breakout

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// openShared makes shared memory and a message queue that all users of the host may use.
func (h *host) openShared() error {
	path := filepath.Join("/dev/shm", h.secret)
	if err := os.WriteFile(path, []byte(h.secret), 0o644); err == nil {
		h.closers = append(h.closers, func() error { return os.Remove(path) })
		h.targets["file.shm"] = path
		if err := os.Chmod(path, 0o644); err != nil {
			return err
		}
	}
	key := int(rand.Int32N(1<<30)) + 1
	id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
	if err != nil {
		return fmt.Errorf("shared memory: %w", err)
	}
	h.closers = append(h.closers, func() error { _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); return err })
	b, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		return fmt.Errorf("shared memory: %w", err)
	}
	copy(b, h.secret)
	if err := unix.SysvShmDetach(b); err != nil {
		return fmt.Errorf("shared memory: %w", err)
	}
	h.targets["key.shm"] = strconv.Itoa(key)
	return h.openQueue()
}

func (h *host) openQueue() error {
	name, err := unix.BytePtrFromString(h.secret)
	if err != nil {
		return err
	}
	fd, _, errno := syscall.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o644, 0, 0, 0)
	if errno == syscall.ENOSYS {
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("message queue: %w", errno)
	}
	h.targets["queue"] = "/" + h.secret
	h.closers = append(h.closers, func() error {
		err := unix.Close(int(fd))
		if _, _, errno := syscall.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
			err = errors.Join(err, errno)
		}
		return err
	})
	return nil
}

// endTime is how long what was killed may take to be gone.
const endTime = 10 * time.Second

// judge finds out what became of the processes that were left behind, and ends them.
func (h *host) judge(reports []Report, role string) {
	// Nobody ends what a plain process leaves behind.
	for end := time.Now().Add(endTime); role != Bare && len(h.survivors(role)) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	left := h.survivors(role)
	for i, r := range reports {
		if r.Outcome != planted {
			continue
		}
		reports[i].Outcome, reports[i].Evidence = Denied, "it was gone when the agent's part had ended"
		if pid, ok := left[r.ID]; ok {
			reports[i].Outcome, reports[i].Evidence = Succeeded, fmt.Sprintf("process %d lived on", pid)
		}
	}
	for _, pid := range left {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// survivors are the processes that a role left behind, by the attack's id. A zombie has no command
// line, and is none.
func (h *host) survivors(role string) map[string]int {
	found := map[string]int{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return found
	}
	for _, dir := range dirs {
		b, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		_, id, ok := strings.Cut(string(b), "otters-survivor-"+h.secret+role+"-")
		if !ok {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			found[strings.TrimRight(id, "\x00")] = pid
		}
	}
	return found
}
