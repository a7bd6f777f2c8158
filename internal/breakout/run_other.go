//go:build !linux

package breakout

import (
	"context"
	"fmt"

	"github.com/otters-sh/otters/sandbox"
)

// Run returns an error: the sandbox needs Linux.
func Run(context.Context, Options) ([]Report, error) {
	return nil, fmt.Errorf("attack: %w: it needs Linux", sandbox.ErrUnsupported)
}
