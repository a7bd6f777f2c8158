package daemon

import (
	"math/rand/v2"
	"slices"
	"testing"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: never more start at once than there are slots, in the order in which they came, and a slot
// that is given back is given on. Worst inputs: one that leaves while it waits, one that never gets
// ready, an agent that runs and is not to hold a slot.

func TestStartsAreGrantedInOrderAndNeverTooMany(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		slots := 1 + rnd.IntN(4)
		q := newStartQueue(slots)
		var holding, waiting []*startTurn
		for range 300 {
			switch n := rnd.IntN(3); {
			case n == 0 || len(holding)+len(waiting) == 0:
				waiting = append(waiting, q.join())
			case n == 1 && len(holding) > 0:
				i := rnd.IntN(len(holding))
				holding[i].leave()
				holding[i].leave() // twice is once
				holding = slices.Delete(holding, i, i+1)
			case len(waiting) > 0:
				i := rnd.IntN(len(waiting))
				waiting[i].leave()
				waiting = slices.Delete(waiting, i, i+1)
			}
			for len(holding) < slots && len(waiting) > 0 {
				holding, waiting = append(holding, waiting[0]), waiting[1:]
			}
			for _, h := range holding {
				if h.place() != 0 || h.wait(t.Context()) != nil {
					t.Fatalf("seed %d: one that came first has no slot", seed)
				}
			}
			for i, w := range waiting {
				select {
				case <-w.granted:
					t.Fatalf("seed %d: more than %d slots", seed, slots)
				default:
				}
				if w.place() != i+1 {
					t.Fatalf("seed %d: place %d, want %d", seed, w.place(), i+1)
				}
			}
		}
	}
}

func TestStartsBeyondTheNumberWaitInOrder(t *testing.T) {
	t.Parallel()
	home := newHome(t)
	writeHome(t, home, "config.yaml", "max-starts: 1\nready-timeout: 1h\n")
	d := boot(t, home)
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "runs"})
	d.await("runs", "ready")
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "again"})
	d.await("again", "ready")
	d.halt("again")
	// This one starts for ever and holds the slot, which the running one does not.
	d.create(&daemonv1.CreateAgentRequest{Sandbox: "off", Image: "guide", Name: "slow", RuntimePath: script(t, stubborn)})
	d.deaf("slow")
	for _, name := range []string{"first", "second"} {
		d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: name})
	}
	if _, err := d.api.StartAgent(t.Context(), &daemonv1.StartAgentRequest{Agent: "again"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		status string
		place  int32
	}{"runs": {"ready", 0}, "slow": {"starting", 0}, "first": {"pulling", 1}, "second": {"pulling", 2}, "again": {"starting", 3}} {
		if s := d.get(name).GetSummary(); s.GetStatus() != want.status || s.GetQueuePlace() != want.place {
			t.Errorf("%s: %v, want %v", name, s, want)
		}
	}
	d.ask("runs", "", "who are you")
	if r, err := d.api.StopAgent(t.Context(), &daemonv1.StopAgentRequest{Agent: "first"}); err != nil || r.GetAgent().GetStatus() != "stopped" || r.GetAgent().GetQueuePlace() != 0 {
		t.Errorf("stop of one that waits: %v, %v", r, err)
	}
	if s := d.get("again").GetSummary(); s.GetQueuePlace() != 2 {
		t.Errorf("after that: %v", s)
	}
	if _, err := d.api.KillAgent(t.Context(), &daemonv1.KillAgentRequest{Agent: "slow"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"second", "again"} {
		if s := d.await(name, "ready"); s.GetQueuePlace() != 0 {
			t.Errorf("%v", s)
		}
	}
	d.begin("first")
}
