package system

import (
	"context"
	"fmt"
	"io"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/workspace"
)

var _ executor.SessionExecer = (*Agent)(nil)

// ExecSession runs the session command of the agent's own runtime, in a sandbox like that of a BIN but
// without ENV; see executor.SessionExecer. An agent that runs is an error that wraps ErrRunning, one
// without a workspace has no sessions yet and is one too. Ours.
func (a *Agent) ExecSession(
	ctx context.Context, verb string, args []string, stdin io.Reader, stdout, stderr io.Writer,
) executor.ExecResult {
	fail := func(err error) executor.ExecResult {
		return executor.ExecResult{ExitCode: -1, Err: fmt.Errorf("session %s of agent %s: %w", verb, a.id, err)}
	}
	a.mu.Lock()
	running, w := a.run != nil, a.ways
	a.mu.Unlock()
	if running {
		return fail(fmt.Errorf("%w: stop it first", ErrRunning))
	}
	rt, err := a.execReady()
	switch {
	case err != nil:
		return fail(err)
	case !w.sessions:
		return fail(fmt.Errorf("%w: its runtime's image does not have the label %s=offline", executor.ErrNotImplemented, SessionsLabel))
	}
	// One that could not be taken over may live on.
	if err := a.mustNotRun(ctx); err != nil {
		return fail(err)
	}
	root := a.view().Root
	args = append([]string{"session", verb, "--root", root}, args...)
	return a.execProgram(ctx, rt, workspace.RuntimeBin, args, treeEnv(root), stdin, [2]io.Writer{stdout, stderr}, fail)
}
