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

// programUmask is what every program starts with, whatever the launcher's is.
const programUmask = 0o022

const (
	// lockWait is how long the monitor of an earlier program may take to end in the same folder.
	lockWait = 2 * time.Second
	// busyTries of busyWait each bridge the moment in which another process, between fork and
	// exec, still has a just written program open for writing (ETXTBSY). It takes long on a busy
	// host where that other one is a monitor that is getting its namespaces.
	busyTries = 1000
	busyWait  = 5 * time.Millisecond
)

var errDescriptors = errors.New("descriptors don't match the request")

// start takes the spec and its descriptors and starts the program.
func (m *monitor) start(fds []int) error {
	if err := m.accept(fds); err != nil {
		return err
	}
	switch m.spec.Level {
	case levelOff, levelLimited:
	case levelStrict:
		m.namespaces = namespaces()
	default:
		return &startError{"sandbox level " + m.spec.Level, syscall.ENOTSUP}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return &startError{"become subreaper", err}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return &startError{"become non-dumpable", err}
	}
	if err := m.lock(); err != nil {
		return &startError{"state folder", err}
	}
	for _, name := range []string{wire.ExitFile, wire.ProcessFile, wire.ControlSocket} {
		if err := unix.Unlinkat(m.dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return &startError{"remove the earlier " + name, err}
		}
	}
	if err := m.listen(); err != nil {
		return &startError{wire.ControlSocket, err}
	}
	if err := m.spawn(); err != nil {
		return err
	}
	m.announce()
	return nil
}

// The levels of sandbox.Level.
const (
	levelOff     = "off"
	levelLimited = "limited"
	levelStrict  = "strict"
)

// accept reads the spec from the first descriptor and names the others.
func (m *monitor) accept(fds []int) error {
	if len(fds) < 2 {
		return &startError{"request", errDescriptors}
	}
	f := os.NewFile(uintptr(fds[0]), "spec")
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, wire.MaxSpec+1))
	if err != nil {
		return &startError{"request", err}
	}
	if len(b) > wire.MaxSpec {
		return &startError{"request", syscall.E2BIG}
	}
	if m.spec, err = wire.ParseSpec(b); err != nil {
		return &startError{"request", err}
	}
	fds = fds[1:]
	if len(fds) != m.spec.Descriptors() {
		return &startError{"request", errDescriptors}
	}
	next := func(given bool) int {
		if !given {
			return -1
		}
		fd := fds[0]
		fds = fds[1:]
		return fd
	}
	m.dir = next(true)
	m.sink = newSink(next(m.spec.Log), m.spec.LogLimit)
	m.stdin = next(m.spec.Stdin)
	m.tees = [2]int{next(m.spec.Stdout), next(m.spec.Stderr)}
	n, end := len(m.spec.Files), len(m.spec.Files)+len(m.spec.Held)
	// Listeners inside are added to what is held, and must not come in place of what follows.
	m.files, m.held, fds = fds[:n:n], fds[n:end:end], fds[end:]
	m.group = group{into: next(m.spec.Into), kill: next(m.spec.KillFile), events: next(m.spec.OOMEvents), pairs: fds}
	return nil
}

// lock makes this the only monitor of the state folder.
func (m *monitor) lock() error {
	// A description of its own, for the launcher has the given one too.
	fd, err := unix.Openat(m.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for end := time.Now().Add(lockWait); ; time.Sleep(time.Millisecond) {
		if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			m.lockFD = fd
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			_ = unix.Close(fd)
			if errors.Is(err, unix.EWOULDBLOCK) {
				return &startError{"another program runs with it", syscall.EBUSY}
			}
			return err
		}
	}
}

// spawn starts the program with its output on two pipes.
func (m *monitor) spawn() error {
	var out, errs [2]int
	for _, p := range []*[2]int{&out, &errs} {
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return &startError{"pipe", err}
		}
	}
	in := m.stdin
	if in < 0 {
		var err error
		if in, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return &startError{"/dev/null", err}
		}
	}
	pid, abi, err := m.confined(in, out[1], errs[1])
	wire.CloseAll([]int{in, out[1], errs[1]})
	if err != nil {
		wire.CloseAll([]int{out[0], errs[0]})
		return err
	}
	st, err := wire.ReadStat(pid)
	if err != nil { // not reaped yet, so it is there even if it has ended
		wire.CloseAll([]int{out[0], errs[0]})
		m.abandon(pid)
		return &startError{"state of the program", err}
	}
	m.status = wire.Status{
		PID: pid, Start: st.Start, Monitor: unix.Getpid(), At: m.started.UTC(), Level: m.spec.Level,
		OwnUser: m.ownUser(),
	}
	if m.spec.Level == levelStrict {
		m.status.Monitor = m.hostPID
		if m.program, err = unix.PidfdOpen(pid, 0); err != nil {
			wire.CloseAll([]int{out[0], errs[0]})
			m.abandon(pid)
			return &startError{"hold the program", err}
		}
	}
	if m.status.Facts, err = m.readFacts(pid); err != nil {
		wire.CloseAll([]int{out[0], errs[0]})
		m.abandon(pid)
		return &startError{"read back what is in force", err}
	}
	m.status.Facts.Landlock, m.status.Facts.Namespaces, m.status.Facts.Judged = abi, m.namespaces, m.judged
	for i, fd := range []int{out[0], errs[0]} {
		_ = unix.SetNonblock(fd, true) // or the pump holds a thread of its own, no more
		m.pump(i, os.NewFile(uintptr(fd), "pipe"))
	}
	return nil
}

// ownUser tells whether the program's user id is not the monitor's.
func (m *monitor) ownUser() bool { return m.spec.UID > 0 && m.spec.UID != unix.Geteuid() }

// confined starts the program at its level and tells the version of Landlock in force.
func (m *monitor) confined(in, out, errs int) (pid, abi int, err error) {
	switch m.spec.Level {
	case levelStrict:
		if err = m.enclose(); err != nil {
			return 0, 0, err
		}
		if err = m.listenInside(); err != nil {
			return 0, 0, err
		}
		if err = m.relayAll(); err != nil {
			return 0, 0, err
		}
		if err = m.rlimits(); err != nil {
			return 0, 0, err
		}
		pid, err = m.forkFrom(func() (err error) {
			abi, err = confineStrict(&m.spec)
			return err
		}, in, out, errs)
	case levelLimited:
		pid, err = m.forkLimited(in, out, errs)
		abi = landlockABI()
	default:
		if err = m.rlimits(); err == nil {
			pid, err = m.fork(in, out, errs)
		}
	}
	return pid, abi, err
}

// fork starts the program: a session of its own, no privilege to gain, no signal blocked, and the
// descriptors 0 to 2 and its files.
func (m *monitor) fork(null, out, errs int) (int, error) {
	cred, err := m.credential()
	if err != nil {
		return 0, err
	}
	// Both are the thread's, which the program is a copy of.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, &startError{"no_new_privs", err}
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil); err != nil {
		return 0, &startError{"signal mask", err}
	}
	attr := &syscall.ProcAttr{
		Dir: m.spec.Dir, Env: environment(m.spec.Env, m.spec.Files),
		Files: []uintptr{uintptr(null), uintptr(out), uintptr(errs)},
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: cred},
	}
	for _, fd := range m.files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	argv := append([]string{m.spec.Path}, m.spec.Args...)
	m.started = time.Now()
	in := visit{group: m.group}
	err = in.enter(attr.Sys)
	for i := 0; err == nil; i++ {
		unix.Umask(programUmask)
		pid, failed := syscall.ForkExec(m.spec.Path, argv, attr)
		unix.Umask(0o077)
		if failed == nil {
			if err = in.leave(); err == nil {
				return pid, nil
			}
			// Killing the group would now kill this process.
			m.group.kill = -1
			m.abandon(pid)
			break
		}
		if in.cantClone(failed, attr.Sys) {
			continue
		}
		if !errors.Is(failed, syscall.ETXTBSY) || i >= busyTries {
			err = m.blame(failed)
			break
		}
		time.Sleep(busyWait)
	}
	_ = in.leave()
	return 0, err
}

// blame names what the kernel's number for a failed start is about.
func (m *monitor) blame(err error) error {
	var st unix.Stat_t
	if e := unix.Stat(m.spec.Dir, &st); e != nil {
		return &startError{"working folder " + m.spec.Dir, e}
	}
	what := m.spec.Path
	if unix.Stat(m.spec.Path, &st) == nil && errors.Is(err, syscall.ENOENT) {
		what += ": its interpreter or loader, which a static program needs none of"
	}
	if errors.Is(err, syscall.EACCES) && m.spec.UID >= 0 {
		what += " as user id " + strconv.Itoa(m.spec.UID) + " in " + m.spec.Dir
	}
	return &startError{what, err}
}

// credential is the identity of the program. At strict that is 0, which stands for it inside.
func (m *monitor) credential() (*syscall.Credential, error) {
	if m.spec.Level != levelStrict {
		return credential(m.spec.UID, m.spec.GID)
	}
	if unix.Geteuid() == 0 {
		return nil, nil // an ordinary user's monitor is the program's user
	}
	return &syscall.Credential{}, nil
}

// abandon undoes a fork.
func (m *monitor) abandon(pid int) {
	_ = unix.Kill(-pid, unix.SIGKILL)
	m.reapAll()
}

// credential is the identity that the program gets; nil where it is the monitor's own and there
// are no rights to change it.
func credential(uid, gid int) (*syscall.Credential, error) {
	own, group := unix.Geteuid(), unix.Getegid()
	if uid < 0 {
		uid = own
	}
	if gid < 0 {
		gid = group
	}
	if own != 0 {
		if uid != own || gid != group {
			return nil, &startError{"user id " + strconv.Itoa(uid) + ", group id " + strconv.Itoa(gid), syscall.EPERM}
		}
		return nil, nil
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// environment adds what tells the program of its files. LISTEN_PID is left out: it would be known
// only inside the new process.
func environment(env, files []string) []string {
	var all []string
	for _, e := range env {
		switch name, _, _ := strings.Cut(e, "="); name {
		case "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID":
		default:
			all = append(all, e)
		}
	}
	if len(files) > 0 {
		all = append(all, "LISTEN_FDS="+strconv.Itoa(len(files)), "LISTEN_FDNAMES="+strings.Join(files, ":"))
	}
	return all
}

// fill adds the status to a message and returns the descriptors that go with it.
func (m *monitor) fill(msg *wire.Message) []int {
	m.status.Fill(msg)
	if m.program == 0 {
		return nil
	}
	msg.Add(wire.Pidfd, "1")
	return []int{m.program}
}

// announce tells the launcher that the program runs, and then the state folder. A file costs more
// than the start itself, so nobody waits for it.
func (m *monitor) announce() {
	var msg wire.Message
	msg.Add(wire.Started, "1")
	fds := m.fill(&msg)
	_ = m.launch.Send(msg, fds...) // the launcher may be gone; the next one asks
	// Both are missed only by whoever asks after the monitor was killed or the disk has filled up.
	_ = replace(m.dir, wire.ProcessFile, m.processRecord())
	m.reserve()
}
