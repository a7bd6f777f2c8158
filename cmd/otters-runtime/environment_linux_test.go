package main

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where /proc is out of reach, as at sandbox level limited, the runtime stays one that an ordinary
// user's monitor may look into, which connects for it; elsewhere its tools must not.
func TestTheMonitorMayLookIntoTheRuntimeWhereToolsCant(t *testing.T) {
	t.Parallel()
	const role = "OTTERS_TEST_HIDE"
	if how := os.Getenv(role); how != "" {
		runtime.LockOSThread()
		if how == "ruled" {
			ruleOutProc(t)
		}
		if err := hideEnvironment(); err != nil {
			t.Fatal(err)
		}
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		t.Logf("dumpable is %d, %v", n, err)
		return
	}
	for how, want := range map[string]string{"ruled": "dumpable is 1,", "plain": "dumpable is 0,"} {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = []string{role + "=" + how, "GORACE=atexit_sleep_ms=0"}
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), "--- SKIP") {
			t.Skip("no Landlock here")
		}
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %s", how, err, out)
		}
	}
}

// ruleOutProc lets the calling thread read no file.
func ruleOutProc(t *testing.T) {
	t.Helper()
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_READ_FILE}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), 8, 0)
	if errno != 0 {
		t.Skip(errno)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
}
