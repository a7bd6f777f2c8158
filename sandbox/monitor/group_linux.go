package monitor

import (
	"errors"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// group is the control group of the program, by the descriptors that the launcher has opened: -1 and
// empty where there is none. The monitor itself is in it for as long as a fork takes, and as one
// thread where the hierarchy lets threads be apart, so that what is limited and killed is the program.
type group struct {
	into, kill, events int
	pairs              []int
}

// visit is the calling thread's stay in a group, in which its children begin.
type visit struct {
	group group
	in    []int // what leads back, one for each hierarchy entered
}

// enter has the children of the calling thread begin in the group, until leave, which is due after an
// error too. Where a child can be cloned into the last part of the group, that one is not entered.
func (v *visit) enter(attr *syscall.SysProcAttr) error {
	n := len(v.group.pairs) / 2
	if v.group.into > 0 {
		attr.UseCgroupFD, attr.CgroupFD = true, v.group.into
		n--
	}
	for i := range n {
		if err := v.enterOne(i); err != nil {
			return err
		}
	}
	return nil
}

func (v *visit) enterOne(i int) error {
	if _, err := unix.Write(v.group.pairs[2*i], []byte("0")); err != nil {
		return &startError{"enter the control group", err}
	}
	v.in = append(v.in, v.group.pairs[2*i+1])
	return nil
}

// cantClone tells whether a fork failed since the host does not let a child be cloned into a group,
// which is then entered.
func (v *visit) cantClone(err error, attr *syscall.SysProcAttr) bool {
	if !attr.UseCgroupFD || !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return false
	}
	attr.UseCgroupFD = false
	return v.enterOne(len(v.group.pairs)/2-1) == nil
}

// leave brings the thread back.
func (v *visit) leave() error {
	var last error
	for _, fd := range v.in {
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			last = &startError{"leave the control group", err}
		}
	}
	v.in = nil
	return last
}

// killAll kills all in the group, where that is one call.
func (g group) killAll() {
	if g.kill > 0 {
		_, _ = unix.Write(g.kill, []byte("1"))
	}
}

// oomKills is how many processes of the group the kernel has killed for want of memory.
func (g group) oomKills() int {
	if g.events <= 0 {
		return 0
	}
	var b [512]byte
	n, err := unix.Pread(g.events, b[:], 0)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b[:n])) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(count))
			return n
		}
	}
	return 0
}
