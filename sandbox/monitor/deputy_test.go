//go:build linux

package monitor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// Invariant: a deputy that can't go on says so, once, and lets go of the calls, which the kernel then
// refuses; one whose program has ended says nothing. The descriptors here are no listeners of calls: one has
// something to read that is no call, the other is hung up.
func TestADeputyThatCantGoOnSaysSo(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]bool{"broken": true, "hung up": false} {
		path := filepath.Join(t.TempDir(), "log")
		log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		if broken {
			if _, err := unix.Write(pipe[1], []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Close(pipe[1]); err != nil {
			t.Fatal(err)
		}
		m := &monitor{sink: newSink(int(log.Fd()), 0)}
		d := newDeputy(pipe[0], &wire.Spec{})
		m.depute(d)
		b, err := os.ReadFile(path)
		lines := strings.Count(string(b), "\n")
		told := strings.Contains(string(b), `"stream":"monitor","line":"calls that the monitor makes for the program (connect, bind, listen, and changes of modes and times) are refused from now on: `)
		if err != nil || told != broken || broken && lines != 1 || !broken && lines != 0 {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		if _, err := d.file.Stat(); err == nil {
			t.Errorf("%s: it holds its descriptor", name)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
}
