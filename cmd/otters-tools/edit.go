package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// maxPlaces is how many lines an error or a report names.
const maxPlaces = 10

func edit(c *call, flags *pflag.FlagSet) func([]string) error {
	old := flags.String("old", "", "the `TEXT` to replace, exactly as it stands in the file")
	with := flags.String("new", "", "the `TEXT` to put in its place")
	all := flags.Bool("all", false, "replace it wherever it stands")
	view := flags.String("view", "", "print `FROM[,TO]`, lines with their numbers, and change nothing")
	return func(operands []string) error {
		if len(operands) != 1 {
			return usageError("want one FILE")
		}
		name := operands[0]
		if flags.Changed("view") {
			if flags.Changed("old") || flags.Changed("new") || *all {
				return usageError("--view: not together with --old, --new or --all")
			}
			first, last, err := lineRange(*view)
			if err != nil {
				return err
			}
			return viewLines(c, name, first, last)
		}
		switch {
		case !flags.Changed("old") || !flags.Changed("new"):
			return usageError("want --old and --new, or --view")
		case *old == "":
			return usageError("--old: the text is empty")
		case *old == *with:
			return usageError("--old and --new are the same text")
		}
		at, err := replaceText(name, []byte(*old), []byte(*with), *all)
		if err != nil {
			c.fail(name, err)
			return nil
		}
		_, err = fmt.Fprintf(c.stdout, "%s: %d replaced, on %s\n", name, len(at), places(at))
		return err
	}
}

// lineRange reads FROM, FROM, or FROM,TO.
func lineRange(text string) (first, last int, err error) {
	from, to, two := strings.Cut(text, ",")
	first, err = strconv.Atoi(from)
	last = first
	if two && to == "" {
		last = math.MaxInt
	} else if two && err == nil {
		last, err = strconv.Atoi(to)
	}
	if err != nil || first < 1 || last < first {
		return 0, 0, usageError("--view %s: want FROM or FROM,TO, lines counted from 1", text)
	}
	return first, last, nil
}

func viewLines(c *call, name string, first, last int) error {
	f, err := os.Open(name)
	if err != nil {
		c.fail(name, err)
		return nil
	}
	defer f.Close()
	in := c.lines(f)
	n := 0
	for n < last {
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			c.fail(name, err)
			return nil
		}
		if n++; n >= first {
			fmt.Fprintf(c.stdout, "%6d\t%s\n", n, bytes.TrimSuffix(line, []byte{'\n'}))
		}
	}
	if n < first {
		c.fail(name, fmt.Errorf("has %d lines, none from %d on", n, first))
	}
	return nil
}

// replaceText replaces old, which must stand in the file once unless all is set, and returns the
// lines that it stood on.
func replaceText(name string, old, with []byte, all bool) ([]int, error) {
	t, err := openTree()
	if err != nil {
		return nil, err
	}
	defer t.close()
	rel, info, err := t.target(name)
	if err != nil {
		return nil, err
	}
	if info == nil {
		return nil, errors.New("no such file or directory")
	}
	text, err := t.read(rel)
	if err != nil {
		return nil, err
	}
	at := linesOf(text, old)
	switch {
	case len(at) == 0:
		return nil, errors.New("the text of --old is not in it; it must match exactly, blanks and line ends too")
	case len(at) > 1 && !all:
		return nil, fmt.Errorf("the text of --old stands in it %d times, on %s; give more of the text around it, or --all", len(at), places(at))
	case len(text)+len(at)*(len(with)-len(old)) > maxWritten:
		return nil, fmt.Errorf("would grow beyond %d MiB", maxWritten>>20)
	}
	return at, t.replace(rel, info, writeBytes(bytes.ReplaceAll(text, old, with)))
}

// linesOf returns the line of each place at which old starts, counted from 1.
func linesOf(text, old []byte) []int {
	var at []int
	line := 1
	for {
		i := bytes.Index(text, old)
		if i < 0 {
			return at
		}
		line += bytes.Count(text[:i], []byte{'\n'})
		at = append(at, line)
		line += bytes.Count(old, []byte{'\n'})
		text = text[i+len(old):]
	}
}

func places(at []int) string {
	var b strings.Builder
	b.WriteString("line")
	if len(at) > 1 {
		b.WriteByte('s')
	}
	for i, n := range at {
		switch {
		case i == maxPlaces:
			fmt.Fprintf(&b, " and %d more", len(at)-i)
			return b.String()
		case i > 0:
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %d", n)
	}
	return b.String()
}
