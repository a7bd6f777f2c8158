package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
)

func (a *app) restartCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "restart AGENT",
		Short:             "Stop an agent, where it runs, start it and wait until it is ready",
		Args:              exactly(1),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				agent, err := c.Restart(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.waitReady(cmd.Context(), c, "restart", agent)
			})
		},
	}
}

func (a *app) killCommand() *cobra.Command {
	var signal string
	cmd := &cobra.Command{
		Use:   "kill [-s SIGNAL] AGENT...",
		Short: "Kill agents at once, or send a signal to their runtimes",
		Long: `Kill agents at once, or send a signal to their runtimes.

SIGKILL, the default, goes to everything the agent ever started; the agent is then stopped and not
started again by itself. Any other signal goes to the runtime alone, and an exit that comes of it is
one that nobody asked for: the restart policy says what follows.`,
		Args:              atLeast(1),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(c *client.Client, name string) (string, error) {
				s, err := c.Kill(cmd.Context(), name, signal)
				return s.GetName(), err
			})
		},
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "KILL", "name or number of the `signal`")
	return cmd
}

func (a *app) execCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec AGENT BIN [ARG...]",
		Short: "Run a BIN of an agent in its workspace",
		Long: `Run a BIN of an agent in its workspace, as the agent's user and with its variables, and without its
tokens and keys. Only a BIN that the agent declares can be run.

Standard input is passed on until it ends: give it </dev/null in a loop that reads its own. The exit
code is that of the BIN. An interrupt kills the BIN and what it started.`,
		Args:              atLeast(2),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				code, err := c.Exec(cmd.Context(), args[0], args[1], args[2:], a.in, a.guarded(a.out, a.outTerm), a.guarded(a.err, a.errTerm))
				switch {
				case err != nil:
					return err
				case code < 0:
					return fmt.Errorf("exec %s: a signal ended it", args[1])
				case code > 0:
					return exitCode(code)
				}
				return nil
			})
		},
	}
	// What follows BIN is its own.
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// guarded is w, on a terminal with what a BIN writes made harmless.
func (a *app) guarded(w io.Writer, terminal bool) io.Writer {
	if !terminal {
		return w
	}
	return writerFunc(func(p []byte) (int, error) {
		if _, err := io.WriteString(w, neutral(string(p), true)); err != nil {
			return 0, err
		}
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// stopTimeout is the flag's value for the API; nil where it was not given.
func stopTimeout(cmd *cobra.Command, given time.Duration) (*int64, error) {
	if !cmd.Flags().Changed("stop-timeout") {
		return nil, nil
	}
	if given < 0 {
		return nil, usagef("--stop-timeout %s: is negative; 0 kills at once", given)
	}
	ms := given.Milliseconds()
	return &ms, nil
}
