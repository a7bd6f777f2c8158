package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the attacks on resources: what is over them counts as unlimited, and no more is taken.
const (
	manyProcesses   = 1024
	muchMemory      = 512 << 20
	manyDescriptors = 1 << 14
	muchLocked      = 1 << 20
	muchDisk        = 1 << 30
)

// resourceAttacks take more than an agent's share, for a moment.
func resourceAttacks() []attack {
	return []attack{
		{id: "fork-bomb", name: fmt.Sprintf("start %d processes at once", manyProcesses), covers: "K7", twin: "child", timeout: 3 * time.Minute, run: func(targets) result { return forkBomb() }},
		{id: "memory-bomb", name: fmt.Sprintf("use %d MiB of memory", muchMemory>>20), covers: "K7", twin: "memory", timeout: 3 * time.Minute, run: func(targets) result { return memoryBomb() }},
		{id: "descriptor-bomb", name: fmt.Sprintf("open %d descriptors", manyDescriptors), covers: "K7", twin: "devices", timeout: 3 * time.Minute, run: func(targets) result { return descriptorBomb() }},
		{id: "disk-fill", name: fmt.Sprintf("reserve %d MiB of disk", muchDisk>>20), covers: "K7", twin: "write", run: func(t targets) result { return diskFill(t) }},
		{id: "lock-memory", name: "lock memory that the host can't take back", covers: "K7", twin: "memory", run: func(targets) result {
			b, err := unix.Mmap(-1, 0, muchLocked, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				return denied("%v", err)
			}
			return verdict(unix.Mlock(b), "locked %d KiB", muchLocked>>10)
		}},
	}
}

func forkBomb() result {
	var pids []int
	var last error
	for len(pids) < manyProcesses {
		pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 {
			for { // a copy: nothing of Go may run in it
				syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
		}
		if errno != 0 {
			last = errno
			break
		}
		pids = append(pids, int(pid))
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for _, pid := range pids {
		var ws unix.WaitStatus
		for {
			if _, err := unix.Wait4(pid, &ws, 0, nil); err != unix.EINTR {
				break
			}
		}
	}
	if last != nil {
		return denied("after %d: %v", len(pids), last)
	}
	return won("%d processes ran at once", len(pids))
}

func memoryBomb() result {
	b, err := unix.Mmap(-1, 0, muchMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return denied("%v", err)
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return verdict(unix.Munmap(b), "used %d MiB", muchMemory>>20)
}

func descriptorBomb() result {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return broken("%v", err)
	}
	lim.Cur = lim.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return denied("%v", err)
	}
	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return broken("%v", err)
	}
	for n := range manyDescriptors {
		if _, err := unix.FcntlInt(uintptr(null), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return denied("after %d: %v", n, err)
		}
	}
	return won("%d descriptors were open at once", manyDescriptors)
}

func diskFill(t targets) result {
	path := filepath.Join(t.workspace(), t.marker())
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return broken("%v", err)
	}
	defer os.Remove(path)
	defer f.Close()
	return verdict(unix.Fallocate(int(f.Fd()), 0, 0, muchDisk), "reserved %d MiB, and gave them back", muchDisk>>20)
}

// survivorName is in the command line of what is left behind, for whoever looks for it.
const survivorName = "otters-survivor"

// survivorTime bounds a survivor's life where nobody ends it.
const survivorTime = 2 * time.Minute

// survivalAttacks leave processes behind. Whoever started the program looks for them when it has
// ended: their command lines hold the target survivor and the attack's id.
func survivalAttacks() []attack {
	leave := func(id, name, how string) attack {
		return attack{id: id, name: name, covers: "K6 K8 K10", needs: []string{"survivor"}, twin: "signal", inline: true, run: func(t targets) result {
			cmd := exec.Command(own(), "role-middle", how, survivorName+"-"+t["survivor"]+"-"+id)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: how != "group"}
			if out, err := cmd.CombinedOutput(); err != nil {
				return denied("%v: %s", err, out)
			}
			return result{outcomePlanted, "left a process behind"}
		}}
	}
	return []attack{
		leave("survive-daemon", "live on as a daemon that is deaf to SIGTERM", "daemon"),
		leave("survive-stopped", "live on as a stopped process", "stopped"),
		leave("survive-group", "live on in a process group of its own", "group"),
		leave("survive-subreaper", "live on below a subreaper of its own", "subreaper"),
	}
}

// startSurvivor starts a process that outlives this one. How it is to live comes first, then its
// name.
func startSurvivor(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want how and name")
	}
	cmd := exec.Command(own(), "role-survivor", args[0], args[1])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: args[0] != "group", Setpgid: args[0] == "group"}
	return cmd.Start()
}

// brood starts processes of every kind that might outlive it, says so, and waits for its own end.
// Their command lines hold the target survivor.
func brood([]string) error {
	t, err := readTargets("")
	if err != nil {
		return err
	}
	for _, how := range []string{"daemon", "stopped", "group", "subreaper"} {
		if err := exec.Command(own(), "role-middle", how, survivorName+"-"+t["survivor"]+"-"+how).Run(); err != nil {
			return err
		}
	}
	// The last is a child that stays one.
	if err := exec.Command(own(), "role-survivor", "child", survivorName+"-"+t["survivor"]+"-child").Start(); err != nil {
		return err
	}
	fmt.Println("bred")
	time.Sleep(survivorTime)
	return nil
}

// flood writes to both streams as fast as it can.
func flood([]string) error {
	line := []byte(strings.Repeat("a flood ", 16) + "\n")
	for end := time.Now().Add(survivorTime); time.Now().Before(end); {
		for _, f := range []*os.File{os.Stdout, os.Stderr} {
			if _, err := f.Write(line); err != nil {
				return err
			}
		}
	}
	return nil
}

// spin takes every processor.
func spin([]string) error {
	fmt.Println("spins")
	var all sync.WaitGroup
	for range runtime.NumCPU() {
		all.Go(func() {
			for end := time.Now().Add(survivorTime); time.Now().Before(end); {
			}
		})
	}
	all.Wait()
	return nil
}

// survive is what is left behind.
func survive(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want how and name")
	}
	switch args[0] {
	case "stopped":
		return unix.Kill(os.Getpid(), unix.SIGSTOP)
	case "subreaper":
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	return waitLong(nil)
}
