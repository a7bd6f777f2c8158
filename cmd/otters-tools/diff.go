package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/pflag"
)

// Bounds of each side of a comparison, in bytes and in lines: a line costs many times its bytes.
const (
	maxCompared      = 16 << 20
	maxComparedLines = 500_000
)

// exitDiffer is diff's exit code for two files that are not the same.
const exitDiffer = 1

func diff(c *call, flags *pflag.FlagSet) func([]string) error {
	context := flags.StringP("unified", "U", "3", "print `N` lines around each change")
	brief := flags.BoolP("brief", "q", false, "say only whether the files differ")
	return func(files []string) error {
		around, err := strconv.Atoi(*context)
		if err != nil || around < 1 || around > maxCompared {
			return usageError("-U %s: want a whole number, 1 or more", *context)
		}
		if len(files) != 2 || files[0] == "-" && files[1] == "-" {
			return usageError("want two files, one of which may be - for standard input")
		}
		var sides [2][]byte
		for i, name := range files {
			if sides[i], err = c.side(name); err != nil {
				c.fail(name, err)
			}
		}
		if c.code != exitOK || bytes.Equal(sides[0], sides[1]) {
			return nil
		}
		c.code = exitDiffer
		binary := bytes.IndexByte(sides[0], 0) >= 0 || bytes.IndexByte(sides[1], 0) >= 0
		switch {
		case *brief:
			_, err = fmt.Fprintf(c.stdout, "%s and %s differ\n", files[0], files[1])
		case binary:
			_, err = fmt.Fprintf(c.stdout, "%s and %s differ; they are not text\n", files[0], files[1])
		default:
			for i, side := range sides {
				if n := bytes.Count(side, []byte{'\n'}); n > maxComparedLines {
					c.fail(files[i], fmt.Errorf("%d lines, more than %d; -q tells whether they differ", n, maxComparedLines))
					return nil
				}
			}
			err = c.printDiff(files, string(sides[0]), string(sides[1]), around)
		}
		return err
	}
}

func (c *call) side(name string) ([]byte, error) {
	if name == "-" {
		return readAll(c.stdin, maxCompared)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, maxCompared)
}

func (c *call) printDiff(files []string, before, after string, around int) error {
	text, err := udiff.ToUnified(files[0], files[1], before, udiff.Lines(before, after), around)
	if err != nil {
		return fmt.Errorf("%s and %s: %w", files[0], files[1], err)
	}
	_, err = io.WriteString(c.stdout, text)
	return err
}
