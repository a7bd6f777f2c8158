package daemon

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: notes are those of the running runtime, each call bounded. Worst inputs: a key that is none,
// a note over its limit, an agent that is stopped.

func TestNotesOfARunningAgent(t *testing.T) {
	t.Parallel()
	d := boot(t, newHome(t))
	d.image("guide", guide)
	d.create(&daemonv1.CreateAgentRequest{Image: "guide", Configs: map[string]string{"notes-max-bytes-per": "10", "notes-max-count": "2", "prompt-budget": "1024"}})
	d.await("guide", "ready")
	// What its runtime says is to be known is told of a running agent.
	if got := d.get("guide").GetWarnings(); len(got) != 1 || !strings.Contains(got[0], "over the prompt-budget of 1024") {
		t.Errorf("warnings %q", got)
	}
	c := d.talk()
	ctx := t.Context()
	set := func(key, content string) (*daemonv1.SetNoteResponse, error) {
		return c.SetNote(ctx, &daemonv1.SetNoteRequest{Agent: "guide", Key: key, Content: content})
	}
	for _, key := range []string{"river", "b"} {
		if r, err := set(key, "Severn"); err != nil || r.GetOverwrote() || r.GetNote().GetContent() != "Severn" {
			t.Errorf("%v, %v", r, err)
		}
	}
	if r, err := set("river", "Thames"); err != nil || !r.GetOverwrote() {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := c.PinNote(ctx, &daemonv1.PinNoteRequest{Agent: "guide", Key: "river"}); err != nil || !r.GetNote().GetPinned() {
		t.Errorf("%v, %v", r, err)
	}
	list := func(pinned bool) string {
		r, err := c.ListNotes(ctx, &daemonv1.ListNotesRequest{Agent: "guide", OnlyPinned: pinned})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, n := range r.GetNotes() {
			out = append(out, n.GetKey()+"="+n.GetPreview()+n.GetContent())
		}
		return strings.Join(out, " ")
	}
	if all, pinned := list(false), list(true); all != "b=Severn river=Thames" || pinned != "river=Thames" {
		t.Errorf("%s; pinned %s", all, pinned)
	}
	if r, err := c.PinNote(ctx, &daemonv1.PinNoteRequest{Agent: "guide", Key: "river", Unpin: true}); err != nil || r.GetNote().GetPinned() {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := c.GetNote(ctx, &daemonv1.GetNoteRequest{Agent: "guide", Key: "river"}); err != nil || r.GetNote().GetContent() != "Thames" {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := c.RemoveNote(ctx, &daemonv1.RemoveNoteRequest{Agent: "guide", Key: "b"}); err != nil {
		t.Error(err)
	}
	for what, x := range map[string]struct {
		err  error
		want codes.Code
	}{
		"get":      {second(c.GetNote(ctx, &daemonv1.GetNoteRequest{Agent: "guide", Key: "b"})), codes.NotFound},
		"remove":   {second(c.RemoveNote(ctx, &daemonv1.RemoveNoteRequest{Agent: "guide", Key: "b"})), codes.NotFound},
		"pin":      {second(c.PinNote(ctx, &daemonv1.PinNoteRequest{Agent: "guide", Key: "b"})), codes.NotFound},
		"bad key":  {second(set("B", "x")), codes.InvalidArgument},
		"over":     {second(set("river", "eleven byte")), codes.FailedPrecondition},
		"far over": {second(set("river", strings.Repeat("x", maxNoteBytes+1))), codes.InvalidArgument},
	} {
		if status.Code(x.err) != x.want {
			t.Errorf("%s: %v, want %s", what, x.err, x.want)
		}
	}
	if got := list(false); got != "river=Thames" {
		t.Errorf("left is %s", got)
	}
	d.halt("guide")
	if _, err := c.GetNote(ctx, &daemonv1.GetNoteRequest{Agent: "guide", Key: "river"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "is stopped") {
		t.Errorf("of a stopped agent: %v", err)
	}
	d.halt("guide")
	if got := d.get("guide").GetWarnings(); len(got) != 0 {
		t.Errorf("warnings of a stopped agent: %q", got)
	}
}

// Warnings come from an agent's runtime, which may say what it likes.
func TestWarningsAreKeptShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 1000)
	got := shortened(append([]string{"a\nb", "\xff" + long, strings.Repeat("x\n", maxWarning)}, make([]string, 100)...))
	if len(got) != maxWarnings || got[0] != "a; b" || len(got[2]) != maxWarning || !strings.HasPrefix(long, got[1]) || len(got[1]) < maxWarning-4 || len(got[1]) > maxWarning {
		t.Errorf("%d warnings, %q, %d bytes", len(got), got[0], len(got[1]))
	}
}
