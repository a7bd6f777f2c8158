package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"unicode/utf8"
)

// text is the first of args, or where there is none or it is "-", what comes on standard input: valid
// UTF-8 of at most so many bytes. more says what to do about a longer one.
func (a *app) text(ctx context.Context, args []string, what string, most int64, more string) (string, error) {
	text := "-"
	if len(args) > 0 {
		text = args[0]
	}
	if text == "-" {
		if a.inTerm {
			fmt.Fprintf(a.err, "reading the %s from standard input; Ctrl-D ends it\n", what)
		}
		var err error
		if text, err = readText(ctx, a.in, what, most); err != nil {
			return "", err
		}
	}
	switch {
	case int64(len(text)) > most:
		return "", usagef("%s: the text has more than %d bytes; %s", what, most, more)
	case !utf8.ValidString(text):
		return "", usagef("%s: the text is not valid UTF-8; convert it first", what)
	}
	return text, nil
}

// readText reads at most one byte more than most. It returns early when ctx ends; the reader it leaves
// behind ends with the program.
func readText(ctx context.Context, in io.Reader, what string, most int64) (string, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(in, most+1))
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return "", fmt.Errorf("%s: standard input: %w", what, r.err)
		}
		return string(r.text), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// input opens the file that -i names, or takes standard input where it names none. The caller closes it. A named
// pipe is waited for, and no longer than ctx says.
func (a *app) input(ctx context.Context, what, file string) (io.ReadCloser, error) {
	switch {
	case file == "" && a.inTerm:
		return nil, usagef("%s: standard input is a terminal; name a file with -i FILE", what)
	case file == "":
		return io.NopCloser(a.in), nil
	}
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		f, err := os.Open(file)
		if info, is := f.Stat(); err == nil && is == nil && info.IsDir() {
			err = errors.Join(fmt.Errorf("%s: it is a folder", file), f.Close())
		}
		done <- opened{f, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, fmt.Errorf("%s: %w; name another file with -i", what, o.err)
		}
		return o.file, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// readFile reads a regular file of at most so many bytes. Anything else is refused, and not waited for as the
// other end of a named pipe would be.
func readFile(path string, most int64) ([]byte, error) {
	text, err := readRegular(path, most)
	if err != nil {
		return nil, ofFile(path, err)
	}
	return text, nil
}

// ofFile is an error about a file: its path and why, without what was tried.
func ofFile(path string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

func readRegular(path string, most int64) ([]byte, error) {
	// Asked ahead, since to be opened does something to a device, and again, since it may be another file by then.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	return text, err
}

var errNotRegular = errors.New("it is not a regular file")
