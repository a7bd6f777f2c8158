package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// openTerminal opens a pseudo-terminal of some width: the side of whoever looks at it, and the
// program's.
func openTerminal(t *testing.T, width uint16) (screen, program *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine has no pseudo-terminals: %v", err)
	}
	fd := int(screen.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: width})
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return screen, program
}

// onTerminal runs a command on a terminal of 60 characters, in which typed is typed, and returns its
// exit code and all that the terminal was told.
func (m *machine) onTerminal(typed string, args ...string) (code int, shown string) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	screen, program := openTerminal(m.t, 60)
	defer screen.Close()
	cmd := m.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	err := cmd.Start()
	if closed := program.Close(); err != nil || closed != nil {
		m.t.Fatal(err, closed)
	}
	if _, err := io.WriteString(screen, typed); err != nil {
		m.t.Fatal(err)
	}
	var out bytes.Buffer
	// The kernel ends a terminal that no program has open any more with EIO.
	if _, err := io.Copy(&out, screen); err != nil && !errors.Is(err, syscall.EIO) {
		m.t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// terminal checks what a terminal is shown, and what is shown where there is none.
func (m *machine) terminal(t *testing.T, host string) {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "Agentfile"), "FROM scratch\nMODEL offline/otter\nNAME large\nADD data\n")
	writeFile(t, filepath.Join(dir, "data"), strings.Repeat("otter", 1<<20))
	m.must("build", "-t", "large:1", dir)
	there := host + "/terminal/large:1"
	code, shown := m.onTerminal("", "image", "push", "large:1", there)
	if code != 0 || !strings.Contains(shown, "[========================] ") || !strings.Contains(shown, there+" sha256:") {
		t.Errorf("%d %q", code, shown)
	}
	for _, line := range strings.Split(shown, "\n") {
		_, text, _ := strings.Cut(line, "\x1b[J")
		if strings.HasPrefix(text, "[") && len([]rune(strings.TrimRight(text, "\r"))) >= 60 {
			t.Errorf("a bar is wider than the terminal: %q", line)
		}
	}
	m.must("image", "rm", "large:1")
	got := m.must("image", "pull", there)
	if strings.ContainsAny(got.err, "[\x1b") || !strings.Contains(got.err, " exists ") {
		t.Errorf("where there is no terminal: %+v", got)
	}

	m.must("image", "rm", there)
	if code, shown := m.onTerminal("n\n", "image", "prune", "--grace", "0s"); code != 0 || !strings.Contains(shown, "[y/N]") || strings.Contains(shown, "freed") {
		t.Errorf("a no: %d %q", code, shown)
	}
	if code, shown := m.onTerminal("yes\n", "image", "prune"); code != 0 || !strings.Contains(shown, "freed 0 B") || !strings.Contains(shown, "see --grace") {
		t.Errorf("a yes: %d %q", code, shown)
	}
	if code, shown := m.onTerminal("", "image", "prune", "-f"); code != 0 || strings.Contains(shown, "[y/N]") {
		t.Errorf("forced: %d %q", code, shown)
	}
	if got := m.must("image", "prune", "--dry-run", "--all"); !strings.Contains(got.out, "would remove ") || !strings.Contains(got.out, "would free ") {
		t.Errorf("%+v", got)
	}
	if got := m.must("image", "prune", "--format", "json"); !strings.Contains(got.out, `"references": [],`) || !strings.Contains(got.out, `"dry_run": false`) {
		t.Errorf("%+v", got)
	}
}

// The parts that move are drawn over, those that are done stay above, and no name does anything to
// the terminal.
func TestBarsOnATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := &bars{app: &app{err: &out, errTerm: true}}
	show := func(digest, state string, done int64) string {
		out.Reset()
		b.show(&daemonv1.Transfer{Digest: digest, State: state, Size: 100, Done: done, Title: "a\x1b[2J"})
		return out.String()
	}
	for _, c := range []struct{ got, want string }{
		{show("one", "moving", 0), "[                        ] one moving     100 B a␛[2J\r\n"},
		{show("two", "moving", 50), "\x1b[1A\r\x1b[J[                        ] one moving     100 B a␛[2J\r\n[============            ] two moving     100 B a␛[2J\r\n"},
		{show("one", "done", 100), "\x1b[2A\r\x1b[J[========================] one done       100 B a␛[2J\r\n[============            ] two moving     100 B a␛[2J\r\n"},
		{show("two", "mounted", 100), "\x1b[1A\r\x1b[J[========================] two mounted    100 B a␛[2J\r\n"},
		{show("three", "exists", 100), "[========================] three exists     100 B a␛[2J\r\n"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	for i := range 100 {
		show(fmt.Sprint(i), "moving", 0)
	}
	if n := strings.Count(show("0", "moving", 1), "\n"); n != maxBars {
		t.Errorf("%d bars are drawn, want %d", n, maxBars)
	}
}
