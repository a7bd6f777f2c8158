package monitor

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// confineArg makes the monitor's program the one that at level limited confines itself and then
// becomes the agent's. A thread of the monitor could not do that: it would share the program's
// Landlock domain, and be signalled from inside.
const confineArg = "confine"

// codeConfine is the exit code of a confiner that has told the monitor what went wrong.
const codeConfine = 3

// forkLimited starts the program through a confiner. Behind the program's descriptors this has the
// spec and a pipe for what goes wrong, which closes when it becomes the program.
func (m *monitor) forkLimited(in, out, errs int) (int, error) {
	mem, err := unix.MemfdCreate("spec", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, &startError{"spec", err}
	}
	defer unix.Close(mem)
	if _, err := writeAll(mem, m.spec.Marshal()); err != nil {
		return 0, &startError{"spec", err}
	}
	if _, err := unix.Seek(mem, 0, 0); err != nil {
		return 0, &startError{"spec", err}
	}
	var fault [2]int
	if err := unix.Pipe2(fault[:], unix.O_CLOEXEC); err != nil {
		return 0, &startError{"pipe", err}
	}
	f := os.NewFile(uintptr(fault[0]), "fault")
	defer f.Close()
	whole, files := m.spec, m.files
	m.spec.Path, m.spec.Args, m.spec.Env, m.spec.Dir = "/proc/self/exe", []string{confineArg, strconv.Itoa(len(files))}, nil, "/"
	m.spec.Files = nil
	m.files = append(append([]int(nil), files...), mem, fault[1])
	pid, err := m.fork(in, out, errs)
	m.spec, m.files = whole, files
	_ = unix.Close(fault[1])
	if err != nil {
		return 0, err
	}
	b, err := io.ReadAll(io.LimitReader(f, wire.MaxRequest))
	if err == nil && len(b) == 0 {
		return pid, nil
	}
	m.abandon(pid)
	if err != nil {
		return 0, &startError{"confine the program", err}
	}
	what, number, _ := strings.Cut(string(b), "\x00")
	n, err := strconv.Atoi(number)
	if err != nil {
		return 0, errors.New(what)
	}
	return 0, &startError{what, syscall.Errno(n)}
}

// confineSelf runs in the confiner: as the program's user, with its descriptors.
func confineSelf(files string) int {
	count, err := strconv.Atoi(files)
	if err != nil || count < 0 || count > wire.MaxFiles {
		return codeUsage
	}
	mem, fault := 3+count, 4+count
	unix.CloseOnExec(mem)
	unix.CloseOnExec(fault)
	err = confineAndExec(mem)
	text := err.Error()
	var e *startError
	if errors.As(err, &e) {
		text = e.what
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		text += "\x00" + strconv.Itoa(int(errno))
	}
	_, _ = writeAll(fault, []byte(text))
	return codeConfine
}

// confineAndExec returns only where it fails.
func confineAndExec(mem int) error {
	f := os.NewFile(uintptr(mem), "spec")
	b, err := io.ReadAll(io.LimitReader(f, wire.MaxSpec+1))
	if err != nil {
		return &startError{"spec", err}
	}
	spec, err := wire.ParseSpec(b)
	if err != nil {
		return &startError{"spec", err}
	}
	if err := unix.Chdir(spec.Dir); err != nil {
		return &startError{"working folder " + spec.Dir, err}
	}
	m := monitor{spec: spec}
	if err := m.rlimits(); err != nil {
		return err
	}
	if unix.Geteuid() == 0 {
		return &startError{"level limited as root", syscall.EPERM}
	}
	// Both hold for the calling thread, and exec leaves no other.
	if _, err := confineFiles(&spec, true); err != nil {
		return err
	}
	if err := installFilter(true, len(spec.Serve) > 0); err != nil {
		return err
	}
	argv, env := append([]string{spec.Path}, spec.Args...), environment(spec.Env, spec.Files)
	for i := 0; ; i++ {
		err := syscall.Exec(spec.Path, argv, env)
		if !errors.Is(err, syscall.ETXTBSY) || i == busyTries {
			return &startError{spec.Path, err}
		}
		time.Sleep(busyWait)
	}
}
