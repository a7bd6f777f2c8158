package main

import (
	"fmt"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

// archAttacks are those of this kind of processor alone.
func archAttacks() []attack {
	return []attack{
		{id: "io-ports", name: "reach the machine's ports (ioperm)", covers: "K12", twin: "id", run: func(targets) result {
			return verdict(unix.Ioperm(0x80, 1, 1), "may use port 0x80")
		}},
		{id: "io-level", name: "reach all the machine's ports (iopl)", covers: "K12", twin: "id", run: func(targets) result {
			return verdict(unix.Iopl(3), "has level 3")
		}},
		{id: "segments", name: "make segments of its own (modify_ldt)", covers: "K12", twin: "memory", run: func(targets) result {
			var entry [16]byte
			const write = 0x11
			// An empty entry: the call is let through, and changes nothing.
			*(*uint32)(unsafe.Pointer(&entry[12])) = 0x28
			_, err := call(unix.SYS_MODIFY_LDT, write, uintptr(unsafe.Pointer(&entry[0])), unsafe.Sizeof(entry))
			return verdict(err, "wrote a segment")
		}},
		{id: "other-abi-32", name: "make calls by the gate of 32-bit programs (int 0x80)", covers: "K12", twin: "id", run: func(targets) result {
			// In a process of its own, for the filter, or a kernel without the gate, ends it.
			out, err := exec.Command(own(), "role-32").Output()
			if err != nil {
				return denied("%v", err)
			}
			return won("getpid of the 32-bit ABI answers %s", out)
		}},
		{id: "other-abi", name: "make calls by the numbers of another ABI (x32)", covers: "K12", twin: "id", run: func(targets) result {
			const x32 = 0x40000000
			pid, err := call(x32|unix.SYS_GETPPID, 0)
			return verdict(err, "getppid of the x32 ABI answers %d", pid)
		}},
	}
}

// i386 makes a call without arguments by the gate of 32-bit programs.
func i386(number uint32) int32

// call32 prints what getpid answers there.
func call32([]string) error {
	const getpid = 20
	pid := i386(getpid)
	if pid <= 0 {
		return fmt.Errorf("getpid: %d", pid)
	}
	_, err := fmt.Print(pid)
	return err
}
