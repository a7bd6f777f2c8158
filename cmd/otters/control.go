package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
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
	var timeout time.Duration
	var output string
	cmd := &cobra.Command{
		Use:   "exec [flags] AGENT BIN [ARG...]",
		Short: "Run a BIN of an agent in its workspace",
		Long: `Run a BIN of an agent in its workspace, as the agent's user and with its variables, and without its
tokens and keys, in a sandbox of its own. Only a BIN that the agent declares can be run.

Standard input is passed on until it ends: give it </dev/null in a loop that reads its own. The exit
code is that of the BIN. An interrupt kills the BIN and all that it started, and so do --timeout and
--max-output, which end in an error.`,
		Args:              atLeast(2),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			start := &daemonv1.ExecStart{Agent: args[0], Bin: args[1], Args: args[2:]}
			if cmd.Flags().Changed("timeout") {
				if timeout < time.Millisecond {
					return usagef("exec: --timeout %s: want a time from 1ms to 24h", timeout)
				}
				ms := timeout.Milliseconds()
				start.TimeoutMs = &ms
			}
			if cmd.Flags().Changed("max-output") {
				n, ok := bytesOf(output)
				if !ok {
					return usagef("exec: --max-output %q: want a size such as 512m or 1g, with b, k, m, g or t", output)
				}
				start.MaxOutput = &n
			}
			return a.with(cmd.Context(), func(c *client.Client) error {
				code, err := c.Exec(cmd.Context(), start, a.in, a.guarded(a.out, a.outTerm), a.guarded(a.err, a.errTerm))
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
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "`time` after which the BIN is killed, at most 24h")
	cmd.Flags().StringVar(&output, "max-output", "1g", "`size` of output, both streams together, over which the BIN is killed, at most 1t")
	// What follows AGENT is the BIN's own.
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
