package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// extent is how much of each file head and tail print, and whether they name the files.
type extent struct {
	lines, bytes   *string
	quiet, verbose *bool
}

func extentFlags(flags *pflag.FlagSet, which string) extent {
	return extent{
		lines:   flags.StringP("lines", "n", "", which+" `N` lines (10 when not given; also -N as the first argument)"),
		bytes:   flags.StringP("bytes", "c", "", which+" `N` bytes instead of lines"),
		quiet:   flags.BoolP("quiet", "q", false, "never print file names"),
		verbose: flags.BoolP("verbose", "v", false, "always print file names"),
	}
}

// amount returns the number, whether it counts bytes, and whether it is a place from the start (+N).
func (e extent) amount(plus bool) (n int64, inBytes, fromStart bool, err error) {
	if *e.lines != "" && *e.bytes != "" {
		return 0, false, false, usageError("-n and -c: only one of them at a time")
	}
	if *e.quiet && *e.verbose {
		return 0, false, false, usageError("-q and -v: only one of them at a time")
	}
	option, text := "-n", *e.lines
	if *e.bytes != "" {
		option, text, inBytes = "-c", *e.bytes, true
	}
	if text == "" {
		return 10, false, false, nil
	}
	digits, fromStart := strings.CutPrefix(text, "+")
	n, err = strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || fromStart && !plus || strings.HasPrefix(digits, "+") {
		return 0, false, false, usageError("%s %s: want a whole number, 0 or more", option, text)
	}
	return n, inBytes, fromStart, nil
}

// each hands every file to fn after its heading, which is printed for more than one file.
func (e extent) each(c *call, files []string, fn func(io.Reader) error) error {
	headings := *e.verbose || len(files) > 1 && !*e.quiet
	first := true
	return c.each(files, func(name string, r io.Reader) error {
		if headings {
			if name == "-" {
				name = "standard input"
			}
			if !first {
				fmt.Fprintln(c.stdout)
			}
			fmt.Fprintf(c.stdout, "==> %s <==\n", name)
			first = false
		}
		return fn(r)
	})
}

func head(c *call, flags *pflag.FlagSet) func([]string) error {
	e := extentFlags(flags, "print the first")
	return func(files []string) error {
		n, inBytes, _, err := e.amount(false)
		if err != nil {
			return err
		}
		return e.each(c, files, func(r io.Reader) error {
			if inBytes {
				_, err := io.Copy(c.stdout, io.LimitReader(r, n))
				return err
			}
			return headLines(c, r, n)
		})
	}
}

func headLines(c *call, r io.Reader, n int64) error {
	in := c.lines(r)
	for range n {
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := c.stdout.Write(line); err != nil {
			return err
		}
	}
	return nil
}

// shortCount turns a first argument like -5 into -n5.
func shortCount(args []string) ([]string, error) {
	if len(args) == 0 {
		return args, nil
	}
	digits, ok := strings.CutPrefix(args[0], "-")
	if !ok || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return args, nil
	}
	return append([]string{"-n" + digits}, args[1:]...), nil
}
