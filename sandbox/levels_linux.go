package sandbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

const (
	// namespaces are those that a monitor of strict is started in.
	namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET
	// probeTime bounds the trial of a level.
	probeTime = 10 * time.Second
	// probeUser runs the trial under root: nobody, who owns nothing.
	probeUser = 65534
)

const hasMonitor = true

// monitorCaps are what a monitor of strict sets its namespaces up with. They hold inside alone.
var monitorCaps = []uintptr{
	unix.CAP_DAC_OVERRIDE, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP, unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN,
}

// hostMounts tells whether mounts have changed.
func hostMounts() [sha256.Size]byte {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(b)
}

// mapIDs gives a monitor of strict its program's ids as its 0, the only ones there are inside.
func (c *child) mapIDs(uid, gid int) error {
	dir, err := unix.Open(fmt.Sprintf("/proc/%d", c.pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if c.fd.ended() { // and the folder may be another's
		return unix.EPIPE
	}
	write := func(name, text string) error {
		fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = unix.Write(fd, []byte(text))
			_ = unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("level %s: %w: %s of the new user namespace: %w", Strict, ErrUnsupported, name, err)
		}
		return nil
	}
	if unix.Geteuid() != 0 {
		uid, gid = unix.Geteuid(), unix.Getegid()
		if err := write("setgroups", "deny"); err != nil {
			return err
		}
	}
	if err := write("gid_map", fmt.Sprintf("0 %d 1", gid)); err != nil {
		return err
	}
	return write("uid_map", fmt.Sprintf("0 %d 1", uid))
}

// enforced tells what a level promises and the kernel does not report; nil where all is in force.
func enforced(s wire.Status) error {
	level := Level(s.Level)
	if level == Off {
		return nil
	}
	f := s.Facts
	var lacks []string
	if f.NoNewPrivs != 1 {
		lacks = append(lacks, "no_new_privs")
	}
	if f.Seccomp != 2 {
		lacks = append(lacks, "the seccomp filter")
	}
	if f.Caps != 0 || level == Strict && f.Bounding != 0 {
		lacks = append(lacks, "the loss of capabilities")
	}
	if level == Limited && f.Landlock < wire.LimitedABI {
		lacks = append(lacks, "Landlock")
	}
	if level == Strict {
		lacks = append(lacks, shared(f.Namespaces)...)
	}
	if len(lacks) > 0 {
		return fmt.Errorf("level %s: %w: not in force: %s", level, ErrUnsupported, strings.Join(lacks, ", "))
	}
	return nil
}

// eachBounded tells that not every process has the limits that all get.
func eachBounded(s wire.Status) error {
	if !s.Facts.Each.Within(wire.MaxEach) {
		return fmt.Errorf("limits of each process: %w: not in force as rlimits", ErrUnsupported)
	}
	return nil
}

// shared lists the namespaces among ids that are this process's.
func shared(ids string) []string {
	all := strings.Split(ids, " ")
	var bad []string
	for i, kind := range wire.NamespaceKinds {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil || i >= len(all) || all[i] == "" || all[i] == own {
			bad = append(bad, "a "+kind+" namespace of its own")
		}
	}
	return bad
}

// Supported lists the levels that this host can give, weakest first. Strict is tried with a program
// that does nothing, once for a Launcher; a trial that came to no result is made again.
func (l *Launcher) Supported() []Level {
	all := []Level{Off}
	for _, level := range []Level{Limited, Strict} {
		if l.try(level) == nil {
			all = append(all, level)
		}
	}
	return all
}

// Lacks tells why the host can't give a level, nil where it can. The error wraps ErrUnsupported, but
// where the trial came to no result, for want of memory or time for instance.
func (l *Launcher) Lacks(level Level) error {
	if err := known(level); err != nil || level == Off {
		return err
	}
	return l.try(level)
}

// Strongest is the strongest level that the host does not lack. One whose trial came to no result
// counts, for what starts at it either has it or is refused.
func (l *Launcher) Strongest() Level {
	for _, level := range []Level{Strict, Limited} {
		if err := l.try(level); err == nil || !errors.Is(err, ErrUnsupported) {
			return level
		}
	}
	return Off
}

func (l *Launcher) try(level Level) error {
	l.probe.Lock()
	defer l.probe.Unlock()
	if err, tried := l.lacks[level]; tried {
		return err
	}
	try := l.tryStrict
	if level == Limited {
		try = tryLimited
	}
	err := try()
	if err == nil || errors.Is(err, ErrUnsupported) {
		l.lacks[level] = err
	}
	return err
}

// passing tells of an error that it is none of what the host can do, but of what it lacks just now.
func passing(err error) bool {
	for _, e := range []error{
		context.DeadlineExceeded, unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, errClosed,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func tryLimited() error {
	abi, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	lacks := func(what string) error { return fmt.Errorf("level %s: %w: %s", Limited, ErrUnsupported, what) }
	switch {
	case errno == unix.EOPNOTSUPP:
		return lacks("Landlock is disabled: add landlock to the kernel's lsm= parameter")
	case errno != 0:
		return lacks("the kernel has no Landlock; Linux 6.12 or later has what is needed")
	case abi < wire.LimitedABI:
		return lacks(fmt.Sprintf("Landlock is version %d and %d is needed; Linux 6.12 or later has it", abi, wire.LimitedABI))
	case !filtered:
		return lacks("the seccomp filter is not known for this processor")
	}
	return nil
}

// tryStrict runs the monitor's own program inside, which ends at once for it is not a monitor there.
func (l *Launcher) tryStrict() error {
	dir, err := os.MkdirTemp("", "otters-probe-")
	if err != nil {
		return fmt.Errorf("level %s: trial: %w", Strict, err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	spec := Spec{
		Level: Strict, Path: "/probe", Dir: "/", UID: -1, GID: -1, StateDir: dir,
		Binds: []Bind{{Source: l.path, Target: "/probe", ReadOnly: true}},
	}
	if unix.Geteuid() == 0 {
		spec.UID, spec.GID = probeUser, probeUser
	}
	lacks := func(err error) error {
		if errors.Is(err, ErrUnsupported) {
			return err
		}
		if passing(err) {
			return fmt.Errorf("level %s: trial: %w", Strict, err)
		}
		return fmt.Errorf("level %s: %w: %w", Strict, ErrUnsupported, err)
	}
	p, err := l.Start(ctx, spec)
	if err != nil {
		return lacks(err)
	}
	defer p.Close()
	select {
	case <-p.Done():
	case <-ctx.Done():
		_ = p.Stop(context.WithoutCancel(ctx), 0)
		return lacks(ctx.Err())
	}
	if code := p.Exit().Code; code != 2 {
		return lacks(fmt.Errorf("a trial ended with code %d %s", code, p.Exit().Signal))
	}
	return nil
}

// Supported lists the levels that this host can give, weakest first, by trying them: see
// Launcher.Supported, which does so once. Without the monitor's program there is none to try.
func Supported() []Level {
	l, err := NewLauncher(LauncherOptions{Warm: -1})
	if err != nil {
		return []Level{Off}
	}
	defer l.Close()
	return l.Supported()
}

// inForce describes a running program by what its monitor has read back.
func inForce(s wire.Status) Confinement {
	c := Describe(Level(s.Level), s.OwnUser)
	if err := enforced(s); err != nil { // a start refuses this
		c.Enforced, c.Open = nil, []string{"everything: " + err.Error()}
		return c
	}
	c.Enforced = slices.DeleteFunc(c.Enforced, func(line string) bool { return line == eachOfAll })
	if err := eachBounded(s); err != nil { // refused too, but maybe not by the program that started it
		c.Open = append(c.Open, err.Error())
	} else {
		c.Enforced = append(c.Enforced, each(s.Facts.Each.Files, s.Facts.Each.Locked))
	}
	if c.Level == Limited {
		c.say(s.Facts.Judged)
	}
	if s.Facts.Landlock > 0 {
		c.Enforced = append(c.Enforced, fmt.Sprintf("Landlock version %d is in force", s.Facts.Landlock))
	}
	return c
}

// judges foretells whether a monitor of this process may look into a program at limited.
func judges() bool {
	// Yama: 0 is no more than the usual rules, 1 lets parents, 2 root, and 3 nobody.
	most := byte('1')
	if unix.Geteuid() == 0 {
		most = '2'
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if unix.Capget(&hdr, &data[0]) != nil || data[0].Effective&(1<<unix.CAP_SYS_PTRACE) == 0 {
			return false
		}
	}
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	return err != nil || len(scope) > 0 && scope[0] <= most
}
