package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/otters-sh/otters/client"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotRunning  = 3
	exitInterrupted = 130
)

// usageError says that the command line can't be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// exitCode ends the program with a code and without a message.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// explained is an error with lines that belong beneath it, such as the end of a log.
type explained struct {
	error
	lines []string
}

func (e explained) Unwrap() error { return e.error }

// agentfileError is an error of a build: it comes with the lines of the Agentfile that it is about.
type agentfileError struct{ error }

func (e agentfileError) Unwrap() error { return e.error }

// report prints err and returns the exit code it stands for.
func (a *app) report(ctx context.Context, err error) int {
	if err == nil {
		return 0
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	text, rest := message(ctx, err), ""
	if errors.As(err, new(agentfileError)) {
		text, rest, _ = strings.Cut(text, "\n")
	}
	fmt.Fprintln(a.err, "otters: "+shortened(oneLine(text)))
	for line := range strings.Lines(rest) {
		fmt.Fprintln(a.err, "  "+oneLine(line))
	}
	for _, line := range beneath(err) {
		fmt.Fprintln(a.err, "  "+oneLine(line))
	}
	var usage usageError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}

// maxLine bounds the line of an error, in characters.
const maxLine = 2000

// shortened is a line without its middle where it is longer than anybody reads, as of an argument of 100 kB. What
// to do stands at the end.
func shortened(line string) string {
	runes := []rune(line)
	if len(runes) <= maxLine {
		return line
	}
	return string(runes[:maxLine/2]) + "…" + string(runes[len(runes)-maxLine/2:])
}

func message(ctx context.Context, err error) string {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return "interrupted"
	}
	var answer *client.Error
	if errors.As(err, &answer) && answer.Hint != "" {
		return err.Error() + "; " + answer.Hint
	}
	return err.Error()
}

func beneath(err error) []string {
	var lines []string
	var more explained
	if errors.As(err, &more) {
		lines = more.lines
	}
	var answer *client.Error
	if errors.As(err, &answer) {
		for _, c := range answer.Candidates {
			lines = append(lines, fmt.Sprintf("%s  %s  %s  %s", c.GetId(), c.GetName(), c.GetImage(), c.GetStatus()))
		}
	}
	return lines
}

func absolute(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("path %s: %w", path, err)
	}
	return abs, nil
}

// lines prints to w until the first error and keeps it.
type lines struct {
	w   io.Writer
	err error
}

func (l *lines) printf(format string, args ...any) {
	if l.err == nil {
		_, l.err = fmt.Fprintf(l.w, format, args...)
	}
}

// oneLine makes s safe to print as one line on a terminal.
func oneLine(s string) string {
	return neutral(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; "), false)
}
