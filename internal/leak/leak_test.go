package leak_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/otters-sh/otters/internal/leak"
)

// Invariant: a goroutine that ends is waited for, and tests that failed stay failed. What one that does not end is
// told as is goleak's own matter, and would take minutes here.
func TestWhatEndsIsWaitedFor(t *testing.T) {
	before := goleak.IgnoreCurrent()
	end := make(chan struct{})
	go func() { <-end }()
	if err := goleak.Find(before); err == nil {
		t.Fatal("the goroutine is not seen")
	}
	close(end)
	if err := leak.Find(before); err != nil {
		t.Error(err)
	}
	if code := leak.Code(3); code != 3 {
		t.Errorf("tests that failed with 3 end with %d", code)
	}
}
