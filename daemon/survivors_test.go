package daemon

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/sandbox"
)

// Invariant: nothing that an agent ever started is left once it has ended, however it has; what is left
// of a daemon are the agents that the next one takes over. Worst inputs: a process in a session of its
// own whose parent is gone, one that ignores SIGTERM, a monitor that is killed.

// marked lists the processes that have mark among their arguments.
func marked(t *testing.T, mark string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(b), mark) {
			out = append(out, filepath.Base(filepath.Dir(path))+": "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}

// killMarked ends what marked lists, so that a test leaves nothing behind.
func killMarked(t *testing.T, mark string) {
	t.Helper()
	for _, p := range marked(t, mark) {
		var pid int
		if _, err := fmt.Sscan(strings.TrimSuffix(strings.Fields(p)[0], ":"), &pid); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// bin makes a BIN image of a program, with labels.
func (d *testDaemon) bin(tag, program string, labels map[string]string) {
	d.t.Helper()
	code, err := os.ReadFile(program)
	if err != nil {
		d.t.Fatal(err)
	}
	stream, err := daemonv1.NewImageServiceClient(testConn(d.t, d.socket)).BuildBin(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	parts := []*daemonv1.BuildBinRequest{{Part: &daemonv1.BuildBinRequest_Options{Options: &daemonv1.BuildBinOptions{
		Tags: []string{tag}, Name: path.Base(tag), Labels: labels, Programs: map[string]string{runtime.GOOS + "/" + runtime.GOARCH: "program"},
	}}}}
	for archive := tarOf(d.t, map[string]string{"program": string(code)}); len(archive) > 0; {
		n := min(len(archive), 1<<20)
		parts = append(parts, &daemonv1.BuildBinRequest{Part: &daemonv1.BuildBinRequest_Archive{Archive: archive[:n]}})
		archive = archive[n:]
	}
	for _, p := range parts {
		if err := stream.Send(p); err != nil {
			break // the cause comes with the answer
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		d.t.Fatal(err)
	}
}

// hostLevels are those that this host gives.
func hostLevels(t *testing.T) []sandbox.Level {
	t.Helper()
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: filepath.Join(built.For(t), "otters-sandbox"), Warm: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Supported()
}

func TestNothingOfAnAgentSurvivesIt(t *testing.T) {
	t.Parallel()
	for _, level := range hostLevels(t) {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			nothingSurvives(t, level)
		})
	}
}

// nothingSurvives ends agents in every way, each with processes of every kind that might outlive it.
func nothingSurvives(t *testing.T, level sandbox.Level) {
	home := newHome(t)
	writeHome(t, home, "config.yaml", "ready-timeout: 1h\n") // these runtimes never are
	d := boot(t, home)
	attack := filepath.Join(built.For(t), "otters-attack")
	d.bin("brood", attack, nil)
	d.image("brooder", map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nEXEC [\"role-brood\"]\nBIN brood brood\n"})
	for i, c := range []struct {
		name string
		end  func(a *daemonv1.Agent) error
	}{
		{"stop", func(*daemonv1.Agent) error {
			_, err := d.api.StopAgent(t.Context(), &daemonv1.StopAgentRequest{Agent: "stop"})
			return err
		}},
		{"kill", func(*daemonv1.Agent) error {
			_, err := d.api.KillAgent(t.Context(), &daemonv1.KillAgentRequest{Agent: "kill"})
			return err
		}},
		{"removal", func(*daemonv1.Agent) error {
			_, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: "removal", Force: true})
			return err
		}},
		{"crash", func(a *daemonv1.Agent) error {
			err := syscall.Kill(int(a.GetPid()), syscall.SIGKILL)
			d.await("crash", "failed")
			return err
		}},
		{"monitor", func(a *daemonv1.Agent) error {
			err := syscall.Kill(int(a.GetMonitorPid()), syscall.SIGKILL)
			d.await("monitor", "failed")
			return err
		}},
		{"cancel", func(*daemonv1.Agent) error {
			if _, err := d.api.StopAgent(t.Context(), &daemonv1.StopAgentRequest{Agent: "cancel"}); err != nil {
				return err
			}
			return d.cancelExec("cancel", "brood", "role-brood")
		}},
		{"all", func(*daemonv1.Agent) error {
			_, err := d.sup.stopAll(t.Context())
			return err
		}},
	} {
		mark := fmt.Sprintf("9%d.%d%d", os.Getpid(), time.Now().UnixNano(), i)
		d.create(&daemonv1.CreateAgentRequest{
			Sandbox: string(level), Image: "brooder", Name: c.name, RuntimePath: attack,
			Envs: []*daemonv1.EnvVar{{Key: "OTTERS_ATTACK_TARGETS", Value: `{"survivor":"` + mark + `"}`}},
		})
		a := d.deaf(c.name)
		if n := len(marked(t, mark)); n < 5 {
			t.Errorf("%s: %d processes to survive, want 5", c.name, n)
		}
		if err := c.end(a); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		left := marked(t, mark)
		if c.name == "cancel" { // a client that has gone waits for nothing
			for end := time.Now().Add(patience); len(left) > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
				left = marked(t, mark)
			}
		}
		if c.name == "monitor" && level != sandbox.Strict {
			// Those in sessions of their own, which nobody else knows of; docs/supervision.md.
			left = slices.DeleteFunc(left, func(p string) bool { return !strings.Contains(p, "-group") && !strings.Contains(p, "-child") })
		}
		if len(left) > 0 {
			t.Errorf("%s: survivors: %q", c.name, left)
		}
		killMarked(t, mark)
	}
}

// cancelExec begins a BIN and gives the call up once it has said something.
func (d *testDaemon) cancelExec(agent, bin string, args ...string) error {
	ctx, cancel := context.WithCancel(d.t.Context())
	defer cancel()
	m, err := d.exec(ctx, agent, bin, args...).Recv()
	if err == nil && len(m.GetStdout()) == 0 {
		err = fmt.Errorf("it said %v", m)
	}
	return err
}

// K7: a runtime that floods its log, and one that takes every processor, hold up nobody else. How
// much slower the others are is for the benchmarks.
func TestOthersGoOnBesideAFloodAndASpin(t *testing.T) {
	t.Parallel()
	if os.Getenv("OTTERS_LOAD") == "" {
		t.Skip("it takes long; make load runs it")
	}
	home := newHome(t)
	writeHome(t, home, "config.yaml", "ready-timeout: 1h\nlog-max-size: 64KiB\nlog-files: 2\n")
	d := boot(t, home)
	d.image("guide", guide)
	for _, role := range []string{"flood", "spin"} {
		d.image(role, map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nEXEC [\"role-" + role + "\"]\n"})
		d.create(&daemonv1.CreateAgentRequest{Image: role, Name: role, RuntimePath: filepath.Join(built.For(t), "otters-attack")})
		d.deaf(role)
	}
	d.rotated("flood", 1)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "other"})
	d.await("other", "ready")
	for range 5 {
		if got := d.ask("other", "", "use wc -l on ../etc/data/lines.txt"); got.reason != "done" || len(got.results) != 1 {
			t.Errorf("turn: %+v", got)
		}
		if r, err := collect(d.exec(t.Context(), "other", "wc", "-l", "../etc/data/lines.txt")); err != nil || r.code != 0 {
			t.Errorf("exec: %+v, %v", r, err)
		}
	}
	// It floods still, and its log takes no more room.
	d.rotated("flood", d.rotations("flood")+1)
	files, err := filepath.Glob(d.sup.logPath(d.agent("flood").id) + "*")
	if err != nil || len(files) > 3 { // one may be on its way
		t.Errorf("files of the log: %q, %v", files, err)
	}
	for _, name := range []string{"flood", "spin"} {
		if a := d.get(name); a.GetPid() == 0 {
			t.Errorf("%s does not run any more: %v", name, a)
		}
	}
}
