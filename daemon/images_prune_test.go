package daemon

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: prune takes nothing that an agent needs, running or stopped, and a dry run takes nothing
// at all. Worst inputs: an image without a name whose agent is stopped, a tool whose index is named and
// whose manifest alone the agent knows, the daemon's own tools, which it would not store again.

func (d *testDaemon) prune(req *daemonv1.PruneImagesRequest) *daemonv1.PruneImagesResponse {
	d.t.Helper()
	r, err := d.images().PruneImages(d.t.Context(), req)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

func (d *testDaemon) names() []string {
	d.t.Helper()
	refs, err := d.Daemon.images.store.References(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return refs
}

func TestPruneKeepsWhatAgentsNeed(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	store := d.Daemon.images.store
	own := d.names()
	if _, err := d.images().TagImage(t.Context(), &daemonv1.TagImageRequest{Image: "otters/tools/cat", Name: "my/cat:1"}); err != nil {
		t.Fatal(err)
	}
	d.image("kept:1", map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nNAME kept\nBIN cat my/cat:1\n"})
	d.image("unused:1", map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nNAME unused\n"})
	d.image("gone:1", map[string]string{"Agentfile": "FROM scratch\nMODEL offline/otter\nNAME gone\n"})
	a := d.create(&daemonv1.CreateAgentRequest{Image: "kept:1", Name: "a"})
	d.await("a", "ready")
	d.halt("a")
	gone, unused := d.digest("gone:1"), d.digest("unused:1")
	for _, ref := range []string{"kept:1", "gone:1"} {
		if err := store.Untag(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}

	if r := d.prune(&daemonv1.PruneImagesRequest{}); r.GetManifests() != 0 || r.GetFresh() == 0 {
		t.Errorf("within the grace: %v", r)
	}
	// What was pushed within this second is not collected yet.
	told := d.eventually(&daemonv1.PruneImagesRequest{DryRun: true, GraceSeconds: new(int64)})
	if told.GetManifests() != 1 || told.GetBytes() == 0 || len(told.GetReferences()) != 0 || d.digest("gone@"+gone) == "" {
		t.Errorf("dry run: %v", told)
	}
	if r := d.prune(&daemonv1.PruneImagesRequest{GraceSeconds: new(int64)}); r.GetManifests() != told.GetManifests() || r.GetBytes() != told.GetBytes() {
		t.Errorf("%v, told was %v", r, told)
	}
	if d.digest("gone@"+gone) != "" || d.digest("unused:1") != unused || d.digest("kept@"+a.GetDigest()) == "" {
		t.Error("not the image without a name and an agent alone")
	}

	told = d.prune(&daemonv1.PruneImagesRequest{All: true, DryRun: true, GraceSeconds: new(int64)})
	if !slices.Equal(told.GetReferences(), []string{"unused:1"}) || d.digest("unused:1") != unused {
		t.Errorf("dry run of all: %v", told)
	}
	r := d.prune(&daemonv1.PruneImagesRequest{All: true, GraceSeconds: new(int64)})
	if !slices.Equal(r.GetReferences(), []string{"unused:1"}) || r.GetManifests() != told.GetManifests() || r.GetBytes() != told.GetBytes() || r.GetManifests() != 1 {
		t.Errorf("%v, told was %v", r, told)
	}
	want := append(slices.Clone(own), "my/cat:1")
	slices.Sort(want)
	if got := d.names(); !slices.Equal(got, want) || d.digest("unused@"+unused) != "" {
		t.Errorf("names left: %q, want %q", got, want)
	}
	d.begin("a")
	if _, err := d.api.RemoveAgent(t.Context(), &daemonv1.RemoveAgentRequest{Agent: "a", Force: true}); err != nil {
		t.Fatal(err)
	}
	if r := d.prune(&daemonv1.PruneImagesRequest{All: true}); !slices.Equal(r.GetReferences(), []string{"my/cat:1"}) {
		t.Errorf("without the agent: %v", r)
	}
	if d.eventually(&daemonv1.PruneImagesRequest{GraceSeconds: new(int64)}); d.digest("kept@"+a.GetDigest()) != "" {
		t.Error("the image of the agent that was removed is still there")
	}
	for _, seconds := range []int64{-1, 86401} {
		if _, err := d.images().PruneImages(t.Context(), &daemonv1.PruneImagesRequest{GraceSeconds: &seconds}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("grace of %d seconds: %v", seconds, err)
		}
	}
}

// eventually prunes until something went.
func (d *testDaemon) eventually(req *daemonv1.PruneImagesRequest) *daemonv1.PruneImagesResponse {
	d.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if r := d.prune(req); r.GetManifests() > 0 || time.Now().After(deadline) {
			return r
		}
	}
}
