package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

// scopedABI is the first version of Landlock that scopes signals and abstract sockets.
const scopedABI = 6

// hostChecks look at what of the kernel the levels are built on.
func hostChecks() []check {
	return []check{kernelCheck(), landlockCheck(), namespaceCheck(), filterCheck()}
}

// kernelCheck asks for what the monitor can't be without at any level.
func kernelCheck() check {
	c := check{Name: "pidfd", For: []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict}, Fix: "run Linux 5.4 or later"}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		c.Found = "Linux " + unix.ByteSliceToString(u.Release[:])
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		c.Found += ": " + err.Error()
		return c
	}
	c.OK, c.Fix = true, ""
	_ = unix.Close(fd)
	return c
}

func landlockCheck() check {
	c := check{Name: "landlock", For: []sandbox.Level{sandbox.Limited}}
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errno == unix.EOPNOTSUPP:
		c.Found, c.Fix = "disabled", "add landlock to the lsm= parameter of the kernel and start it again"
	case errno != 0:
		c.Found, c.Fix = errno.Error(), "run Linux 6.12 or later, with CONFIG_SECURITY_LANDLOCK"
	case abi < scopedABI:
		c.Found, c.Fix = fmt.Sprintf("version %d", abi), fmt.Sprintf("run Linux 6.12 or later, which has version %d", scopedABI)
	default:
		c.OK, c.Found = true, fmt.Sprintf("version %d", abi)
	}
	return c
}

// namespaceCheck starts this program in the namespaces that strict is made of.
func namespaceCheck() check {
	c := check{Name: "namespaces", For: []sandbox.Level{sandbox.Strict}}
	self, err := os.Executable()
	if err != nil {
		c.Found = err.Error()
		return c
	}
	cmd := exec.Command(self, "version")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		c.Found, c.Fix = err.Error(), namespaceFix()
		return c
	}
	c.OK, c.Found = true, "user, mount, process, ipc, uts and network namespaces can be made"
	return c
}

// namespaceFix looks for what keeps users from namespaces of their own.
func namespaceFix() string {
	for _, s := range []struct{ path, bad, fix string }{
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give otters-sandbox an AppArmor profile with userns"},
	} {
		b, err := os.ReadFile(s.path)
		if err == nil && strings.TrimSpace(string(b)) == s.bad {
			return s.fix
		}
	}
	return "let this user make user namespaces; in a container, its engine's seccomp profile has to allow it"
}

func filterCheck() check {
	c := check{Name: "seccomp", For: []sandbox.Level{sandbox.Limited, sandbox.Strict}}
	// A filter at no address: where there are filters, it is the address that is wrong.
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0)
	if c.OK = errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EACCES); c.OK {
		c.Found = "filters of system calls"
		return c
	}
	c.Found, c.Fix = fmt.Sprint(err), "run a kernel with CONFIG_SECCOMP_FILTER"
	return c
}
