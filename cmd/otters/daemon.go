package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// startTimeout bounds the wait for a daemon's first answer: it checks its database and stores
	// the runtime's image before. On a busy machine that takes many times what it takes on an idle one.
	startTimeout = 2 * time.Minute
	// endTimeout bounds the wait for the daemon's process to be gone after it said that it ends.
	endTimeout = 2 * time.Minute
)

func (a *app) daemonCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Start and stop the daemon, and tell whether it runs",
		Args:  cobra.ArbitraryArgs,
		RunE:  helpOrUnknown,

		SuggestionsMinimumDistance: 2,
	}
	var dir string
	cmd.PersistentFlags().StringVar(&dir, "home", "", "`folder` of the daemon's state (default: OTTERS_HOME, or the usual one)")
	start := &cobra.Command{
		Use:   "start",
		Short: "Start a daemon in the background and wait until it answers",
		Long: `Start a daemon, ottersd, in the background and wait until it answers.

It is the ottersd beside this program, or else the one in PATH. What it writes goes to
logs/ottersd.log in its home, above 10 MiB in a new one; the one before is kept as ottersd.log.1.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.daemonStart(cmd.Context(), dir) },
	}
	var stopAgents bool
	stop := &cobra.Command{
		Use:   "stop [--stop-agents]",
		Short: "End the daemon and wait until its process is gone; agents run on",
		Args:  exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.daemonStop(cmd.Context(), dir, stopAgents) },
	}
	stop.Flags().BoolVar(&stopAgents, "stop-agents", false, "stop every agent first")
	status := &cobra.Command{
		Use:   "status",
		Short: "Tell whether the daemon runs: exit code 0 when it does, 3 when it does not",
		Args:  exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.daemonStatus(cmd.Context(), dir) },
	}
	cmd.AddCommand(start, stop, status)
	return cmd
}

func (a *app) daemonStart(ctx context.Context, dir string) error {
	dir, socket, err := a.paths(dir)
	if err != nil {
		return err
	}
	info, err := ask(ctx, socket)
	switch {
	case err == nil && !sameFolder(info.GetHome(), dir):
		return fmt.Errorf("daemon start: socket %s belongs to a daemon of another home, %s; name another with --socket", socket, info.GetHome())
	case err == nil:
		return a.printDaemon("is running already", info)
	case !errors.Is(err, client.ErrNoDaemon):
		return err
	}
	d, err := startDaemon(dir, socket)
	if err != nil {
		return fmt.Errorf("daemon start: %w", err)
	}
	if info, err = d.answers(ctx); err != nil {
		return fmt.Errorf("daemon start: %w", errors.Join(err, d.end(context.WithoutCancel(ctx), 5*time.Second)))
	}
	return a.printDaemon("started", info)
}

func (a *app) printDaemon(what string, i *daemonv1.InfoResponse) error {
	l := lines{w: a.out}
	l.printf("daemon %s\n", what)
	if l.err != nil {
		return l.err
	}
	return printPairs(a.out, []pair{
		{"process", fmt.Sprint(i.GetPid())},
		{"home", i.GetHome()},
		{"socket", i.GetSocket()},
		{"registry", i.GetRegistry()},
		{"agents", fmt.Sprintf("%d, %d of them running", i.GetAgents(), i.GetAgentsRunning())},
	})
}

// ask connects for one Info.
func ask(ctx context.Context, socket string) (*daemonv1.InfoResponse, error) {
	c, err := client.Dial(ctx, client.Options{Socket: socket})
	if err != nil {
		return nil, err
	}
	info, err := c.Info(ctx)
	return info, errors.Join(err, c.Close())
}

func sameFolder(a, b string) bool {
	if a == b {
		return true
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

func (a *app) daemonStatus(ctx context.Context, dir string) error {
	_, socket, err := a.paths(dir)
	if err != nil {
		return err
	}
	info, err := ask(ctx, socket)
	if errors.Is(err, client.ErrNoDaemon) {
		if _, err := fmt.Fprintf(a.out, "daemon not running on socket %s\n", neutral(socket, false)); err != nil {
			return err
		}
		return exitCode(exitNotRunning)
	}
	if err != nil {
		return err
	}
	return a.printDaemon("running", info)
}

func (a *app) daemonStop(ctx context.Context, dir string, stopAgents bool) error {
	_, socket, err := a.paths(dir)
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, client.Options{Socket: socket})
	if errors.Is(err, client.ErrNoDaemon) {
		_, err = fmt.Fprintf(a.out, "daemon not running on socket %s\n", neutral(socket, false))
		return err
	}
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := shutdown(ctx, c, stopAgents)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "daemon stopped; agents stopped: %d, running on: %d\n", r.GetStopped(), r.GetRunning())
	return err
}

// shutdown ends the daemon and returns when its process is gone.
func shutdown(ctx context.Context, c *client.Client, stopAgents bool) (*daemonv1.ShutdownResponse, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	// Opened before the daemon is asked, so that no other process can have its number.
	p, err := openProcess(int(info.GetPid()))
	if err != nil {
		return nil, fmt.Errorf("daemon process %d: %w", info.GetPid(), err)
	}
	defer p.close()
	r, err := c.Shutdown(ctx, stopAgents)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := p.wait(wait); err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("daemon stop: process %d is still there after %s; end it with `kill %d`", info.GetPid(), endTimeout, info.GetPid())
		}
		return nil, err
	}
	return r, nil
}
