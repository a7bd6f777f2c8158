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

// Words between the monitor and the confiner, each a message of its own. What the confiner says beside
// confinerCalls, which comes with a descriptor, and confinerReady, after which it becomes the program, is
// what went wrong.
const (
	monitorJudges = "judged"
	monitorBlind  = "blind"
	confinerCalls = "calls"
	confinerReady = "ready"
)

// errConfiner is told of a confiner that was killed, for want of memory for instance: the host does not lack
// the level for that.
var errConfiner = errors.New("what confines the program was killed")

// forkLimited starts the program through a confiner. Behind the program's descriptors this has the
// spec and a socket to the monitor, which closes when it becomes the program.
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
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, &startError{"socket", err}
	}
	defer unix.Close(pair[0])
	shared := "shared"
	if m.ownUser() {
		shared = ""
	}
	whole, files := m.spec, m.files
	m.spec.Path, m.spec.Args, m.spec.Env, m.spec.Dir = "/proc/self/exe", []string{confineArg, strconv.Itoa(len(files)), shared}, nil, "/"
	m.spec.Files = nil
	m.files = append(append([]int(nil), files...), mem, pair[1])
	pid, err := m.fork(in, out, errs)
	m.spec, m.files = whole, files
	_ = unix.Close(pair[1])
	if err != nil {
		return 0, err
	}
	if err := m.accompany(pid, pair[0]); err != nil {
		m.abandon(pid)
		return 0, err
	}
	return pid, nil
}

// accompany returns when the confiner has become the program, or with what went wrong.
func (m *monitor) accompany(pid, conn int) error {
	word := monitorBlind
	if m.judged = canJudge(pid); m.judged {
		word = monitorJudges
	}
	_ = unix.Send(conn, []byte(word), unix.MSG_NOSIGNAL) // one that is gone says so below
	b, oob := make([]byte, wire.MaxRequest), make([]byte, unix.CmsgSpace(4))
	ready := false
	for {
		n, oobn, _, _, err := unix.Recvmsg(conn, b, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return &startError{"confine the program", err}
		}
		if n == 0 && !ready {
			return errConfiner
		}
		if n == 0 {
			return nil
		}
		switch text := string(b[:n]); text {
		case confinerReady:
			ready = true
			continue
		case confinerCalls:
		default:
			return faultOf(text)
		}
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(messages) != 1 {
			return &startError{"calls of the program", syscall.EPROTO}
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 1 {
			return &startError{"calls of the program", syscall.EPROTO}
		}
		go m.depute(newDeputy(fds[0], &m.spec))
	}
}

// depute has a deputy serve, and tells where it can't go on.
func (m *monitor) depute(d *deputy) {
	if err := d.serve(); err != nil {
		text := "calls that the monitor makes for the program (connect, bind, listen, and changes of modes and times) are refused from now on: " + err.Error()
		m.sink.write(appendLine(nil, "monitor", []byte(text), false), 1)
	}
}

// faultOf is the error that a confiner tells of.
func faultOf(text string) error {
	what, number, _ := strings.Cut(text, "\x00")
	n, err := strconv.Atoi(number)
	if err != nil {
		return errors.New(what)
	}
	return &startError{what, syscall.Errno(n)}
}

// confineSelf runs in the confiner: as the program's user, with its descriptors.
func confineSelf(files string, shared bool) int {
	count, err := strconv.Atoi(files)
	if err != nil || count < 0 || count > wire.MaxFiles {
		return codeUsage
	}
	mem, conn := 3+count, 4+count
	unix.CloseOnExec(mem)
	unix.CloseOnExec(conn)
	err = confineAndExec(mem, conn, shared)
	text := err.Error()
	var e *startError
	if errors.As(err, &e) {
		text = e.what
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		text += "\x00" + strconv.Itoa(int(errno))
	}
	_ = unix.Send(conn, []byte(text), unix.MSG_NOSIGNAL)
	return codeConfine
}

// confineAndExec returns only where it fails.
func confineAndExec(mem, conn int, shared bool) error {
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
	word := make([]byte, len(monitorJudges))
	n, err := unix.Read(conn, word)
	if err != nil {
		return &startError{"word of the monitor", err}
	}
	// Both hold for the calling thread, and exec leaves no other.
	if _, err := confineFiles(&spec, true); err != nil {
		return err
	}
	calls, err := installFilter(rules{
		limited: true, listens: len(spec.Serve) > 0, connects: len(spec.Ports) > 0,
		judged: string(word[:n]) == monitorJudges, shared: shared,
	})
	if err != nil {
		return err
	}
	if calls >= 0 {
		if err := unix.Sendmsg(conn, []byte(confinerCalls), unix.UnixRights(calls), nil, unix.MSG_NOSIGNAL); err != nil {
			return &startError{"calls of the program", err}
		}
	}
	if err := unix.Send(conn, []byte(confinerReady), unix.MSG_NOSIGNAL); err != nil {
		return &startError{"become the program", err}
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
