package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

func writeFile(c *call, flags *pflag.FlagSet) func([]string) error {
	add := flags.BoolP("append", "a", false, "add to the end of the file")
	fresh := flags.BoolP("new", "n", false, "refuse when the file is there already")
	return func(operands []string) error {
		switch {
		case len(operands) == 0 || len(operands) > 2:
			return usageError("want FILE, and TEXT or nothing")
		case *add && *fresh:
			return usageError("-a and -n: only one of them at a time")
		}
		name := operands[0]
		var text []byte
		var err error
		if len(operands) == 2 {
			text = []byte(operands[1])
		} else if text, err = readAll(c.stdin, maxWritten); err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		if err := putFile(name, text, *add, *fresh); err != nil {
			c.fail(name, err)
			return nil
		}
		did := "written to"
		if *add {
			did = "added to"
		}
		_, err = fmt.Fprintf(c.stdout, "%d bytes %s %s\n", len(text), did, name)
		return err
	}
}

func putFile(name string, text []byte, add, fresh bool) error {
	t, err := openTree()
	if err != nil {
		return err
	}
	defer t.close()
	rel, old, err := t.target(name)
	if err != nil {
		return err
	}
	if fresh && old != nil {
		return errors.New("is there already; without -n it is replaced")
	}
	if !add || old == nil {
		return t.replace(rel, old, writeBytes(text))
	}
	f, err := t.root.Open(rel)
	if err != nil {
		return t.explain(err)
	}
	defer f.Close()
	return t.replace(rel, old, func(w io.Writer) error {
		if _, err := io.Copy(w, f); err != nil {
			return err
		}
		_, err := w.Write(text)
		return err
	})
}
