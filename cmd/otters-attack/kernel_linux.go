package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rights are what a process may. They are asked of the kernel by calls, for /proc may be out of reach.
type rights struct {
	UID         [3]int `json:"uid"`
	Effective   uint64 `json:"effective"`
	Permitted   uint64 `json:"permitted"`
	Inheritable uint64 `json:"inheritable"`
	Bounding    uint64 `json:"bounding"`
	NoNewPrivs  uint64 `json:"no_new_privs"`
	Seccomp     uint64 `json:"seccomp"`
}

func ownRights() (rights, error) {
	var r rights
	r.UID[0], r.UID[1], r.UID[2] = unix.Getresuid()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return r, err
	}
	r.Effective = uint64(data[0].Effective) | uint64(data[1].Effective)<<32
	r.Permitted = uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32
	r.Inheritable = uint64(data[0].Inheritable) | uint64(data[1].Inheritable)<<32
	for c := range 64 {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil {
			break // the first that the kernel does not know
		}
		r.Bounding |= uint64(has) << c
	}
	for option, to := range map[int]*uint64{unix.PR_GET_NO_NEW_PRIVS: &r.NoNewPrivs, unix.PR_GET_SECCOMP: &r.Seccomp} {
		n, err := unix.PrctlRetInt(option, 0, 0, 0, 0)
		if err != nil {
			return r, err
		}
		*to = uint64(n)
	}
	return r, nil
}

func printRights([]string) error {
	r, err := ownRights()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// gains runs a program that tells its rights and compares them with those of this process.
func gains(path string, args ...string) result {
	before, err := ownRights()
	if err != nil {
		return broken("%v", err)
	}
	out, err := exec.Command(path, append(args, "role-rights")...).Output()
	if err != nil {
		return denied("%v", err)
	}
	var after rights
	if err := json.Unmarshal(out, &after); err != nil {
		return broken("%v", err)
	}
	if after != before {
		return won("had %+v, has %+v", before, after)
	}
	return denied("has the same rights as before")
}

// privilegeAttacks reach for more rights than they were given.
func privilegeAttacks() []attack {
	return []attack{
		{id: "setuid-program", name: "run a set-user-id program", covers: "K11", needs: []string{"file.setuid"}, twin: "child", run: func(t targets) result {
			return gains(t["file.setuid"])
		}},
		{id: "exec-memory", name: "run a program from memory, without its restrictions", covers: "K12", twin: "child", run: func(targets) result {
			return execMemory()
		}},
		{id: "exec-loader", name: "shed restrictions by running itself again", covers: "K11", twin: "child", run: func(targets) result { return gains(own()) }},
		{id: "setuid-root", name: "become root", covers: "K11", twin: "id", run: func(targets) result {
			if os.Getuid() == 0 && !rootOutside() {
				return denied("is user 0 of its own namespace, and another outside")
			}
			return verdict(unix.Setresuid(0, 0, 0), "is user 0")
		}},
		{id: "setgid-root", name: "join root's group", covers: "K11", twin: "id", run: func(targets) result {
			if os.Getuid() == 0 && !rootOutside() {
				return denied("is in group 0 of its own namespace, and in another outside")
			}
			return verdict(unix.Setresgid(0, 0, 0), "is in group 0")
		}},
		{id: "setgroups", name: "choose further groups", covers: "K11", twin: "id", run: func(targets) result {
			return verdict(unix.Setgroups([]int{0}), "has group 0")
		}},
		{id: "raise-capability", name: "raise a capability", covers: "K11", twin: "id", run: func(targets) result {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_DAC_OVERRIDE, Permitted: 1 << unix.CAP_DAC_OVERRIDE}}
			return verdict(unix.Capset(&hdr, &data[0]), "has CAP_DAC_OVERRIDE")
		}},
		{id: "ambient-capability", name: "pass a capability on (ambient)", covers: "K11", twin: "id", run: func(targets) result {
			return verdict(unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_RAW, 0, 0), "passes CAP_NET_RAW on")
		}},
		{id: "keep-capabilities", name: "keep capabilities by securebits", covers: "K11", twin: "id", run: func(targets) result {
			return verdict(unix.Prctl(unix.PR_SET_SECUREBITS, 0x2f, 0, 0, 0), "set securebits")
		}},
		{id: "raise-limits", name: "raise its hard limits", covers: "K7", twin: "id", run: func(targets) result {
			var now unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
				return broken("%v", err)
			}
			more := unix.Rlimit{Cur: now.Cur, Max: now.Max + 1}
			return verdict(unix.Prlimit(0, unix.RLIMIT_NOFILE, &more, nil), "raised the limit of %d descriptors", now.Max)
		}},
		{id: "escape-oom", name: "be spared when memory runs out", covers: "K7", twin: "memory", run: func(targets) result {
			b, err := os.ReadFile("/proc/self/oom_score_adj")
			if err != nil {
				return denied("%v", err)
			}
			var now int
			if _, err := fmt.Sscan(string(b), &now); err != nil {
				return broken("%v", err)
			}
			return verdict(os.WriteFile("/proc/self/oom_score_adj", []byte(fmt.Sprint(max(now-1, -1000))), 0), "lowered its score from %d", now)
		}},
		{id: "realtime", name: "take the processors by real-time scheduling", covers: "K7", twin: "id", run: func(targets) result {
			runtime.LockOSThread()
			return verdict(unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0), "runs at real-time priority")
		}},
		{id: "nice", name: "go ahead of the host's programs (nice)", covers: "K7", twin: "id", run: func(targets) result {
			return verdict(unix.Setpriority(unix.PRIO_PROCESS, 0, -1), "runs at a raised priority")
		}},
	}
}

func execMemory() result {
	code, err := os.ReadFile(own())
	if err != nil {
		return denied("%v", err)
	}
	fd, err := unix.MemfdCreate("otters", 0)
	if err != nil {
		return denied("memfd_create: %v", err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	defer f.Close()
	if _, err := f.Write(code); err != nil {
		return denied("%v", err)
	}
	return gains(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
}

// kernelAttacks reach for parts of the kernel that an agent has no use for: each is a way to more
// where the kernel has a flaw, or a right over the whole machine.
func kernelAttacks() []attack {
	one := func(id, name, covers, twin string, run func(targets) result) attack {
		return attack{id: id, name: name, covers: covers, twin: twin, run: run}
	}
	fd := func(n uintptr, err error, what string) result {
		if err == nil {
			_ = unix.Close(int(n))
		}
		return verdict(err, "has %s", what)
	}
	machine := func(id, name string, trap uintptr, args ...uintptr) attack {
		return one(id, name, "K12", "id", func(targets) result {
			_, err := call(trap, args...)
			return permitted(err, id)
		})
	}
	return []attack{
		one("keyring", "leave a key in the user's keyring", "K12", "id", func(targets) result {
			id, err := unix.AddKey("user", "otters-attack", []byte("x"), unix.KEY_SPEC_USER_KEYRING)
			if err != nil {
				return denied("%v", err)
			}
			_, undo := unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_USER_KEYRING, 0, 0)
			return won("left key %d, removed: %v", id, undo)
		}),
		one("keyring-session", "use the session keyring it was started with", "K12", "id", func(targets) result {
			id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
			return verdict(err, "has keyring %d", id)
		}),
		one("bpf", "load into the kernel's virtual machine (bpf)", "K12", "id", func(targets) result {
			attr := struct{ kind, key, value, entries uint32 }{unix.BPF_MAP_TYPE_ARRAY, 4, 4, 1}
			n, err := call(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			return fd(n, err, "a bpf map")
		}),
		one("io-uring", "make calls past the filter (io_uring)", "K12", "id", func(targets) result {
			var params [120]byte
			n, err := call(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params[0])))
			return fd(n, err, "a ring")
		}),
		one("userfaultfd", "hold the kernel up in a page fault (userfaultfd)", "K12", "memory", func(targets) result {
			n, err := call(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1)
			return fd(n, err, "a userfaultfd")
		}),
		one("userfaultfd-device", "hold the kernel up by /dev/userfaultfd", "K12", "memory", func(targets) result { return writable("/dev/userfaultfd") }),
		one("perf-events", "measure the machine (perf_event_open)", "K12", "id", func(targets) result {
			attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: unix.PERF_ATTR_SIZE_VER1, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Bits: unix.PerfBitDisabled | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv}
			n, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
			return fd(uintptr(max(n, 0)), err, "a counter")
		}),
		one("personality", "switch protections of memory off (personality)", "K12", "memory", func(targets) result {
			const readImpliesExec = 0x0400000
			_, err := call(unix.SYS_PERSONALITY, readImpliesExec)
			return verdict(err, "memory that is read may be executed")
		}),
		one("kernel-log", "read the kernel's log (syslog)", "K1", "id", func(targets) result {
			b := make([]byte, 4096)
			n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
			return verdict(err, "read %d bytes", n)
		}),
		one("load-module", "load a kernel module", "K12", "id", func(targets) result {
			return permitted(unix.InitModule(make([]byte, 16), ""), "init_module")
		}),
		one("load-module-file", "load a kernel module from a file", "K12", "id", func(targets) result {
			return permitted(unix.FinitModule(-1, "", 0), "finit_module")
		}),
		machine("unload-module", "unload a kernel module", unix.SYS_DELETE_MODULE),
		machine("kexec", "start another kernel", unix.SYS_KEXEC_LOAD, 0, 0, 0, ^uintptr(0)),
		machine("reboot", "reboot the machine", unix.SYS_REBOOT, 0, 0, 0),
		machine("swapon", "swap to a file of its own", unix.SYS_SWAPON),
		machine("swapoff", "stop the machine from swapping", unix.SYS_SWAPOFF),
		machine("accounting", "log every process of the host (acct)", unix.SYS_ACCT, 1),
		one("set-time", "set the host's clock", "K18", "id", func(targets) result {
			var now unix.Timex
			if _, err := unix.Adjtimex(&now); err != nil {
				return denied("%v", err)
			}
			now.Modes = unix.ADJ_STATUS
			_, err := unix.Adjtimex(&now)
			return verdict(err, "set the clock's status to what it was")
		}),
		one("set-hostname", "rename the host", "K12", "id", func(targets) result {
			var u unix.Utsname
			if err := unix.Uname(&u); err != nil {
				return broken("%v", err)
			}
			return verdict(unix.Sethostname([]byte(unix.ByteSliceToString(u.Nodename[:]))), "set the name it had")
		}),
		one("set-domain", "rename the host's domain", "K12", "id", func(targets) result {
			var u unix.Utsname
			if err := unix.Uname(&u); err != nil {
				return broken("%v", err)
			}
			return verdict(unix.Setdomainname([]byte(unix.ByteSliceToString(u.Domainname[:]))), "set the name it had")
		}),
	}
}
