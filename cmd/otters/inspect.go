package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

func (a *app) inspectCommand() *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:               "inspect AGENT",
		Short:             "Show everything known of an agent",
		Long:              "Show everything known of an agent." + jsonHelp("one object", agentJSON{}),
		Args:              exactly(1),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				agent, err := c.Agent(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if f == formatJSON {
					return printJSON(a.out, newAgentJSON(agent))
				}
				return printPairs(a.out, describe(agent))
			})
		},
	}
	addFormat(cmd, &f)
	return cmd
}

func describe(a *daemonv1.Agent) []pair {
	s := a.GetSummary()
	out := []pair{
		{"name", s.GetName()},
		{"id", s.GetId()},
		{"status", statusOf(s, time.Now())},
		{"message", s.GetMessage()},
	}
	out = append(out, list("warning", a.GetWarnings())...)
	out = append(out, []pair{
		{"restart", a.GetRestart()},
		{"restarts", restarts(s)},
		{"last failure", a.GetLastFailure()},
		{"stop timeout", (time.Duration(a.GetStopTimeoutMs()) * time.Millisecond).String()},
		{"image", s.GetImage()},
		{"digest", s.GetDigest()},
		{"model", s.GetModel()},
		{"runtime", pinned(a.GetRuntimeRef(), a.GetRuntimeDigest())},
		{"created", millis(s.GetCreatedAtMs())},
		{"started", millis(s.GetStartedAtMs())},
		{"tree", a.GetRoot()},
		{"log", a.GetLogFile()},
		{"address", address(a)},
		{"process", processes(a)},
		{"user id", strconv.FormatInt(a.GetUid(), 10)},
	}...)
	out = append(out, confinement(a.GetConfinement())...)
	var limits, tools, configs []string
	for _, l := range a.GetLimits() {
		limits = append(limits, limit(l))
	}
	out = append(out, list("limit", limits)...)
	for _, t := range a.GetTools() {
		tools = append(tools, joined(t.GetName(), t.GetDescription()))
	}
	for _, k := range slices.Sorted(maps.Keys(a.GetConfigs())) {
		configs = append(configs, k+"="+a.GetConfigs()[k])
	}
	var volumes []string
	for _, m := range a.GetMounts() {
		volumes = append(volumes, shown(m))
	}
	out = append(out, list("mounts", volumes)...)
	out = append(out, list("network", a.GetAllowNet())...)
	out = append(out, list("tools", tools)...)
	out = append(out, list("variables", a.GetEnvs())...)
	out = append(out, list("config", configs)...)
	if e := a.GetLastExit(); e != nil {
		how := fmt.Sprintf("code %d", e.GetCode())
		if e.GetSignal() != "" {
			how = e.GetSignal()
		}
		if e.GetOutOfMemory() {
			how += ", for want of memory"
		}
		out = append(out, pair{"last exit", joined(how, millis(e.GetAtMs()))})
		out = append(out, list("last lines", e.GetStderr())...)
	}
	return out
}

// restarts is how many there were in a row, and when the next one is due.
func restarts(s *daemonv1.AgentSummary) string {
	if s.GetAttempts() == 0 {
		return ""
	}
	if s.GetNextTryAtMs() > 0 {
		return fmt.Sprintf("%d in a row, the last of them due at %s", s.GetAttempts(), millis(s.GetNextTryAtMs()))
	}
	return fmt.Sprintf("%d in a row", s.GetAttempts())
}

func address(a *daemonv1.Agent) string {
	if a.GetPid() == 0 || a.GetServeTokenChecked() {
		return a.GetAddress()
	}
	return a.GetAddress() + "  open to other local users: the runtime does not check who calls"
}

func processes(a *daemonv1.Agent) string {
	if a.GetPid() == 0 && a.GetMonitorPid() == 0 {
		return ""
	}
	return fmt.Sprintf("%d, monitor %d", a.GetPid(), a.GetMonitorPid())
}

// confinement says what keeps an agent in its workspace, and plainly where nothing of the kernel
// does.
func confinement(c *daemonv1.Confinement) []pair {
	level := c.GetLevel()
	if level == "off" {
		level = "off: the kernel does not confine it, do not run what you do not trust"
	}
	out := []pair{{"confinement", level}}
	out = append(out, list("  enforced", c.GetEnforced())...)
	return append(out, list("  open", c.GetOpen())...)
}

// pinned is a reference with its digest, which it may carry already.
func pinned(ref, digest string) string {
	if strings.HasSuffix(ref, digest) {
		return ref
	}
	return joined(ref, digest)
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "  " + b
}
