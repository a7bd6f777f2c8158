package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/workspace"
)

// maxExecOutput bounds each of standard output and standard error of an Exec, in bytes. What is
// over it is read and dropped.
const maxExecOutput = 4 << 20

// Exec runs the declared BIN bin to its end, as ExecStream does, with its input and output as text.
// Output over 4 MiB a stream is dropped.
func (a *Agent) Exec(ctx context.Context, bin string, args []string, stdin string) executor.ExecResult {
	stdout, stderr := &cappedBuffer{}, &cappedBuffer{}
	res := a.ExecStream(ctx, bin, args, strings.NewReader(stdin), stdout, stderr)
	res.Stdout, res.Stderr = stdout.String(), stderr.String()
	return res
}

// ExecStream is Exec with streams of any length; see executor.StreamExecer. It runs the declared BIN
// bin to its end: in the agent's environment less every token and key, in its working folder, under
// its user id, in a process group of its own that is killed as a whole when ctx ends, and when the
// BIN has ended; the BIN itself also dies with this process. A stdin that is an *os.File is handed to
// the BIN as it is; a Read of another one that is under way when the BIN has exited is not waited for.
// The workspace must have been prepared; without one, with an undeclared BIN or without a disk, Err
// says so.
func (a *Agent) ExecStream(
	ctx context.Context, bin string, args []string, stdin io.Reader, stdout, stderr io.Writer,
) executor.ExecResult {
	fail := func(err error) executor.ExecResult {
		return executor.ExecResult{ExitCode: -1, Err: fmt.Errorf("exec %s in agent %s: %w", bin, a.id, err)}
	}
	cmd, err := a.execCommand(bin, args)
	if err != nil {
		return fail(err)
	}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if file, ok := stdin.(*os.File); ok {
		cmd.Stdin = file
	} else if stdin != nil {
		// A pipe of its own: the BIN's end must not wait for input that nobody sends.
		in, err := cmd.StdinPipe()
		if err != nil {
			return fail(err)
		}
		go func() {
			_, _ = io.Copy(in, stdin)
			_ = in.Close()
		}()
	}
	err = runGroup(ctx, cmd)
	if cmd.ProcessState == nil {
		return fail(err)
	}
	res := executor.ExecResult{ExitCode: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		res = fail(ctx.Err())
	case err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay):
		res.Err = fail(err).Err
	}
	return res
}

// execCommand is a declared BIN, ready to be started.
func (a *Agent) execCommand(bin string, args []string) (*exec.Cmd, error) {
	a.mu.Lock()
	rt := a.runtime
	var env []string
	if rt != nil && a.disk {
		env = append(a.toolEnv(), a.declaredEnv()...)
	}
	a.mu.Unlock()
	switch {
	case rt == nil:
		return nil, errors.New("the agent has no workspace yet; run it first")
	case !a.disk:
		return nil, fmt.Errorf("%w: the workspace is not on disk", executor.ErrNotImplemented)
	}
	if err := declared(rt, bin); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(hostPath(a.fs, workspace.BinDir), bin), args...)
	cmd.Env, cmd.Dir = env, hostPath(a.fs, workspace.WorkDir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	if a.uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.uid)}
	}
	// A grandchild that keeps the pipes open must not keep the caller.
	cmd.WaitDelay = stopGrace
	return cmd, nil
}

// runGroup runs cmd and kills its whole process group when ctx ends, and what is left of the group
// after it.
func runGroup(ctx context.Context, cmd *exec.Cmd) error {
	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		// To the kernel the parent is the thread that forked, so that one must stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
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
