// Command otters-runtime is the default runtime: it serves one agent's tree, answers one prompt of it, or
// works on its sessions while nobody serves it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/agentruntime"
)

// exitUsage is the exit code for a command line that cannot be read.
const exitUsage = 2

const usage = `usage:
  otters-runtime serve --root DIR [--model PROVIDER/NAME] [--addr HOST:PORT]
  otters-runtime prompt --root DIR [--model PROVIDER/NAME] [--session ID] [--json] [--regenerate | TEXT | -]
  otters-runtime session ls --root DIR
  otters-runtime session show --root DIR [--limit N] ID
  otters-runtime session rm --root DIR ID...
  otters-runtime session export --root DIR [--notes] [ID...]
  otters-runtime session import --root DIR [--replace]
  otters-runtime capabilities
  otters-runtime version
`

// version is set by the linker in releases.
var version string

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 0 {
		return misused("no command")
	}
	// A write beyond a limit on file size is to be an error and no end. Ignoring the signal would
	// reach the tools too.
	signal.Notify(make(chan os.Signal, 1), unix.SIGXFSZ)
	switch args[0] {
	case "serve":
		return serve(args[1:])
	case "prompt":
		return prompt(args[1:])
	case "session":
		return session(args[1:])
	case "capabilities":
		if len(args) > 1 {
			return misused(fmt.Sprintf("capabilities: unexpected argument %q", args[1]))
		}
		fmt.Println(strings.Join(agentruntime.Capabilities(), "\n"))
		return 0
	case "version":
		fmt.Println("otters-runtime", buildVersion())
		return 0
	}
	return misused(fmt.Sprintf("unknown command %q", args[0]))
}

func misused(why string) int {
	fmt.Fprintf(os.Stderr, "otters-runtime: %s\n%s", why, usage)
	return exitUsage
}

func serve(args []string) int {
	var opts agentruntime.Options
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&opts.Root, "root", "", "")
	flags.StringVar(&opts.Model, "model", "", "")
	flags.StringVar(&opts.Addr, "addr", "", "")
	if err := flags.Parse(args); err != nil {
		return misused(err.Error())
	}
	if flags.NArg() > 0 {
		return misused(fmt.Sprintf("serve: unexpected argument %q", flags.Arg(0)))
	}
	if err := hideEnvironment(); err != nil {
		return failed(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if opts.Handover, err = agentruntime.Inherit(os.Getenv); err != nil {
		return failed(err)
	}
	opts.Environ, opts.Log = os.Environ(), os.Stderr
	if err := agentruntime.Serve(ctx, opts); err != nil {
		return failed(err)
	}
	return 0
}

// failed prints one line and picks the exit code.
func failed(err error) int {
	fmt.Fprintf(os.Stderr, "otters-runtime: %s\n", oneLine(err.Error()))
	if errors.Is(err, agentruntime.ErrConfig) {
		return agentruntime.ExitConfig
	}
	return 1
}

func oneLine(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c == '\n' || c == '\r' {
			b[i] = ' '
		}
	}
	return string(b)
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
