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
	least, most := 0, 0
	var do func(context.Context, *agentruntime.Sessions, sessionFlags, []string) error
	switch args[0] {
	case "ls":
		do = func(ctx context.Context, s *agentruntime.Sessions, _ sessionFlags, _ []string) error {
			return s.List(ctx, os.Stdout)
		}
	case "show":
		least, most = 1, 1
		flags.IntVar(&f.limit, "limit", 0, "")
		do = func(ctx context.Context, s *agentruntime.Sessions, f sessionFlags, ids []string) error {
			return s.Show(ctx, os.Stdout, ids[0], f.limit)
		}
	case "rm":
		least, most = 1, 1<<20
		do = func(ctx context.Context, s *agentruntime.Sessions, _ sessionFlags, ids []string) error {
			return s.Remove(ctx, ids...)
		}
	case "export":
		most = 1 << 20
		flags.BoolVar(&f.notes, "notes", false, "")
		do = func(ctx context.Context, s *agentruntime.Sessions, f sessionFlags, ids []string) error {
			return s.Export(ctx, os.Stdout, agentruntime.ExportOptions{IDs: ids, Notes: f.notes})
		}
	case "import":
		flags.BoolVar(&f.replace, "replace", false, "")
		do = importSessions
	default:
		return misused(fmt.Sprintf("session: unknown command %q", args[0]))
	}
	if err := flags.Parse(args[1:]); err != nil {
		return misused("session " + args[0] + ": " + err.Error())
	}
	if n := flags.NArg(); n < least || n > most {
		return misused(fmt.Sprintf("session %s: %d arguments", args[0], n))
	}
	ctx := context.Background()
	s, err := agentruntime.OpenSessions(ctx, f.root)
	if err == nil {
		err = errors.Join(do(ctx, s, f, flags.Args()), s.Close())
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
