package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/otters-sh/otters/client"
	"github.com/otters-sh/otters/internal/home"
)

// app is one run of the program: its streams and its global options.
type app struct {
	in       io.Reader
	out, err io.Writer
	// Whether the streams are terminals, where hostile text is neutralised and style is shown.
	inTerm, outTerm, errTerm bool

	socket string
}

// run parses args, does what they say, and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			return a.report(ctx, usagef("argument %q: not valid UTF-8", arg))
		}
	}
	root := a.command()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	return a.report(ctx, root.ExecuteContext(ctx))
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "otters",
		Short: "Run AI agents as images, confined, on your own machine",
		Long: `Run AI agents as images, confined, on your own machine.

otters speaks to a daemon, ottersd, on a unix socket: "otters daemon start" starts one, and
"otters demo" shows the whole with a daemon of its own.

OTTERS_HOME names the folder of the daemon's state; the socket is found from it.
Exit codes: 0 done, 1 failed, 2 used wrongly, 130 interrupted.`,
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args:                       cobra.ArbitraryArgs,
		RunE:                       helpOrUnknown,
		ValidArgsFunction:          cobra.NoFileCompletions,
	}
	root.PersistentFlags().StringVar(&a.socket, "socket", "", "`path` of the daemon's socket (default: found from OTTERS_HOME and XDG_RUNTIME_DIR)")
	root.AddCommand(
		a.buildCommand(), a.imagesCommand(), a.imageCommand(), a.binCommand(),
		a.runCommand(), a.psCommand(), a.inspectCommand(), a.promptCommand(), a.logsCommand(),
		a.startCommand(), a.stopCommand(), a.restartCommand(), a.killCommand(), a.rmCommand(), a.execCommand(), a.sessionCommand(), a.noteCommand(),
		a.infoCommand(), a.doctorCommand(), a.versionCommand(), a.daemonCommand(), a.registryCommand(), a.demoCommand(),
	)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return noEmptyFlags(cmd) }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		what := ""
		if cmd.HasParent() {
			what = cmd.Name() + ": "
		}
		return usagef("%s%w; see `%s --help`", what, err, cmd.CommandPath())
	})
	ownUsageErrors(root)
	return root
}

// noEmptyFlags refuses a flag that is given without a value, as of a variable that is not set: it would
// count as not given.
func noEmptyFlags(cmd *cobra.Command) error {
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Value.Type() == "string" && f.Value.String() == "" {
			err = usagef("%s: --%s is empty; give it a value, or leave it out", cmd.Name(), f.Name)
		}
	})
	return err
}

// ownUsageErrors gives the commands that the library brings the errors and the exit code of ours.
func ownUsageErrors(root *cobra.Command) {
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [command]",
		Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("help: no command %q; see `otters --help`", strings.Join(args, " "))
			}
			return about.Help()
		},
	})
	root.InitDefaultCompletionCmd("completion")
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		cmd.Args, cmd.RunE = cobra.ArbitraryArgs, helpOrUnknown
		for _, shell := range cmd.Commands() {
			shell.Args = exactly(0)
		}
	}
}

// helpOrUnknown is what a command does that has only commands below it.
func helpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	hint := fmt.Sprintf("see `%s --help`", cmd.CommandPath())
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		hint = fmt.Sprintf("did you mean `%s %s`?", cmd.CommandPath(), strings.Join(like, "` or `"+cmd.CommandPath()+" "))
	}
	return usagef("unknown command %q; %s", args[0], hint)
}

// exactly, atLeast and between check how many arguments a command got.
func exactly(n int) cobra.PositionalArgs { return between(n, n) }

func atLeast(n int) cobra.PositionalArgs { return between(n, 1<<20) }

func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		why := fmt.Sprintf("too few arguments (%d)", len(args))
		if len(args) > most {
			why = fmt.Sprintf("unexpected argument %q", args[most])
		}
		return usagef("%s: %s; usage: %s", cmd.Name(), why, cmd.UseLine())
	}
}

// dial connects to the daemon of --socket or of the environment. The caller closes the client.
func (a *app) dial(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, client.Options{Socket: a.socket})
}

// with runs f with a connection to the daemon.
func (a *app) with(ctx context.Context, f func(*client.Client) error) error {
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close())
}

// paths returns the daemon's home and socket: dir, or the home of the environment where it is
// empty, and --socket, or the one that goes with the home.
func (a *app) paths(dir string) (string, string, error) {
	var err error
	if dir == "" {
		dir, err = home.Home()
	} else {
		dir, err = absolute(dir)
	}
	if err != nil {
		return "", "", err
	}
	if a.socket != "" {
		socket, err := absolute(a.socket)
		if err != nil {
			return "", "", err
		}
		return dir, socket, home.CheckSocket(socket)
	}
	socket, err := home.Socket(dir)
	return dir, socket, err
}

// settings reads K=V flags into a map. A value is given, never taken from the environment.
func settings(given []string) (map[string]string, error) {
	var out map[string]string
	for _, kv := range given {
		key, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok || key == "":
			return nil, usagef("--config %q: want K=V", kv)
		case out == nil:
			out = make(map[string]string)
		}
		if _, twice := out[key]; twice {
			return nil, usagef("--config %s: given twice; give it once", key)
		}
		out[key] = value
	}
	return out, nil
}

// keyValues reads K=V flags; K alone takes the value from the environment, where it has to be.
func keyValues(flag string, given []string) ([][2]string, error) {
	var out [][2]string
	seen := map[string]bool{}
	for _, kv := range given {
		key, value, ok := strings.Cut(kv, "=")
		switch {
		case key == "":
			return nil, usagef("%s %q: no name before the value; want K=V", flag, kv)
		case seen[key]:
			return nil, usagef("%s %s: given twice; give it once", flag, key)
		case !ok:
			if value, ok = os.LookupEnv(key); !ok {
				return nil, usagef("%s %s: not set in the environment; give %s=VALUE", flag, key, key)
			}
			if !utf8.ValidString(value) {
				return nil, usagef("%s %s: its value in the environment is not valid UTF-8", flag, key)
			}
		}
		seen[key] = true
		out = append(out, [2]string{key, value})
	}
	return out, nil
}
