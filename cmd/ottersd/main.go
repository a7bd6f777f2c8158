// Command ottersd is the daemon: it owns a home, supervises the agents in it and serves the API on a
// unix socket. It runs in the foreground until SIGINT, SIGTERM or `otters daemon stop`; agents run
// on when it ends.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/otters-sh/otters/daemon"
	"github.com/otters-sh/otters/internal/home"
)

// version is set by the release build; otherwise it comes from the module.
var version string

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type options struct {
	home, socket, log string
	level             slog.Level
	version           bool
}

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "doctor" {
		return runDoctor(args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "registry" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := runRegistry(ctx, args[1:], stdout, stderr); err != nil {
			fmt.Fprintf(stderr, "ottersd: %s\n", oneLine(err))
			return 1
		}
		return 0
	}
	opts, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "ottersd: %s\n", oneLine(err))
		return 2
	case opts.version:
		fmt.Fprintln(stdout, "ottersd", versionText())
		return 0
	}
	if opts.log != "" {
		log, err := openLogFile(opts.log, maxLog, takeStandard)
		if err != nil {
			fmt.Fprintf(stderr, "ottersd: %s\n", oneLine(err))
			return 1
		}
		defer log.Close()
		stdout, stderr = log, log
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, opts, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "ottersd: %s\n", oneLine(err))
		return 1
	}
	return 0
}

func runDoctor(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := doctor(ctx, args, stdout)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "ottersd: %s\n", oneLine(err))
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

const usage = `usage: ottersd [--home DIR] [--socket PATH] [--log-level debug|info|warn|error] [--log-file PATH]
       ottersd registry serve|gc|fsck [flags]
       ottersd version
       ottersd doctor [--attack] [--format table|json]

  --home       folder of the daemon's state (default: OTTERS_HOME, else XDG_STATE_HOME/otters)
  --socket     path of the API's unix socket (default: otters/ottersd.sock in XDG_RUNTIME_DIR, else ottersd.sock in the home)
  --log-level  least important level that is logged to standard error (default info)
  --log-file   file for the log, standard output and standard error; above 10 MiB it goes on in a new one, and the one before is kept with .1 behind its name
`

func parse(args []string, stdout io.Writer) (options, error) {
	var opts options
	fs := flag.NewFlagSet("ottersd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&opts.home, "home", "", "")
	fs.StringVar(&opts.socket, "socket", "", "")
	fs.TextVar(&opts.level, "log-level", slog.LevelInfo, "")
	fs.StringVar(&opts.log, "log-file", "", "")
	if err := cmp.Or(fs.Parse(args), noEmptyFlags(fs)); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stdout, usage)
			return opts, err
		}
		return opts, fmt.Errorf("%w; `ottersd --help` shows what there is", err)
	}
	switch rest := fs.Args(); {
	case len(rest) == 0:
	case len(rest) == 1 && rest[0] == "version":
		opts.version = true
	default:
		return opts, fmt.Errorf("unknown command %q; `ottersd --help` shows what there is", strings.Join(rest, " "))
	}
	return opts, nil
}

// noEmptyFlags refuses a flag that is given without a value, as of a variable that is not set: it would
// count as not given.
func noEmptyFlags(fs *flag.FlagSet) error {
	var err error
	fs.Visit(func(f *flag.Flag) {
		if err == nil && f.Value.String() == "" {
			err = fmt.Errorf("--%s is empty; give it a value, or leave it out", f.Name)
		}
	})
	return err
}

// places fills in the home and the socket that were not named.
func (o *options) places() error {
	var err error
	if o.home == "" {
		o.home, err = home.Home()
	} else {
		o.home, err = filepath.Abs(o.home)
	}
	if err != nil {
		return err
	}
	if o.socket == "" {
		o.socket, err = home.Socket(o.home)
	} else if o.socket, err = filepath.Abs(o.socket); err == nil {
		err = home.CheckSocket(o.socket)
	}
	return err
}

func serve(ctx context.Context, opts options, stdout, stderr io.Writer) error {
	if err := opts.places(); err != nil {
		return err
	}
	d, err := daemon.Open(ctx, daemon.Config{
		Home: opts.home, Socket: opts.socket, Version: versionText(),
		Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: opts.level})),
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to end before it was ready
		}
		return err
	}
	// Whoever started this may have stopped reading; that is no reason not to serve.
	_, _ = fmt.Fprintf(stdout, "ottersd ready: socket %s, home %s, registry %s, pid %d\n", opts.socket, opts.home, d.Registry(), os.Getpid())
	return d.Serve(ctx)
}

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// oneLine keeps an error of several parts on one line.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
