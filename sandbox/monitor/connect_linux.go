package monitor

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// firstLook and maxLook are how often a connection that is waited for is looked at, at first and later. On
	// the loopback only one that found no room in a queue is, and the kernel tries again after a second.
	firstLook = time.Millisecond
	maxLook   = 100 * time.Millisecond
)

// connect makes connect(2) and returns when the caller's own would: at once where its socket does not wait,
// else when the connection is there, was refused, or the socket's own bound of the wait (SO_SNDTIMEO) is
// over. Whoever waits is not in the way of the program's other calls. Where too many wait it returns as at
// that bound, with EINPROGRESS.
func (d *deputy) connect(c *call, fd int, sa unix.Sockaddr) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if flags&unix.O_NONBLOCK != 0 {
		return unix.Connect(fd, sa)
	}
	bound, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err != nil {
		return err
	}
	start, most := time.Now(), time.Duration(bound.Nano())
	if err := connectAtOnce(fd, sa, bound); !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	if !c.moveTo(d.waits) {
		return unix.EINPROGRESS
	}
	for look := firstLook; c.valid(); look = min(2*look, maxLook) {
		left := look
		if most > 0 {
			left = min(look, most-time.Since(start))
		}
		if left <= 0 {
			break
		}
		time.Sleep(left)
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if _, err := unix.Poll(p, 0); err != nil || p[0].Revents == 0 {
			continue
		}
		if err := connectAtOnce(fd, sa, bound); !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
	}
	return unix.EINPROGRESS
}

// connectAtOnce makes connect(2) on a socket that waits, and answers EINPROGRESS where it would. The mode of
// the socket is not touched, for the caller may change it meanwhile; how long it waits is the least that
// there is for that moment, and bound again after it.
func connectAtOnce(fd int, sa unix.Sockaddr, bound *unix.Timeval) error {
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 1}); err != nil {
		return err
	}
	err := unix.Connect(fd, sa)
	if e := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, bound); err == nil {
		err = e
	}
	// Of one that was begun already, and of one that a signal has come to, it is said otherwise.
	if errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EINTR) {
		return unix.EINPROGRESS
	}
	return err
}
