package modelserver

import (
	"fmt"
	"os"
	"syscall"
)

// Refusing returns the base of a server that is not there: until free is called every connection to its
// address is refused, and nobody else gets the port. That of a server which was closed anybody may have got since.
func Refusing() (base string, free func(), err error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return "", nil, os.NewSyscallError("socket", err)
	}
	free = func() { _ = syscall.Close(fd) }
	// Bound, and without a listener.
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		free()
		return "", nil, os.NewSyscallError("bind", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		free()
		return "", nil, os.NewSyscallError("getsockname", err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port), free, nil
}
