package main

import (
	"bytes"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// ordering is how lines compare. Bytes are compared as they are, as in the C locale.
type ordering struct {
	numeric, fold, reverse bool
}

// key is the part of a line that is compared: fields first to last, counted from 1; last 0 is the
// end of the line. A key without letters of its own takes those of the whole run.
type key struct {
	first, last int
	ordering
}

// sorter is one run of sort.
type sorter struct {
	separator string // empty: runs of blanks
	keys      []key
	whole     ordering
	unique    bool
	stable    bool
}

// sortBlock is how many bytes are taken at a time to hold lines: an allocation for each line would
// cost several times the line.
const sortBlock = 1 << 20

func sortLines(c *call, flags *pflag.FlagSet) func([]string) error {
	var s sorter
	flags.BoolVarP(&s.whole.numeric, "numeric-sort", "n", false, "compare by the number at the start")
	flags.BoolVarP(&s.whole.fold, "ignore-case", "f", false, "compare ASCII letters as if upper-case")
	flags.BoolVarP(&s.whole.reverse, "reverse", "r", false, "reverse the order")
	flags.BoolVarP(&s.unique, "unique", "u", false, "print only the first of lines that compare equal")
	flags.BoolVarP(&s.stable, "stable", "s", false, "leave lines with equal keys in their order")
	flags.StringVarP(&s.separator, "field-separator", "t", "", "fields end at the character `C`, not at blanks")
	keys := flags.StringArrayP("key", "k", nil, "`N[,M]`: compare by fields N to M (then letters n, f, r); may be repeated")
	return func(files []string) error {
		if flags.Changed("field-separator") && len(s.separator) != 1 {
			return usageError("-t %s: want one character", s.separator)
		}
		for _, text := range *keys {
			k, err := parseKey(text, s.whole)
			if err != nil {
				return err
			}
			s.keys = append(s.keys, k)
		}
		rows, err := s.read(c, files)
		if err != nil {
			return err
		}
		return s.write(c, rows)
	}
}

// parseKey reads N[,M][letters].
func parseKey(text string, whole ordering) (key, error) {
	numbers := strings.TrimRight(text, "nfr")
	first, last, two := strings.Cut(numbers, ",")
	k := key{ordering: whole}
	var err, err2 error
	k.first, err = strconv.Atoi(first)
	if two {
		k.last, err2 = strconv.Atoi(last)
	}
	if err != nil || err2 != nil || k.first < 1 || two && k.last < k.first {
		return k, usageError("-k %s: want N or N,M, fields counted from 1, then any of the letters n, f, r", text)
	}
	if letters := text[len(numbers):]; letters != "" {
		k.ordering = ordering{strings.Contains(letters, "n"), strings.Contains(letters, "f"), strings.Contains(letters, "r")}
	}
	return k, nil
}

func (s *sorter) read(c *call, files []string) ([][]byte, error) {
	var rows [][]byte
	var block []byte // what is left of the block that lines are copied into
	held := 0
	err := c.each(files, func(_ string, r io.Reader) error {
		return c.lines(r).each(func(line []byte) error {
			held += len(line) + sliceSize
			if held > maxHeld {
				return errHeld
			}
			if len(block) < len(line) {
				block = make([]byte, max(sortBlock, len(line)))
			}
			n := copy(block, line)
			rows, block = append(rows, block[:n:n]), block[n:]
			return nil
		})
	})
	if c.code != exitOK {
		// Part of the input sorted would look like all of it.
		return nil, errDone
	}
	return rows, err
}

func (s *sorter) write(c *call, rows [][]byte) error {
	if s.stable || s.unique {
		slices.SortStableFunc(rows, s.compare)
	} else {
		slices.SortFunc(rows, s.compareWhole)
	}
	for i, row := range rows {
		if s.unique && i > 0 && s.compare(rows[i-1], row) == 0 {
			continue
		}
		c.stdout.Write(row) // sticky, WriteByte returns it
		if err := c.stdout.WriteByte('\n'); err != nil {
			return err
		}
	}
	return nil
}

// compareWhole orders what compares equal by all of its bytes.
func (s *sorter) compareWhole(a, b []byte) int {
	if order := s.compare(a, b); order != 0 {
		return order
	}
	if s.whole.reverse {
		return bytes.Compare(b, a)
	}
	return bytes.Compare(a, b)
}

func (s *sorter) compare(a, b []byte) int {
	if len(s.keys) == 0 {
		return s.whole.compare(a, b)
	}
	for _, k := range s.keys {
		if order := k.compare(s.cut(a, k), s.cut(b, k)); order != 0 {
			return order
		}
	}
	return 0
}

// cut returns the fields of a key with what stands between them.
func (s *sorter) cut(line []byte, k key) []byte {
	start, _ := s.field(line, k.first)
	end := len(line)
	if k.last > 0 {
		_, end = s.field(line, k.last)
	}
	return line[start:end]
}

// field returns the bounds of field n, both at the end of the line where there is none. Without a
// separator a field starts with the blanks before it.
func (s *sorter) field(line []byte, n int) (start, end int) {
	for i := 1; ; i++ {
		end = start + s.fieldSize(line[start:])
		if i == n {
			return start, end
		}
		if end >= len(line) {
			return len(line), len(line)
		}
		start = end + len(s.separator)
	}
}

func (s *sorter) fieldSize(rest []byte) int {
	if s.separator != "" {
		if i := bytes.IndexByte(rest, s.separator[0]); i >= 0 {
			return i
		}
		return len(rest)
	}
	i := 0
	for i < len(rest) && isBlank(rest[i]) {
		i++
	}
	for i < len(rest) && !isBlank(rest[i]) {
		i++
	}
	return i
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' }

func (o ordering) compare(a, b []byte) int {
	order := 0
	switch {
	case o.numeric:
		order = parseNumber(a).compare(parseNumber(b))
	case o.fold:
		order = bytes.Compare(upper(a), upper(b))
	default:
		order = bytes.Compare(a, b)
	}
	if o.reverse {
		return -order
	}
	return order
}

// upper maps ASCII letters only: the other bytes need not be UTF-8.
func upper(s []byte) []byte {
	out := bytes.Clone(s)
	for i, b := range out {
		if 'a' <= b && b <= 'z' {
			out[i] = b - 'a' + 'A'
		}
	}
	return out
}

// number is a decimal of any length, kept as digits so that nothing is rounded.
type number struct {
	negative  bool
	int, frac []byte // without leading, or trailing, zeros
}

// parseNumber reads blanks, a minus sign and a decimal at the start of s; anything else is 0.
func parseNumber(s []byte) number {
	s = bytes.TrimLeft(s, " \t")
	var n number
	if len(s) > 0 && s[0] == '-' {
		n.negative, s = true, s[1:]
	}
	end := digits(s)
	n.int, s = bytes.TrimLeft(s[:end], "0"), s[end:]
	if len(s) > 0 && s[0] == '.' {
		n.frac = bytes.TrimRight(s[1:1+digits(s[1:])], "0")
	}
	if len(n.int) == 0 && len(n.frac) == 0 {
		n.negative = false
	}
	return n
}

func digits(s []byte) int {
	i := 0
	for i < len(s) && '0' <= s[i] && s[i] <= '9' {
		i++
	}
	return i
}

func (n number) compare(m number) int {
	if n.negative != m.negative {
		if n.negative {
			return -1
		}
		return 1
	}
	order := len(n.int) - len(m.int)
	if order == 0 {
		order = bytes.Compare(n.int, m.int)
	}
	if order == 0 {
		order = bytes.Compare(n.frac, m.frac)
	}
	if n.negative {
		return -order
	}
	return order
}
