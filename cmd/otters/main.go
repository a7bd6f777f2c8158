// Command otters is the command line of Otters: it speaks to the daemon ottersd over its unix
// socket and links nothing of it.
//
// Exit codes: 0 done; 1 failed; 2 used wrongly; 3 no daemon, from "daemon status" only; 130
// interrupted. An error is one line on standard error: "otters: what: why; what to do".
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends a command that does not obey the first one.
	context.AfterFunc(ctx, stop)
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		outTerm: isTerminal(os.Stdout), errTerm: isTerminal(os.Stderr), inTerm: isTerminal(os.Stdin),
	}
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
