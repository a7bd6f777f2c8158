package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: whoever follows a log gets each line once and in order, whatever is rotated and started
// meanwhile; no log grows without bound. Worst inputs: a runtime that floods, a rotation that was cut
// short, a reader that is slower than the writer.

// follower follows a log.
type follower struct {
	daemonv1.DaemonService_LogsClient
	cancel context.CancelFunc
}

// Recv gives up where nothing comes.
func (f follower) Recv() (*daemonv1.LogsResponse, error) {
	defer time.AfterFunc(patience, f.cancel).Stop()
	return f.DaemonService_LogsClient.Recv()
}

// follow follows a log from its first line.
func (d *testDaemon) follow(agent string) follower {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	stream, err := d.api.Logs(ctx, &daemonv1.LogsRequest{Agent: agent, Follow: true})
	if err != nil {
		cancel()
		d.t.Fatal(err)
	}
	d.t.Cleanup(cancel)
	return follower{stream, cancel}
}

// next fails the test where the next line is not want.
func next(t *testing.T, stream follower, want string) {
	t.Helper()
	m, err := stream.Recv()
	if err != nil {
		t.Fatalf("%v; want %q", err, want)
	}
	if m.GetLine() != want || m.GetAtMs() == 0 || m.GetStream() != "stdout" {
		t.Fatalf("got %v, want %q", m, want)
	}
}

func TestALogIsRotatedAndFollowedWithoutALineLost(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	writeHome(t, home, "config.yaml", "log-max-size: 64KiB\nlog-files: 100\nready-timeout: 1h\n")
	d := boot(t, home)
	d.image("guide", guide)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := makeFIFO(fifo); err != nil {
		t.Fatal(err)
	}
	const lines = 20_000
	// It ends when it is let: what a runtime says last does not wait for long for room in its log.
	text := fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i of a flood that fills one file after the other; done; read x <%s; exit 3", lines, fifo)
	d.create(&daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: script(t, text)})
	stream := d.follow("guide")
	for i := 1; i <= lines; i++ {
		next(t, stream, fmt.Sprintf("line %d of a flood that fills one file after the other", i))
	}
	say(t, fifo, "enough")
	d.await("guide", "failed")
	files, err := filepath.Glob(d.get("guide").GetLogFile() + ".*")
	if err != nil {
		t.Error(err)
	}
	if len(files) == 0 {
		// TestOnlySoManyFilesOfALogAreKept sees to it that there are more.
		t.Log("the flood was over before its size was looked at")
	}
	// The same again, from the files alone.
	got := d.logs("guide")
	if len(got) != lines {
		t.Errorf("%d lines in %d files, want %d", len(got), 1+len(files), lines)
	}
	if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: "guide"}); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the removal: %v, %v", m, err)
	}
	if left, _ := filepath.Glob(filepath.Join(home, "logs", "*")); len(left) != 0 {
		t.Errorf("logs left: %v", left)
	}
}

// say writes a line to a named pipe. Open for both, it waits for no reader; what is said stays until one comes, or
// the file is closed.
func say(t *testing.T, fifo, text string) *os.File {
	t.Helper()
	f, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.WriteString(text + "\n"); err != nil {
		t.Error(err)
	}
	return f
}

// rotations is how often the agent's log was rotated.
func (d *testDaemon) rotations(name string) int {
	a := d.agent(name)
	a.logMu.RLock()
	defer a.logMu.RUnlock()
	return a.rotations
}

// rotated waits until the agent's log was rotated so often.
func (d *testDaemon) rotated(name string, times int) {
	d.t.Helper()
	for deadline := time.Now().Add(patience); d.rotations(name) < times; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("%d rotations, want %d", d.rotations(name), times)
		}
	}
}

func TestOnlySoManyFilesOfALogAreKept(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	writeHome(t, home, "config.yaml", "log-max-size: 64KiB\nlog-files: 2\nready-timeout: 1h\n")
	d := boot(t, home)
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: script(t, "while :; do echo again and again and again and again and again; done")})
	d.rotated("guide", 3)
	d.halt("guide")
	path := d.get("guide").GetLogFile()
	if _, err := os.Stat(path + ".1"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path + ".2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a third file: %v", err)
	}
}

func TestAFollowerSeesRestartsAndTheNextDaemonEndsARotation(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	fifo := filepath.Join(t.TempDir(), "says")
	first := boot(t, home)
	first.image("guide", guide)
	path, starts := counting(t, "cat "+fifo)
	if err := makeFIFO(fifo); err != nil {
		t.Fatal(err)
	}
	first.create(&daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: path})
	stream := first.follow("guide")
	said := say(t, fifo, "first bye")
	next(t, stream, "first bye")
	_ = said.Close()
	first.await("guide", "failed")
	if _, err := first.api.StartAgent(t.Context(), &daemonv1.StartAgentRequest{Agent: "guide"}); err != nil {
		t.Fatal(err)
	}
	say(t, fifo, "second")
	next(t, stream, "second")
	if starts() != 2 {
		t.Errorf("%d starts", starts())
	}
	log := first.get("guide").GetLogFile()
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("with the daemon the call ended with %v, %v", m, err)
	}
	// As it is when a daemon dies between the rename and the monitor's switch.
	if err := errors.Join(os.Rename(log, log+".1"), os.WriteFile(log, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	second := boot(t, home)
	again := second.follow("guide")
	next(t, again, "first bye")
	next(t, again, "second")
	say(t, fifo, "third")
	next(t, again, "third")
	if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), "third") {
		t.Errorf("the newest file has %q, %v", b, err)
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	second.rotated("guide", 1)
	say(t, fifo, "fourth")
	next(t, again, "fourth")
	if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), "fourth") {
		t.Errorf("in place of a file that was removed: %q, %v", b, err)
	}
}

func TestLogsSinceAndTail(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", RuntimePath: script(t, "echo one; echo two; exit 1")})
	d.await("guide", "failed")
	between := time.Now().UnixMilli() + 1
	for time.Now().UnixMilli() < between {
		time.Sleep(time.Millisecond)
	}
	if _, err := d.api.StartAgent(t.Context(), &daemonv1.StartAgentRequest{Agent: "guide"}); err != nil {
		t.Fatal(err)
	}
	d.settled("guide")
	for _, c := range []struct {
		req  *daemonv1.LogsRequest
		want string
	}{
		{&daemonv1.LogsRequest{}, "one two one two"},
		{&daemonv1.LogsRequest{Tail: proto.Int32(3)}, "two one two"},
		{&daemonv1.LogsRequest{Tail: proto.Int32(0)}, ""},
		{&daemonv1.LogsRequest{SinceMs: between}, "one two"},
		{&daemonv1.LogsRequest{SinceMs: between, Tail: proto.Int32(1)}, "two"},
		{&daemonv1.LogsRequest{SinceMs: time.Now().Add(time.Hour).UnixMilli()}, ""},
	} {
		c.req.Agent = "guide"
		stream, err := d.api.Logs(t.Context(), c.req)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		m, err := stream.Recv()
		for ; err == nil; m, err = stream.Recv() {
			got = append(got, m.GetLine())
		}
		if strings.Join(got, " ") != c.want || !errors.Is(err, io.EOF) {
			t.Errorf("%v: %q, %v; want %q", c.req, got, err, c.want)
		}
	}
	for _, bad := range []*daemonv1.LogsRequest{{Agent: "guide", Tail: proto.Int32(-1)}, {Agent: "guide", SinceMs: -1}} {
		stream, err := d.api.Logs(t.Context(), bad)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// makeFIFO makes a named pipe that agents' users may read.
func makeFIFO(path string) error {
	if err := unix.Mkfifo(path, 0o666); err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, 0o666), os.Chmod(filepath.Dir(path), 0o755), os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755))
}
