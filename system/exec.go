package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/workspace"
)

// maxExecOutput bounds each of standard output and standard error of an Exec, in bytes. What is
// over it is read and dropped.
const maxExecOutput = 4 << 20

// Exec runs the declared BIN bin to its end: in the agent's environment less every token and key,
// in its working folder, under its user id, in a process group of its own that is killed as a whole
// when ctx ends. Output over 4 MiB a stream is dropped. The workspace must have been prepared;
// without one, with an undeclared BIN or without a disk, Err says so.
func (a *Agent) Exec(ctx context.Context, bin string, args []string, stdin string) executor.ExecResult {
	stdout, stderr := &cappedBuffer{}, &cappedBuffer{}
	res := a.ExecStream(ctx, bin, args, strings.NewReader(stdin), stdout, stderr)
	res.Stdout, res.Stderr = stdout.String(), stderr.String()
	return res
}

// ExecStream is Exec with streams of any length; see executor.StreamExecer. A stdin that is an
// *os.File is handed to the BIN as it is; a Read of another one that is still blocked when the BIN
// has exited is waited for ten seconds.
func (a *Agent) ExecStream(
	ctx context.Context, bin string, args []string, stdin io.Reader, stdout, stderr io.Writer,
) executor.ExecResult {
	fail := func(err error) executor.ExecResult {
		return executor.ExecResult{ExitCode: -1, Err: fmt.Errorf("exec %s in agent %s: %w", bin, a.id, err)}
	}
	a.mu.Lock()
	rt := a.runtime
	var env []string
	if rt != nil && a.disk {
		env = append(a.toolEnv(), a.declaredEnv()...)
	}
	a.mu.Unlock()
	switch {
	case rt == nil:
		return fail(errors.New("the agent has no workspace yet; run it first"))
	case !a.disk:
		return fail(fmt.Errorf("%w: the workspace is not on disk", executor.ErrNotImplemented))
	}
	if err := declared(rt, bin); err != nil {
		return fail(err)
	}
	cmd := exec.Command(filepath.Join(hostPath(a.fs, workspace.BinDir), bin), args...)
	cmd.Env, cmd.Dir = env, hostPath(a.fs, workspace.WorkDir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a.uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.uid)}
	}
	// A grandchild that keeps the pipes open must not keep the caller.
	cmd.WaitDelay = stopGrace
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	err := waitGroup(ctx, cmd)
	res := executor.ExecResult{ExitCode: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		res.ExitCode, res.Err = -1, fail(ctx.Err()).Err
	case err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay):
		res.Err = fail(err).Err
	}
	return res
}

// waitGroup waits for cmd and kills its whole process group when ctx ends, and what is left of the
// group after it.
func waitGroup(ctx context.Context, cmd *exec.Cmd) error {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	defer kill()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		kill()
		return <-done
	}
}

func declared(rt *executor.Runtime, bin string) error {
	names := make([]string, len(rt.Source.Bins))
	for i, b := range rt.Source.Bins {
		if b.Name == bin {
			return nil
		}
		names[i] = b.Name
	}
	if len(names) == 0 {
		return errors.New("the agent has no BIN")
	}
	return fmt.Errorf("the agent has no such BIN; it has %s", strings.Join(names, ", "))
}

// cappedBuffer keeps the first bytes and swallows the rest, so that the writer never blocks.
type cappedBuffer struct{ buf bytes.Buffer }

func (c *cappedBuffer) Write(p []byte) (int, error) {
	if room := maxExecOutput - c.buf.Len(); room > 0 {
		c.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (c *cappedBuffer) String() string { return c.buf.String() }
