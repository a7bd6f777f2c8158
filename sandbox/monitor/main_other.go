//go:build !linux

package monitor

// Main runs the monitor and returns its exit code. It needs Linux.
func Main() int {
	println("otters-sandbox: not supported on this system: it needs Linux")
	return 2
}
