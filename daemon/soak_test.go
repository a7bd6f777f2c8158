package daemon

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: whatever is done to the daemon's world while it is busy, every call has an answer that
// fits, and nothing is left. Worst inputs: a full disk while an agent is created, a blob that is not
// what it was, a monitor that does not answer.

// TestSoak lets agents be created, prompted, stopped and removed by many clients while faults are
// injected at random, for as long as OTTERS_SOAK says; `make soak-short` and `make soak` set it. A
// run prints its seed; OTTERS_SEED makes another draw the same.
func TestSoak(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv("OTTERS_SOAK"))
	if err != nil {
		t.Skip("OTTERS_SOAK names no length of time, such as 30s")
	}
	seed := rand.Uint64()
	if text := os.Getenv("OTTERS_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("OTTERS_SEED=%d", seed)
	s := newSoak(t)
	// Without a deadline, which a call may come to before the context does.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	timer := time.AfterFunc(d, cancel)
	defer timer.Stop()
	var all sync.WaitGroup
	for i := range uint64(8) {
		all.Go(func() { s.client(ctx, rand.New(rand.NewPCG(seed, 1+i))) })
	}
	all.Go(func() { s.inject(ctx, rand.New(rand.NewPCG(seed, 0))) })
	all.Wait()
	s.finish()
}

type soak struct {
	*testDaemon
	mark    string
	runtime string
	// disk is why the home has no disk of its own; nil where it has.
	disk error

	mu sync.Mutex
	// counts are of calls by their answer, and of faults.
	counts map[string]int
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	home := emptyHome(t) // its blobs are broken, and nobody else's
	disk := ownDisk(t, filepath.Dir(home))
	writeHome(t, home, "config.yaml", "max-starts: 4\nready-timeout: 2s\nlog-max-size: 64KiB\n")
	s := &soak{testDaemon: boot(t, home, quick, func(c *Config) { c.Logger = nil }), disk: disk, counts: make(map[string]int)}
	s.mark = fmt.Sprintf("8%d.%d", os.Getpid(), time.Now().UnixNano())
	s.image("guide", guide)
	s.image("later", guide)
	// Large enough to be a blob in a file.
	large := maps.Clone(guide)
	large["Agentfile"] += "ADD large.bin\n"
	large["large.bin"] = strings.Repeat(s.mark, 20_000)
	s.image("large", large)
	s.runtime = brood(t, s.mark, "while :; do echo still here; sleep 0.01; done")
	return s
}

// client does one call after the other, each on a random one of a few agents.
func (s *soak) client(ctx context.Context, rnd *rand.Rand) {
	policies := []string{"no", "on-failure:3", "always", "unless-stopped"}
	for ctx.Err() == nil {
		name := fmt.Sprint("a", rnd.IntN(10))
		var err error
		op := []string{"create", "create", "start", "stop", "restart", "kill", "remove", "prompt", "list", "logs", "exec", "get"}[rnd.IntN(12)]
		switch op {
		case "create":
			req := &daemonv1.CreateAgentRequest{Image: []string{"guide", "later", "large"}[rnd.IntN(3)], Name: name, Restart: policies[rnd.IntN(4)]}
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
	s.note(op + " " + status.Code(err).String())
	switch status.Code(err) {
	case codes.OK, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.Unavailable:
	case codes.ResourceExhausted: // a full disk
	default:
		if ctx.Err() == nil {
			s.t.Errorf("%s: %v", op, err)
		}
	}
}

func (s *soak) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// finish removes everything and looks for what is left.
func (s *soak) finish() {
	t := s.t
	// A removal whose client has gone goes on, and refuses another one.
	for deadline := time.Now().Add(patience); len(s.sup.list()) > 0; time.Sleep(10 * time.Millisecond) {
		for _, a := range s.sup.list() {
			_, err := s.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: a.id.String(), Force: true})
			if c := status.Code(err); c != codes.OK && c != codes.NotFound && c != codes.FailedPrecondition || time.Now().After(deadline) {
				t.Fatalf("removal: %v", err)
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(s.counts)) {
		t.Logf("%s: %d", what, s.counts[what])
	}
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
	// What ran for a client that has gone may be about to end.
	for deadline := time.Now().Add(patience); len(s.children()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("children left: %+v", s.children())
			break
		}
	}
	s.sup.starts.mu.Lock()
	defer s.sup.starts.mu.Unlock()
	if q := s.sup.starts; q.free != s.sup.settings.maxStarts || len(q.waiting) != 0 {
		t.Errorf("%d slots are free of %d, %d wait", q.free, s.sup.settings.maxStarts, len(q.waiting))
	}
}

// children are those of this process that run a program of an agent.
func (s *soak) children() []child {
	// A folder may have any name.
	folders := strings.NewReplacer(built.For(s.t), "", s.home, "")
	return slices.DeleteFunc(childrenOf(s.t, os.Getpid()), func(c child) bool {
		command := folders.Replace(c.command)
		return !strings.Contains(command, "wc") && !strings.Contains(command, "runtime")
	})
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
