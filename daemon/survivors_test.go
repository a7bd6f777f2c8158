package daemon

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// brood is a runtime that starts processes of every kind and goes on as text says.
func brood(t *testing.T, mark, text string) string {
	t.Helper()
	// A runtime's PATH has the agent's own tools alone.
	var paths [2]string
	for i, name := range []string{"sleep", "setsid"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		paths[i] = path
	}
	text = strings.ReplaceAll(text, "sleep", paths[0])
	return script(t, fmt.Sprintf("%[2]s %[1]s & %[3]s %[2]s %[1]s & (%[2]s %[1]s &) ; (trap '' TERM; %[3]s %[2]s %[1]s &) ; echo bred\n%[4]s", mark, paths[0], paths[1], text))
}

// bin makes a BIN image of a program.
func (d *testDaemon) bin(tag, program string) {
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
		Tags: []string{tag}, Name: tag, Programs: map[string]string{runtime.GOOS + "/" + runtime.GOARCH: "program"},
	}}}}
	for archive := tarOf(d.t, map[string]string{"program": string(code)}); len(archive) > 0; {
		n := min(len(archive), 64<<10)
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
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: filepath.Join(programsForTest(t), "otters-sandbox"), Warm: -1})
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
	attack := filepath.Join(programsForTest(t), "otters-attack")
	d.bin("brood", attack)
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
			for end := time.Now().Add(30 * time.Second); len(left) > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
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

// TestSoak lets agents be created, prompted, stopped and removed by many clients while runtimes and
// monitors are killed, for as long as OTTERS_SOAK says; `make soak-short` and `make soak` set it.
func TestSoak(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv("OTTERS_SOAK"))
	if err != nil {
		t.Skip("OTTERS_SOAK names no length of time, such as 30s")
	}
	s := newSoak(t)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() { s.client(ctx, i) })
	}
	all.Go(func() { s.faults(ctx) })
	all.Wait()
	s.finish()
}

type soak struct {
	*testDaemon
	mark    string
	runtime string
	mu      sync.Mutex
	calls   map[string]int
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	home := newHome(t)
	writeHome(t, home, "config.yaml", "max-starts: 4\nready-timeout: 2s\nlog-max-size: 64KiB\n")
	s := &soak{testDaemon: boot(t, home, quick, func(c *Config) { c.Logger = nil }), calls: make(map[string]int)}
	s.mark = fmt.Sprintf("8%d.%d", os.Getpid(), time.Now().UnixNano())
	s.image("guide", guide)
	s.image("later", guide)
	s.runtime = brood(t, s.mark, "while :; do echo still here; sleep 0.01; done")
	return s
}

// client does one call after the other, each on a random one of a few agents.
func (s *soak) client(ctx context.Context, seed int) {
	rnd := rand.New(rand.NewPCG(uint64(seed), 7))
	policies := []string{"no", "on-failure:3", "always", "unless-stopped"}
	for ctx.Err() == nil {
		name := fmt.Sprint("a", rnd.IntN(10))
		var err error
		op := []string{"create", "create", "start", "stop", "restart", "kill", "remove", "prompt", "list", "logs", "exec", "get"}[rnd.IntN(12)]
		switch op {
		case "create":
			req := &daemonv1.CreateAgentRequest{Image: []string{"guide", "later"}[rnd.IntN(2)], Name: name, Restart: policies[rnd.IntN(4)]}
			if rnd.IntN(4) == 0 {
				req.RuntimePath, req.Sandbox = s.runtime, "off" // never ready, with children
			}
			_, err = s.api.CreateAgent(ctx, req)
		case "start":
			_, err = s.api.StartAgent(ctx, &daemonv1.StartAgentRequest{Agent: name})
		case "stop":
			_, err = s.api.StopAgent(ctx, &daemonv1.StopAgentRequest{Agent: name})
		case "restart":
			_, err = s.api.RestartAgent(ctx, &daemonv1.RestartAgentRequest{Agent: name})
		case "kill":
			_, err = s.api.KillAgent(ctx, &daemonv1.KillAgentRequest{Agent: name})
		case "remove":
			_, err = s.api.RemoveAgent(ctx, &daemonv1.RemoveAgentRequest{Agent: name, Force: true})
		case "prompt":
			_, err = s.prompt(ctx, name, "", "use wc -l on ../etc/data/lines.txt")
		case "exec":
			_, err = collect(s.exec(ctx, name, "wc", "../etc/data/lines.txt"))
		case "logs":
			var stream daemonv1.DaemonService_LogsClient
			if stream, err = s.api.Logs(ctx, &daemonv1.LogsRequest{Agent: name}); err == nil {
				for err == nil {
					_, err = stream.Recv()
				}
				if err.Error() == "EOF" {
					err = nil
				}
			}
		case "list":
			_, err = s.api.ListAgents(ctx, &daemonv1.ListAgentsRequest{})
		case "get":
			_, err = s.api.GetAgent(ctx, &daemonv1.GetAgentRequest{Agent: name})
		}
		s.count(ctx, op, err)
	}
}

func (s *soak) count(ctx context.Context, op string, err error) {
	s.mu.Lock()
	s.calls[op+" "+status.Code(err).String()]++
	s.mu.Unlock()
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.Unavailable:
	default:
		if ctx.Err() == nil {
			s.t.Errorf("%s: %v", op, err)
		}
	}
}

// faults kills runtimes and monitors, and takes an image away and gives it back.
func (s *soak) faults(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(99, 1))
	for ctx.Err() == nil {
		select {
		case <-time.After(time.Duration(rnd.IntN(100)) * time.Millisecond):
		case <-ctx.Done():
			return
		}
		switch rnd.IntN(5) {
		case 0:
			if err := s.sup.images.store.Untag(ctx, "later:latest"); err != nil && ctx.Err() == nil {
				s.t.Logf("untag: %v", err)
			}
			if _, err := s.build("later", guide); err != nil && ctx.Err() == nil {
				s.t.Logf("build: %v", err)
			}
		default:
			all := s.sup.list()
			if len(all) == 0 {
				continue
			}
			p := all[rnd.IntN(len(all))].process()
			pid := []int{p.PID, p.PID, p.MonitorPID}[rnd.IntN(3)]
			if pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

// finish removes everything and looks for what is left.
func (s *soak) finish() {
	t := s.t
	// A removal whose client has gone goes on, and refuses another one.
	for deadline := time.Now().Add(60 * time.Second); len(s.sup.list()) > 0; time.Sleep(10 * time.Millisecond) {
		for _, a := range s.sup.list() {
			_, err := s.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: a.id.String(), Force: true})
			if c := status.Code(err); c != codes.OK && c != codes.NotFound && c != codes.FailedPrecondition || time.Now().After(deadline) {
				t.Fatalf("removal: %v", err)
			}
		}
	}
	t.Logf("calls: %v", s.calls)
	// What a killed monitor had left in sessions of their own.
	killMarked(t, s.mark)
	for _, folder := range []string{"agents", "logs"} {
		if left, err := filepath.Glob(filepath.Join(s.home, folder, "*-*-*")); err != nil || len(left) != 0 {
			t.Errorf("left in %s: %v, %v", folder, left, err)
		}
	}
	if rows, err := s.db.agents(t.Context()); err != nil || len(rows) != 0 {
		t.Errorf("rows left: %v, %v", rows, err)
	}
	for _, c := range childrenOf(t, os.Getpid()) {
		if strings.Contains(c.command, "wc") || strings.Contains(c.command, "runtime") {
			t.Errorf("child left: %+v", c)
		}
	}
	s.sup.starts.mu.Lock()
	defer s.sup.starts.mu.Unlock()
	if q := s.sup.starts; q.free != s.sup.settings.maxStarts || len(q.waiting) != 0 {
		t.Errorf("%d slots are free of %d, %d wait", q.free, s.sup.settings.maxStarts, len(q.waiting))
	}
}
