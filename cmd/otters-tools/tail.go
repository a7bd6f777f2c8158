package main

import (
	"bytes"
	"errors"
	"io"

	"github.com/spf13/pflag"
)

func tail(c *call, flags *pflag.FlagSet) func([]string) error {
	e := extentFlags(flags, "print the last")
	flags.Lookup("lines").Usage += "; +N: from line N on"
	flags.Lookup("bytes").Usage += "; +N: from byte N on"
	return func(files []string) error {
		n, inBytes, fromStart, err := e.amount(true)
		if err != nil {
			return err
		}
		if inBytes && !fromStart && n > maxHeld {
			return usageError("-c %d: at most %d", n, maxHeld)
		}
		return e.each(c, files, func(r io.Reader) error {
			switch {
			case inBytes && fromStart:
				return fromByte(c, r, n)
			case inBytes:
				return lastBytes(c, r, int(n))
			case fromStart:
				return fromLine(c, r, n)
			}
			return lastLines(c, r, n)
		})
	}
}

// fromByte prints from byte n on, counted from 1; 0 is the same as 1.
func fromByte(c *call, r io.Reader, n int64) error {
	if n > 1 {
		if _, err := io.CopyN(io.Discard, r, n-1); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	_, err := io.Copy(c.stdout, r)
	return err
}

func fromLine(c *call, r io.Reader, n int64) error {
	in := c.lines(r)
	for number := int64(1); ; number++ {
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if number < n {
			continue
		}
		if _, err := c.stdout.Write(line); err != nil {
			return err
		}
	}
}

func lastBytes(c *call, r io.Reader, n int) error {
	var kept []byte
	buf := make([]byte, 64<<10)
	for {
		got, err := r.Read(buf)
		kept = append(kept, buf[:got]...)
		// Cut only now and then: moving the end for every read would cost its square.
		if len(kept) > 2*n+len(buf) {
			kept = kept[:copy(kept, kept[len(kept)-n:])]
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := c.stdout.Write(kept[max(0, len(kept)-n):])
	return err
}

func lastLines(c *call, r io.Reader, n int64) error {
	var ring [][]byte
	held, at := 0, 0
	in := c.lines(r)
	for {
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		if int64(len(ring)) < n {
			ring = append(ring, bytes.Clone(line))
			held += cap(ring[len(ring)-1]) + sliceSize
		} else {
			held -= cap(ring[at])
			ring[at] = append(ring[at][:0], line...)
			held += cap(ring[at])
			at = (at + 1) % len(ring)
		}
		if held > maxHeld {
			return errHeld
		}
	}
	for i := range ring {
		if _, err := c.stdout.Write(ring[(at+i)%len(ring)]); err != nil {
			return err
		}
	}
	return nil
}

// sliceSize is what a slice costs beside its bytes: its header, which counts for empty lines.
const sliceSize = 24
