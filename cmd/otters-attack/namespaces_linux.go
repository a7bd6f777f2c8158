package main

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inNamespaces starts a program in new namespaces.
func inNamespaces(flags uintptr) error {
	cmd := exec.Command(own(), "role-nothing")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	}
	return cmd.Run()
}

// namespaceAttacks reach for namespaces, where a program is root of its own making.
func namespaceAttacks() []attack {
	all := []attack{
		{id: "namespace-user", name: "start a program in a user namespace of its own", covers: "K12", twin: "child", run: func(targets) result {
			return verdict(inNamespaces(unix.CLONE_NEWUSER), "a process in a user namespace of its own ran")
		}},
		{id: "namespace-user-unshare", name: "move to a user namespace of its own (unshare)", covers: "K12", twin: "child", run: func(targets) result {
			cmd := exec.Command(own(), "role-nothing")
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWUSER}
			return verdict(cmd.Run(), "a process that had moved ran")
		}},
		{id: "namespace-clone3", name: "make a user namespace by clone3, whose flags lie in memory", covers: "K12", twin: "child", run: func(targets) result {
			return clone3(unix.CLONE_NEWUSER)
		}},
		{id: "namespace-clone3-time", name: "make a time namespace by clone3", covers: "K12", twin: "child", run: func(targets) result {
			return clone3(unix.CLONE_NEWTIME)
		}},
	}
	for _, ns := range []struct {
		id, what string
		flag     int
	}{
		{"mount", "a mount", unix.CLONE_NEWNS}, {"network", "a network", unix.CLONE_NEWNET}, {"process", "a process", unix.CLONE_NEWPID},
		{"ipc", "an ipc", unix.CLONE_NEWIPC}, {"uts", "a uts", unix.CLONE_NEWUTS}, {"cgroup", "a cgroup", unix.CLONE_NEWCGROUP},
	} {
		all = append(all, attack{id: "namespace-" + ns.id, name: "move to " + ns.what + " namespace of its own", covers: "K12", twin: "child", run: func(targets) result {
			runtime.LockOSThread()
			return verdict(unix.Unshare(ns.flag), "moved")
		}})
	}
	for _, ns := range []string{"mnt", "pid", "net", "ipc", "uts", "user"} {
		all = append(all, attack{id: "namespace-enter-" + ns, name: "enter the " + ns + " namespace of process 1", covers: "K12", twin: "proc", run: func(t targets) result {
			fd, err := unix.Open("/proc/1/ns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return denied("%v", err)
			}
			defer unix.Close(fd)
			runtime.LockOSThread()
			return verdict(unix.Setns(fd, 0), "entered")
		}})
	}
	return all
}

// clone3 asks for a process in new namespaces. The process ends at once.
func clone3(flags uint64) result {
	args := struct {
		flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
	}{flags: flags, exitSignal: uint64(unix.SIGCHLD)}
	pid, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno == 0 && pid == 0 {
		for { // the new process: nothing of Go may run in it
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	if errno != 0 {
		return denied("%v", errno)
	}
	var ws unix.WaitStatus
	_, err := unix.Wait4(int(pid), &ws, 0, nil)
	return won("process %d ran; ended: %v", pid, err)
}
