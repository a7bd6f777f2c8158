package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/otters-sh/otters/daemon"
	"github.com/otters-sh/otters/registry"
)

const registryUsage = `usage: ottersd registry serve [--home DIR] [--port N] [--anonymous-pull] [--log-level LEVEL]
       ottersd registry gc [--home DIR] [--grace DURATION]
       ottersd registry fsck [--home DIR] [--skip-files]

The home must be one that no daemon has. gc and fsck print one JSON object; fsck ends with 1 when it
found something wrong.

  --home            folder of the state (default: OTTERS_HOME, else XDG_STATE_HOME/otters)
  --port            port on the loopback (default 5527, or a free one where that is taken)
  --anonymous-pull  let callers without a token pull
  --grace           keep what was pushed within this time, up to 24h (default 1h)
  --skip-files      do not read the blobs over 64 KiB
`

// registryFlags are what the commands below registry are given.
type registryFlags struct {
	options

	port            int
	anonymous, skip bool
	grace           time.Duration
}

// runRegistry does what follows the word registry.
func runRegistry(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errors.New("registry: want serve, gc or fsck; `ottersd registry --help` shows more")
	}
	command := args[0]
	var f registryFlags
	err := f.parse(command, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, registryUsage)
		return nil
	case err != nil:
		return err
	}
	switch command {
	case "serve":
		return daemon.ServeRegistry(ctx, daemon.RegistryConfig{
			Home: f.home, Port: f.port, AnonymousPull: f.anonymous,
			Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: f.level})),
			Ready: func(addr, tokenFile string) {
				// Whoever started this may have stopped reading; that is no reason not to serve.
				_, _ = fmt.Fprintf(stdout, "registry ready: %s, token in %s\n", addr, tokenFile)
			},
		})
	case "gc":
		r, err := daemon.CollectRegistry(ctx, f.home, f.grace)
		if err != nil {
			return err
		}
		return printMessage(stdout, r)
	case "fsck":
		return checkRegistry(ctx, f.home, f.skip, stdout)
	}
	return fmt.Errorf("registry: no command %q; want serve, gc or fsck", command)
}

// parse reads args, the first of which is the command.
func (f *registryFlags) parse(command string, args []string) error {
	fs := flag.NewFlagSet("registry", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	if command != "-h" && command != "--help" && command != "-help" {
		args = args[1:]
	}
	fs.StringVar(&f.home, "home", "", "")
	switch command {
	case "serve":
		fs.IntVar(&f.port, "port", 0, "")
		fs.BoolVar(&f.anonymous, "anonymous-pull", false, "")
		fs.TextVar(&f.level, "log-level", slog.LevelInfo, "")
	case "gc":
		fs.DurationVar(&f.grace, "grace", registry.DefaultGrace, "")
	case "fsck":
		fs.BoolVar(&f.skip, "skip-files", false, "")
	}
	err := cmp.Or(fs.Parse(args), noEmptyFlags(fs))
	switch {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return fmt.Errorf("registry %s: %w; `ottersd registry --help` shows what there is", command, err)
	case fs.NArg() > 0:
		return fmt.Errorf("registry %s: unexpected %q", command, strings.Join(fs.Args(), " "))
	case f.port < 0 || f.port > 65535:
		return fmt.Errorf("registry serve: port %d is not from 1 to 65535", f.port)
	}
	return f.places()
}

// checkRegistry prints what is wrong with the registry, and ends in an error where something is.
func checkRegistry(ctx context.Context, home string, skip bool, stdout io.Writer) error {
	r, err := daemon.CheckRegistry(ctx, home, skip)
	if err != nil {
		return err
	}
	if err := printMessage(stdout, r); err != nil {
		return err
	}
	if n := int64(len(r.GetProblems())) + r.GetFurther(); n > 0 {
		return fmt.Errorf("registry fsck: %d problems", n)
	}
	return nil
}

func printMessage(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}
