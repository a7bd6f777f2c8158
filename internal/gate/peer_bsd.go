//go:build darwin || freebsd

package gate

import (
	"net"

	"golang.org/x/sys/unix"
)

// solLocal is the level of options of local sockets, which the syscall packages do not name.
const solLocal = 0

func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Xucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptXucred(int(fd), solLocal, unix.LOCAL_PEERCRED)
	})
	if err == nil {
		err = cerr
	}
	if err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}
