package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// harmless are the devices that a program may well have.
var harmless = []string{"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"}

// deviceAttacks reach for devices and for what the kernel shows of itself in files.
func deviceAttacks() []attack {
	node := func(id, name string, mode uint32, major, minor uint32) attack {
		return attack{id: id, name: name, covers: "P5 K12", twin: "write", run: func(t targets) result {
			path := filepath.Join(t.workspace(), t.marker())
			if err := unix.Mknod(path, mode|0o600, int(unix.Mkdev(major, minor))); err != nil {
				return denied("%v", err)
			}
			defer os.Remove(path)
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err == nil {
				_ = unix.Close(fd)
			}
			return won("made %s; opened: %v", path, err)
		}}
	}
	write := func(id, name, twin string, paths ...string) attack {
		return attack{id: id, name: name, covers: "K2", twin: twin, run: func(targets) result {
			last := denied("nothing there")
			for _, path := range paths {
				if last = writable(path); last.Outcome == outcomeSucceeded {
					return last
				}
			}
			return last
		}}
	}
	read := func(id, name string, paths ...string) attack {
		return attack{id: id, name: name, covers: "K1", twin: "proc", run: func(targets) result {
			last := denied("nothing there")
			for _, path := range paths {
				if last = readSecret(path, ""); last.Outcome == outcomeSucceeded {
					return last
				}
			}
			return last
		}}
	}
	return []attack{
		node("make-memory-device", "make a device node for the machine's memory", unix.S_IFCHR, 1, 1),
		node("make-disk-device", "make a device node for a disk", unix.S_IFBLK, 8, 0),
		{id: "open-disks", name: "open a disk", covers: "P5", twin: "devices", run: func(targets) result { return openDevices(unix.S_IFBLK) }},
		{id: "open-devices", name: "open a device beyond the few that are harmless", covers: "P5", twin: "devices", run: func(targets) result { return openDevices(unix.S_IFCHR) }},
		{id: "terminal-input", name: "reach the terminal it was started from, and type into it", covers: "K12", twin: "devices", run: func(targets) result {
			fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			if err != nil {
				return denied("%v", err)
			}
			defer unix.Close(fd)
			return won("has a terminal to type into")
		}},
		{id: "terminal-foreign", name: "open another program's terminal", covers: "K12", needs: []string{"terminal"}, twin: "devices", run: func(t targets) result {
			return writable(t["terminal"])
		}},
		write("sysctl-core-pattern", "have the host run a program at each crash (core_pattern)", "proc", "/proc/sys/kernel/core_pattern"),
		write("sysctl-modprobe", "have the host run a program for a module (modprobe)", "proc", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug"),
		write("sysctl-network", "change how the host routes", "proc", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/ip_unprivileged_port_start"),
		write("sysctl-limits", "change the kernel's limits", "proc", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/pid_max", "/proc/sys/fs/protected_symlinks"),
		write("sysrq", "press the magic key (sysrq-trigger)", "proc", "/proc/sysrq-trigger"),
		write("sysfs-write", "change the machine through /sys", "write", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/module/kernel/parameters/panic"),
		read("sysfs-read", "read about the machine in /sys", "/sys/kernel/uevent_seqnum", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/class/net/lo/address"),
		read("proc-kcore", "read the kernel's memory", "/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port"),
		read("proc-kernel-tables", "read the kernel's tables", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/timer_list"),
		{id: "proc-kallsyms", name: "read where the kernel lies in memory", covers: "K1", twin: "proc", run: func(targets) result {
			f, err := os.Open("/proc/kallsyms")
			if err != nil {
				return denied("%v", err)
			}
			defer f.Close()
			b := make([]byte, 4096)
			n, err := f.Read(b)
			if n < 16 {
				return denied("empty: %v", err)
			}
			for line := range linesOf(b[:n]) {
				if addr, err := strconv.ParseUint(firstField(line), 16, 64); err == nil && addr > 1<<32 {
					return won("an address of the kernel is %#x", addr)
				}
			}
			return denied("all addresses are hidden")
		}},
		read("kernel-log-device", "read the kernel's log", "/dev/kmsg", "/proc/kmsg"),
		{id: "cgroup-leave", name: "leave its control group", covers: "K10 K7", twin: "proc", run: func(targets) result {
			last := denied("no hierarchy of control groups is there")
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"} {
				path := filepath.Join(root, "cgroup.procs")
				if _, err := os.Stat(path); err != nil {
					continue
				}
				if last = writable(path); last.Outcome == outcomeSucceeded {
					return last
				}
			}
			return last
		}},
		{id: "cgroup-make", name: "make a control group", covers: "K10 K7", twin: "proc", run: func(t targets) result {
			last := denied("no hierarchy of control groups is there")
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"} {
				path := filepath.Join(root, t.marker())
				if err := os.Mkdir(path, 0o700); err != nil {
					last = denied("%v", err)
					continue
				}
				return won("made %s, and removed it: %v", path, os.Remove(path))
			}
			return last
		}},
	}
}

// openDevices opens each device of a kind that is in /dev, but for the harmless ones and those that
// do something when they are opened.
func openDevices(kind uint32) result {
	never := []string{"watchdog", "watchdog0", "console", "autofs"}
	names, err := os.ReadDir("/dev")
	if err != nil {
		return denied("%v", err)
	}
	tried := 0
	for _, e := range names {
		var st unix.Stat_t
		path := "/dev/" + e.Name()
		if slices.Contains(harmless, e.Name()) || slices.Contains(never, e.Name()) || unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != kind {
			continue
		}
		tried++
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
			return won("opened %s", path)
		}
	}
	return denied("none of %d devices in /dev opens", tried)
}
