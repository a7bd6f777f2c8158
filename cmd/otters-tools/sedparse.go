package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// sedAddress selects lines: by number, by number and step, $, by pattern, or, as the end of a range,
// so many lines on.
type sedAddress struct {
	line, step int
	last, plus bool
	pattern    *regexp.Regexp
}

// sedCommand is one command with its addresses.
type sedCommand struct {
	from, to *sedAddress
	not      bool
	name     byte
	text     []byte // of a, i, c
	label    string // of b, t, :
	jump     int    // of b, t: the command before the next one; of {: its }
	code     int    // of q, Q

	pattern       *regexp.Regexp
	replacement   []sedPart
	nth           int
	global, print bool
	letters       map[rune]rune // of y
}

// sedPart is fixed text or, with group 0 and more, what a group of the pattern matched.
type sedPart struct {
	text  []byte
	group int
}

// sedParser reads a script.
type sedParser struct {
	rest     string
	whole    string
	extended bool
	commands []sedCommand
	open     []int
}

func parseSed(script string, extended bool) ([]sedCommand, error) {
	p := &sedParser{rest: script, whole: script, extended: extended}
	for {
		p.rest = strings.TrimLeft(p.rest, " \t\n;")
		if p.rest == "" {
			break
		}
		if strings.HasPrefix(p.rest, "#") {
			_, p.rest, _ = strings.Cut(p.rest, "\n")
			continue
		}
		at := len(p.whole) - len(p.rest)
		if err := p.command(); err != nil {
			return nil, fmt.Errorf("byte %d: %w", at+1, err)
		}
	}
	if len(p.open) > 0 {
		return nil, errors.New("a { without its }")
	}
	return p.commands, p.link()
}

// link makes the branches lead to their labels, and those without one to the end.
func (p *sedParser) link() error {
	labels := map[string]int{"": len(p.commands)}
	for i, c := range p.commands {
		if c.name != ':' {
			continue
		}
		if _, twice := labels[c.label]; twice {
			return fmt.Errorf("label %s stands twice", c.label)
		}
		labels[c.label] = i
	}
	for i := range p.commands {
		c := &p.commands[i]
		if c.name != 'b' && c.name != 't' {
			continue
		}
		to, ok := labels[c.label]
		if !ok {
			return fmt.Errorf("no label %s", c.label)
		}
		c.jump = to - 1
	}
	return nil
}

func (p *sedParser) command() error {
	c := sedCommand{nth: 1}
	var err error
	if c.from, err = p.address(false); err != nil {
		return err
	}
	p.blanks()
	if c.from != nil && strings.HasPrefix(p.rest, ",") {
		p.rest = p.rest[1:]
		p.blanks()
		if c.to, err = p.address(true); err == nil && c.to == nil {
			err = errors.New("want an address after the comma")
		}
		if err != nil {
			return err
		}
		p.blanks()
	}
	for strings.HasPrefix(p.rest, "!") {
		c.not = true
		p.rest = p.rest[1:]
		p.blanks()
	}
	if p.rest == "" {
		return errors.New("an address without a command")
	}
	c.name, p.rest = p.rest[0], p.rest[1:]
	if err := p.arguments(&c); err != nil {
		return err
	}
	p.commands = append(p.commands, c)
	if strings.IndexByte("{:", c.name) >= 0 {
		return nil
	}
	return p.end(c.name)
}

// end checks that nothing else follows a command.
func (p *sedParser) end(name byte) error {
	p.blanks()
	if p.rest == "" || strings.IndexByte(";\n}#", p.rest[0]) >= 0 {
		return nil
	}
	return fmt.Errorf("after %c: %q is more than it takes", name, firstRune(p.rest))
}

func firstRune(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return s[:n]
}

func (p *sedParser) blanks() { p.rest = strings.TrimLeft(p.rest, " \t") }

func (p *sedParser) arguments(c *sedCommand) error {
	switch c.name {
	case 's':
		return p.substitution(c)
	case 'y':
		return p.letters(c)
	case 'a', 'i', 'c':
		return p.text(c)
	case 'b', 't', ':':
		return p.label(c)
	case '{':
		p.open = append(p.open, len(p.commands))
	case '}':
		if len(p.open) == 0 || c.from != nil {
			return errors.New("a } without its {, or with an address")
		}
		p.commands[p.open[len(p.open)-1]].jump = len(p.commands)
		p.open = p.open[:len(p.open)-1]
	case 'q', 'Q':
		p.blanks()
		if n := p.digits(); n != "" {
			code, err := strconv.Atoi(n)
			if err != nil || code > 255 {
				return fmt.Errorf("%c %s: want an exit code, 0 to 255", c.name, n)
			}
			c.code = code
		}
	case 'p', 'P', 'd', 'D', '=', 'n', 'N', 'h', 'H', 'g', 'G', 'x':
	case 'r', 'w', 'R', 'W', 'e', 'F', 'l', 'T', 'v', 'z':
		return fmt.Errorf("command %c is not here", c.name)
	default:
		return fmt.Errorf("unknown command: %q", firstRune(string(c.name)+p.rest))
	}
	return nil
}

func (p *sedParser) label(c *sedCommand) error {
	end := strings.IndexAny(p.rest, ";}\n")
	if end < 0 {
		end = len(p.rest)
	}
	c.label = strings.TrimSpace(p.rest[:end])
	p.rest = p.rest[end:]
	if c.name == ':' && (c.label == "" || c.from != nil) {
		return errors.New("a label wants a name, and no address")
	}
	return nil
}

// text reads what a, i and c print: the rest of the line, or the lines after a backslash. A line
// that ends in a backslash goes on.
func (p *sedParser) text(c *sedCommand) error {
	p.blanks()
	if rest, ok := strings.CutPrefix(p.rest, "\\"); ok {
		rest = strings.TrimLeft(rest, " \t")
		p.rest = strings.TrimPrefix(rest, "\n")
	}
	var out []byte
	i := 0
	for ; i < len(p.rest) && p.rest[i] != '\n'; i++ {
		if p.rest[i] == '\\' && i+1 < len(p.rest) {
			i++
			if p.rest[i] == 't' {
				out = append(out, '\t')
				continue
			}
		}
		out = append(out, p.rest[i])
	}
	p.rest = p.rest[i:]
	if len(out) == 0 {
		return fmt.Errorf("%c: want a text", c.name)
	}
	c.text = out
	return nil
}

func (p *sedParser) digits() string {
	n := len(p.rest) - len(strings.TrimLeft(p.rest, "0123456789"))
	digits := p.rest[:n]
	p.rest = p.rest[n:]
	return digits
}

func (p *sedParser) number() (int, error) {
	digits := p.digits()
	n, err := strconv.Atoi(digits)
	if err != nil || n > 1<<40 {
		return 0, fmt.Errorf("line %q: want a whole number", digits)
	}
	return n, nil
}

// address returns nil where there is none.
func (p *sedParser) address(end bool) (*sedAddress, error) {
	if p.rest == "" {
		return nil, nil
	}
	switch ch := p.rest[0]; {
	case ch == '$':
		p.rest = p.rest[1:]
		return &sedAddress{last: true}, nil
	case ch == '+' && end:
		p.rest = p.rest[1:]
		n, err := p.number()
		return &sedAddress{line: n, plus: true}, err
	case ch >= '0' && ch <= '9':
		return p.lineAddress(end)
	case ch == '/' || ch == '\\' && len(p.rest) > 1:
		p.rest = strings.TrimPrefix(p.rest, `\`)
		source, err := p.until()
		if err != nil {
			return nil, err
		}
		fold := strings.HasPrefix(p.rest, "I")
		if fold {
			p.rest = p.rest[1:]
		}
		re, err := p.compile(source, fold)
		return &sedAddress{pattern: re}, err
	}
	return nil, nil
}

func (p *sedParser) lineAddress(end bool) (*sedAddress, error) {
	n, err := p.number()
	if err != nil {
		return nil, err
	}
	a := &sedAddress{line: n}
	if strings.HasPrefix(p.rest, "~") {
		p.rest = p.rest[1:]
		if a.step, err = p.number(); err == nil && (a.step == 0 || end) {
			err = errors.New("FIRST~STEP: want a step of 1 or more, and not as the end of a range")
		}
		return a, err
	}
	if n == 0 {
		return nil, errors.New("lines are counted from 1")
	}
	return a, nil
}
