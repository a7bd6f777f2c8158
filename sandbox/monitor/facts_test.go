//go:build linux

package monitor

import (
	"errors"
	"testing"
	"time"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

// Invariant: what is read back is what the program has, not what its exec has yet to take away. The
// three worst inputs: an exec that is slower than whoever waits for it, capabilities that stay, and a
// process that is gone.
func TestFactsAreThoseAfterTheExec(t *testing.T) {
	t.Parallel()
	const before = 0xc0
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		caps   []uint64 // of one reading after another, the last for good
		err    error
		within time.Duration
		want   uint64
	}{
		"at once":         {[]uint64{0}, nil, time.Minute, 0},
		"a slow exec":     {[]uint64{before, before, before, 0}, nil, time.Minute, 0},
		"they stay":       {[]uint64{before}, nil, 5 * time.Millisecond, before},
		"nothing to wait": {[]uint64{before, 0}, nil, 0, before},
		"it is gone":      {[]uint64{before}, gone, time.Minute, before},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reads := 0
			f, err := settled(func() (wire.Facts, error) {
				now := c.caps[min(reads, len(c.caps)-1)]
				reads++
				return wire.Facts{Caps: now}, c.err
			}, c.within)
			if f.Caps != c.want || !errors.Is(err, c.err) {
				t.Errorf("%#x %v, want %#x %v", f.Caps, err, c.want, c.err)
			}
		})
	}
}
