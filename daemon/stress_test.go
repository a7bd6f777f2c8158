package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: calls in any order at the same time end, each with an answer that fits, and leave
// nothing. Worst inputs: stop while starting, remove while prompting, start twice at once.

func TestCallsAtTheSameTimeEndAndLeaveNothing(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t), func(c *Config) { c.Logger = nil })
	d.image("guide", guide)
	const agents = 6
	fits := func(call string, err error) {
		switch status.Code(err) {
		case codes.OK, codes.FailedPrecondition, codes.NotFound, codes.AlreadyExists, codes.Unavailable:
		default:
			t.Errorf("%s: %v", call, err)
		}
	}
	var all sync.WaitGroup
	for i := range agents {
		name := fmt.Sprint("a", i)
		do := func(call string, f func() error) {
			all.Go(func() { fits(call, f()) })
		}
		if _, err := d.api.CreateAgent(t.Context(), &daemonv1.CreateAgentRequest{Image: "guide", Name: name}); err != nil {
			t.Fatal(err)
		}
		prompt := func() error {
			_, err := d.prompt(t.Context(), name, "", "count to 20")
			return err
		}
		stop := func() error {
			_, err := d.api.StopAgent(t.Context(), &daemonv1.StopAgentRequest{Agent: name})
			return err
		}
		start := func() error {
			_, err := d.api.StartAgent(t.Context(), &daemonv1.StartAgentRequest{Agent: name})
			return err
		}
		create := func() error {
			_, err := d.api.CreateAgent(t.Context(), &daemonv1.CreateAgentRequest{Image: "guide", Name: name})
			return err
		}
		list := func() error {
			_, err := d.api.ListAgents(t.Context(), &daemonv1.ListAgentsRequest{})
			return err
		}
		get := func() error {
			_, err := d.api.GetAgent(t.Context(), &daemonv1.GetAgentRequest{Agent: name})
			return err
		}
		if i%2 == 0 {
			d.await(name, "ready")
		}
		for _, call := range []struct {
			name string
			f    func() error
		}{
			{"prompt", prompt}, {"stop", stop}, {"start", start}, {"prompt", prompt}, {"create", create}, {"list", list}, {"get", get},
			{"start", start}, {"stop", stop}, {"prompt", prompt},
		} {
			do(call.name, call.f)
		}
	}
	all.Wait()
	for i := range agents {
		all.Go(func() {
			_, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: fmt.Sprint("a", i), Force: true})
			if err != nil {
				t.Errorf("removal: %v", err)
			}
		})
		all.Go(func() {
			_, err := d.prompt(t.Context(), fmt.Sprint("a", i), "", "count to 20")
			fits("prompt", err)
		})
	}
	all.Wait()
	list, err := d.api.ListAgents(t.Context(), &daemonv1.ListAgentsRequest{})
	if err != nil || len(list.GetAgents()) != 0 {
		t.Errorf("agents left: %v, %v", list, err)
	}
	for _, folder := range []string{"agents", "logs"} {
		left, err := filepath.Glob(filepath.Join(d.home, folder, "*-*-*"))
		if err != nil || len(left) != 0 {
			t.Errorf("left in %s: %v, %v", folder, left, err)
		}
	}
	if _, err := os.Stat(filepath.Join(d.home, "otters.db")); err != nil {
		t.Error(err)
	}
}
