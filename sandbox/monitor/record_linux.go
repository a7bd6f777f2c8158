package monitor

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// reserved is the room in bytes that is kept for the record of the exit, so that a full disk does
// not swallow it; the lines of standard error are left out where they no longer fit.
const reserved = 4 << 10

// newSuffix is what a file is written under before it is renamed into place.
const newSuffix = ".new"

// reserve opens the record of the exit under its other name.
func (m *monitor) reserve() {
	fd, err := unix.Openat(m.dir, wire.ExitFile+newSuffix,
		unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return // record tries again
	}
	_ = unix.Fallocate(fd, 0, 0, reserved) // not every filesystem can
	m.spare = fd
}

// record writes the record of the exit, durably. Where it can't, the controllers are still told.
func (m *monitor) record(e wire.Exit) {
	if m.spare == 0 {
		m.reserve()
	}
	err := m.write(exitRecord(e))
	if err != nil {
		e.Stderr = nil
		err = m.write(exitRecord(e))
	}
	if err == nil {
		_ = unix.Renameat(m.dir, wire.ExitFile+newSuffix, m.dir, wire.ExitFile)
		_ = unix.Fsync(m.dir)
	}
}

func (m *monitor) write(b []byte) error {
	if m.spare == 0 {
		return unix.EBADF
	}
	if err := writeAt(m.spare, b); err != nil {
		return err
	}
	if err := unix.Ftruncate(m.spare, int64(len(b))); err != nil {
		return err
	}
	return unix.Fsync(m.spare)
}

// remove takes away what shows a running program.
func (m *monitor) remove() {
	if m.lockFD == 0 {
		return // never had the folder for itself
	}
	if m.listener != nil {
		_ = m.listener.Close()
	}
	for _, name := range []string{wire.ControlSocket, wire.ProcessFile, wire.ExitFile + newSuffix} {
		_ = unix.Unlinkat(m.dir, name, 0)
	}
}

// replace writes a file whole or not at all.
func replace(dir int, name string, b []byte) error {
	fd, err := unix.Openat(dir, name+newSuffix,
		unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = writeAt(fd, b)
	if e := unix.Close(fd); err == nil {
		err = e
	}
	if err == nil {
		err = unix.Renameat(dir, name+newSuffix, dir, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, name+newSuffix, 0)
	}
	return err
}

func writeAt(fd int, b []byte) error {
	for off := 0; off < len(b); {
		n, err := unix.Pwrite(fd, b[off:], int64(off))
		if err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return err
		}
		off += n
	}
	return nil
}

// processRecord is the content of wire.ProcessFile. The boot's id keeps a process id of before a
// restart of the host from being taken for one of now.
func (m *monitor) processRecord() []byte {
	b := []byte(`{"version":` + strconv.Itoa(wire.Version))
	for _, f := range []struct {
		name string
		n    uint64
	}{{"pid", uint64(m.status.PID)}, {"start", m.status.Start}, {"monitor", uint64(m.status.Monitor)}, {"monitor_start", m.ownStart()}} {
		b = append(b, `,"`+f.name+`":`...)
		b = strconv.AppendUint(b, f.n, 10)
	}
	b = append(b, `,"boot":`...)
	b = appendString(b, bootID())
	b = append(b, `,"started_at":"`...)
	b = m.status.At.AppendFormat(b, time.RFC3339Nano)
	return append(b, "\"}\n"...)
}

func (m *monitor) ownStart() uint64 {
	s, err := wire.ReadStat(unix.Getpid())
	if err != nil {
		return 0
	}
	return s.Start
}

func bootID() string {
	fd, err := unix.Open("/proc/sys/kernel/random/boot_id", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[:n]))
}

// exitRecord is the content of wire.ExitFile, as encoding/json would write sandbox.Exit.
func exitRecord(e wire.Exit) []byte {
	b := []byte(`{"code":` + strconv.Itoa(e.Code))
	if e.Signal != "" {
		b = append(b, `,"signal":`...)
		b = appendString(b, e.Signal)
	}
	b = append(b, `,"at":"`...)
	b = e.At.AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	for i, line := range e.Stderr {
		if i == 0 {
			b = append(b, `,"stderr":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendString(b, line)
	}
	if len(e.Stderr) > 0 {
		b = append(b, ']')
	}
	if e.Asked {
		b = append(b, `,"asked":true`...)
	}
	if e.OOM {
		b = append(b, `,"out_of_memory":true`...)
	}
	return append(b, "}\n"...)
}
