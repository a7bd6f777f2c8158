package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"

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
	if err != nil {
		return fail(err)
	}
	if len(list) > maxIgnorePatterns {
		return fail(fmt.Errorf("%d patterns, more than %d; name folders in place of files", len(list), maxIgnorePatterns))
	}
	patterns, err := patternmatcher.New(list)
	if err != nil {
		return fail(err)
	}
	return &ignored{patterns}, nil
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
