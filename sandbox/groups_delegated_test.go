//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/otters-sh/otters/sandbox/internal/cgroup"
)

// delegatedVariable tells the tests that this user has groups of its own.
const delegatedVariable = "OTTERS_TEST_DELEGATED"

// becomeDelegate enters groups as root and goes on as a user: arguments are the id, the files to write
// to, and after "--" what to run.
func becomeDelegate() int {
	uid, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return 1
	}
	rest := os.Args[2:]
	for ; rest[0] != "--"; rest = rest[1:] {
		if err := os.WriteFile(rest[0], []byte("0"), 0); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid)); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(syscall.Exec(rest[1], rest[1:], []string{
		"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.Getenv("TMPDIR"), "GORACE=atexit_sleep_ms=0",
		"OTTERS_TEST_MONITOR=" + os.Getenv("OTTERS_TEST_MONITOR"), delegatedVariable + "=1",
	}))
	return 1
}

// Limits hold the same for an ordinary user who was given groups, of each hierarchy that this host
// has: under root the tests run once more as one.
func TestLimitsOfAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("this is an ordinary user")
	}
	needGroup(t, cgroup.Memory)
	needGroup(t, cgroup.PIDs)
	needGroup(t, cgroup.CPU)
	g, err := cgroup.Find().Plan(cgroup.Limits{cgroup.Memory: 1 << 40, cgroup.PIDs: 100_000, cgroup.CPU: 1_000_000}, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Make(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range g.Parts { // where the tests moved to, of version 2
			if err := os.Remove(filepath.Join(p.Path, cgroup.Prefix+"daemon")); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
		if err := g.KillAll(); err != nil {
			t.Error(err)
		}
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "otters-delegate-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const user = 60701
	tmp := filepath.Join(dir, "tmp")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, user, user)); err != nil {
		t.Fatal(err)
	}
	program := copyProgram(t, self, filepath.Join(dir, "tests"))
	args := []string{strconv.Itoa(user)}
	for _, p := range g.Parts {
		files, err := filepath.Glob(filepath.Join(p.Path, "cgroup.*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(files, p.Path, filepath.Join(p.Path, "tasks")) {
			if err := os.Chown(f, user, user); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		args = append(args, filepath.Join(p.Path, "cgroup.procs"))
	}
	args = append(args, "--", program, "-test.run", "^Test(Limits|NothingOutlives|TakeOverKeeps|Leftover|ProcessLimit|ConfinementIs)", "-test.v")
	ctx, cancel := context.WithTimeout(t.Context(), suiteTime)
	defer cancel()
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = dir
	c.Env = []string{
		roleVariable + "=delegate", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, "GORACE=atexit_sleep_ms=0",
		"OTTERS_TEST_MONITOR=" + copyProgram(t, monitorPath, filepath.Join(dir, "otters-sandbox")),
	}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "--- PASS"); n < 15 {
		t.Errorf("%d tests passed:\n%s", n, out)
	}
}
