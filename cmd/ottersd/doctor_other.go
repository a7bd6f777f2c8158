//go:build !linux

package main

// hostChecks are those of the kernel: there is none that could confine.
func hostChecks() []check {
	return []check{{Name: "linux", Found: "another system", Fix: "agents are confined on Linux only"}}
}
