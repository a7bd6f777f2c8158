// Package leak finds goroutines that tests have left. It is for tests.
package leak

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines that are about to end may take, on however slow a machine. One search of
// goleak's waits for less than half a second.
const patience = 5 * time.Minute

// Find waits until there is no goroutine but those that may be, and tells of those that are left after five minutes.
func Find(options ...goleak.Option) error {
	for end := time.Now().Add(patience); ; {
		err := goleak.Find(options...)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// Code is the exit code of tests that ended with code: 1, and a word on standard error, where they passed and left
// goroutines.
func Code(code int) int {
	if code != 0 {
		return code
	}
	if err := Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
