package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/system"
)

// Invariant: an agent is started again exactly where its policy says so, never before its pause and
// never after the operator stopped it; every attempt is told. Worst inputs: an agent that ends
// without end, a stop between two attempts, a daemon that goes between two attempts.

func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	failed, clean, final, stable := runEnd{}, runEnd{clean: true}, runEnd{final: true}, runEnd{stable: stableTime}
	for _, c := range []struct {
		policy   string
		end      runEnd
		attempts int
		n        int
	}{
		{"", failed, 0, 0}, {"no", failed, 0, 0}, {"no", clean, 0, 0},
		{"on-failure", failed, 0, 1}, {"on-failure", failed, 41, 42}, {"on-failure", clean, 0, 0}, {"on-failure", final, 0, 0},
		{"on-failure:2", failed, 0, 1}, {"on-failure:2", failed, 1, 2}, {"on-failure:2", failed, 2, 0},
		{"on-failure:2", stable, 2, 1},
		{"always", failed, 3, 4}, {"always", clean, 0, 1}, {"always", final, 0, 0}, {"always", stable, 7, 1},
		{"unless-stopped", failed, 3, 4}, {"unless-stopped", clean, 0, 1}, {"unless-stopped", final, 0, 0},
	} {
		p, err := parseRestart(c.policy)
		if err != nil {
			t.Fatal(err)
		}
		if n, again := p.after(c.end, c.attempts); n != c.n || again != (c.n > 0) {
			t.Errorf("%s after %+v and %d attempts: %d, %v; want %d", p, c.end, c.attempts, n, again, c.n)
		}
	}
	for policy, want := range map[string][2]bool{ // stopped by the operator, and not
		"no": {false, false}, "on-failure": {false, false}, "always": {true, true}, "unless-stopped": {false, true},
	} {
		p, _ := parseRestart(policy)
		if got := [2]bool{p.atLoad(false), p.atLoad(true)}; got != want {
			t.Errorf("%s at load: %v, want %v", policy, got, want)
		}
	}
	for _, s := range []string{"never", "on-failure:", "on-failure:0", "on-failure:-1", "on-failure:01", "on-failure:1000001", "always:1", "no:", "ALWAYS", " no"} {
		if p, err := parseRestart(s); err == nil {
			t.Errorf("%q is read as %s", s, p)
		}
	}
	for _, s := range []string{"no", "on-failure", "on-failure:1000000", "always", "unless-stopped"} {
		if p, err := parseRestart(s); err != nil || p.String() != s {
			t.Errorf("%q: %s, %v", s, p, err)
		}
	}
}

func TestThePauseGrowsWithinItsBounds(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		first := time.Duration(1 + rnd.Int64N(int64(time.Minute)))
		b := backoff{first: first, max: first + time.Duration(rnd.Int64N(int64(time.Hour))), random: rnd.Float64}
		n := 1 + rnd.IntN(1<<30)
		if d := b.pause(n); d < b.first/2 || d > b.max {
			t.Fatalf("%+v: pause %d is %s", b, n, d)
		}
		// Without the random part it never shrinks, and it doubles until it is at its bound.
		b.random = func() float64 { return 0 }
		n = 1 + rnd.IntN(40)
		one, two := b.pause(n), b.pause(n+1)
		if two != min(2*one, b.max) {
			t.Fatalf("%+v: pauses %d and %d are %s and %s", b, n, n+1, one, two)
		}
	}
}

func TestWhatAnotherStartCanNotMend(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason executor.FailureReason
		err    error
		want   bool
	}{
		{executor.FailureCrashed, system.ErrCrashed, true},
		{executor.FailureReadinessTimeout, nil, true},
		{executor.FailureModel, fmt.Errorf("%w: no such provider", system.ErrModel), true},
		{executor.FailurePull, fmt.Errorf("%w: %w", system.ErrPull, executor.ErrRefNotFound), true},
		{executor.FailureInit, fs.ErrPermission, true},
		{executor.FailureConfig, nil, false},
		{executor.FailurePull, fmt.Errorf("%w: %w", system.ErrPull, agentoci.ErrUnsafe), false},
		{executor.FailureInit, fmt.Errorf("start: %w", syscall.ENOEXEC), false},
		{executor.FailureInit, fmt.Errorf("run: %w", system.ErrRemoved), false},
	} {
		if got := recoverable(c.reason, c.err); got != c.want {
			t.Errorf("%s, %v: %v", c.reason, c.err, got)
		}
	}
}

// quick makes restarts follow within milliseconds.
func quick(c *Config) {
	c.backoff = backoff{first: 2 * time.Millisecond, max: 4 * time.Millisecond, random: rand.Float64}
}

// slow makes a restart one that a test sees due and never begun.
func slow(c *Config) {
	c.backoff = backoff{first: time.Hour, max: time.Hour, random: func() float64 { return 0 }}
}

// counting is a runtime that adds a line to a file at each start before it goes on with text.
func counting(t *testing.T, text string) (path string, starts func() int) {
	t.Helper()
	count := filepath.Join(t.TempDir(), "starts")
	if err := errors.Join(os.WriteFile(count, nil, 0o666), os.Chmod(count, 0o666), os.Chmod(filepath.Dir(count), 0o755), os.Chmod(filepath.Dir(filepath.Dir(count)), 0o755)); err != nil {
		t.Fatal(err)
	}
	return script(t, "echo x >> "+count+"\n"+text), func() int {
		b, err := os.ReadFile(count)
		if err != nil {
			t.Error(err)
		}
		return strings.Count(string(b), "x")
	}
}

// settled waits until no restart is due and nothing starts.
func (d *testDaemon) settled(agent string) *daemonv1.AgentSummary {
	d.t.Helper()
	return d.until(agent, func(s *daemonv1.AgentSummary) bool {
		return (s.GetStatus() == "failed" || s.GetStatus() == "stopped") && s.GetNextTryAtMs() == 0
	})
}

// until watches agent until it is as wanted.
func (d *testDaemon) until(agent string, as func(*daemonv1.AgentSummary) bool) *daemonv1.AgentSummary {
	d.t.Helper()
	stream, err := d.api.WatchAgent(d.t.Context(), &daemonv1.WatchAgentRequest{Agent: agent})
	if err != nil {
		d.t.Fatal(err)
	}
	deadline := time.AfterFunc(patience, func() { d.t.Errorf("agent %s does not get there", agent); d.end() })
	defer deadline.Stop()
	for {
		m, err := stream.Recv()
		if err != nil {
			d.t.Fatalf("agent %s: %v", agent, err)
		}
		if as(m.GetAgent()) {
			return m.GetAgent()
		}
	}
}

func TestAnAgentThatFailsIsStartedAgainAsItsPolicySays(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t), quick)
	d.image("guide", guide)
	for _, c := range []struct {
		policy, text string
		starts       int
		last         string
	}{
		{"no", "exit 7", 1, "crashed: "},
		{"on-failure:3", "echo boom >&2; exit 7", 4, "crashed: runtime crashed: exit code 7: boom"},
		{"on-failure:1", "kill -9 $$", 2, "crashed: runtime crashed: SIGKILL"},
		{"on-failure", "exit 0", 1, "crashed: runtime crashed: exit code 0"},
		{"always", "exit 78", 1, "config: "},
	} {
		name := strings.NewReplacer(":", "-").Replace(c.policy)
		path, starts := counting(t, c.text)
		d.create(&daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", Name: name, RuntimePath: path, Restart: c.policy})
		s := d.settled(name)
		if got := starts(); got != c.starts || int(s.GetAttempts()) != c.starts-1 {
			t.Errorf("%s: %d starts and %d attempts; want %d starts", c.policy, got, s.GetAttempts(), c.starts)
		}
		if a := d.get(name); a.GetRestart() != c.policy || !strings.HasPrefix(a.GetLastFailure(), c.last) {
			t.Errorf("%s: policy %q, last failure %q; want %q", c.policy, a.GetRestart(), a.GetLastFailure(), c.last)
		}
	}
	// What the operator starts begins a new row of attempts.
	if _, err := d.api.StartAgent(t.Context(), &daemonv1.StartAgentRequest{Agent: "on-failure-3"}); err != nil {
		t.Fatal(err)
	}
	if s := d.settled("on-failure-3"); s.GetAttempts() != 3 {
		t.Errorf("after another start: %v", s)
	}
}

func TestAModelThatComesAndARuntimeThatAnswersLaterEndTheRow(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	d := boot(t, home, quick)
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Model: "scripted/m", Restart: "on-failure"})
	d.until("guide", func(s *daemonv1.AgentSummary) bool { return s.GetAttempts() > 2 })
	scripted(t, home, nil)
	s := d.until("guide", func(s *daemonv1.AgentSummary) bool { return s.GetStatus() == "ready" })
	if s.GetAttempts() < 2 || s.GetNextTryAtMs() != 0 {
		t.Errorf("once ready: %v", s)
	}
	if a := d.get("guide"); !strings.HasPrefix(a.GetLastFailure(), "model: ") {
		t.Errorf("last failure %q", a.GetLastFailure())
	}
}

func TestAStopCallsOffWhatIsDue(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t), slow)
	d.image("guide", guide)
	for _, policy := range []string{"always", "unless-stopped", "on-failure"} {
		path, starts := counting(t, "exit 1")
		d.create(&daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", Name: policy, RuntimePath: path, Restart: policy})
		s := d.until(policy, func(s *daemonv1.AgentSummary) bool { return s.GetNextTryAtMs() > 0 })
		if s.GetStatus() != "failed" || s.GetAttempts() != 1 {
			t.Errorf("%s: %v", policy, s)
		}
		r, err := d.api.StopAgent(t.Context(), &daemonv1.StopAgentRequest{Agent: policy})
		if err != nil || r.GetAgent().GetNextTryAtMs() != 0 || starts() != 1 {
			t.Errorf("%s after the stop: %v, %v, %d starts", policy, r, err, starts())
		}
		if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: policy}); err != nil {
			t.Errorf("%s: %v", policy, err)
		}
	}
}

func TestTheNextDaemonStartsWhatThePolicySays(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	first := boot(t, home, slow)
	first.image("guide", guide)
	due, dueStarts := counting(t, "exit 1")
	for name, req := range map[string]*daemonv1.CreateAgentRequest{
		"due":             {Sandbox: "off", RuntimePath: due, Restart: "on-failure"},
		"no":              {Restart: "no"},
		"on-failure":      {Restart: "on-failure"},
		"unless-stopped":  {Restart: "unless-stopped"},
		"stopped":         {Restart: "unless-stopped"},
		"always":          {Restart: "always"},
		"killed":          {Restart: "on-failure"},
		"killed-for-good": {Restart: "no"},
	} {
		req.Image, req.Name = "guide", name
		first.create(req)
	}
	for _, name := range []string{"no", "on-failure", "unless-stopped", "stopped", "always", "killed", "killed-for-good"} {
		first.await(name, "ready")
	}
	was := first.until("due", func(s *daemonv1.AgentSummary) bool { return s.GetNextTryAtMs() > 0 })
	killed, forGood := first.get("killed"), first.get("killed-for-good")
	for _, name := range []string{"stopped", "always"} {
		first.halt(name)
	}
	for _, name := range []string{"no", "on-failure", "unless-stopped"} {
		if err := first.agent(name).halt(t.Context()); err != nil { // as --stop-agents does
			t.Fatal(err)
		}
	}
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	dead := processes(t, killed.GetPid(), killed.GetMonitorPid(), forGood.GetPid(), forGood.GetMonitorPid())
	for _, pid := range []int32{killed.GetPid(), forGood.GetPid()} {
		if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	dead.gone(t)

	second := boot(t, home, quick)
	for _, name := range []string{"unless-stopped", "always", "killed"} {
		second.until(name, func(s *daemonv1.AgentSummary) bool { return s.GetStatus() == "ready" })
	}
	if a := second.get("killed"); a.GetSummary().GetAttempts() != 1 || !strings.Contains(a.GetLastFailure(), "SIGKILL") {
		t.Errorf("killed: %v, %q", a.GetSummary(), a.GetLastFailure())
	}
	for name, want := range map[string]string{"no": "stopped", "on-failure": "stopped", "stopped": "stopped", "killed-for-good": "failed"} {
		if s := second.get(name).GetSummary(); s.GetStatus() != want || s.GetNextTryAtMs() != 0 {
			t.Errorf("%s: %v, want %s", name, s, want)
		}
	}
	if s := second.get("due").GetSummary(); s.GetNextTryAtMs() != was.GetNextTryAtMs() || s.GetAttempts() != 1 || dueStarts() != 1 {
		t.Errorf("due: %v, before %v; %d starts", s, was, dueStarts())
	}
}

// agent is the supervised agent of that name.
func (d *testDaemon) agent(name string) *supervised {
	d.t.Helper()
	a, err := d.sup.lookup(name)
	if err != nil {
		d.t.Fatal(err)
	}
	return a
}

func TestABadPolicyLeavesNoAgent(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	if _, err := d.api.CreateAgent(t.Context(), &daemonv1.CreateAgentRequest{Image: "guide", Restart: "sometimes"}); err == nil || !strings.Contains(err.Error(), "want no, on-failure[:N], always or unless-stopped") {
		t.Errorf("got %v", err)
	}
	if list, err := d.api.ListAgents(t.Context(), &daemonv1.ListAgentsRequest{}); err != nil || len(list.GetAgents()) != 0 {
		t.Errorf("agents %v, %v", list, err)
	}
}
