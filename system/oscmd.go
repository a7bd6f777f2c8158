package system

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// osSpawner is the Spawner of an agent on disk that NewAgent made: a process of this machine, in a
// group of its own that is killed as a whole, and nothing that confines it.
type osSpawner struct{}

func (osSpawner) Command(name string, args ...string) Cmd { return &osCmd{name: name, args: args} }

// osCmd is *os/exec.Cmd as a Cmd.
type osCmd struct {
	name   string
	args   []string
	env    []string
	dir    string
	stdout io.Writer
	stderr io.Writer
	files  []*os.File

	mu    sync.Mutex
	cmd   *exec.Cmd // nil before Start
	ended bool
}

func (c *osCmd) SetStdout(w io.Writer)     { c.stdout = w }
func (c *osCmd) SetStderr(w io.Writer)     { c.stderr = w }
func (c *osCmd) SetEnv(env []string)       { c.env = env }
func (c *osCmd) SetDir(dir string)         { c.dir = dir }
func (c *osCmd) SetFiles(files []*os.File) { c.files = files }

// busyWait is how long a program may be busy that was written just now: a process that is being forked
// meanwhile has it open for writing until it execs, which takes long on a busy host.
const busyWait = 10 * time.Second

// startBusy starts what fresh makes, and another one while its program is busy.
func startBusy(ctx context.Context, fresh func() (*exec.Cmd, error)) (*exec.Cmd, error) {
	for end := time.Now().Add(busyWait); ; time.Sleep(time.Millisecond) {
		cmd, err := fresh()
		if err == nil {
			err = cmd.Start()
		}
		if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(end) || ctx.Err() != nil {
			return cmd, err
		}
	}
}

func (c *osCmd) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil {
		return errors.New("already started")
	}
	cmd, err := startBusy(context.Background(), func() (*exec.Cmd, error) {
		cmd := exec.Command(c.name, c.args...)
		// Nothing is inherited, even where no variable was set.
		cmd.Env = append([]string{}, c.env...)
		cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = c.dir, c.stdout, c.stderr, c.files
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		// A grandchild that keeps the pipes open must not keep the caller.
		cmd.WaitDelay = stopGrace
		return cmd, nil
	})
	if err == nil {
		c.cmd = cmd
	}
	return err
}

func (c *osCmd) Wait() error {
	c.mu.Lock()
	cmd := c.cmd
	c.mu.Unlock()
	if cmd == nil {
		return errors.New("not started")
	}
	err := cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		// What the runtime started ends with it.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		c.ended = true
	}
	return err
}

func (c *osCmd) Signal(sig os.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cmd == nil:
		return errors.New("not started")
	case c.ended:
		return os.ErrProcessDone
	case sig == os.Kill:
		return syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	}
	return c.cmd.Process.Signal(sig)
}
