package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// IgnoreFile is the file of a build folder that names what is left out of it.
const IgnoreFile = ".agentignore"

// Bounds of an IgnoreFile: matching is the product of patterns and files.
const (
	maxIgnoreBytes    = 64 << 10
	maxIgnorePatterns = 1000
)

// ignored is what an IgnoreFile leaves out. Nil leaves out nothing.
type ignored struct {
	patterns *patternmatcher.PatternMatcher
}

func readIgnore(source fs.FS) (*ignored, error) {
	fail := func(err error) (*ignored, error) {
		return nil, fmt.Errorf("%w: %s: %w", ErrArchive, IgnoreFile, err)
	}
	// Asked before it is opened: opening a named pipe waits for its other end.
	info, err := fs.Stat(source, IgnoreFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return fail(err)
	case !info.Mode().IsRegular():
		return fail(fmt.Errorf("it is a %s, not a file; remove it", kind(info.Mode())))
	}
	f, err := source.Open(IgnoreFile)
	if err != nil {
		return fail(err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxIgnoreBytes+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return fail(err)
	}
	if len(text) > maxIgnoreBytes {
		return fail(fmt.Errorf("larger than %d bytes; name folders in place of files", maxIgnoreBytes))
	}
	list, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err == nil && len(list) > maxIgnorePatterns {
		return fail(fmt.Errorf("%d patterns, more than %d; name folders in place of files", len(list), maxIgnorePatterns))
	}
	if err := checkPatterns(text); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	patterns, err := patternmatcher.New(list)
	if err != nil {
		return fail(err)
	}
	return &ignored{patterns}, nil
}

// checkPatterns tells the first line of an IgnoreFile that is no pattern.
func checkPatterns(text []byte) error {
	n := 0
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		n++
		if !utf8.Valid(line) || bytes.IndexByte(line, 0) >= 0 {
			return fmt.Errorf("%s:%d: it is not text; write it as UTF-8", IgnoreFile, n)
		}
		list, err := ignorefile.ReadAll(bytes.NewReader(line))
		var one *patternmatcher.PatternMatcher
		if err == nil {
			one, err = patternmatcher.New(list)
		}
		if err == nil && one.Exclusions() {
			// What is kept is looked at only after something was left out.
			one, err = patternmatcher.New([]string{strings.TrimPrefix(list[0], "!")})
		}
		if err == nil {
			_, err = one.MatchesOrParentMatches("a")
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %q: %w; mend the pattern, or remove it", IgnoreFile, n, bytes.TrimSpace(line), err)
		}
	}
	return nil
}

func (i *ignored) match(path string) (bool, error) {
	if i == nil {
		return false, nil
	}
	skip, err := i.patterns.MatchesOrParentMatches(path)
	if err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrArchive, IgnoreFile, err)
	}
	return skip, nil
}

// exceptions tells that a file may be kept below a folder that is left out.
func (i *ignored) exceptions() bool { return i.patterns.Exclusions() }
