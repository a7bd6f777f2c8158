package main

import (
	"strings"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// mounts reads -v HOST:TARGET[:DESC][:ro]. A relative HOST is one of the caller's folder.
func mounts(given []string) ([]*daemonv1.Mount, error) {
	var out []*daemonv1.Mount
	for _, v := range given {
		parts := strings.Split(v, ":")
		m := &daemonv1.Mount{}
		if n := len(parts); n > 2 && parts[n-1] == "ro" {
			m.ReadOnly, parts = true, parts[:n-1]
		}
		if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
			return nil, usagef("-v %q: want HOST:TARGET[:DESC][:ro]", v)
		}
		host, err := absolute(parts[0])
		if err != nil {
			return nil, err
		}
		m.Host, m.Target = host, parts[1]
		if len(parts) == 3 {
			m.Description = parts[2]
		}
		out = append(out, m)
	}
	return out, nil
}

// shown is a mount as -v has it.
func shown(m *daemonv1.Mount) string {
	out := m.GetHost() + ":" + m.GetTarget()
	if m.GetDescription() != "" {
		out += ":" + m.GetDescription()
	}
	if m.GetReadOnly() {
		out += ":ro"
	}
	return out
}
