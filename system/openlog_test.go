//go:build unix

package system_test

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Invariant: what stands in place of a log, or half a line at its end, is told or ended; no start waits,
// and no line is lost in another. Worst inputs: a symbolic link, a named pipe, the half line of a monitor
// that was killed.
func TestALogThatIsNoneIsToldAndHalfALineIsEnded(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	a := created(t, p, nil, role("exit 3"))
	if err := a.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := a.LogPath()
	for _, c := range []struct {
		put  func() error
		want string
	}{
		{func() error { return os.Symlink("elsewhere.log", path) }, path + ": a symbolic link, which a log does not follow; remove it, or put the file in its place"},
		{func() error { return syscall.Mkfifo(path, 0o600) }, path + ": no regular file; remove it, and the log begins anew"},
	} {
		if err := c.put(); err != nil {
			t.Fatal(err)
		}
		if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %s", err, c.want)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	const half = `{"t":"2026-01-02T03:04:05Z","stream":"stdout","line":"cut of`
	if err := os.WriteFile(path, []byte(half), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil {
		t.Fatal("it exits with code 3")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	if !lines.Scan() || lines.Text() != half {
		t.Errorf("first line %q", lines.Text())
	}
	said := false
	for lines.Scan() {
		var l struct{ Line string }
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Errorf("%q: %v", lines.Text(), err)
		}
		said = said || l.Line == "the runtime says why"
	}
	if !said || lines.Err() != nil {
		t.Errorf("the next line is not there: %v", lines.Err())
	}
}
