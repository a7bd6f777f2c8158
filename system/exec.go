package system

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/workspace"
)

// maxExecOutput bounds each of standard output and standard error of an Exec, in bytes. What is
// over it is read and dropped.
const maxExecOutput = 4 << 20

// execTime is the longest that an Exec may take; ExecStream is its caller's to bound.
const execTime = 10 * time.Minute

// Exec runs the declared BIN bin to its end, as ExecStream does, for at most ten minutes, with its input and output as text.
// Output over 4 MiB a stream is dropped.
func (a *Agent) Exec(ctx context.Context, bin string, args []string, stdin string) executor.ExecResult {
	ctx, cancel := context.WithTimeout(ctx, execTime)
	defer cancel()
	stdout, stderr := &cappedBuffer{}, &cappedBuffer{}
	res := a.ExecStream(ctx, bin, args, strings.NewReader(stdin), stdout, stderr)
	res.Stdout, res.Stderr = stdout.String(), stderr.String()
	return res
}

// ExecStream is Exec with streams of any length; see executor.StreamExecer. It runs the declared BIN
// bin to its end: in the agent's environment less every token and key, in its working folder, under
// its user id, in a sandbox of its own at the agent's level, where the gateway is not. When ctx ends,
// and when the BIN has ended, all that it has started is killed; so is all of it with this process.
// An agent without a monitor runs the BIN in a process group of its own instead, which is killed as a
// whole. A stdin that is an *os.File is handed to the BIN as it is; a Read of another one that is
// under way when the BIN has exited is not waited for. The workspace must have been prepared; without
// one, with an undeclared BIN or without a disk, Err says so.
func (a *Agent) ExecStream(
	ctx context.Context, bin string, args []string, stdin io.Reader, stdout, stderr io.Writer,
) executor.ExecResult {
	fail := func(err error) executor.ExecResult {
		return executor.ExecResult{ExitCode: -1, Err: fmt.Errorf("exec %s in agent %s: %w", bin, a.id, err)}
	}
	rt, err := a.execReady()
	if err == nil {
		err = declared(rt, bin)
	}
	if err != nil {
		return fail(err)
	}
	return a.execProgram(ctx, rt, path.Join(workspace.BinDir, bin), args, ToolEnv(rt, a.view().Root), stdin, [2]io.Writer{stdout, stderr}, fail)
}

// execProgram runs a program of the tree to its end; fail makes the result of an error.
func (a *Agent) execProgram(
	ctx context.Context, rt *executor.Runtime, program string, args, env []string, stdin io.Reader, outs [2]io.Writer, fail func(error) executor.ExecResult,
) executor.ExecResult {
	if a.monitored {
		res, err := a.execSandboxed(ctx, rt, program, args, env, stdin, outs)
		if err != nil {
			res = fail(err)
		}
		return res
	}
	var in io.WriteCloser
	cmd, err := runGroup(ctx, func() (_ *exec.Cmd, err error) {
		cmd := a.execCommand(program, args, env)
		cmd.Stdout, cmd.Stderr = outs[0], outs[1]
		if file, ok := stdin.(*os.File); ok {
			cmd.Stdin = file
		} else if stdin != nil {
			// A pipe of its own: the BIN's end must not wait for input that nobody sends.
			in, err = cmd.StdinPipe()
		}
		return cmd, err
	}, func() {
		if in != nil {
			_, _ = io.Copy(in, stdin)
			_ = in.Close()
		}
	})
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

// execReady is the definition of an agent whose workspace a program can be run in.
func (a *Agent) execReady() (*executor.Runtime, error) {
	rt := a.Runtime()
	switch {
	case rt == nil:
		return nil, errors.New("the agent has no workspace yet; start it first")
	case !a.disk:
		return nil, fmt.Errorf("%w: the workspace is not on disk", executor.ErrNotImplemented)
	}
	return rt, nil
}

// execCommand is a program of the tree without a monitor, ready to be started.
func (a *Agent) execCommand(program string, args, env []string) *exec.Cmd {
	cmd := exec.Command(hostPath(a.fs, program), args...)
	cmd.Env, cmd.Dir = env, hostPath(a.fs, workspace.WorkDir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	if a.uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.uid)}
	}
	// A grandchild that keeps the pipes open must not keep the caller.
	cmd.WaitDelay = stopGrace
	return cmd
}

// execSandboxed runs a program of the tree under a monitor of its own, with a state folder beside the runtime's.
func (a *Agent) execSandboxed(
	ctx context.Context, rt *executor.Runtime, program string, args, env []string, stdin io.Reader, outs [2]io.Writer,
) (res executor.ExecResult, err error) {
	launcher, err := a.provider.launch()
	if err != nil {
		return res, err
	}
	state := path.Join(stateDir, execPrefix+rand.Text())
	if err := a.home.MkdirAll(state, 0o700); err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, a.sweepExec(state)) }()
	s := sandbox.Spec{Args: args, Env: env, StateDir: hostPath(a.home, state), Tied: true}
	if err := a.confine(&s, rt, program); err != nil {
		return res, err
	}
	var files openFiles
	defer files.close()
	c := &copies{}
	defer c.end()
	if err := c.open(&s, &files, stdin, outs); err != nil {
		return res, err
	}
	proc, err := launcher.Start(ctx, s)
	files.close()
	if err != nil {
		return res, err
	}
	c.feed(stdin)
	select {
	case <-proc.Done():
	case <-ctx.Done():
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopGrace)
		err = errors.Join(ctx.Err(), proc.Stop(stopCtx, 0))
		cancel()
	}
	exit := proc.Exit()
	err = errors.Join(err, proc.Close())
	if exit.Lost && err == nil {
		err = errors.New("its monitor is gone")
	}
	if err == nil {
		err = c.drain(ctx)
	}
	return executor.ExecResult{ExitCode: exit.Code}, err
}

// execPrefix begins the names of the state folders of BINs that run.
const execPrefix = "exec-"

// sweepExecs removes the state folders of BINs that ran when an earlier process died, and they with
// it.
func (a *Agent) sweepExecs() error {
	entries, err := a.home.ReadDir(stateDir)
	if err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), execPrefix) {
			if err := a.sweepExec(path.Join(stateDir, e.Name())); err != nil {
				return fmt.Errorf("state folder: %w", err)
			}
		}
	}
	return nil
}

// sweepExec removes the state folder of a BIN, by whose records what it has left is found and killed.
func (a *Agent) sweepExec(state string) error {
	if err := sandbox.Sweep(hostPath(a.home, state)); err != nil {
		return err
	}
	return removeAll(a.home, state)
}

// sweepState kills what the runtime and the BINs of the agent in a folder have left, by the records
// in its state folder, which is to be removed. A record that can't be read keeps nobody from that.
func (p *Provider) sweepState(agent string) {
	state := p.root.Join(agent, stateDir)
	all := []string{state}
	entries, _ := p.root.ReadDir(state) // where it is not there nothing was started
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), execPrefix) {
			all = append(all, p.root.Join(state, e.Name()))
		}
	}
	for _, dir := range all {
		if err := sandbox.Sweep(hostPath(p.root, dir)); err != nil {
			p.logger.Warn("what an earlier run left was not cleared up", "agent", agent, "error", err)
		}
	}
}

// copies are the pipes between a BIN and streams of this process.
type copies struct {
	in *os.File
	outputs
}

// open makes the pipes that are needed; a file as standard input needs none.
func (c *copies) open(s *sandbox.Spec, files *openFiles, stdin io.Reader, outs [2]io.Writer) error {
	if f, ok := stdin.(*os.File); ok {
		s.Stdin = f
	} else if stdin != nil {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s.Stdin, _ = files.add(r, nil)
		c.in = w
	}
	return c.outputs.open(s, files, outs[0], outs[1])
}

// feed passes standard input on; a BIN need not read it.
func (c *copies) feed(stdin io.Reader) {
	if c.in == nil {
		return
	}
	go func() { // it ends with the pipe, or with the Read that is under way then
		_, _ = io.Copy(c.in, stdin)
		_ = c.in.Close()
	}()
}

// taken is closed when all output was.
func (c *copies) taken() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		c.wait()
		close(done)
	}()
	return done
}

// drain waits until all output was taken: nobody writes any more, and a reader may be slow.
func (c *copies) drain(ctx context.Context) error {
	select {
	case <-c.taken():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end waits for what is on its way, for as long as a stop may take; a stream that is blocked for
// longer is left behind.
func (c *copies) end() {
	if c.in != nil {
		_ = c.in.Close()
	}
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-c.taken():
	case <-timer.C:
		for _, r := range c.pipes {
			_ = r.Close()
		}
	}
}

// runGroup runs what fresh makes, with feed beside it, and kills its whole process group when ctx ends, and
// what is left of the group after it.
func runGroup(ctx context.Context, fresh func() (*exec.Cmd, error), feed func()) (cmd *exec.Cmd, err error) {
	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		// To the kernel the parent is the thread that forked, so that one must stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var err error
		cmd, err = startBusy(ctx, fresh)
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return cmd, err
	}
	go feed() // it ends with the pipe, or with the Read that is under way then
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	defer kill()
	select {
	case err := <-done:
		return cmd, err
	case <-ctx.Done():
		kill()
		return cmd, <-done
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
