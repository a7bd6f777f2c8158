package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// version is set by the build of a release; the module's version stands in for it.
var version string

func ownVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func (a *app) infoCommand() *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show what the daemon is, where it keeps things and what confines agents",
		Long:  "Show what the daemon is, where it keeps things and what confines agents." + jsonHelp("one object", infoJSON{}),
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(c *client.Client) error {
				info, err := c.Info(cmd.Context())
				if err != nil {
					return err
				}
				if f == formatJSON {
					return printJSON(a.out, newInfoJSON(info))
				}
				return printPairs(a.out, describeInfo(info))
			})
		},
	}
	addFormat(cmd, &f)
	return cmd
}

func describeInfo(i *daemonv1.InfoResponse) []pair {
	out := []pair{
		{"version", i.GetVersion()},
		{"platform", i.GetPlatform()},
		{"process", strconv.Itoa(int(i.GetPid()))},
		{"started", millis(i.GetStartedAtMs())},
		{"home", i.GetHome()},
		{"socket", i.GetSocket()},
		{"registry", i.GetRegistry()},
		{"database", fmt.Sprintf("schema version %d", i.GetSchemaVersion())},
		{"agents", fmt.Sprintf("%d, %d of them running", i.GetAgents(), i.GetAgentsRunning())},
	}
	out = append(out, list("providers", i.GetProviders())...)
	return append(out, confinement(i.GetConfinement())...)
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program, and of the daemon where one runs",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l := lines{w: a.out}
			l.printf("client  %s %s/%s %s\n", ownVersion(), runtime.GOOS, runtime.GOARCH, runtime.Version())
			if l.err != nil {
				return l.err
			}
			err := a.with(cmd.Context(), func(c *client.Client) error {
				info, err := c.Info(cmd.Context())
				if err != nil {
					return err
				}
				l.printf("daemon  %s %s\n", neutral(info.GetVersion(), false), neutral(info.GetPlatform(), false))
				return l.err
			})
			if errors.Is(err, client.ErrNoDaemon) {
				l.printf("daemon  not running\n")
				return l.err
			}
			return err
		},
	}
}
