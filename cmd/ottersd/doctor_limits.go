package main

import (
	"cmp"
	"strings"

	"github.com/otters-sh/otters/sandbox"
)

// limitChecks tell what would enforce limits of an agent at the strongest level that is supported.
func (d *diagnosis) limitChecks() []check {
	var at []limit
	for _, l := range d.Levels {
		if l.Supported {
			at = l.Limits
		}
	}
	var all []check
	for _, l := range at {
		c := check{
			Name: "limit --" + l.Name, OK: strings.HasPrefix(l.By, "cgroup"), Found: cmp.Or(l.By, l.Lacks),
			For: []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict},
		}
		if !c.OK {
			c.Fix = "run the daemon as root, or as a systemd service with Delegate=yes and DelegateSubgroup=daemon; docs/security.md has more under Limits"
		}
		all = append(all, c)
	}
	return all
}
