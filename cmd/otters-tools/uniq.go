package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/pflag"
)

// groups is one run of uniq.
type groups struct {
	c                            *call
	count, repeated, alone, fold *bool
	skip                         int // fields that are not compared
	line                         []byte
	n                            int
}

func uniq(c *call, flags *pflag.FlagSet) func([]string) error {
	g := groups{
		c:        c,
		count:    flags.BoolP("count", "c", false, "put before each line how often it came"),
		repeated: flags.BoolP("repeated", "d", false, "print only lines that came more than once"),
		alone:    flags.BoolP("unique", "u", false, "print only lines that came once"),
		fold:     flags.BoolP("ignore-case", "i", false, "compare without regard to case"),
	}
	skip := flags.StringP("skip-fields", "f", "0", "do not compare the first `N` fields, each with the blanks before it")
	return func(files []string) error {
		var err error
		if g.skip, err = strconv.Atoi(*skip); err != nil || g.skip < 0 {
			return usageError("-f %s: want a whole number, 0 or more", *skip)
		}
		switch {
		case *g.repeated && *g.alone:
			return usageError("-d and -u: only one of them at a time")
		case len(files) > 1:
			return usageError("want one file; what comes out is printed, never written to a second one")
		}
		return c.each(files, func(_ string, r io.Reader) error {
			if err := c.lines(r).each(g.add); err != nil {
				return err
			}
			return g.print()
		})
	}
}

func (g *groups) add(line []byte) error {
	if g.n > 0 && g.same(line) {
		g.n++
		return nil
	}
	if err := g.print(); err != nil {
		return err
	}
	g.line, g.n = append(g.line[:0], line...), 1
	return nil
}

func (g *groups) same(line []byte) bool {
	a, b := skipFields(g.line, g.skip), skipFields(line, g.skip)
	if *g.fold {
		return bytes.EqualFold(a, b)
	}
	return bytes.Equal(a, b)
}

func skipFields(line []byte, n int) []byte {
	for ; n > 0 && len(line) > 0; n-- {
		for len(line) > 0 && isBlank(line[0]) {
			line = line[1:]
		}
		for len(line) > 0 && !isBlank(line[0]) {
			line = line[1:]
		}
	}
	return line
}

func (g *groups) print() error {
	if g.n == 0 || *g.repeated && g.n == 1 || *g.alone && g.n > 1 {
		return nil
	}
	if *g.count {
		fmt.Fprintf(g.c.stdout, "%7d ", g.n)
	}
	g.c.stdout.Write(g.line) // sticky
	return g.c.stdout.WriteByte('\n')
}
