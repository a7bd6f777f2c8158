package main

import (
	"bufio"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/spf13/pflag"
)

//go:embed usage/*.md
var usages embed.FS

// tool is one entry of the program.
type tool struct {
	name        string
	description string
	// synopsis is the argument forms, without the name.
	synopsis string
	// errorCode is the exit code of a run in which something could not be read or written.
	errorCode int
	// rewrite turns argument forms that the options parser does not know into ones that it does.
	rewrite func([]string) ([]string, error)
	// raw tools read all of their arguments themselves.
	raw bool
	// options declares the tool's options and returns what runs it with the operands that are left.
	// A returned error that wraps errUsage is a wrong call, exit code 2.
	options func(*call, *pflag.FlagSet) func(operands []string) error
}

// tools is every tool, sorted by name.
func tools() []tool {
	return []tool{
		{name: "cat", description: "print files, or standard input",
			synopsis: "[-n] [FILE…]", errorCode: exitError, options: cat},
		{name: "diff", description: "show how two files differ, as a unified diff",
			synopsis: "[-U N] [-q] OLD NEW", errorCode: exitUsage, options: diff},
		{name: "edit", description: "replace an exact text in a file, or view lines of it",
			synopsis:  "FILE --old TEXT --new TEXT [--all] | FILE --view FROM[,TO]",
			errorCode: exitError, options: edit},
		{name: "fetch", description: "get or send something over HTTP",
			synopsis: "[OPTION…] URL", errorCode: exitError, options: fetch},
		{name: "find", description: "list what is below a folder, by name, type and depth",
			synopsis:  "[PATH…] [-name GLOB] [-iname GLOB] [-type f|d|l] [-mindepth N] [-maxdepth N]",
			errorCode: exitError, raw: true, options: findFiles},
		{name: "grep", description: "print the lines that match a pattern",
			synopsis: "[OPTION…] PATTERN [FILE…]", errorCode: exitUsage, options: grep},
		{name: "head", description: "print the first lines or bytes of files",
			synopsis: "[-n N | -c N] [-q | -v] [FILE…]", errorCode: exitError, rewrite: shortCount, options: head},
		{name: "jq", description: "query and reshape JSON",
			synopsis: "[OPTION…] FILTER [FILE…]", errorCode: exitUsage, rewrite: pairOptions, options: jq},
		{name: "ls", description: "list files and folders",
			synopsis: "[OPTION…] [PATH…]", errorCode: exitError, options: ls},
		{name: "sed", description: "edit text line by line with a script",
			synopsis: "[-n] [-E] [-i] SCRIPT [FILE…] | [-n] [-E] [-i] -e SCRIPT… | -f FILE [FILE…]", errorCode: exitError, options: sed},
		{name: "sh", description: "run a shell script over the agent's tools",
			synopsis: "[-e] [-u] [-x] [-n] -c SCRIPT [NAME [ARGUMENT…]] | [-e] [-u] [-x] [-n] [FILE [ARGUMENT…]]", errorCode: exitError, options: sh},
		{name: "sort", description: "sort lines",
			synopsis: "[OPTION…] [FILE…]", errorCode: exitUsage, options: sortLines},
		{name: "tail", description: "print the last lines or bytes of files",
			synopsis: "[-n [+]N | -c [+]N] [-q | -v] [FILE…]", errorCode: exitError, rewrite: shortCount, options: tail},
		{name: "tar", description: "list, unpack or make an archive",
			synopsis:  "-t|-x|-c -f ARCHIVE [-z | --zstd] [-C FOLDER] [-v] [PATH…]",
			errorCode: exitError, rewrite: bareLetters, options: tarArchive},
		{name: "tree", description: "draw what is below a folder",
			synopsis: "[-a] [-d] [-L N] [PATH…]", errorCode: exitError, options: tree},
		{name: "uniq", description: "drop repeated lines that follow each other, or count them",
			synopsis: "[-c] [-d | -u] [-i] [-f N] [FILE]", errorCode: exitError, options: uniq},
		{name: "wc", description: "count lines, words, characters and bytes",
			synopsis: "[-l] [-w] [-m] [-c] [FILE…]", errorCode: exitError, options: wc},
		{name: "write", description: "write a file",
			synopsis: "[-a | -n] FILE [TEXT]", errorCode: exitError, options: writeFile},
		{name: "yq", description: "query and reshape YAML, or turn it into JSON and back",
			synopsis: "[OPTION…] FILTER [FILE…]", errorCode: exitUsage, rewrite: pairOptions, options: yq},
	}
}

func find(name string) (tool, bool) {
	all := tools()
	i := slices.IndexFunc(all, func(t tool) bool { return t.name == name })
	if i < 0 {
		return tool{}, false
	}
	return all[i], true
}

// errUsage marks a wrong call: exit code 2 and the usage.
var errUsage = errors.New("wrong usage")

// usageError returns an error whose text is the message alone and that wraps errUsage.
func usageError(format string, args ...any) error {
	return &wrongUsage{fmt.Sprintf(format, args...)}
}

type wrongUsage struct{ message string }

func (e *wrongUsage) Error() string { return e.message }
func (e *wrongUsage) Unwrap() error { return errUsage }

// errDone stops a run early without an error.
var errDone = errors.New("done")

// call is one run of one tool.
type call struct {
	tool   tool
	stdin  io.Reader
	sink   *sink
	stdout *bufio.Writer
	stderr io.Writer
	code   int
}

// sink is standard output; it keeps the error that made it unusable.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil && s.err == nil {
		s.err = err
	}
	return n, err
}

func newCall(t tool, stdin io.Reader, stdout, stderr io.Writer) *call {
	s := &sink{w: stdout}
	return &call{tool: t, stdin: stdin, sink: s, stdout: bufio.NewWriterSize(s, 64<<10), stderr: stderr}
}

// run parses the arguments, runs the tool and returns its exit code.
func (c *call) run(args []string) int {
	flags := pflag.NewFlagSet(c.tool.name, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.SortFlags = false
	body := c.tool.options(c, flags)
	help := flags.Bool("help", false, "print this text")
	operands, err := c.tool.parse(flags, args)
	if err != nil {
		return c.wrong(flags, err)
	}
	if *help {
		c.printUsage(c.stdout, flags)
		return c.finish()
	}
	switch err := body(operands); {
	case err == nil, errors.Is(err, errDone):
	case errors.Is(err, errUsage):
		return c.wrong(flags, err)
	case c.sink.err == nil:
		c.fail("", err)
	}
	return c.finish()
}

// parse returns the operands.
func (t tool) parse(flags *pflag.FlagSet, args []string) ([]string, error) {
	if t.raw && !slices.Equal(args, []string{"--help"}) {
		return args, nil
	}
	if t.rewrite != nil {
		var err error
		if args, err = t.rewrite(args); err != nil {
			return nil, err
		}
	}
	err := flags.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		// -h means something else to sort and others elsewhere: taking it for help would be a success.
		err = usageError("unknown shorthand flag: 'h' in -h; --help prints the usage")
	}
	return flags.Args(), err
}

// finish flushes the output and returns the exit code.
func (c *call) finish() int {
	if c.sink.err == nil {
		c.stdout.Flush() // the sink keeps the error
	}
	if c.sink.err != nil {
		c.fail("standard output", c.sink.err)
	}
	return c.code
}

func (c *call) wrong(flags *pflag.FlagSet, err error) int {
	fmt.Fprintf(c.stderr, "%s: %v\n", c.tool.name, err)
	c.printUsage(c.stderr, flags)
	return exitUsage
}

func (c *call) printUsage(w io.Writer, flags *pflag.FlagSet) {
	fmt.Fprintf(w, "usage: %s %s\n%s", c.tool.name, c.tool.synopsis, flags.FlagUsages())
}

// fail reports that something could not be read or written; the run goes on and ends with the
// tool's code for an error.
func (c *call) fail(subject string, err error) {
	if subject == "" {
		fmt.Fprintf(c.stderr, "%s: %s\n", c.tool.name, cause(err))
	} else {
		fmt.Fprintf(c.stderr, "%s: %s: %s\n", c.tool.name, subject, cause(err))
	}
	c.code = c.tool.errorCode
}

// cause is the reason alone: the path is already in the message.
func cause(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// each hands every file to fn in order, standard input for "-" and when there are no names. A file
// that can't be read is reported and passed over; a failed output ends the run.
func (c *call) each(names []string, fn func(name string, r io.Reader) error) error {
	if len(names) == 0 {
		names = []string{"-"}
	}
	for _, name := range names {
		err := c.one(name, fn)
		switch {
		case c.sink.err != nil:
			return c.sink.err
		case errors.Is(err, errDone):
			return err
		case err != nil:
			c.fail(name, err)
		}
	}
	return nil
}

func (c *call) one(name string, fn func(string, io.Reader) error) error {
	if name == "-" {
		return fn(name, c.stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return fn(name, f)
}
