package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
)

// noLimit is the number of selected lines without -m.
const noLimit = math.MaxInt

// exitNoMatch is what grep returns when it selected no line.
const exitNoMatch = 1

// search is one run of grep.
type search struct {
	c                                 *call
	dialect                           dialect
	patterns                          []string
	invert, number, count, list, only bool
	quiet, recurse, withName, noName  bool
	most, after, before, around       int
	match                             matcher
	names                             bool
	selected                          bool
	printed                           bool // some output, so that a gap needs a separator
}

func grep(c *call, flags *pflag.FlagSet) func([]string) error {
	s := &search{c: c}
	flags.BoolVarP(&s.dialect.extended, "extended-regexp", "E", false, "PATTERN in the syntax of Go's regexp (RE2): a|b, (x), +, ?, \\d, \\b")
	flags.BoolVarP(&s.dialect.fixed, "fixed-strings", "F", false, "PATTERN is plain text")
	flags.StringArrayVarP(&s.patterns, "regexp", "e", nil, "a `PATTERN`; may be repeated, and every operand is then a file")
	flags.BoolVarP(&s.dialect.fold, "ignore-case", "i", false, "upper and lower case are the same")
	flags.BoolVarP(&s.dialect.word, "word-regexp", "w", false, "the match must start and end at a word boundary")
	flags.BoolVarP(&s.dialect.line, "line-regexp", "x", false, "the match must be the whole line")
	flags.BoolVarP(&s.invert, "invert-match", "v", false, "select the lines that do not match")
	flags.BoolVarP(&s.number, "line-number", "n", false, "put its number before every line")
	flags.BoolVarP(&s.count, "count", "c", false, "print only how many lines were selected, per file")
	flags.BoolVarP(&s.list, "files-with-matches", "l", false, "print only the names of files with a selected line")
	flags.BoolVarP(&s.only, "only-matching", "o", false, "print only the matching parts, each on a line")
	flags.BoolVarP(&s.quiet, "quiet", "q", false, "print nothing; the exit code tells")
	flags.BoolVarP(&s.recurse, "recursive", "r", false, "search folders too (. when no file is given); links inside are passed over")
	flags.BoolVarP(&s.withName, "with-filename", "H", false, "print the file's name before every line, as with several files")
	flags.BoolVarP(&s.noName, "no-filename", "h", false, "never print the file's name")
	flags.IntVarP(&s.most, "max-count", "m", 0, "stop after `N` selected lines of a file")
	flags.IntVarP(&s.after, "after-context", "A", 0, "print `N` lines after each selected one too")
	flags.IntVarP(&s.before, "before-context", "B", 0, "print `N` lines before each selected one too")
	flags.IntVarP(&s.around, "context", "C", 0, "print `N` lines before and after each selected one too")
	return func(operands []string) error {
		files, err := s.prepare(flags, operands)
		if err != nil {
			return err
		}
		err = s.run(files)
		switch {
		case s.selected && s.quiet:
			c.code = exitOK
		case !s.selected && c.code == exitOK && (err == nil || errors.Is(err, errDone)):
			c.code = exitNoMatch
		}
		return err
	}
}

// prepare checks the options against each other and returns the files.
func (s *search) prepare(flags *pflag.FlagSet, operands []string) ([]string, error) {
	if len(s.patterns) == 0 {
		if len(operands) == 0 {
			return nil, usageError("no pattern given")
		}
		s.patterns, operands = operands[:1], operands[1:]
	}
	context := flags.Changed("after-context") || flags.Changed("before-context") || flags.Changed("context")
	switch {
	case s.dialect.extended && s.dialect.fixed:
		return nil, usageError("-E and -F: only one of them at a time")
	case s.withName && s.noName:
		return nil, usageError("-H and -h: only one of them at a time")
	case s.only && s.invert:
		return nil, usageError("-o and -v: only one of them at a time")
	case context && (s.only || s.count || s.list || s.quiet):
		return nil, usageError("-A, -B, -C: not together with -o, -c, -l or -q")
	}
	for _, name := range []string{"max-count", "after-context", "before-context", "context"} {
		if f := flags.Lookup(name); f.Changed && f.Value.String()[0] == '-' {
			return nil, usageError("-%s %s: want a whole number, 0 or more", f.Shorthand, f.Value)
		}
	}
	if !flags.Changed("after-context") {
		s.after = s.around
	}
	if !flags.Changed("before-context") {
		s.before = s.around
	}
	if !flags.Changed("max-count") {
		s.most = noLimit
	}
	if s.recurse && len(operands) == 0 {
		operands = []string{"."}
	}
	s.names = (len(operands) > 1 || s.recurse || s.withName) && !s.noName
	var err error
	s.match, err = s.dialect.compile(s.patterns)
	return operands, err
}

func (s *search) run(files []string) error {
	if !s.recurse {
		return s.c.each(files, s.file)
	}
	for _, root := range files {
		if root == "-" {
			if err := s.c.each([]string{root}, s.file); err != nil {
				return err
			}
			continue
		}
		if err := s.tree(root); err != nil {
			return err
		}
	}
	return nil
}

// tree searches the regular files below root, and root itself even if it is a link.
func (s *search) tree(root string) error {
	if info, err := os.Stat(root); err == nil && info.IsDir() {
		// A link to a folder is walked only under a name that ends in a slash.
		root = filepath.Clean(root)
		if target, err := os.Lstat(root); err == nil && !target.IsDir() {
			root += string(filepath.Separator)
		}
	} else {
		return s.c.each([]string{root}, s.file)
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			s.c.fail(path, err)
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		return s.c.each([]string{path}, s.file)
	})
}

// file searches one file.
func (s *search) file(name string, r io.Reader) error {
	if name == "-" {
		name = "(standard input)"
	}
	f := fileSearch{search: s, name: name}
	in := s.c.lines(r)
	for f.hits < s.most || f.trailing > 0 {
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		f.number++
		if err := f.line(bytes.TrimSuffix(line, []byte{'\n'})); err != nil {
			return err
		}
		if s.list && f.hits > 0 {
			break
		}
	}
	if f.hits > 0 {
		s.selected = true
	}
	var err error
	switch {
	case s.quiet && s.selected:
		return errDone
	case s.quiet:
	case s.list:
		if f.hits > 0 {
			_, err = fmt.Fprintln(s.c.stdout, name)
		}
	case s.count:
		if s.names {
			fmt.Fprintf(s.c.stdout, "%s:", name)
		}
		_, err = fmt.Fprintln(s.c.stdout, f.hits)
	}
	return err
}

// fileSearch is the state of a search within one file.
type fileSearch struct {
	*search
	name     string
	number   int
	hits     int
	last     int // number of the last line printed
	trailing int // lines of context still to print
	held     []heldLine
	bytes    int // of what is held
}

// heldLine is a line that may become the context before a selected one.
type heldLine struct {
	number int
	text   []byte
}

func (f *fileSearch) line(line []byte) error {
	full := f.hits >= f.most
	found := f.match.find(line)
	if full || (found != nil) == f.invert {
		if f.trailing > 0 {
			f.trailing--
			return f.print(f.number, line, '-')
		}
		return f.hold(line)
	}
	f.hits++
	if f.quiet {
		f.selected = true
		return errDone
	}
	if f.list || f.count {
		return nil
	}
	if f.only {
		return f.parts(line)
	}
	for _, h := range f.held {
		if err := f.print(h.number, h.text, '-'); err != nil {
			return err
		}
	}
	f.held, f.bytes = f.held[:0], 0
	f.trailing = f.after
	return f.print(f.number, line, ':')
}

// hold keeps a line for the context before a later one.
func (f *fileSearch) hold(line []byte) error {
	if f.before == 0 {
		return nil
	}
	const cost = sliceSize + 8 // beside its bytes
	if len(f.held) == f.before {
		f.bytes -= len(f.held[0].text) + cost
		f.held = f.held[1:] // what it leaves before it goes with the next growth
	}
	if f.bytes += len(line) + cost; f.bytes > maxHeld {
		return errHeld
	}
	f.held = append(f.held, heldLine{f.number, bytes.Clone(line)})
	return nil
}

func (f *fileSearch) parts(line []byte) error {
	for _, m := range f.match.all(line) {
		if m[0] == m[1] {
			continue
		}
		if err := f.print(f.number, line[m[0]:m[1]], ':'); err != nil {
			return err
		}
	}
	return nil
}

// print writes one line with what stands before it, after a -- where lines were left out between
// groups of context.
func (f *fileSearch) print(number int, text []byte, mark byte) error {
	out := f.c.stdout
	gap := f.last == 0 || number > f.last+1
	if gap && f.search.printed && f.before+f.after > 0 {
		fmt.Fprintln(out, "--")
	}
	f.search.printed, f.last = true, number
	if f.names {
		fmt.Fprintf(out, "%s%c", f.name, mark)
	}
	if f.search.number {
		fmt.Fprintf(out, "%d%c", number, mark)
	}
	out.Write(text) // sticky, WriteByte returns it
	return out.WriteByte('\n')
}
