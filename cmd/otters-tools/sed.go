package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// maxScript bounds the script of sed and of sh, in bytes.
const maxScript = 1 << 20

func sed(c *call, flags *pflag.FlagSet) func([]string) error {
	quiet := flags.BoolP("quiet", "n", false, "print only what the script prints")
	extended := flags.BoolP("regexp-extended", "E", false, "extended patterns: ( ) { } | + ? work without a backslash")
	inPlace := flags.BoolP("in-place", "i", false, "write what comes out into each file, in place of what it holds")
	scripts := flags.StringArrayP("expression", "e", nil, "a `SCRIPT`; may be repeated, and every operand is then a file")
	file := flags.StringP("file", "f", "", "read the script from `FILE`; every operand is then a file")
	return func(operands []string) error {
		parts := *scripts
		if *file != "" {
			f, err := os.Open(*file)
			if err != nil {
				return fmt.Errorf("%s: %s", *file, cause(err))
			}
			defer f.Close()
			text, err := readAll(f, maxScript)
			if err != nil {
				return fmt.Errorf("%s: %s", *file, cause(err))
			}
			parts = append(parts, strings.TrimSuffix(string(text), "\n"))
		}
		if len(parts) == 0 {
			if len(operands) == 0 {
				return usageError("no script given")
			}
			parts, operands = operands[:1], operands[1:]
		}
		script := strings.Join(parts, "\n")
		if len(script) > maxScript {
			return usageError("a script of more than %d MiB", maxScript>>20)
		}
		commands, err := parseSed(script, *extended)
		if err != nil {
			return usageError("script: %v", err)
		}
		if !*inPlace {
			e := &editor{c: c, script: commands, quiet: *quiet, out: c.stdout}
			return e.run(operands)
		}
		if len(operands) == 0 {
			return usageError("-i: no file given")
		}
		return c.sedInPlace(commands, *quiet, operands)
	}
}

// sedInPlace runs the script on each file by itself. A file is replaced when all of it went well.
func (c *call) sedInPlace(script []sedCommand, quiet bool, names []string) error {
	t, err := openTree()
	if err != nil {
		return err
	}
	defer t.close()
	for _, name := range names {
		if err := c.sedFile(t, script, quiet, name); err != nil {
			c.fail(name, err)
		}
	}
	return nil
}

func (c *call) sedFile(t *agentTree, script []sedCommand, quiet bool, name string) error {
	rel, old, err := t.target(name)
	if err != nil {
		return err
	}
	if old == nil {
		return errors.New("no such file or directory")
	}
	text, err := t.read(rel)
	if err != nil {
		return err
	}
	code := c.code
	c.code = exitOK
	var out limitedWriter
	e := &editor{c: c, script: script, quiet: quiet, out: &out, all: true}
	e.in = c.lines(bytes.NewReader(text))
	if err := e.lines(); err != nil && !errors.Is(err, errDone) {
		return err
	}
	if c.code == exitOK {
		c.code = code
	}
	return t.replace(rel, old, writeBytes(out.Bytes()))
}

// limitedWriter holds up to maxWritten bytes.
type limitedWriter struct{ bytes.Buffer }

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.Len()+len(p) > maxWritten {
		return 0, fmt.Errorf("would grow beyond %d MiB", maxWritten>>20)
	}
	return w.Buffer.Write(p)
}

// run edits all files as one text.
func (e *editor) run(names []string) error {
	if len(names) == 0 {
		names = []string{"-"}
	}
	e.names = names
	err := e.lines()
	if e.file != nil {
		e.file.Close()
	}
	return err
}

// open goes on to the next file that can be read.
func (e *editor) open() bool {
	for len(e.names) > 0 {
		name := e.names[0]
		e.names = e.names[1:]
		if e.file != nil {
			e.file.Close()
			e.file = nil
		}
		e.name = name
		if name == "-" {
			e.in = e.c.lines(e.c.stdin)
			return true
		}
		f, err := os.Open(name)
		if err != nil {
			e.c.fail(name, err)
			continue
		}
		e.file, e.in = f, e.c.lines(f)
		return true
	}
	return false
}

// read returns the next line of all files without its newline.
func (e *editor) read() (line []byte, newline bool, err error) {
	for {
		if e.in == nil && !e.open() {
			return nil, false, io.EOF
		}
		line, err := e.in.next()
		if err == nil {
			rest, newline := bytes.CutSuffix(line, []byte{'\n'})
			return bytes.Clone(rest), newline, nil
		}
		e.in = nil
		if !errors.Is(err, io.EOF) {
			if e.all || e.c.sink.err != nil {
				return nil, false, err
			}
			e.c.fail(e.name, err)
		}
	}
}
