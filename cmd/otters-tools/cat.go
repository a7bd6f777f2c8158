package main

import (
	"fmt"
	"io"

	"github.com/spf13/pflag"
)

func cat(c *call, flags *pflag.FlagSet) func([]string) error {
	number := flags.BoolP("number", "n", false, "put its number before every line")
	return func(files []string) error {
		n := 0
		return c.each(files, func(_ string, r io.Reader) error {
			if !*number {
				// Past the buffer: what is read is written at once.
				_, err := io.Copy(c.sink, r)
				return err
			}
			in := c.lines(r)
			for {
				line, err := in.next()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				n++
				if _, err := fmt.Fprintf(c.stdout, "%6d\t%s", n, line); err != nil {
					return err
				}
			}
		})
	}
}
