package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/spec"
)

// runFlags are the flags of run: those that the request has as they are given, and those that are read first.
type runFlags struct {
	req                    daemonv1.CreateAgentRequest
	envs, configs, volumes []string
	limits                 limitFlags
	grace                  time.Duration
	detach                 bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] IMAGE|DIR|FILE",
		Short: "Create an agent from an image or folder, start it and wait until it is ready",
		Long: `Create an agent from an image, start it and wait until it is ready.

A DIR starts with a dot or slash: it is built first, and its image named by the NAME of its Agentfile,
or else by the folder. A FILE does so too: it is an Agentfile, of the folder that it lies in.

Prints the agent's name, id and status on one line. An agent that does not get ready stays, as
"failed", so that inspect and logs can tell why.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.read(cmd); err != nil {
				return err
			}
			return a.with(cmd.Context(), func(c *client.Client) error { return a.createAgent(cmd.Context(), c, &f, args[0]) })
		},
	}
	cmd.Flags().StringVar(&f.req.Name, "name", "", "`name` of the agent (default: one is chosen)")
	cmd.Flags().StringVar(&f.req.Model, "model", "", "`provider/name` of a model, in place of the image's")
	cmd.Flags().StringVar(&f.req.RuntimePath, "runtime", "", "`path` of a local runtime program, in place of the image's")
	cmd.Flags().StringVar(&f.req.Sandbox, "sandbox", "", "`level` that confines the agent: strict, limited or off (default: the daemon's setting, else the strongest)")
	cmd.Flags().StringArrayVarP(&f.envs, "env", "e", nil, "variable `K=V` for the agent; K alone takes the value from the environment; may be given several times")
	cmd.Flags().StringVar(&f.req.Restart, "restart", "", "`policy` for an agent that ended: no, on-failure[:N], always or unless-stopped (default no)")
	cmd.Flags().DurationVar(&f.grace, "stop-timeout", 10*time.Second, "`time` to exit after SIGTERM before everything the agent started is killed")
	f.limits.add(cmd)
	cmd.Flags().StringArrayVarP(&f.volumes, "volume", "v", nil, "show the agent a path of the host: `HOST:TARGET[:DESC][:ro]`; may be given several times")
	cmd.Flags().StringArrayVar(&f.req.AllowNet, "allow-net", nil, "let the agent reach `HOST[:PORT]` through a proxy; *.NAME is every name below one, no port is 80 and 443; may be given several times")
	cmd.Flags().StringArrayVar(&f.configs, "config", nil, "setting `K=V` in place of the image's CONFIG; may be given several times")
	cmd.Flags().BoolVarP(&f.detach, "detach", "d", false, "do not wait until the agent is ready")
	return cmd
}

// read makes the request of what the flags say.
func (f *runFlags) read(cmd *cobra.Command) error {
	values, err := keyValues("-e", f.envs)
	if err != nil {
		return err
	}
	for _, kv := range values {
		f.req.Envs = append(f.req.Envs, &daemonv1.EnvVar{Key: kv[0], Value: kv[1]})
	}
	if f.req.Configs, err = settings(f.configs); err != nil {
		return err
	}
	if f.req.Mounts, err = mounts(f.volumes); err != nil {
		return err
	}
	if f.req.StopTimeoutMs, err = stopTimeout(cmd, f.grace); err != nil {
		return err
	}
	if f.req.RuntimePath != "" {
		if f.req.RuntimePath, err = absolute(f.req.RuntimePath); err != nil {
			return err
		}
	}
	return f.limits.fill(cmd, &f.req)
}

// createAgent makes the agent of an image, or of a folder that is built first, and waits until it is ready.
func (a *app) createAgent(ctx context.Context, c *client.Client, f *runFlags, image string) error {
	if isFolder(image) {
		var err error
		if image, err = a.buildToRun(ctx, c, image); err != nil {
			return err
		}
	}
	f.req.Image = image
	// So that it is seen how a large image arrives; create would pull it too.
	if ref, err := spec.ParseReference(image); err == nil && ref.Host() != "" {
		if err := a.transfer(c.Pull(ctx, image, true), true); err != nil {
			return err
		}
	}
	agent, err := c.Create(ctx, &f.req)
	if err != nil {
		return err
	}
	if f.detach {
		return a.printAgent(agent)
	}
	return a.waitReady(ctx, c, "run", agent)
}

func (a *app) printAgent(agent *daemonv1.AgentSummary) error {
	_, err := fmt.Fprintf(a.out, "%s %s %s\n", neutral(agent.GetName(), false), neutral(agent.GetId(), false), neutral(agent.GetStatus(), false))
	return err
}

// waitReady waits for an agent that starts and tells how it went.
func (a *app) waitReady(ctx context.Context, c *client.Client, verb string, agent *daemonv1.AgentSummary) error {
	state, err := c.WaitReady(ctx, agent.GetId())
	if err != nil {
		if ctx.Err() != nil {
			fmt.Fprintf(a.err, "%s goes on starting; stop it with `otters stop %s`\n", oneLine(agent.GetName()), oneLine(agent.GetName()))
		}
		return err
	}
	switch state.GetStatus() {
	case "ready", "working":
		if err := a.printAgent(state); err != nil {
			return err
		}
		a.printWarnings(ctx, c, state)
		return nil
	case "failed":
		return notReady(ctx, c, verb, state, failedHint(state))
	}
	return fmt.Errorf("%s %s: the agent is %s before it was ready; somebody else asked for it", verb, agent.GetName(), state.GetStatus())
}

// warningTime bounds the question to a ready agent whether there is something to be known.
const warningTime = 2 * time.Second

// printWarnings tells in one line what the runtime of a ready agent says is to be known. No answer is
// no warning: the agent is ready, which is what was asked for.
func (a *app) printWarnings(ctx context.Context, c *client.Client, agent *daemonv1.AgentSummary) {
	ctx, cancel := context.WithTimeout(ctx, warningTime)
	defer cancel()
	full, err := c.Agent(ctx, agent.GetId())
	if err != nil || len(full.GetWarnings()) == 0 {
		return
	}
	more := ""
	if n := len(full.GetWarnings()) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more: see `otters inspect %s`)", n, agent.GetName())
	}
	fmt.Fprintf(a.err, "warning: %s\n", oneLine(agent.GetName()+": "+full.GetWarnings()[0]+more))
}

// failedHint says what to do about a failed agent. Before the runtime ran it has no log.
func failedHint(state *daemonv1.AgentSummary) string {
	again := fmt.Sprintf("then `otters start %s` again, or `otters rm %s`", state.GetName(), state.GetName())
	if state.GetNextTryAtMs() > 0 {
		again = fmt.Sprintf("it is started again by itself; `otters ps` shows when, `otters stop %s` ends that", state.GetName())
	}
	switch state.GetReason() {
	case "crashed", "config", "readiness_timeout":
		return fmt.Sprintf("see `otters logs %s`, %s", state.GetName(), again)
	}
	return again
}

// notReady makes the error of a failed agent, with the last lines its runtime wrote.
func notReady(ctx context.Context, c *client.Client, what string, state *daemonv1.AgentSummary, hint string) error {
	why := "failed"
	if state.GetReason() != "" {
		why += " (" + state.GetReason() + ")"
	}
	if state.GetMessage() != "" {
		why += ": " + state.GetMessage()
	}
	if hint != "" {
		why += "; " + hint
	}
	failed := explained{error: fmt.Errorf("%s %s: %s", what, state.GetName(), why)}
	if full, err := c.Agent(ctx, state.GetId()); err == nil {
		for _, line := range full.GetLastExit().GetStderr() {
			// The last of them is mostly why.
			if !strings.Contains(why, line) {
				failed.lines = append(failed.lines, line)
			}
		}
	}
	return failed
}

func (a *app) startCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "start AGENT",
		Short:             "Start a stopped or failed agent and wait until it is ready",
		Args:              exactly(1),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				agent, err := c.Start(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.waitReady(cmd.Context(), c, "start", agent)
			})
		},
	}
}

func (a *app) stopCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "stop AGENT...",
		Short:             "Stop agents; returns when they have stopped",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(c *client.Client, name string) (string, error) {
				s, err := c.Stop(cmd.Context(), name)
				return s.GetName(), err
			})
		},
	}
}

func (a *app) rmCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:               "rm [-f] AGENT...",
		Short:             "Remove stopped or failed agents with their workspaces",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(c *client.Client, name string) (string, error) {
				r, err := c.Remove(cmd.Context(), name, force)
				return r.GetName(), err
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "stop a running agent first")
	return cmd
}

// each does f for every agent, printing the name of each that it was done for, and goes on past
// errors, each of which gets its line.
func (a *app) each(ctx context.Context, agents []string, f func(*client.Client, string) (string, error)) error {
	return a.with(ctx, func(c *client.Client) error {
		var last error
		for _, agent := range agents {
			name, err := f(c, agent)
			if err == nil {
				if _, err = fmt.Fprintln(a.out, neutral(name, false)); err != nil {
					return err
				}
				continue
			}
			if last != nil {
				a.report(ctx, last)
			}
			last = err
			if ctx.Err() != nil || errors.Is(err, client.ErrNoDaemon) {
				break
			}
		}
		return last
	})
}

func (a *app) psCommand() *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List agents, running or not, oldest first",
		Long:  "List agents, running or not, oldest first." + jsonHelp("a list of objects", summaryJSON{}),
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				agents, err := c.Agents(cmd.Context())
				if err != nil {
					return err
				}
				if f == formatJSON {
					out := []summaryJSON{}
					for _, s := range agents {
						out = append(out, newSummaryJSON(s))
					}
					return printJSON(a.out, out)
				}
				return printTable(a.out, []string{"NAME", "ID", "IMAGE", "MODEL", "STATUS", "AGE"}, agentRows(agents, time.Now()))
			})
		},
	}
	addFormat(cmd, &f)
	return cmd
}

func agentRows(agents []*daemonv1.AgentSummary, now time.Time) [][]string {
	var rows [][]string
	for _, s := range agents {
		status := statusOf(s, now)
		// Twelve digits of the id tell agents apart and are enough to name one.
		id := s.GetId()
		if len(id) > 13 {
			id = id[:13]
		}
		rows = append(rows, []string{s.GetName(), id, s.GetImage(), s.GetModel(), status, age(time.UnixMilli(s.GetCreatedAtMs()), now)})
	}
	return rows
}

// statusOf is the status with what goes with it: why the agent failed, and when it is tried again.
func statusOf(s *daemonv1.AgentSummary, now time.Time) string {
	status := s.GetStatus()
	if s.GetReason() != "" {
		status += " (" + s.GetReason() + ")"
	}
	if s.GetQueuePlace() > 0 {
		status += fmt.Sprintf(", place %d in the queue", s.GetQueuePlace())
	}
	if s.GetNextTryAtMs() > 0 {
		wait := max(time.UnixMilli(s.GetNextTryAtMs()).Sub(now), 0).Round(time.Second)
		status += fmt.Sprintf(", restart %d in %s", s.GetAttempts(), wait)
	}
	return status
}

// completeAgents offers the names of agents to a shell.
func (a *app) completeAgents(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && !strings.HasSuffix(strings.Fields(cmd.Use)[len(strings.Fields(cmd.Use))-1], "...") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	var names []string
	// A shell has no place for an error: without a daemon nothing is offered.
	_ = a.with(ctx, func(c *client.Client) error {
		agents, err := c.Agents(ctx)
		for _, s := range agents {
			names = append(names, s.GetName())
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
