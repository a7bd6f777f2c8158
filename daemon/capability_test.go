package daemon

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: a capability that the runtime does not provide is an error at create that names it, and
// leaves no agent behind; one that it provides is granted.
func TestACapabilityThatNothingProvidesIsRefusedAtCreate(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	for tag, capabilities := range map[string]string{"good": "notes note-get", "bad": "notes sudo"} {
		d.image(tag, map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nCAPABILITY " + capabilities + "\n"})
	}
	_, err := d.api.CreateAgent(t.Context(), &daemonv1.CreateAgentRequest{Image: "bad"})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "CAPABILITY sudo: the runtime does not provide it; there are notes, note_list, note_get, note_save, note_delete, note_pin") {
		t.Errorf("error %v", err)
	}
	list, err := d.api.ListAgents(t.Context(), &daemonv1.ListAgentsRequest{})
	if err != nil || len(list.GetAgents()) != 0 {
		t.Errorf("agents %v, error %v", list, err)
	}
	if a := d.create(&daemonv1.CreateAgentRequest{Image: "good"}); a.GetId() == "" {
		t.Errorf("agent %v", a)
	}
}
