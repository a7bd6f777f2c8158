package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) doctorCommand() *cobra.Command {
	var f format
	var attack bool
	cmd := &cobra.Command{
		Use:   "doctor [--attack]",
		Short: "Explain what confines agents on this host, what it lacks and how to get it",
		Long: `Explain what confines agents on this host, what it lacks and how to get it.

It asks the ottersd beside this program, or else the one in PATH, and needs no daemon that runs.

--attack runs otters-attack at every level that the host supports, in place of an agent's runtime
and as its tool, and prints what came of each way out. It takes some seconds for each level, leaves
nothing behind, and reaches for nothing but what it has made itself.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := findDaemon()
			if err != nil {
				return err
			}
			args := []string{"doctor", "--format", f.String()}
			if attack {
				args = append(args, "--attack")
			}
			var stderr strings.Builder
			ottersd := exec.CommandContext(cmd.Context(), path, args...)
			ottersd.Stdout, ottersd.Stderr = a.out, &stderr
			// It ends by itself what it has started.
			ottersd.Cancel = func() error { return ottersd.Process.Signal(os.Interrupt) }
			err = ottersd.Run()
			if cmd.Context().Err() != nil {
				return cmd.Context().Err()
			}
			var exit *exec.ExitError
			if errors.As(err, &exit) && stderr.Len() > 0 {
				return fmt.Errorf("doctor: %s", strings.TrimPrefix(strings.TrimSpace(stderr.String()), "ottersd: "))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&attack, "attack", false, "try the ways out at every level, and print what came of each")
	addFormat(cmd, &f)
	return cmd
}
