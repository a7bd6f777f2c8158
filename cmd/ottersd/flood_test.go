//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: no file of a log is larger than docs/supervision.md says, whether a daemon runs or not, and
// the next one goes on with no line lost and none out of order. Worst inputs: a flood while no daemon
// runs, a log that is full when the next one comes, output of both streams.
func TestAFloodWhileNoDaemonRunsIsBoundedAndGoesOn(t *testing.T) {
	t.Parallel()
	const lines, size = 10_000, 64 << 10
	home := newHome(t)
	if err := os.MkdirAll(home, 0o711); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("log-max-size: %d\nlog-files: 100\nready-timeout: 1h\n", size)
	if err := os.WriteFile(filepath.Join(home, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(home)
	fifo, runtime := filepath.Join(dir, "fifo"), filepath.Join(dir, "runtime")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	// It floods when it is let, and ends when it is let: with a full log it would not be waited for long.
	text := fmt.Sprintf("#!/bin/sh\nread x <%[1]s\ni=0; while [ $i -lt %[2]d ]; do i=$((i+1)); echo $i; echo $i >&2; done\nread x <%[1]s\nexit 3\n", fifo, lines)
	syscall.ForkLock.RLock() // A child that still has it open for writing would keep it from being run.
	err := errors.Join(os.WriteFile(runtime, []byte(text), 0o755), os.Chmod(runtime, 0o755))
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	first := start(t, home)
	build(t, first.api)
	if _, err := first.api.CreateAgent(t.Context(), &daemonv1.CreateAgentRequest{Name: "floods", Image: "a", Sandbox: "off", RuntimePath: runtime}); err != nil {
		t.Fatal(err)
	}
	gate := reader(t, fifo)
	r, err := first.api.GetAgent(t.Context(), &daemonv1.GetAgentRequest{Agent: "floods"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(int(r.GetAgent().GetMonitorPid()), syscall.SIGKILL)
		}
	})
	if err := first.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	_ = gate.Close()
	logs, err := filepath.Glob(filepath.Join(home, "logs", "*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs %q, %v", logs, err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		info, err := os.Stat(logs[0])
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() >= 2*size {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes", info.Size())
		}
	}
	second := start(t, home)
	stream, err := second.api.Logs(t.Context(), &daemonv1.LogsRequest{Agent: "floods", Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	next := map[string]int{"stdout": 1, "stderr": 1}
	for range 2 * lines {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("%v after %v", err, next)
		}
		if m.GetLine() != fmt.Sprint(next[m.GetStream()]) {
			t.Fatalf("%v, want %v", m, next)
		}
		next[m.GetStream()]++
	}
	_ = reader(t, fifo).Close()
	files, err := filepath.Glob(logs[0] + "*")
	if err != nil || len(files) < 3 {
		t.Errorf("files %q, %v", files, err)
	}
	for _, path := range files {
		if info, err := os.Stat(path); err != nil || info.Size() > 2*size+1<<20 {
			t.Errorf("%v, %v", info, err)
		}
	}
	if _, err := second.api.Shutdown(t.Context(), &daemonv1.ShutdownRequest{StopAgents: true}); err != nil {
		t.Error(err)
	}
	if err := second.Wait(); err != nil {
		t.Errorf("%v: %s", err, second.stderr)
	}
}

// reader waits for somebody to read a named pipe, whom its closing lets go on.
func reader(t *testing.T, fifo string) *os.File {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		f, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			return f
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
