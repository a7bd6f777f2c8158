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

// runRegistry does what follows the word registry.
func runRegistry(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var opts options
	var port int
	var anonymous, skip bool
	var grace time.Duration
	if len(args) == 0 {
		return errors.New("registry: want serve, gc or fsck; `ottersd registry --help` shows more")
	}
	command := args[0]
	fs := flag.NewFlagSet("registry", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	if command != "-h" && command != "--help" && command != "-help" {
		args = args[1:]
	}
	fs.StringVar(&opts.home, "home", "", "")
	switch command {
	case "serve":
		fs.IntVar(&port, "port", 0, "")
		fs.BoolVar(&anonymous, "anonymous-pull", false, "")
		fs.TextVar(&opts.level, "log-level", slog.LevelInfo, "")
	case "gc":
		fs.DurationVar(&grace, "grace", registry.DefaultGrace, "")
	case "fsck":
		fs.BoolVar(&skip, "skip-files", false, "")
	}
	err := cmp.Or(fs.Parse(args), noEmptyFlags(fs))
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, registryUsage)
		return nil
	case err != nil:
		return fmt.Errorf("registry %s: %w; `ottersd registry --help` shows what there is", command, err)
	case fs.NArg() > 0:
		return fmt.Errorf("registry %s: unexpected %q", command, strings.Join(fs.Args(), " "))
	case port < 0 || port > 65535:
		return fmt.Errorf("registry serve: port %d is not from 1 to 65535", port)
	}
	if err := opts.places(); err != nil {
		return err
	}
	switch command {
	case "serve":
		return daemon.ServeRegistry(ctx, daemon.RegistryConfig{
			Home: opts.home, Port: port, AnonymousPull: anonymous,
			Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: opts.level})),
			Ready: func(addr, tokenFile string) {
				// Whoever started this may have stopped reading; that is no reason not to serve.
				_, _ = fmt.Fprintf(stdout, "registry ready: %s, token in %s\n", addr, tokenFile)
			},
		})
	case "gc":
		r, err := daemon.CollectRegistry(ctx, opts.home, grace)
		if err != nil {
			return err
		}
		return printMessage(stdout, r)
	case "fsck":
		r, err := daemon.CheckRegistry(ctx, opts.home, skip)
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
	return fmt.Errorf("registry: no command %q; want serve, gc or fsck", command)
}

func printMessage(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}
