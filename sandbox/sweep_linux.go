package sandbox

import (
	"time"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// sweep kills what is left of the session of a program that has ended with its monitor.
func sweep(session int, since uint64) {
	for end := time.Now().Add(endTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		all, err := wire.Processes()
		if err != nil {
			return
		}
		left := false
		for _, s := range all {
			if s.Session == session && s.Start >= since {
				left = true
				wire.Kill(s)
			}
		}
		if !left {
			return
		}
	}
}

// killAll kills all below a monitor that does not run, and then the monitor.
func killAll(root int, monitor *pidfd) {
	for end := time.Now().Add(endTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		all, err := wire.Processes()
		if err != nil {
			break
		}
		below := wire.Descendants(all, root)
		if len(below) == 0 || monitor.ended() {
			break
		}
		for _, s := range below {
			wire.Kill(s)
		}
	}
	monitor.kill()
}
