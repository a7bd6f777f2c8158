package system_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/system"
)

// Invariant: no process outlives the record by which it can be found. Worst inputs: an agent that is
// removed, or destroyed without a handle, after its monitor was killed while nobody looked, with a
// process of a session of its own left over.
func TestNothingOutlivesTheRecordOfARemovedAgent(t *testing.T) {
	t.Parallel()
	dir := host(t)
	first := provider(t, dir, plain, system.WithSandbox(sandbox.Off))
	marks := map[uuid.UUID]string{}
	monitors := map[uuid.UUID]process{}
	for range 2 {
		a := created(t, first, nil, role("serve"))
		running(t, a)
		state := filepath.Join(dir, a.UUID().String(), "state")
		if _, err := os.Lstat(filepath.Join(state, "cgroup.json")); errors.Is(err, os.ErrNotExist) {
			t.Skip("no control group can be had, by which such a process is found")
		}
		mark := "mark-" + uuid.NewString()
		if got := prompt(t, a, "leave:"+mark); got != "left" {
			t.Fatalf("%q", got)
		}
		marks[a.UUID()], monitors[a.UUID()] = mark, processOf(t, a.Process().MonitorPID)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := provider(t, dir, plain, system.WithSandbox(sandbox.Off))
	agents, err := second.Load(t.Context())
	if err != nil || len(agents) != 2 {
		t.Fatal(agents, err)
	}
	for id, monitor := range monitors {
		if err := syscall.Kill(monitor.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		monitor.waitGone(t)
		if len(marked(t, marks[id])) == 0 {
			t.Error("it is gone by itself: nothing is shown")
		}
	}
	if err := agents[0].Remove(t.Context()); err != nil {
		t.Error(err)
	}
	untilGone(t, marks[agents[0].UUID()])
	if err := os.Remove(filepath.Join(dir, agents[1].UUID().String(), "handle.json")); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := provider(t, dir, plain).Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	untilGone(t, marks[agents[1].UUID()])
}

// untilGone waits until no process has mark in its command line.
func untilGone(t *testing.T, mark string) {
	t.Helper()
	for end := time.Now().Add(patience); len(marked(t, mark)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s lives on", mark)
		}
	}
}
