package egress

import (
	"net"
	"sync"
	"testing"
	"time"
)

// A connection that is closed while something moves on it is watched no more.
func TestAClosedConnectionIsNotWatched(t *testing.T) {
	t.Parallel()
	for range 500 {
		one, other := net.Pipe()
		w := newWatched(one, time.Hour, func() {})
		var both sync.WaitGroup
		both.Go(func() { _, _ = w.moved(1, nil) })
		both.Go(func() { _ = w.Close() })
		both.Wait()
		_ = other.Close()
		if w.timer.Stop() {
			t.Fatal("its timer runs")
		}
	}
}
