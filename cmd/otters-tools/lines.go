package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Bounds on what a tool keeps in memory, so that a hostile file ends a tool and not the machine.
const (
	maxLine = 16 << 20
	maxHeld = 256 << 20
)

var (
	errLongLine = fmt.Errorf("a line is longer than %d MiB", maxLine>>20)
	errHeld     = fmt.Errorf("more than %d MiB to keep in memory", maxHeld>>20)
)

// lines reads line by line.
type lines struct {
	r    *bufio.Reader
	idle func() error
	long []byte
}

// lines returns a reader of the lines of r that flushes the output whenever it is about to wait for
// more input, so that a slow producer's lines come out as they come in.
func (c *call) lines(r io.Reader) *lines {
	return &lines{r: bufio.NewReaderSize(r, 64<<10), idle: c.stdout.Flush}
}

// next returns the next line with its newline, which the last line may lack. The slice is good
// until the next call. The error at the end is io.EOF.
func (l *lines) next() ([]byte, error) {
	if l.r.Buffered() == 0 {
		if err := l.idle(); err != nil {
			return nil, err
		}
	}
	part, err := l.r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return whole(part, err)
	}
	l.long = append(l.long[:0], part...)
	for errors.Is(err, bufio.ErrBufferFull) {
		part, err = l.r.ReadSlice('\n')
		if len(l.long)+len(part) > maxLine {
			return nil, errLongLine
		}
		l.long = append(l.long, part...)
	}
	return whole(l.long, err)
}

// whole makes the end of the input an error only when no bytes came before it.
func whole(line []byte, err error) ([]byte, error) {
	if errors.Is(err, io.EOF) && len(line) > 0 {
		return line, nil
	}
	return line, err
}

// each calls fn with every line, without its newline.
func (l *lines) each(fn func(line []byte) error) error {
	for {
		line, err := l.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(bytes.TrimSuffix(line, []byte{'\n'})); err != nil {
			return err
		}
	}
}
