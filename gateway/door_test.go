package gateway

import (
	"context"
	"net"
	"testing"

	"github.com/google/uuid"
)

// Invariant: a door on which nothing is under way is drained, however late that is asked. Worst input: a context that
// was done before.
func TestAQuietDoorIsDrainedWithoutTime(t *testing.T) {
	t.Parallel()
	g := New(Options{})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		d := newDoor(g, uuid.New(), l)
		drained := d.drain(over)
		_ = l.Close()
		if !drained {
			t.Fatal("nothing is under way, and something was cut off")
		}
	}
	if err := g.Close(over); err != nil {
		t.Error(err)
	}
}
