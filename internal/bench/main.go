//go:build linux

// Command bench measures Otters beside floors of the same run. It builds what it measures itself,
// with the flags of a release, into a temporary folder, and leaves nothing behind.
//
// Usage: go run ./internal/bench [--json] [-n RUNS] [--agents N] ready|prompt|build|turn|runtime|registry|density|take-over|all
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/otters-sh/otters/internal/home"
)

// bench is one benchmark.
type bench struct {
	name string
	run  func(ctx context.Context, b *built, runs int) ([]row, error)
}

var benches = []bench{{"ready", benchReady}, {"prompt", benchPrompt}, {"build", benchBuild}, {"turn", benchTurn}, {"runtime", benchRuntime}, {"registry", benchRegistry}}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "print one JSON object per row")
	runs := flags.Int("n", 100, "measured runs of each row")
	agents := flags.Int("agents", 200, "agents of density and take-over")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *runs < 1 || *agents < 1 {
		return errors.New("usage: bench [--json] [-n RUNS] [--agents N] ready|prompt|build|turn|runtime|registry|density|take-over|all")
	}
	all := append(benches[:len(benches):len(benches)],
		bench{"density", func(ctx context.Context, b *built, _ int) ([]row, error) { return benchDensity(ctx, b, *agents) }},
		bench{"take-over", func(ctx context.Context, b *built, runs int) ([]row, error) {
			return benchTakeOver(ctx, b, *agents, runs)
		}})
	var chosen []bench
	for _, b := range all {
		if name := flags.Arg(0); name == "all" || name == b.name {
			chosen = append(chosen, b)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no benchmark %q; there are ready, prompt, build, turn, runtime, registry, density, take-over and all", flags.Arg(0))
	}
	built, err := build(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(built.dir)) }()
	for _, b := range chosen {
		rows, err := b.run(ctx, built, *runs)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		if err := print(os.Stdout, b.name, rows, *asJSON); err != nil {
			return err
		}
	}
	return nil
}

// patience is how long a program may take that is to answer: however busy the machine, it will not take that.
const patience = 5 * time.Minute

// built is a folder with the programs.
type built struct {
	dir string
	// spaces tells that this host lets its user make namespaces.
	spaces bool
}

func (b *built) path(name string) string { return filepath.Join(b.dir, name) }

// build compiles the programs as a release does.
func build(ctx context.Context) (*built, error) {
	base := os.TempDir()
	if len(base) > home.MaxSocket/2 {
		base = "/tmp" // the daemon's socket is in it
	}
	dir, err := os.MkdirTemp(base, "otters-bench-")
	if err != nil {
		return nil, err
	}
	// Agents of a root daemon have users of their own, who must get through.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace",
		"-ldflags", "-s -w -X runtime.godebugDefault=disablethp=1", "-o", dir+"/",
		"./cmd/ottersd", "./cmd/otters-runtime", "./cmd/otters-tools", "./cmd/otters-sandbox", "./internal/bench/bare")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("build: %w: %s", err, out)
	}
	uid := os.Geteuid()
	if uid == 0 {
		uid = 65534
	}
	return &built{dir: dir, spaces: inNamespaces(exec.CommandContext(ctx, "/bin/true"), uid).Run() == nil}, nil
}
