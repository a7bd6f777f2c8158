//go:build linux

package monitor

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Invariant: a confiner becomes the program, tells what went wrong, or was killed, and the monitor knows
// which. Worst input: one that goes without a word.
func TestAConfinerThatIsKilledIsTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says []string
		want error
	}{
		"becomes the program":  {[]string{confinerReady}, nil},
		"goes without a word":  {nil, errConfiner},
		"tells of an error":    {[]string{"working folder /x\x002"}, unix.ENOENT},
		"can't be the program": {[]string{confinerReady, "/x\x0013"}, unix.EACCES},
	} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range c.says {
			if err := unix.Send(pair[1], []byte(word), unix.MSG_NOSIGNAL); err != nil {
				t.Fatal(err)
			}
		}
		// What was said is still read, and the word of the monitor has nobody to read it.
		if err := unix.Close(pair[1]); err != nil {
			t.Fatal(err)
		}
		if err := new(monitor).accompany(os.Getpid(), pair[0]); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err := unix.Close(pair[0]); err != nil {
			t.Error(err)
		}
	}
}
