package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxSteps is how many commands run on one line at most: a branch may go round for ever.
const maxSteps = 1 << 20

var errSteps = fmt.Errorf("more than %d commands for one line; does a branch go round for ever", maxSteps)

// editor is one run of sed.
type editor struct {
	c      *call
	script []sedCommand
	quiet  bool
	steps  int // for one line; 0 is maxSteps
	out    io.Writer
	all    bool // a file that can't be read to its end is an error

	names []string
	name  string
	file  *os.File
	in    *lines

	line             []byte // the pattern space
	hold             []byte
	number           int
	newline          bool // the line had one
	ahead            []byte
	aheadNewline     bool
	hasAhead, primed bool
	replaced         bool // for t
	appends          [][]byte
	ranges           map[int]int // command to the line that its range ends on, 0 for a pattern
	written          bool        // something was, and lacked its newline
}

// outcome is what a command does to the run of the script.
type outcome int

const (
	goOn outcome = iota
	endCycle
	deleteCycle  // without printing
	restartCycle // without reading
	quit
	quitQuietly
)

// next makes the next line the pattern space; one line is read ahead, for $.
func (e *editor) next() (bool, error) {
	if !e.primed {
		e.primed = true
		if err := e.look(); err != nil {
			return false, err
		}
	}
	if !e.hasAhead {
		return false, nil
	}
	e.line, e.newline = e.ahead, e.aheadNewline
	e.number++
	return true, e.look()
}

func (e *editor) look() error {
	line, newline, err := e.read()
	e.hasAhead = err == nil
	if errors.Is(err, io.EOF) {
		return nil
	}
	e.ahead, e.aheadNewline = line, newline
	return err
}

func (e *editor) lines() error {
	e.ranges = map[int]int{}
	restart := false
	for {
		if !restart {
			more, err := e.next()
			if err != nil || !more {
				return err
			}
			e.replaced = false
		}
		end, err := e.cycle()
		if err != nil {
			return err
		}
		restart = end == restartCycle
		if !e.quiet && end != deleteCycle && end != restartCycle && end != quitQuietly {
			if err := e.print(e.line, e.newline); err != nil {
				return err
			}
		}
		if err := e.flush(); err != nil {
			return err
		}
		if end == quit || end == quitQuietly {
			return errDone
		}
	}
}

// flush prints what a put off to the end of the cycle.
func (e *editor) flush() error {
	for _, text := range e.appends {
		if err := e.print(text, true); err != nil {
			return err
		}
	}
	e.appends = e.appends[:0]
	return nil
}

// print writes a line. The newline that the last line of a file lacks is put in when more follows.
func (e *editor) print(line []byte, newline bool) error {
	if e.written {
		if _, err := e.out.Write([]byte{'\n'}); err != nil {
			return err
		}
	}
	e.written = !newline
	if _, err := e.out.Write(line); err != nil || !newline {
		return err
	}
	_, err := e.out.Write([]byte{'\n'})
	return err
}

// cycle runs the script on the pattern space.
func (e *editor) cycle() (outcome, error) {
	steps := 0
	for i := 0; i < len(e.script); i++ {
		if steps++; steps > cmp.Or(e.steps, maxSteps) {
			return goOn, errSteps
		}
		cmd := &e.script[i]
		if !e.selects(i, cmd) {
			if cmd.name == '{' {
				i = cmd.jump
			}
			continue
		}
		switch cmd.name {
		case 'b':
			i = cmd.jump
			continue
		case 't':
			if e.replaced {
				e.replaced = false
				i = cmd.jump
			}
			continue
		}
		end, err := e.execute(i, cmd)
		if err != nil || end != goOn {
			return end, err
		}
		if len(e.line) > maxLine || len(e.hold) > maxLine {
			return goOn, errLongLine
		}
	}
	return endCycle, nil
}

// selects tells whether a command's addresses take the line.
func (e *editor) selects(i int, cmd *sedCommand) bool {
	hit := true
	switch {
	case cmd.from != nil && cmd.to != nil:
		hit = e.inRange(i, cmd)
	case cmd.from != nil:
		hit = e.at(cmd.from)
	}
	return hit != cmd.not
}

func (e *editor) inRange(i int, cmd *sedCommand) bool {
	end, open := e.ranges[i]
	if !open {
		if !e.at(cmd.from) {
			return false
		}
		switch {
		case cmd.to.plus:
			end = e.number + cmd.to.line
		case cmd.to.pattern == nil && !cmd.to.last:
			end = cmd.to.line
		}
		// A range whose end is not behind its start is one line; a pattern is looked for from the next line on.
		if cmd.to.pattern != nil || cmd.to.last && e.hasAhead || end > e.number {
			e.ranges[i] = end
		}
		return true
	}
	switch {
	case cmd.to.pattern != nil || cmd.to.last:
		if e.at(cmd.to) {
			delete(e.ranges, i)
		}
		return true
	case e.number >= end:
		delete(e.ranges, i)
		// n and N may have passed the end.
		return e.number == end || e.at(cmd.from)
	}
	return true
}

func (e *editor) at(a *sedAddress) bool {
	switch {
	case a.last:
		return !e.hasAhead
	case a.pattern != nil:
		return a.pattern.Match(e.line)
	case a.step > 0:
		return e.number >= a.line && (e.number-a.line)%a.step == 0
	}
	return e.number == a.line
}

func (e *editor) execute(i int, cmd *sedCommand) (outcome, error) {
	switch cmd.name {
	case '{', '}', ':':
	case 's':
		return goOn, e.substitute(cmd)
	case 'y':
		e.line = cmd.transliterate(e.line)
	case 'p':
		return goOn, e.print(e.line, true)
	case 'P':
		first, _, _ := bytes.Cut(e.line, []byte{'\n'})
		return goOn, e.print(first, true)
	case '=':
		return goOn, e.print(fmt.Append(nil, e.number), true)
	case 'd':
		return deleteCycle, nil
	case 'D':
		_, rest, more := bytes.Cut(e.line, []byte{'\n'})
		if !more {
			return deleteCycle, nil
		}
		e.line = rest
		return restartCycle, nil
	case 'a':
		e.appends = append(e.appends, cmd.text)
	case 'i':
		return goOn, e.print(cmd.text, true)
	case 'c':
		if _, open := e.ranges[i]; cmd.to != nil && !cmd.not && open {
			return deleteCycle, nil // the text comes once, at the end of the range
		}
		return deleteCycle, e.print(cmd.text, true)
	case 'n', 'N':
		return e.advance(cmd.name)
	case 'q':
		e.c.code = max(e.c.code, cmd.code)
		return quit, nil
	case 'Q':
		e.c.code = max(e.c.code, cmd.code)
		return quitQuietly, nil
	default:
		e.holdSpace(cmd.name)
	}
	return goOn, nil
}

// advance is n and N. At the end of the input the run is over, the line printed.
func (e *editor) advance(name byte) (outcome, error) {
	if !e.hasAhead {
		return quit, nil
	}
	before := e.line
	if name == 'n' && !e.quiet {
		if err := e.print(before, true); err != nil {
			return goOn, err
		}
	}
	if err := e.flush(); err != nil {
		return goOn, err
	}
	if _, err := e.next(); err != nil {
		return goOn, err
	}
	if name == 'N' {
		e.line = append(append(before, '\n'), e.line...)
	}
	return goOn, nil
}

func (e *editor) holdSpace(name byte) {
	switch name {
	case 'h':
		e.hold = bytes.Clone(e.line)
	case 'H':
		e.hold = append(append(e.hold, '\n'), e.line...)
	case 'g':
		e.line = bytes.Clone(e.hold)
	case 'G':
		e.line = append(append(e.line, '\n'), e.hold...)
	case 'x':
		e.line, e.hold = e.hold, e.line
	}
}

// substitute is s.
func (e *editor) substitute(cmd *sedCommand) error {
	var out []byte
	at, count := 0, 0
	for _, m := range cmd.matches(e.line) {
		if count++; count < cmd.nth {
			continue
		}
		out = append(out, e.line[at:m[0]]...)
		out = cmd.expand(out, e.line, m)
		at = m[1]
		if len(out) > maxLine {
			return errLongLine
		}
		if !cmd.global {
			break
		}
	}
	if count < cmd.nth || count == 0 {
		return nil
	}
	e.line = append(out, e.line[at:]...)
	e.replaced = true
	if cmd.print {
		return e.print(e.line, true)
	}
	return nil
}

// matches returns them from the start of the line: all of them, or as many as are needed.
func (cmd *sedCommand) matches(line []byte) [][]int {
	n := cmd.nth
	if cmd.global {
		n = -1
	}
	return cmd.pattern.FindAllSubmatchIndex(line, n)
}

// expand adds the replacement of one match.
func (cmd *sedCommand) expand(out, line []byte, m []int) []byte {
	for _, part := range cmd.replacement {
		if part.group < 0 {
			out = append(out, part.text...)
		} else if m[2*part.group] >= 0 {
			out = append(out, line[m[2*part.group]:m[2*part.group+1]]...)
		}
	}
	return out
}
