package daemon

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/system"
)

// restartMode is when an agent that ended is started again.
type restartMode string

const (
	restartNo            restartMode = "no"
	restartOnFailure     restartMode = "on-failure"
	restartAlways        restartMode = "always"
	restartUnlessStopped restartMode = "unless-stopped"
)

const (
	// maxRestarts bounds N of on-failure:N.
	maxRestarts = 1_000_000
	// stableTime is how long an agent must have been ready for its end to count as a first one.
	stableTime = time.Minute
)

// firstPause and maxPause bound the pause before a restart, which doubles in between.
const (
	firstPause = 500 * time.Millisecond
	maxPause   = time.Minute
)

// restartPolicy says whether an agent that ended is started again, and when. It is a value without
// state of its own; the zero value never restarts.
type restartPolicy struct {
	mode restartMode
	// max is N of on-failure:N; 0 is without a bound.
	max int
}

// parseRestart reads no, on-failure[:N], always or unless-stopped; empty is no.
func parseRestart(s string) (restartPolicy, error) {
	bad := func(why string) error {
		return fail(codes.InvalidArgument, "", "restart policy %q: %s; want no, on-failure[:N], always or unless-stopped", clip(s), why)
	}
	mode, limit, limited := strings.Cut(s, ":")
	p := restartPolicy{mode: restartMode(mode)}
	switch p.mode {
	case "":
		p.mode = restartNo
	case restartNo, restartOnFailure, restartAlways, restartUnlessStopped:
	default:
		return restartPolicy{}, bad("not one of the four")
	}
	if !limited {
		return p, nil
	}
	if p.mode != restartOnFailure {
		return restartPolicy{}, bad("only on-failure takes a number")
	}
	n, err := strconv.Atoi(limit)
	if err != nil || n < 1 || n > maxRestarts || strconv.Itoa(n) != limit {
		return restartPolicy{}, bad(fmt.Sprintf("the number is not from 1 to %d", maxRestarts))
	}
	p.max = n
	return p, nil
}

func (p restartPolicy) String() string {
	switch {
	case p.mode == "":
		return string(restartNo)
	case p.max > 0:
		return fmt.Sprintf("%s:%d", p.mode, p.max)
	}
	return string(p.mode)
}

// runEnd is how a run came to its end, as far as a policy asks.
type runEnd struct {
	// clean is an exit with code 0 that nobody asked for.
	clean bool
	// final is a failure that another start can't mend.
	final bool
	// stable is how long the agent had been ready.
	stable time.Duration
}

// after tells whether an agent is started again that ended by itself, after attempts restarts in a
// row. n is the number of the restart, 1 for the first of a row.
func (p restartPolicy) after(e runEnd, attempts int) (n int, again bool) {
	if e.stable >= stableTime {
		attempts = 0
	}
	switch {
	case e.final:
		return 0, false
	case p.mode == restartAlways, p.mode == restartUnlessStopped:
	case p.mode != restartOnFailure, e.clean, p.max > 0 && attempts >= p.max:
		return 0, false
	}
	return min(attempts, math.MaxInt32-1) + 1, true
}

// atLoad tells whether a daemon that comes up starts an agent that was stopped: where the operator
// wants it stopped only "always" does, where its end came with the last daemon's or the machine's,
// "unless-stopped" too.
func (p restartPolicy) atLoad(wanted bool) bool {
	return p.mode == restartAlways || p.mode == restartUnlessStopped && wanted
}

// backoff is the pause before restart n: it doubles from first up to max, and a random half of it is
// taken off, so that agents that end together don't start together.
type backoff struct {
	first, max time.Duration
	// random returns a number of [0,1).
	random func() float64
}

// pause is from half of first up to max.
func (b backoff) pause(n int) time.Duration {
	d := b.first
	for i := 1; i < n && d < b.max; i++ {
		d *= 2
	}
	d = min(d, b.max)
	return d - time.Duration(float64(d/2)*b.random())
}

// lasting are the causes that another start can't mend: what is not there may come, what is wrong
// stays wrong.
var lasting = []error{
	system.ErrConfig, system.ErrRemoved, system.ErrHandle,
	agentoci.ErrNotAgent, agentoci.ErrNotBin, agentoci.ErrNoPlatform, agentoci.ErrLimit, agentoci.ErrUnsafe, agentoci.ErrChain,
	sandbox.ErrUnsupported, sandbox.ErrNoMonitor, syscall.ENOEXEC,
}

// recoverable tells whether another start may mend a failure.
func recoverable(reason executor.FailureReason, err error) bool {
	return reason != executor.FailureConfig && !slices.ContainsFunc(lasting, func(l error) bool { return errors.Is(err, l) })
}
