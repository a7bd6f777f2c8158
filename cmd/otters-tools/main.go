// Command otters-tools is the tools that agents get when nobody brings others: one program that
// acts as the tool it is called by. A link named cat to it is cat. A file of it that is bound at
// /usr/bin/cat, as at sandbox level strict, is cat whatever it is called by.
//
//	otters-tools NAME [ARGUMENT…]   run a tool
//	otters-tools list [--json]      name and description of every tool, and in JSON its usage
//	otters-tools usage NAME         how to use a tool, written for a model
//
// Every tool holds a bounded amount in memory and refuses an option that it does not know with exit
// code 2. None but fetch uses the network.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// program is the name under which the arguments, not the name, choose the tool.
const program = "otters-tools"

// Exit codes that every tool shares.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// boundDir is the folder in which the path of the file alone says which tool it is.
const boundDir = "/usr/bin/"

func main() {
	os.Exit(begin(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// begin acts as the tool that the file is bound as, and otherwise as the arguments say. The kernel
// tells the file's path, so a caller who may run one tool can't run another by its name.
func begin(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	path, err := os.Executable() // /proc/self/exe, without what a removed file has at its end
	if err != nil {
		fmt.Fprintf(stderr, "%s: which tool this file is bound as can't be told: %v\n", program, err)
		return exitUsage
	}
	dir, name := filepath.Split(path)
	if dir != boundDir {
		return run(args, stdin, stdout, stderr)
	}
	rest := args[min(1, len(args)):]
	if t, ok := find(name); ok {
		return act(t, rest, stdin, stdout, stderr)
	}
	// Whatever else the file is called here, it is no way to every tool.
	if name == program && len(rest) > 0 && (rest[0] == "list" || rest[0] == "usage") {
		return run(append([]string{program}, rest...), stdin, stdout, stderr)
	}
	fmt.Fprintf(stderr, "%s: this file is %s: in %s it must have the name of its tool; a file elsewhere is the tool that it is called by\n",
		program, path, boundDir)
	return exitUsage
}

// run acts as the tool that args[0] names, or, called by its own name, the one that args[1] names.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintf(stderr, "%s: called without a name\n", program)
		return exitUsage
	}
	name, rest := filepath.Base(args[0]), args[1:]
	if t, ok := find(name); ok {
		return act(t, rest, stdin, stdout, stderr)
	}
	if len(rest) == 0 {
		fmt.Fprintf(stderr, "usage: %s NAME [ARGUMENT…] | list [--json] | usage NAME\n", program)
		return exitUsage
	}
	switch rest[0] {
	case "list":
		return list(rest[1:], stdout, stderr)
	case "usage":
		return usage(rest[1:], stdout, stderr)
	}
	t, ok := find(rest[0])
	if !ok {
		return unknown(rest[0], stderr)
	}
	return act(t, rest[1:], stdin, stdout, stderr)
}

func unknown(name string, stderr io.Writer) int {
	fmt.Fprintf(stderr, "%s: %s: no such tool; `%s list` shows them\n", program, name, program)
	return exitUsage
}

// list prints one line per tool, or with --json an array of {"name", "description", "usage"}.
func list(args []string, stdout, stderr io.Writer) int {
	asJSON := len(args) == 1 && args[0] == "--json"
	if len(args) > 0 && !asJSON {
		fmt.Fprintf(stderr, "usage: %s list [--json]\n", program)
		return exitUsage
	}
	out := bufio.NewWriter(stdout)
	if asJSON {
		type entry struct {
			Name        string `json:"name"`
			Description string `json:"description"`
			Usage       string `json:"usage"`
		}
		var entries []entry
		for _, t := range tools() {
			text, err := usages.ReadFile("usage/" + t.name + ".md")
			if err != nil {
				fmt.Fprintf(stderr, "%s: %s: %v\n", program, t.name, err)
				return exitError
			}
			entries = append(entries, entry{t.name, t.description, string(text)})
		}
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(entries); err != nil {
			return outputFailed(err, stderr)
		}
	} else {
		for _, t := range tools() {
			fmt.Fprintf(out, "%-6s %s\n", t.name, t.description)
		}
	}
	if err := out.Flush(); err != nil {
		return outputFailed(err, stderr)
	}
	return exitOK
}

func usage(args []string, stdout, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintf(stderr, "usage: %s usage NAME\n", program)
		return exitUsage
	}
	t, ok := find(args[0])
	if !ok {
		return unknown(args[0], stderr)
	}
	text, err := usages.ReadFile("usage/" + t.name + ".md")
	if err != nil {
		fmt.Fprintf(stderr, "%s: %s: %v\n", program, t.name, err)
		return exitError
	}
	if _, err := stdout.Write(text); err != nil {
		return outputFailed(err, stderr)
	}
	return exitOK
}

func outputFailed(err error, stderr io.Writer) int {
	fmt.Fprintf(stderr, "%s: standard output: %s\n", program, cause(err))
	return exitError
}
