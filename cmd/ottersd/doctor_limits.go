package main

import (
	"strings"

	"github.com/otters-sh/otters/sandbox"
)

// limitChecks tell what would enforce limits of an agent at the strongest level.
func limitChecks(monitor string) []check {
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: monitor, Warm: -1})
	if err != nil {
		return nil // that the monitor lacks has been told
	}
	defer l.Close()
	var all []check
	for _, c := range []struct {
		option string
		limits sandbox.Limits
	}{
		{"--memory", sandbox.Limits{Memory: sandbox.MinMemory}},
		{"--cpus", sandbox.Limits{CPU: sandbox.MinCPU}},
		{"--pids", sandbox.Limits{PIDs: sandbox.MinPIDs}},
	} {
		out := check{Name: "limit " + c.option, For: []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict}}
		by, err := l.LimitedBy(l.Strongest(), c.limits)
		switch {
		case err != nil:
			out.Found = err.Error()
		default:
			out.Found = by[0].Mechanism
			out.OK = strings.HasPrefix(by[0].Mechanism, "cgroup")
		}
		if !out.OK {
			out.Fix = "run the daemon as root, or as a systemd service with Delegate=yes and DelegateSubgroup=daemon; docs/security.md has more under Limits"
		}
		all = append(all, out)
	}
	return all
}
