package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: an agent sees what it is shown, or is refused with the reason. Worst inputs: a read-only
// mount that nothing would enforce, one over the agent's tools, one that is not there.

func TestAnAgentSeesItsMounts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "note"), []byte("from outside"), 0o644), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Mounts: []*daemonv1.Mount{{Host: dir, Target: "workspace/in", Description: "notes"}}})
	d.await("guide", "ready")
	if r, err := collect(d.exec(t.Context(), "guide", "cat", "in/note")); err != nil || r.out != "from outside" {
		t.Errorf("%+v, %v", r, err)
	}
	if m := d.get("guide").GetMounts(); len(m) != 1 || m[0].GetHost() != dir || m[0].GetDescription() != "notes" {
		t.Errorf("mounts %v", m)
	}
	if d.get("guide").GetConfinement().GetLevel() == "off" {
		d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "ro", Mounts: []*daemonv1.Mount{{Host: dir, Target: "mnt/in", ReadOnly: true}}})
		if s := d.await("ro", "failed"); s.GetReason() != "config" || !strings.Contains(s.GetMessage(), "read-only can't be enforced at sandbox level off") {
			t.Errorf("read-only at level off: %v", s)
		}
	}
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Name: "over", Mounts: []*daemonv1.Mount{{Host: dir, Target: "usr/bin"}}})
	if s := d.await("over", "failed"); s.GetReason() != "config" || !strings.Contains(s.GetMessage(), "a target lies below") {
		t.Errorf("over the tools: %v", s)
	}
	for name, m := range map[string]*daemonv1.Mount{
		"relative":   {Host: "x", Target: "mnt/x"},
		"no target":  {Host: dir},
		"not there":  {Host: "/nosuch/x", Target: "mnt/x"},
		"line break": {Host: dir, Target: "mnt/x", Description: "a\nb"},
	} {
		_, err := d.api.CreateAgent(t.Context(), &daemonv1.CreateAgentRequest{Image: "guide", Mounts: []*daemonv1.Mount{m}})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}
