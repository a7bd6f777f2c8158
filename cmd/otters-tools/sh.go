package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// Exit codes of a shell beside the shared ones.
const (
	exitNotRun   = 126
	exitNotFound = 127
	exitSignal   = 128
)

// stopDelay is how long a program has to end after it was told to.
const stopDelay = 2 * time.Second

// shell is one run of sh.
type shell struct {
	c        *call
	path     []string // the folders of programs
	exit, no *bool
	unset    *bool
	trace    *bool
}

func sh(c *call, flags *pflag.FlagSet) func([]string) error {
	flags.SetInterspersed(false)
	s := shell{
		c:     c,
		exit:  flags.BoolP("errexit", "e", false, "end when a command fails"),
		unset: flags.BoolP("nounset", "u", false, "a variable that is not set is an error"),
		trace: flags.BoolP("xtrace", "x", false, "print each command before it runs"),
		no:    flags.BoolP("noexec", "n", false, "only check that the script can be read"),
	}
	command := flags.StringP("command", "c", "", "run `SCRIPT`; the operands are $0, $1, …")
	return func(operands []string) error {
		name, text := "sh", *command
		switch {
		case flags.Changed("command"):
			if len(operands) > 0 {
				name, operands = operands[0], operands[1:]
			}
		case len(operands) > 0 && operands[0] != "-":
			name = operands[0]
			f, err := os.Open(name)
			if err != nil {
				return fmt.Errorf("%s: %s", name, cause(err))
			}
			defer f.Close()
			if text, err = script(f); err != nil {
				return fmt.Errorf("%s: %s", name, cause(err))
			}
			operands = operands[1:]
		default:
			var err error
			if text, err = script(c.stdin); err != nil {
				return fmt.Errorf("standard input: %s", cause(err))
			}
			operands = operands[min(1, len(operands)):]
		}
		return s.run(name, text, operands)
	}
}

func script(r io.Reader) (string, error) {
	text, err := readAll(r, maxScript)
	return string(text), err
}

func (s *shell) run(name, text string, params []string) error {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), name)
	if err != nil {
		fmt.Fprintf(s.c.stderr, "sh: %v\n", err)
		s.c.code = exitUsage
		return nil
	}
	if *s.no {
		return nil
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			s.path = append(s.path, filepath.Clean(dir))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	runner, err := interp.New(interp.StdIO(s.c.stdin, s.c.sink, s.c.stderr), interp.Params(s.options(params)...),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return s.execute }))
	if err != nil {
		return err
	}
	err = runner.Run(ctx, file)
	var status interp.ExitStatus
	if errors.As(err, &status) {
		s.c.code = int(status)
		return nil
	}
	return err
}

// options is what set takes: the options in force, then the script's arguments.
func (s *shell) options(params []string) []string {
	var out []string
	for _, o := range []struct {
		set  *bool
		name string
	}{{s.exit, "-e"}, {s.unset, "-u"}, {s.trace, "-x"}} {
		if *o.set {
			out = append(out, o.name)
		}
	}
	return append(append(out, "--"), params...)
}

// execute runs a program of PATH, and none elsewhere: not by a path, not by a PATH that the script
// sets, and not a text that the kernel takes for no program.
func (s *shell) execute(ctx context.Context, args []string) error {
	hc := interp.HandlerCtx(ctx)
	path, err := s.lookup(hc.Dir, args[0])
	if err != nil {
		fmt.Fprintf(hc.Stderr, "sh: %s: %v\n", args[0], err)
		if errors.Is(err, errNotFound) {
			return interp.ExitStatus(exitNotFound)
		}
		return interp.ExitStatus(exitNotRun)
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Args, cmd.Dir, cmd.Env = args, hc.Dir, exported(hc.Env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = hc.Stdin, hc.Stdout, hc.Stderr
	if out, ok := hc.Stdout.(*sink); ok {
		cmd.Stdout = out.w // the descriptor itself, without a copy between
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopDelay
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return nil
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return interp.ExitStatus(exitSignal + int(status.Signal()))
		}
		return interp.ExitStatus(exit.ExitCode())
	case ctx.Err() != nil:
		return ctx.Err()
	}
	fmt.Fprintf(hc.Stderr, "sh: %s: %s\n", args[0], cause(err))
	return interp.ExitStatus(exitNotRun)
}

var errNotFound = errors.New("not found")

// lookup returns the program that a command names.
func (s *shell) lookup(dir, name string) (string, error) {
	if strings.Contains(name, "/") {
		full := name
		if !filepath.IsAbs(full) {
			full = filepath.Join(dir, full)
		}
		if full = filepath.Clean(full); !slices.Contains(s.path, filepath.Dir(full)) {
			return "", fmt.Errorf("only programs in %s are run", strings.Join(s.path, ", "))
		}
		return full, executable(full)
	}
	for _, folder := range s.path {
		full := filepath.Join(folder, name)
		if err := executable(full); err == nil {
			return full, nil
		}
	}
	if len(s.path) == 0 {
		return "", fmt.Errorf("%w: PATH names no folder", errNotFound)
	}
	return "", fmt.Errorf("%w in %s", errNotFound, strings.Join(s.path, ", "))
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s", errNotFound, cause(err))
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return errors.New("not a program")
	}
	return nil
}

// exported is the environment that a program gets. A name may come more than once, and the last
// time is what holds.
func exported(env expand.Environ) []string {
	held := map[string]string{}
	for name, v := range env.Each {
		if v.IsSet() && v.Exported && v.Kind == expand.String {
			held[name] = v.String()
		} else {
			delete(held, name)
		}
	}
	out := make([]string, 0, len(held))
	for name, value := range held {
		out = append(out, name+"="+value)
	}
	return out
}
