package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	"github.com/otters-sh/otters/internal/home"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/testdata/agents"
)

const (
	demoName  = "guide"
	demoImage = "guide:demo"
	// cleanupTimeout bounds the whole way back: agents get their grace time to end in it.
	cleanupTimeout = time.Minute
	// endGrace is how long a daemon that was not asked, or did not listen, has after SIGTERM.
	endGrace = 15 * time.Second
	// endPatience is how long processes may take to be gone after the daemon is.
	endPatience = 10 * time.Second
)

func (a *app) demoCommand() *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo [--keep]",
		Short: "Build, run and prompt an agent with a daemon of its own, and leave nothing behind",
		Long: `Build, run and prompt an agent with a daemon of its own in a temporary home.

Everything is real but the model: offline/otter is a small deterministic program that answers from
the prompt and the contexts. Process and files are gone at the end, after Ctrl-C too, unless
--keep leaves the daemon running to go on with.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.socket != "" {
				return usagef("demo: --socket can't be used: the demo has a daemon of its own, in a temporary home")
			}
			agent, err := fs.Sub(agents.Guide, demoName)
			if err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			return a.demo(cmd.Context(), agent, keep)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the daemon and the agent running, and say what to try next")
	return cmd
}

// demo is one run of the demo. Its invariant: from the moment its home exists, every way out of it
// removes the home and ends what was started, but for success with keep.
type demo struct {
	lines
	app    *app
	agent  fs.FS
	home   string
	socket string
	daemon *daemonProcess
	// pids are the processes of the agent, to look for at the end.
	pids []int
	// orderly tells that the demo has stopped agent and daemon itself, so that nothing may be left.
	orderly bool
}

func (a *app) demo(ctx context.Context, agent fs.FS, keep bool) (err error) {
	began := time.Now()
	// Held until the end: the second Ctrl-C, the end of the terminal and a closed pipe find the
	// clean-up at work and do not end it.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	d := &demo{lines: lines{w: a.out}, app: a, agent: agent}
	if err := d.makeHome(); err != nil {
		return err
	}
	kept := false
	defer func() {
		if kept {
			return
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		interrupted := ctx.Err() != nil
		if interrupted {
			fmt.Fprintln(a.err, "otters: demo: interrupted; ending agent and daemon")
			err = nil
		}
		err = errors.Join(err, d.cleanUp(end))
		switch {
		case err == nil && interrupted:
			err = exitCode(exitInterrupted)
		case err == nil:
			d.printf("\nnothing is left: no process, no file. The demo took %s.\n", duration(time.Since(began).Milliseconds()))
			err = d.err
		}
	}()
	if err := d.play(ctx, keep); err != nil {
		return err
	}
	kept = keep
	return d.err
}

// makeHome makes the temporary home. As root, agents run under users of their own, which pass
// through the home to their trees.
func (d *demo) makeHome() error {
	dir, err := os.MkdirTemp("", "otters-demo-")
	if err != nil {
		return fmt.Errorf("demo: temporary home: %w", err)
	}
	d.home, d.socket = dir, filepath.Join(dir, "ottersd.sock")
	if home.CheckSocket(d.socket) != nil {
		err = fmt.Errorf("the path of its socket would have %d bytes, and %d are allowed; set TMPDIR to a shorter folder", len(d.socket), home.MaxSocket)
	} else if os.Geteuid() == 0 {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("demo: temporary home: %w", err), os.RemoveAll(dir))
	}
	return nil
}

func (d *demo) play(ctx context.Context, keep bool) error {
	d.title("a daemon of its own")
	var err error
	if d.daemon, err = startDaemon(d.home, d.socket); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	info, err := d.daemon.answers(ctx)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d.printf("ottersd %s, process %d\n", info.GetVersion(), info.GetPid())
	c, err := client.Dial(ctx, client.Options{Socket: d.socket})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := d.build(ctx, c); err != nil {
		return err
	}
	agent, err := d.run(ctx, c)
	if err != nil {
		return err
	}
	if err := d.prompts(ctx, c); err != nil {
		return err
	}
	d.where(info, agent)
	if keep {
		d.next()
		return d.err
	}
	return d.stop(ctx, c)
}

func (d *demo) title(s string) { d.printf("\n== %s\n", s) }

func (d *demo) build(ctx context.Context, c *client.Client) error {
	d.title("otters build -t " + demoImage)
	r, err := c.Build(ctx, client.BuildOptions{Tags: []string{demoImage}, Source: d.agent})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	for _, w := range r.GetWarnings() {
		d.printf("warning: %s\n", oneLine(w))
	}
	for _, ref := range r.GetReferences() {
		d.printf("%s %s\n", neutral(ref, false), neutral(r.GetDigest(), false))
	}
	return d.err
}

func (d *demo) run(ctx context.Context, c *client.Client) (*daemonv1.Agent, error) {
	d.title("otters run " + demoImage + " --name " + demoName)
	began := time.Now()
	created, err := c.Create(ctx, &daemonv1.CreateAgentRequest{Image: demoImage, Name: demoName})
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	state, err := c.WaitReady(ctx, created.GetId())
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	if state.GetStatus() != "ready" && state.GetStatus() != "working" {
		return nil, notReady(ctx, c, "demo: run", state, "")
	}
	d.printf("%s is %s after %s\n", neutral(state.GetName(), false), neutral(state.GetStatus(), false), duration(time.Since(began).Milliseconds()))
	agent, err := c.Agent(ctx, created.GetId())
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	d.pids = []int{int(agent.GetPid()), int(agent.GetMonitorPid())}
	return agent, d.err
}

// prompts sends each line of the agent's prompts.txt, all in one session.
func (d *demo) prompts(ctx context.Context, c *client.Client) error {
	text, err := fs.ReadFile(d.agent, "prompts.txt")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	session := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		d.title(fmt.Sprintf("otters prompt %s %q", demoName, line))
		if d.err != nil {
			return d.err
		}
		t := &turn{text: d.app.out, notes: d.app.out, neutralise: true, style: newStyle(d.app.outTerm)}
		if err := t.play(ctx, c, &daemonv1.PromptRequest{Agent: demoName, SessionId: session, Text: line}); err != nil {
			return err
		}
		session = t.session
		t.note("  turn took %s%s", duration(t.took.Milliseconds()), tokens(t.usage))
		d.err = t.err
	}
	return d.err
}

func (d *demo) where(info *daemonv1.InfoResponse, agent *daemonv1.Agent) {
	d.title("where everything is, and what confines the agent")
	if d.err != nil {
		return
	}
	pairs := []pair{
		{"home", info.GetHome()},
		{"socket", info.GetSocket()},
		{"registry", info.GetRegistry()},
		{"agent's tree", agent.GetRoot()},
		{"agent's log", agent.GetLogFile()},
		{"daemon's log", d.daemon.log},
		{"processes", fmt.Sprintf("daemon %d, monitor %d, runtime %d", info.GetPid(), agent.GetMonitorPid(), agent.GetPid())},
		{"user id", fmt.Sprint(agent.GetUid())},
	}
	d.err = printPairs(d.w, append(pairs, confinement(agent.GetConfinement())...))
}

func (d *demo) next() {
	d.title("what to try next")
	self, err := os.Executable()
	if err != nil {
		self = "otters"
	}
	d.printf("export OTTERS_HOME=%s\n", quote(d.home))
	for _, args := range []string{"ps", "prompt " + demoName + ` "who are you?"`, "inspect " + demoName, "logs " + demoName, "info", "images"} {
		d.printf("%s %s\n", quote(self), args)
	}
	d.printf("%s daemon stop --stop-agents && rm -rf \"$OTTERS_HOME\"   # ends it all\n", quote(self))
}

// quote makes s one word for a shell.
func quote(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (d *demo) stop(ctx context.Context, c *client.Client) error {
	d.title("otters stop " + demoName)
	s, err := c.Stop(ctx, demoName)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	d.printf("%s is %s\n", neutral(s.GetName(), false), neutral(s.GetStatus(), false))
	d.orderly = d.err == nil
	return d.err
}

// cleanUp ends the daemon and its agents and removes the home. It asks first and kills what does
// not obey, and goes on past every error.
func (d *demo) cleanUp(ctx context.Context) error {
	var errs []error
	if d.daemon != nil {
		pid := d.daemon.cmd.Process.Pid
		before, err := related(d.home, pid, d.pids)
		asked := d.shutdown(ctx)
		errs = append(errs, err, asked)
		errs = append(errs, d.daemon.end(ctx, endGrace))
		after, err := related(d.home, pid, nil)
		killed, killErr := outlive(ctx, append(before, after...), endPatience)
		errs = append(errs, err, killErr)
		if killed > 0 && d.orderly {
			errs = append(errs, fmt.Errorf("demo: %d processes outlived the daemon and were killed", killed))
		}
	}
	if err := removeAll(d.home); err != nil {
		errs = append(errs, fmt.Errorf("demo: %w", err))
	}
	return errors.Join(errs...)
}

// shutdown asks the daemon to end with its agents and waits until it has. One that never listened
// or has ended already needs no asking.
func (d *demo) shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout/2)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Socket: d.socket})
	if errors.Is(err, client.ErrNoDaemon) {
		return nil
	}
	if err == nil {
		_, err = c.Shutdown(ctx, true)
		err = errors.Join(err, c.Close())
	}
	if err == nil {
		select {
		case <-d.daemon.done:
			return nil
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("demo: ottersd, process %d, did not end when it was asked to, and was made to", d.daemon.cmd.Process.Pid)
	}
	return fmt.Errorf("demo: %w", err)
}
