package main

import (
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// limitFlags are the limits of an agent as they are given; the daemon knows their bounds.
type limitFlags struct{ memory, cpus, pids string }

func (l *limitFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.memory, "memory", "", "`size` of memory that all of the agent may use together, such as 512m or 1g; from 32m (default: no limit)")
	cmd.Flags().StringVar(&l.cpus, "cpus", "", "`number` of processors that the agent may use, such as 0.5 or 2; from 0.01 to 1024 (default: no limit)")
	cmd.Flags().StringVar(&l.pids, "pids", "", "`number` of processes and threads that the agent may run at once; from 16 to 4194304 (default: no limit)")
}

// fill puts what was given into the request.
func (l *limitFlags) fill(cmd *cobra.Command, req *daemonv1.CreateAgentRequest) error {
	for _, f := range []struct {
		name, given string
		to          *int64
		parse       func(string) (int64, bool)
		want        string
	}{
		{"memory", l.memory, &req.MemoryLimit, bytesOf, "a size such as 512m or 1g, with b, k, m, g or t"},
		{"cpus", l.cpus, &req.CpuLimit, func(s string) (int64, bool) { return scaled(s, 1000) }, "a number of processors such as 0.5 or 2"},
		{"pids", l.pids, &req.PidsLimit, func(s string) (int64, bool) {
			n, err := strconv.ParseInt(s, 10, 64)
			return n, err == nil && n > 0
		}, "a whole number above 0"},
	} {
		if !cmd.Flags().Changed(f.name) {
			continue
		}
		n, ok := f.parse(f.given)
		if !ok {
			return usagef("--%s %q: want %s; leave it out for no limit", f.name, f.given, f.want)
		}
		*f.to = n
	}
	return nil
}

// sizeUnits are powers of 1024.
const sizeUnits = "bkmgt"

// bytesOf reads bytes with a unit.
func bytesOf(s string) (int64, bool) {
	factor := 1.0
	if n := len(s); n > 0 {
		if i := strings.IndexByte(sizeUnits, s[n-1]|0x20); i >= 0 {
			s, factor = s[:n-1], math.Pow(1024, float64(i))
		}
	}
	return scaled(s, factor)
}

// scaled reads a decimal number above 0 and multiplies it; no more than a signed number can hold.
func scaled(s string, factor float64) (int64, bool) {
	if strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	n = math.Round(n * factor)
	return int64(n), err == nil && n >= 1 && n < 1<<62
}

// limit is one as its option takes it, with what enforces it.
func limit(l *daemonv1.Limit) string {
	value := strconv.FormatInt(l.GetValue(), 10)
	switch n := l.GetValue(); l.GetName() {
	case "memory":
		unit := 0
		for n > 0 && n%1024 == 0 && unit < len(sizeUnits)-1 {
			n, unit = n/1024, unit+1
		}
		value = strconv.FormatInt(n, 10)
		if unit > 0 {
			value += sizeUnits[unit : unit+1]
		}
	case "cpus":
		value = strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
	}
	return l.GetName() + " " + value + "  " + l.GetMechanism()
}
