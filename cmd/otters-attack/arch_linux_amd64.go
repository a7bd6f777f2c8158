package main

import (
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
		{id: "other-abi", name: "make calls by the numbers of another ABI (x32)", covers: "K12", twin: "id", run: func(targets) result {
			const x32 = 0x40000000
			pid, err := call(x32|unix.SYS_GETPPID, 0)
			return verdict(err, "getppid of the x32 ABI answers %d", pid)
		}},
	}
}
