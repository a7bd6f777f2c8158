package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/itchyny/gojq"
	"github.com/spf13/pflag"
)

// Exit codes of jq beside the shared ones.
const (
	exitFalse   = 1 // -e: the last value was false or null
	exitCompile = 3
	exitNoValue = 4 // -e: there was no value
	exitRuntime = 5
)

// query is one run of jq.
type query struct {
	c                                          *call
	raw, join, compact, null, slurp, text, tab bool
	status                                     bool
	yaml, yamlOut                              bool // read it, write it
	indent                                     int
	filterFile                                 string
	args, jsonArgs                             []string
	last                                       any
	documents                                  int // written as YAML
	any                                        bool
}

func jq(c *call, flags *pflag.FlagSet) func([]string) error {
	q := &query{c: c}
	flags.BoolVarP(&q.raw, "raw-output", "r", false, "print strings as they are, without quotes")
	flags.BoolVarP(&q.join, "join-output", "j", false, "like -r, and no newline after each value")
	flags.BoolVarP(&q.compact, "compact-output", "c", false, "one line for each value")
	flags.BoolVar(&q.tab, "tab", false, "indent by tabs")
	flags.IntVar(&q.indent, "indent", 2, "indent by `N` spaces, 0 to 7")
	flags.BoolVarP(&q.null, "null-input", "n", false, "run the filter once, on null; input and inputs read the files")
	flags.BoolVarP(&q.slurp, "slurp", "s", false, "run the filter once, on an array of all inputs")
	flags.BoolVarP(&q.text, "raw-input", "R", false, "each line of input is a string; with -s all of it is one")
	flags.BoolVarP(&q.status, "exit-status", "e", false, "exit 1 when the last value is false or null, 4 when there is none")
	flags.StringVarP(&q.filterFile, "from-file", "f", "", "read the filter from `FILE`; every operand is then an input")
	flags.StringArrayVar(&q.args, "arg", nil, "`NAME VALUE`: $NAME is the string VALUE; may be repeated")
	flags.StringArrayVar(&q.jsonArgs, "argjson", nil, "`NAME JSON`: $NAME is the value JSON; may be repeated")
	return func(operands []string) error {
		if q.compact && (q.tab || flags.Changed("indent")) || q.tab && flags.Changed("indent") {
			return usageError("-c, --tab, --indent: only one of them at a time")
		}
		if q.indent < 0 || q.indent > 7 {
			return usageError("--indent %d: want 0 to 7", q.indent)
		}
		return q.run(operands)
	}
}

// pairOptions joins the two words after --arg and --argjson, which the options parser takes as one;
// no argument of a program can hold the byte between them.
func pairOptions(args []string) ([]string, error) {
	var out []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch arg {
		case "--":
			return append(out, args[i:]...), nil
		case "--arg", "--argjson":
			if i+2 >= len(args) {
				return nil, usageError("%s: want a name and a value", arg)
			}
			out = append(out, arg+"="+args[i+1]+"\x00"+args[i+2])
			i += 2
		default:
			out = append(out, arg)
		}
	}
	return out, nil
}

func (q *query) run(operands []string) error {
	source, files, err := q.source(operands)
	if err != nil {
		return err
	}
	names, values, err := q.variables()
	if err != nil {
		return err
	}
	in := &inputs{q: q, files: files}
	defer in.close()
	code, err := q.compile(source, names, in)
	if err != nil {
		fmt.Fprintf(q.c.stderr, "%s: %v\n", q.c.tool.name, err)
		q.c.code = exitCompile
		return nil
	}
	if err := q.feed(code, values, in); err != nil {
		return err
	}
	if q.status && q.c.code == exitOK {
		switch {
		case !q.any:
			q.c.code = exitNoValue
		case q.last == nil || q.last == false:
			q.c.code = exitFalse
		}
	}
	return nil
}

// source returns the filter's text and the input files.
func (q *query) source(operands []string) (string, []string, error) {
	if q.filterFile == "" {
		if len(operands) == 0 {
			return "", nil, usageError("no filter given")
		}
		return operands[0], operands[1:], nil
	}
	f, err := os.Open(q.filterFile)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %s", q.filterFile, cause(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLine+1))
	if err != nil {
		return "", nil, fmt.Errorf("%s: %s", q.filterFile, cause(err))
	}
	if len(text) > maxLine {
		return "", nil, fmt.Errorf("%s: a filter of more than %d MiB", q.filterFile, maxLine>>20)
	}
	return string(text), operands, nil
}

// variables returns what --arg and --argjson define.
func (q *query) variables() (names []string, values []any, err error) {
	add := func(pair string, isJSON bool) error {
		name, text, ok := strings.Cut(pair, "\x00")
		if !ok {
			return usageError("--arg, --argjson: want a name and a value, as two words")
		}
		var value any = text
		if isJSON {
			dec := newDecoder(strings.NewReader(text))
			if dec.Decode(&value) != nil || !errors.Is(dec.Decode(new(any)), io.EOF) {
				return usageError("--argjson %s: %s is not one JSON value", name, text)
			}
		}
		names, values = append(names, "$"+name), append(values, value)
		return nil
	}
	for _, pair := range q.args {
		if err := add(pair, false); err != nil {
			return nil, nil, err
		}
	}
	for _, pair := range q.jsonArgs {
		if err := add(pair, true); err != nil {
			return nil, nil, err
		}
	}
	return names, values, nil
}

// compile gives the filter neither modules nor the environment: it sees its inputs alone.
func (q *query) compile(source string, names []string, in *inputs) (*gojq.Code, error) {
	parsed, err := gojq.Parse(source)
	if err != nil {
		var p *gojq.ParseError
		if errors.As(err, &p) {
			return nil, fmt.Errorf("filter: byte %d: %w", p.Offset, err)
		}
		return nil, fmt.Errorf("filter: %w", err)
	}
	code, err := gojq.Compile(parsed, gojq.WithVariables(names), gojq.WithInputIter(in))
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	return code, nil
}

// feed runs the filter on every input.
func (q *query) feed(code *gojq.Code, values []any, in *inputs) error {
	if q.null {
		return q.one(code, nil, values)
	}
	for {
		v, ok := in.Next()
		if !ok {
			return nil
		}
		if err, bad := v.(error); bad {
			q.c.fail("", err)
			continue
		}
		if err := q.one(code, v, values); err != nil {
			return err
		}
	}
}

// one prints what the filter makes of one input. A filter that fails is reported and the next input
// taken, as jq does; halt ends the run.
func (q *query) one(code *gojq.Code, input any, values []any) error {
	iter := code.Run(input, values...)
	for {
		v, ok := iter.Next()
		if !ok {
			return nil
		}
		if err, bad := v.(error); bad {
			var halt *gojq.HaltError
			if errors.As(err, &halt) {
				return q.halt(halt)
			}
			fmt.Fprintf(q.c.stderr, "%s: %v\n", q.c.tool.name, err)
			q.c.code = exitRuntime
			return nil
		}
		q.last, q.any = v, true
		if err := q.print(v); err != nil {
			return err
		}
	}
}

// halt ends the run with the filter's own exit code.
func (q *query) halt(h *gojq.HaltError) error {
	q.c.code, q.status = h.ExitCode(), false
	switch v := h.Value().(type) {
	case nil:
	case string:
		fmt.Fprint(q.c.stderr, v)
	default:
		text, err := gojq.Marshal(v)
		if err != nil {
			return err
		}
		fmt.Fprintf(q.c.stderr, "%s\n", text)
	}
	return errDone
}

func (q *query) print(v any) error {
	out := q.c.stdout
	s, isText := v.(string)
	switch {
	case isText && (q.raw || q.join):
		out.WriteString(s) // sticky
	case q.yamlOut:
		if q.documents++; q.documents > 1 {
			out.WriteString("---\n") // sticky
		}
		return toYAML(v, out)
	default:
		text, err := gojq.Marshal(v)
		if err != nil {
			return err
		}
		if !q.compact && (q.tab || q.indent > 0) {
			step := strings.Repeat(" ", q.indent)
			if q.tab {
				step = "\t"
			}
			var b bytes.Buffer
			if err := json.Indent(&b, text, "", step); err != nil {
				return err
			}
			text = b.Bytes()
		}
		out.Write(text) // sticky
	}
	if q.join {
		return q.c.sink.err
	}
	return out.WriteByte('\n')
}
