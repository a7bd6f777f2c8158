package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newerAttacks are calls that came to the kernel late, or that reach further than their name says.
func newerAttacks() []attack {
	one := func(id, name, covers, twin string, run func(targets) result) attack {
		return attack{id: id, name: name, covers: covers, twin: twin, run: run}
	}
	return []attack{
		one("mount-fspick", "change how a file system is mounted (fspick)", "K12", "write", func(targets) result {
			return slashCall("fspick", unix.SYS_FSPICK, 0)
		}),
		one("mount-open-tree-attr", "copy the tree of mounts with other attributes (open_tree_attr)", "K12", "write", func(targets) result {
			var attr unix.MountAttr
			return slashCall("open_tree_attr", unix.SYS_OPEN_TREE_ATTR, unix.OPEN_TREE_CLONE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		}),
		one("mount-list", "list the host's mounts (listmount)", "K1", "read", func(t targets) result {
			if t["ns.mnt"] != "" && ownNamespace("mnt", t["ns.mnt"]) {
				return denied("is in a mount namespace of its own")
			}
			// struct mnt_id_req: its size, and the root of the namespace.
			req := struct {
				size, spare uint32
				id, param   uint64
			}{size: 24, id: ^uint64(0)}
			var ids [256]uint64
			n, err := call(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&ids)), uintptr(len(ids)), 0)
			return verdict(err, "%d mounts", n)
		}),
		one("binfmt", "have the host run a program for a kind of file (binfmt_misc)", "K12", "proc", func(targets) result {
			last := denied("nothing there")
			for _, name := range []string{"register", "status"} {
				if last = writable("/proc/sys/fs/binfmt_misc/" + name); last.Outcome == outcomeSucceeded {
					return last
				}
			}
			return last
		}),
		one("cgroup-release", "have the host run a program when a control group ends (release_agent)", "K12", "proc", func(targets) result {
			last := denied("no hierarchy of control groups is there")
			paths, _ := filepath.Glob("/sys/fs/cgroup/*/release_agent") // the pattern is well formed
			for _, path := range append(paths, "/sys/fs/cgroup/release_agent") {
				if last = writable(path); last.Outcome == outcomeSucceeded {
					return last
				}
			}
			return last
		}),
		one("everyone-priority", "change the priority of every process of its user", "K5", "signal", func(targets) result {
			now, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
			if err != nil {
				return denied("%v", err)
			}
			return verdict(unix.Setpriority(unix.PRIO_USER, 0, 20-now), "set the priority that it has itself")
		}),
		one("everyone-io-priority", "change the disk priority of every process of its user", "K5", "signal", func(targets) result {
			const user, usual = 3, 2<<13 | 4 // IOPRIO_WHO_USER; best effort, the middle
			_, err := call(unix.SYS_IOPRIO_SET, user, 0, usual)
			return verdict(err, "set the usual priority")
		}),
		one("landlock-relax", "allow itself more by rules of its own (Landlock)", "K12", "write", landlockRelax),
		one("seccomp-relax", "allow itself more by a filter of its own", "K12", "child", func(targets) result {
			code := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
			prog := unix.SockFprog{Len: 1, Filter: &code[0]}
			if _, err := call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); err != nil {
				return denied("seccomp: %v", err)
			}
			return verdict(inNamespaces(unix.CLONE_NEWUSER), "a process in a user namespace of its own ran")
		}),
		one("terminal-inherited", "type into a terminal it was started with (TIOCSTI)", "K12", "pipe", func(targets) result {
			var last error
			for fd := range 3 {
				c := byte('\n')
				if _, last = call(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSTI, uintptr(unsafe.Pointer(&c))); last == nil {
					return won("typed into descriptor %d", fd)
				}
			}
			return denied("%v", last)
		}),
		one("lock-memory-all", "lock all that it will ever use", "K7", "memory", func(targets) result { return lockAll() }),
		one("lock-memory-secret", "lock memory by memfd_secret", "K7", "memory", func(targets) result {
			fd, err := unix.MemfdSecret(0)
			if err != nil {
				return denied("%v", err)
			}
			defer unix.Close(fd)
			if err := unix.Ftruncate(fd, muchLocked); err != nil {
				return denied("%v", err)
			}
			_, err = unix.Mmap(fd, 0, muchLocked, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			return verdict(err, "locked %d KiB", muchLocked>>10)
		}),
		one("semaphores-left", "leave semaphores that outlive it (System V)", "K10", "memory", func(t targets) result {
			if t["ns.ipc"] != "" && ownNamespace("ipc", t["ns.ipc"]) {
				return denied("is in an IPC namespace of its own")
			}
			id, err := call(unix.SYS_SEMGET, 0, 1, 0o600)
			if err == nil {
				_, _ = call(unix.SYS_SEMCTL, id, 0, unix.IPC_RMID)
			}
			return verdict(err, "made and removed them")
		}),
		one("message-queue-left", "leave a message queue that outlives it (POSIX)", "K10", "memory", func(t targets) result {
			if t["ns.ipc"] != "" && ownNamespace("ipc", t["ns.ipc"]) {
				return denied("is in an IPC namespace of its own")
			}
			name, err := unix.BytePtrFromString(strings.TrimPrefix(t.marker(), "."))
			if err != nil {
				return broken("%v", err)
			}
			fd, err := call(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY, 0o600, 0)
			if err == nil {
				_ = unix.Close(int(fd))
				_, _ = call(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)))
			}
			return verdict(err, "made and removed it")
		}),
		one("exec-descriptor", "run a program by a descriptor of memory (execveat)", "K12", "child", execDescriptor),
	}
}

// lockAll gives the lock back before anything else wants memory: the runtime of Go ends where it gets none.
func lockAll() result {
	debug.SetGCPercent(-1)
	_, _, locked := unix.RawSyscall(unix.SYS_MLOCKALL, unix.MCL_FUTURE, 0, 0)
	_, _, mapped := unix.RawSyscall6(unix.SYS_MMAP, 0, muchLocked, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON, ^uintptr(0), 0)
	_, _, _ = unix.RawSyscall(unix.SYS_MUNLOCKALL, 0, 0, 0)
	switch {
	case locked != 0:
		return denied("%v", locked)
	case mapped != 0:
		return denied("%v", mapped)
	}
	return won("locked %d KiB", muchLocked>>10)
}

// slashCall makes a call on the root folder that opens something; the descriptor is closed.
func slashCall(name string, trap uintptr, args ...uintptr) result {
	path, err := unix.BytePtrFromString("/")
	if err != nil {
		return broken("%v", err)
	}
	at := unix.AT_FDCWD
	fd, err := call(trap, append([]uintptr{uintptr(at), uintptr(unsafe.Pointer(path))}, args...)...)
	if err == nil {
		_ = unix.Close(int(fd))
	}
	return permitted(err, name)
}

// landlockRelax puts rules in force that allow everything below the root, and reads what is private.
func landlockRelax(t targets) result {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_READ_FILE}
	rules, err := call(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), 8, 0)
	if err != nil {
		return denied("ruleset: %v", err)
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return denied("%v", err)
	}
	below := unix.LandlockPathBeneathAttr{Allowed_access: unix.LANDLOCK_ACCESS_FS_READ_FILE, Parent_fd: int32(root)}
	if _, err := call(unix.SYS_LANDLOCK_ADD_RULE, rules, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&below))); err != nil {
		return denied("rule: %v", err)
	}
	if _, err := call(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0); err != nil {
		return denied("restrict: %v", err)
	}
	return readSecret(t["file.private"], t["secret"])
}

// execDescriptor runs this program by a descriptor without a name, in a process that is replaced.
func execDescriptor(targets) result {
	out, err := exec.Command(own(), "role-replaced").Output()
	if err != nil {
		return denied("%v", err)
	}
	mine, err := exec.Command(own(), "role-rights").Output()
	if err != nil {
		return broken("%v", err)
	}
	if string(out) != string(mine) {
		return won("had %s, has %s", mine, out)
	}
	return denied("has the same rights as before")
}

// replaced becomes this program by a descriptor, and tells its rights.
func replaced([]string) error {
	code, err := os.ReadFile(own())
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("otters", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	if n, err := unix.Write(fd, code); err != nil || n < len(code) {
		return fmt.Errorf("%d bytes: %w", n, err)
	}
	var words []*byte
	for _, w := range []string{"otters-attack", "role-rights"} {
		p, err := unix.BytePtrFromString(w)
		if err != nil {
			return err
		}
		words = append(words, p)
	}
	args, env := append(words, nil), []*byte{nil}
	empty := [1]byte{}
	_, err = call(unix.SYS_EXECVEAT, uintptr(fd), uintptr(unsafe.Pointer(&empty)), uintptr(unsafe.Pointer(&args[0])), uintptr(unsafe.Pointer(&env[0])), unix.AT_EMPTY_PATH)
	return err
}

// laterProcessAttacks go on from otherProcessAttacks.
func laterProcessAttacks() []attack {
	on := func(id, name, twin string, f func(t targets, pid int) result) attack {
		return attack{id: id, name: name, covers: "K5", needs: []string{"pid.foreign"}, twin: twin, run: func(t targets) result {
			if !t.isProcess("pid.foreign") {
				return denied("number %s is another process here", t["pid.foreign"])
			}
			return f(t, t.pid("pid.foreign"))
		}}
	}
	return []attack{
		on("foreign-vm-write", "write into another process's memory (process_vm_writev)", "memory", func(t targets, pid int) result {
			var addr uint64
			if _, err := fmt.Sscanf(t["address.foreign"], "0x%x", &addr); err != nil {
				return broken("%v", err)
			}
			b := []byte(t["secret"])[:1] // what lies there
			_, err := unix.ProcessVMWritev(pid, []unix.Iovec{{Base: &b[0], Len: 1}}, []unix.RemoteIovec{{Base: uintptr(addr), Len: 1}}, 0)
			return verdict(err, "wrote what was there to process %d", pid)
		}),
		on("foreign-madvise", "give another process's memory back (process_madvise)", "memory", func(_ targets, pid int) result {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return denied("%v", err)
			}
			defer unix.Close(fd)
			_, err = call(unix.SYS_PROCESS_MADVISE, uintptr(fd), 0, 0, unix.MADV_COLD, 0)
			return verdict(err, "advised on nothing of process %d", pid)
		}),
		on("foreign-thread-signal", "signal a thread of another process", "signal", func(_ targets, pid int) result {
			return verdict(unix.Tgkill(pid, pid, 0), "may signal thread %d", pid)
		}),
		on("foreign-queue-signal", "queue a signal with a forged sender to another process", "signal", func(_ targets, pid int) result {
			var info [128]byte
			_, err := call(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), 0, uintptr(unsafe.Pointer(&info)))
			return verdict(err, "may signal process %d", pid)
		}),
		on("foreign-scheduling", "change the scheduling of another process", "signal", func(_ targets, pid int) result {
			var mask unix.CPUSet
			if err := unix.SchedGetaffinity(pid, &mask); err != nil {
				return denied("%v", err)
			}
			return verdict(unix.SchedSetaffinity(pid, &mask), "set the processors that process %d had", pid)
		}),
	}
}
