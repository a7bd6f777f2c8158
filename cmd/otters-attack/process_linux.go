package main

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// linesOf are the lines of a text.
func linesOf(b []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range bytes.Lines(b) {
			if !yield(strings.TrimRight(string(line), "\n")) {
				return
			}
		}
	}
}

func firstField(line string) string {
	first, _, _ := strings.Cut(line, " ")
	return first
}

// processAttacks reach for processes that are not the agent's own.
func processAttacks() []attack {
	// victim is a process that must be out of reach; the id's first part names it.
	type victim struct{ prefix, what, target string }
	var all []attack
	for _, v := range []victim{
		{"foreign", "a process of the host", "pid.foreign"},
		{"other", "another agent's runtime", "pid.other"},
		{"monitor", "another agent's monitor", "pid.monitor"},
	} {
		add := func(id, name, twin string, f func(int) result) {
			all = append(all, attack{id: v.prefix + "-" + id, name: name + " " + v.what, covers: "K5", needs: []string{v.target}, twin: twin, run: func(t targets) result {
				if !t.isProcess(v.target) {
					return denied("number %s is another process here", t[v.target])
				}
				return f(t.pid(v.target))
			}})
		}
		add("see", "see", "proc", func(pid int) result {
			return readSecret(fmt.Sprintf("/proc/%d/cmdline", pid), "")
		})
		add("environ", "read the environment of", "proc", func(pid int) result {
			return readSecret(fmt.Sprintf("/proc/%d/environ", pid), "")
		})
		add("memory", "open the memory of", "proc", func(pid int) result { return writable(fmt.Sprintf("/proc/%d/mem", pid)) })
		add("trace", "trace", "signal", func(pid int) result {
			runtime.LockOSThread()
			if err := unix.PtraceSeize(pid); err != nil {
				return denied("%v", err)
			}
			return won("traces process %d until this one ends", pid)
		})
		add("signal", "signal", "signal", func(pid int) result { return verdict(unix.Kill(pid, 0), "may signal process %d", pid) })
	}
	return append(all, otherProcessAttacks()...)
}

// isProcess tells whether the number of a target may be that process here: in a namespace of its own
// it is another's, which start time tells.
func (t targets) isProcess(target string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", t[target]))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	return len(fields) > 19 && fields[19] == t["start."+strings.TrimPrefix(target, "pid.")]
}

func otherProcessAttacks() []attack {
	on := func(id, name, covers, twin string, f func(t targets, pid int) result) attack {
		return attack{id: id, name: name, covers: covers, needs: []string{"pid.foreign"}, twin: twin, run: func(t targets) result {
			if !t.isProcess("pid.foreign") {
				return denied("number %s is another process here", t["pid.foreign"])
			}
			return f(t, t.pid("pid.foreign"))
		}}
	}
	return []attack{
		on("foreign-vm-read", "read a secret from another process's memory (process_vm_readv)", "K5", "memory", func(t targets, pid int) result {
			addr, err := strconv.ParseUint(t["address.foreign"], 0, 64)
			if err != nil {
				return broken("%v", err)
			}
			b := make([]byte, len(t["secret"]))
			n, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
			if err != nil || string(b[:n]) != t["secret"] {
				return denied("%v", err)
			}
			return won("read the secret from process %d", pid)
		}),
		on("foreign-pidfd", "signal another process by a pidfd", "K5 K9", "signal", func(_ targets, pid int) result {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return denied("%v", err)
			}
			defer unix.Close(fd)
			return verdict(unix.PidfdSendSignal(fd, 0, nil, 0), "may signal process %d", pid)
		}),
		on("foreign-pidfd-getfd", "take a descriptor from another process", "K5 K3", "signal", func(_ targets, pid int) result {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return denied("%v", err)
			}
			defer unix.Close(fd)
			got, err := unix.PidfdGetfd(fd, 1, 0)
			if err == nil {
				_ = unix.Close(got)
			}
			return verdict(err, "has standard output of process %d", pid)
		}),
		on("foreign-limits", "change the limits of another process", "K5", "signal", func(_ targets, pid int) result {
			var now unix.Rlimit
			if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now); err != nil {
				return denied("%v", err)
			}
			return verdict(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &now, nil), "set the limit it had for process %d", pid)
		}),
		on("foreign-priority", "change the priority of another process", "K5", "signal", func(_ targets, pid int) result {
			now, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
			if err != nil {
				return denied("%v", err)
			}
			return verdict(unix.Setpriority(unix.PRIO_PROCESS, pid, 20-now), "set the priority it had for process %d", pid)
		}),
		on("foreign-compare", "compare its kernel objects with another process's (kcmp)", "K5", "signal", func(_ targets, pid int) result {
			const kcmpFile = 0
			_, err := call(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), kcmpFile, 1, 1)
			return verdict(err, "compared descriptors with process %d", pid)
		}),
		on("foreign-pages", "move another process's memory", "K5", "memory", func(_ targets, pid int) result {
			_, err := call(unix.SYS_MOVE_PAGES, uintptr(pid), 0, 0, 0, 0, 0)
			return verdict(err, "move_pages on process %d went through", pid)
		}),
		on("foreign-namespaces", "enter another process's namespaces", "K12", "child", func(_ targets, pid int) result {
			fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return denied("%v", err)
			}
			defer unix.Close(fd)
			runtime.LockOSThread()
			return verdict(unix.Setns(fd, unix.CLONE_NEWNET), "is in the network namespace of process %d", pid)
		}),
		{id: "parent-trace", name: "trace the process that started it", covers: "K5", twin: "signal", run: func(targets) result {
			pid := starter()
			runtime.LockOSThread()
			return verdict(unix.PtraceSeize(pid), "traces process %d until this one ends", pid)
		}},
		{id: "parent-memory", name: "open the memory of the process that started it", covers: "K5", twin: "proc", run: func(targets) result {
			return writable(fmt.Sprintf("/proc/%d/mem", starter()))
		}},
		{id: "parent-environ", name: "read the environment of the process that started it", covers: "K4 K5", twin: "proc", run: func(targets) result {
			return readSecret(fmt.Sprintf("/proc/%d/environ", starter()), "")
		}},
		{id: "parent-descriptors", name: "open what the process that started it has open", covers: "K3 P16", twin: "proc", run: func(targets) result {
			return openDescriptors(starter())
		}},
		{id: "parent-kill", name: "kill the process that started it", covers: "K5", twin: "signal", run: func(t targets) result {
			pid := starter()
			if pid == 1 && ownNamespace("pid", t["ns.pid"]) {
				// Every process namespace has an init, and none of its own processes can kill that.
				return denied("process 1 of its own namespace takes no SIGKILL from inside")
			}
			return verdict(unix.Kill(pid, 0), "may kill process %d", pid)
		}},
	}
}

// openDescriptors looks at what each descriptor of a process is. Their numbers alone are nothing.
func openDescriptors(pid int) result {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	names, err := os.ReadDir(dir)
	if err != nil {
		return denied("%v", err)
	}
	for _, e := range names {
		link, err := os.Readlink(dir + e.Name())
		if err == nil {
			return won("%s%s is %s", dir, e.Name(), link)
		}
		fd, err := unix.Open(dir+e.Name(), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
			return won("opened %s%s", dir, e.Name())
		}
	}
	return denied("none of %d descriptors of process %d opens", len(names), pid)
}

// starter is what started the program that each attack is a child of. Attacks are run by a child.
func starter() int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", os.Getppid()))
	if err != nil {
		return 1
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 1
	}
	pid, err := strconv.Atoi(fields[1])
	if err != nil || pid == 0 {
		return 1
	}
	return pid
}

// ownNamespace tells whether this process is in another namespace than the host's, whose link is
// given; without one, whether it is in a process namespace below another.
func ownNamespace(kind, host string) bool {
	if host != "" {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		return err == nil && link != host
	}
	b, err := os.ReadFile("/proc/1/comm")
	return err == nil && strings.HasPrefix(string(b), "otters")
}

var errNoSecret = errors.New("the secret is not there")

// sharedMemory attaches the segment of System V shared memory with the key and reads it.
func sharedMemory(key int, secret string) error {
	id, err := call(unix.SYS_SHMGET, uintptr(key), 0, 0)
	if err != nil {
		return err
	}
	b, err := unix.SysvShmAttach(int(id), 0, unix.SHM_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = unix.SysvShmDetach(b) }()
	if !bytes.HasPrefix(b, []byte(secret)) {
		return errNoSecret
	}
	return nil
}

// queue opens a POSIX message queue.
func queue(name string) error {
	p, err := unix.BytePtrFromString(strings.TrimPrefix(name, "/"))
	if err != nil {
		return err
	}
	fd, err := call(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), unix.O_RDONLY|unix.O_NONBLOCK, 0, 0)
	if err == nil {
		_ = unix.Close(int(fd))
	}
	return err
}
