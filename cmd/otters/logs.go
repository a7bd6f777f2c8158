package main

import (
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

func (a *app) logsCommand() *cobra.Command {
	var follow, times bool
	var since, tail string
	cmd := &cobra.Command{
		Use:   "logs AGENT",
		Short: "Print what an agent's runtime wrote to its standard output and error",
		Long: `Print what an agent's runtime wrote to its standard output and error, oldest first, all that is kept.

With -f it goes on, across restarts, until the agent is removed or it is interrupted.`,
		Args:              exactly(1),
		ValidArgsFunction: a.completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &daemonv1.LogsRequest{Agent: args[0], Follow: follow}
			var err error
			if req.SinceMs, err = sinceMs(since, time.Now()); err != nil {
				return err
			}
			if req.Tail, err = tailLines(tail); err != nil {
				return err
			}
			return a.with(cmd.Context(), func(c *client.Client) error {
				l := lines{w: a.out}
				for entry, err := range c.Logs(cmd.Context(), req) {
					if err != nil {
						return err
					}
					line := entry.GetLine()
					if a.outTerm {
						line = neutral(line, true)
					}
					if times {
						l.printf("%-24s %-7s ", millis(entry.GetAtMs()), neutral(entry.GetStream(), false))
					}
					if l.printf("%s\n", line); l.err != nil {
						return l.err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is written from now on")
	cmd.Flags().BoolVarP(&times, "timestamps", "t", false, "show when and on which stream each line was written")
	cmd.Flags().StringVar(&since, "since", "", "leave out what is older: a `time` such as 10m, for ten minutes ago, or 2006-01-02T15:04:05Z")
	cmd.Flags().StringVar(&tail, "tail", "all", "begin with the last `N` lines")
	return cmd
}

// sinceMs reads a length of time before now, or a moment; 0 for none.
func sinceMs(s string, now time.Time) (int64, error) {
	if s == "" {
		return 0, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return max(now.Add(-d).UnixMilli(), 1), nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil || at.UnixMilli() < 1 {
		return 0, usagef("--since %q: neither a length of time such as 10m nor a moment such as 2006-01-02T15:04:05Z", s)
	}
	return at.UnixMilli(), nil
}

// tailLines reads a number of lines; nil for all.
func tailLines(s string) (*int32, error) {
	if s == "all" {
		return nil, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return nil, usagef("--tail %q: want a number of lines, or all", s)
	}
	lines := int32(n)
	return &lines, nil
}
