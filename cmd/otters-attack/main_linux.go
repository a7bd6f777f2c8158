// Command otters-attack tries the ways out of a sandbox, one by one, and says which were open.
//
// It runs as an agent's tool (`otters-attack run`) or in place of its runtime (`otters-attack serve
// --root R …`), prints one JSON object a line for each attack and ends with exit code 0, whatever
// came of them; 1 tells that it could not do its work. What it attacks is named by whoever starts
// it: variable OTTERS_ATTACK_TARGETS or --targets holds one JSON object of names and values, and
// an attack that needs a target that is not there is skipped.
//
// Invariant: an attack that succeeds does no harm. It proves that it got through, by a secret that
// lies there to be read, a file of its own that it removes again, or a call that would have been
// let through and does nothing, and leaves everything as it was.
//
// Each attack has an allowed twin, the nearest thing that must work, so that a sandbox in which
// nothing works at all can't pass for a tight one.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

// targetsVariable names the environment variable with the targets.
const targetsVariable = "OTTERS_ATTACK_TARGETS"

const usage = `usage: otters-attack run [--targets JSON] [--only ID] [--table]
       otters-attack serve [--root DIR] [--model NAME] [--addr ADDR]
       otters-attack list
`

func main() {
	if err := command(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "otters-attack:", err)
		os.Exit(1)
	}
}

func command(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("no command: it is run, serve or list")
	}
	if role, ok := roles[args[0]]; ok {
		return role(args[1:])
	}
	fs := flag.NewFlagSet("otters-attack", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var given, only, root string
	var table bool
	fs.StringVar(&given, "targets", "", "")
	fs.StringVar(&only, "only", "", "")
	fs.StringVar(&root, "root", "", "")
	fs.BoolVar(&table, "table", false, "")
	// What a runtime is started with and an attack has no use for.
	fs.String("model", "", "")
	fs.String("addr", "", "")
	if err := fs.Parse(args[1:]); err != nil || fs.NArg() > 0 {
		return fmt.Errorf("%v %q; %s", err, fs.Args(), usage)
	}
	switch args[0] {
	case "run", "serve":
		t, err := readTargets(given)
		if err != nil {
			return err
		}
		if root != "" {
			t["root"] = root
		}
		if args[0] == "serve" {
			t["mode"] = modeRuntime
		}
		return runAll(t, only, table, out)
	case "list":
		return list(out)
	}
	return fmt.Errorf("unknown command %q; %s", args[0], usage)
}

// runAll attacks and prints.
func runAll(t targets, only string, table bool, out io.Writer) error {
	r, err := newRunner(t)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	found := false
	for _, a := range attacks() {
		if only != "" && a.id != only {
			continue
		}
		found = true
		rep := r.report(a)
		if table {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\ttwin %s\n", rep.ID, rep.Name, rep.Outcome, rep.Evidence, rep.Twin)
		} else if err := enc.Encode(rep); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("no attack %q; `otters-attack list` has them", only)
	}
	return tw.Flush()
}

func list(out io.Writer) error {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, a := range attacks() {
		fmt.Fprintf(tw, "%s\t%s\t%s\ttwin %s\n", a.id, a.covers, a.name, a.twin)
	}
	return tw.Flush()
}
