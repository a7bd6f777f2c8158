package daemon

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: limits are told as the kernel has them, by every daemon and for every start, and a wrong
// one makes no agent. Worst inputs: one below what starting takes, one above any machine, a negative
// one.

func TestLimitsAreKeptAndTold(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	first := boot(t, home)
	first.image("guide", guide)
	req := &daemonv1.CreateAgentRequest{Image: "guide", MemoryLimit: 1 << 30, PidsLimit: 500, CpuLimit: 4000}
	r, err := first.api.CreateAgent(t.Context(), req)
	if status.Code(err) == codes.InvalidArgument && strings.Contains(err.Error(), "no control group") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	first.await(r.GetAgent().GetName(), "ready")
	var before []string
	told := func(d *testDaemon) []string {
		var all []string
		for _, l := range d.get("guide").GetLimits() {
			all = append(all, l.String())
			if want := map[string]int64{"memory": 1 << 30, "pids": 500, "cpus": 4000}[l.GetName()]; l.GetValue() != want || l.GetMechanism() == "" {
				t.Errorf("limit %v", l)
			}
		}
		return all
	}
	if before = told(first); len(before) != 3 {
		t.Fatalf("limits %q", before)
	}
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	d := boot(t, home)
	d.await("guide", "ready")
	if got := told(d); !slices.Equal(got, before) {
		t.Errorf("the next daemon: %q, before %q", got, before)
	}
	if _, err := d.api.RestartAgent(t.Context(), &daemonv1.RestartAgentRequest{Agent: "guide"}); err != nil {
		t.Fatal(err)
	}
	d.await("guide", "ready")
	if got := told(d); !slices.Equal(got, before) {
		t.Errorf("after a restart: %q, before %q", got, before)
	}
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "free"})
	if l := d.get("free").GetLimits(); len(l) != 0 {
		t.Errorf("an agent without limits has %v", l)
	}
}

func TestWrongLimitsMakeNoAgent(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	for name, req := range map[string]*daemonv1.CreateAgentRequest{
		"at least 32m":    {MemoryLimit: 32<<20 - 1},
		"at most 1024t":   {MemoryLimit: 1<<50 + 1},
		"negative":        {MemoryLimit: -1},
		"at least 0.01":   {CpuLimit: 9},
		"at most 1024":    {CpuLimit: 1_024_001},
		"at least 16":     {PidsLimit: 15},
		"at most 4194304": {PidsLimit: 4_194_305},
	} {
		req.Image = "guide"
		if _, err := d.api.CreateAgent(t.Context(), req); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := d.api.ListAgents(t.Context(), &daemonv1.ListAgentsRequest{}); err != nil || len(r.GetAgents()) != 0 {
		t.Errorf("%v %v", r, err)
	}
}
