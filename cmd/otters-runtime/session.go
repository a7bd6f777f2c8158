package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/otters-sh/otters/agentruntime"
)

// Exit codes of session; docs/runtime.md has them.
const (
	exitNoSession = 3
	exitRefused   = 4
	exitInput     = 5
)

// sessionFlags are what the commands below session take.
type sessionFlags struct {
	root           string
	limit          int
	notes, replace bool
}

// sessionCommand is a command below session: how many arguments it takes, and what it does.
type sessionCommand struct {
	least, most int
	do          func(context.Context, *agentruntime.Sessions, sessionFlags, []string) error
}

var sessionCommands = map[string]sessionCommand{
	"ls": {0, 0, func(ctx context.Context, s *agentruntime.Sessions, _ sessionFlags, _ []string) error {
		return s.List(ctx, os.Stdout)
	}},
	"show": {1, 1, func(ctx context.Context, s *agentruntime.Sessions, f sessionFlags, ids []string) error {
		return s.Show(ctx, os.Stdout, ids[0], f.limit)
	}},
	"rm": {1, 1 << 20, func(ctx context.Context, s *agentruntime.Sessions, _ sessionFlags, ids []string) error {
		return s.Remove(ctx, ids...)
	}},
	"export": {0, 1 << 20, func(ctx context.Context, s *agentruntime.Sessions, f sessionFlags, ids []string) error {
		return s.Export(ctx, os.Stdout, agentruntime.ExportOptions{IDs: ids, Notes: f.notes})
	}},
	"import": {0, 0, importSessions},
}

// session works on the sessions of a tree that no runtime serves. It obeys signals by dying: nothing is
// stored by halves.
func session(args []string) int {
	if len(args) == 0 {
		return misused("session: no command; want ls, show, rm, export or import")
	}
	var f sessionFlags
	flags := flag.NewFlagSet("session", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&f.root, "root", "", "")
	command, known := sessionCommands[args[0]]
	if !known {
		return misused(fmt.Sprintf("session: unknown command %q", args[0]))
	}
	switch args[0] {
	case "show":
		flags.IntVar(&f.limit, "limit", 0, "")
	case "export":
		flags.BoolVar(&f.notes, "notes", false, "")
	case "import":
		flags.BoolVar(&f.replace, "replace", false, "")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return misused("session " + args[0] + ": " + err.Error())
	}
	if n := flags.NArg(); n < command.least || n > command.most {
		return misused(fmt.Sprintf("session %s: %d arguments", args[0], n))
	}
	ctx := context.Background()
	s, err := agentruntime.OpenSessions(ctx, f.root)
	if err == nil {
		for _, w := range s.Warnings() {
			fmt.Fprintln(os.Stderr, "otters-runtime: warning: "+w)
		}
		err = errors.Join(command.do(ctx, s, f, flags.Args()), s.Close())
	}
	if err != nil {
		return failedSession(err)
	}
	return 0
}

func importSessions(ctx context.Context, s *agentruntime.Sessions, f sessionFlags, _ []string) error {
	counts, err := s.Import(ctx, os.Stdin, agentruntime.ImportOptions{Replace: f.replace})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(counts)
}

// failedSession is failed with the codes of session.
func failedSession(err error) int {
	code := failed(err)
	switch {
	case errors.Is(err, agentruntime.ErrNoSession):
		return exitNoSession
	case errors.Is(err, agentruntime.ErrInUse), errors.Is(err, agentruntime.ErrExists):
		return exitRefused
	case errors.Is(err, agentruntime.ErrInput):
		return exitInput
	}
	return code
}
