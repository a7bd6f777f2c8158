package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// until returns the text between the delimiter that the rest starts with and the next one. A
// delimiter behind a backslash is itself.
func (p *sedParser) until() (string, error) {
	delimiter := firstRune(p.rest)
	if delimiter == "\n" || delimiter == "\\" || delimiter == "" {
		return "", errors.New("want a pattern between two slashes, or two of another character")
	}
	p.rest = p.rest[len(delimiter):]
	text, err := p.upTo(delimiter)
	p.rest = strings.TrimPrefix(p.rest, delimiter)
	return text, err
}

// upTo returns the text before the next delimiter and leaves the delimiter.
func (p *sedParser) upTo(delimiter string) (string, error) {
	var b strings.Builder
	for p.rest != "" {
		switch {
		case strings.HasPrefix(p.rest, delimiter):
			return b.String(), nil
		case strings.HasPrefix(p.rest, "\\"+delimiter):
			b.WriteString(delimiter)
			p.rest = p.rest[1+len(delimiter):]
		case p.rest[0] == '\\' && len(p.rest) > 1:
			b.WriteString(p.rest[:2])
			p.rest = p.rest[2:]
		default:
			b.WriteByte(p.rest[0])
			p.rest = p.rest[1:]
		}
	}
	return "", fmt.Errorf("no %s at the end", delimiter)
}

// pair returns the two texts between three delimiters.
func (p *sedParser) pair() (first, second string, err error) {
	delimiter := firstRune(p.rest)
	if first, err = p.until(); err == nil {
		second, err = p.upTo(delimiter)
		p.rest = strings.TrimPrefix(p.rest, delimiter)
	}
	return first, second, err
}

// compile makes a pattern that takes the longest of the matches that start first, as POSIX has it,
// and in which a dot is any character, a newline too.
func (p *sedParser) compile(source string, fold bool) (*regexp.Regexp, error) {
	if source == "" {
		return nil, errors.New("an empty pattern")
	}
	text := source
	if !p.extended {
		text = fromBasic(text)
	}
	options := "(?s)"
	if fold {
		options = "(?si)"
	}
	if _, err := regexp.Compile(text); err != nil {
		return nil, fmt.Errorf("pattern %s: %s", source, patternError(err))
	}
	re, err := regexp.Compile(options + text)
	if err != nil {
		return nil, fmt.Errorf("pattern %s: %s", source, patternError(err))
	}
	re.Longest()
	return re, nil
}

// substitution reads /PATTERN/REPLACEMENT/FLAGS.
func (p *sedParser) substitution(c *sedCommand) error {
	pattern, replacement, err := p.pair()
	if err != nil {
		return fmt.Errorf("s: %w", err)
	}
	fold := false
	for p.rest != "" && strings.IndexByte("gpiI0123456789", p.rest[0]) >= 0 {
		switch p.rest[0] {
		case 'g':
			c.global = true
		case 'p':
			c.print = true
		case 'i', 'I':
			fold = true
		default:
			digits := p.digits()
			if c.nth, err = strconv.Atoi(digits); err != nil || c.nth < 1 {
				return fmt.Errorf("s: flag %s: want a whole number, 1 or more", digits)
			}
			continue
		}
		p.rest = p.rest[1:]
	}
	if c.pattern, err = p.compile(pattern, fold); err != nil {
		return fmt.Errorf("s: %w", err)
	}
	c.replacement, err = parseReplacement(replacement, c.pattern.NumSubexp())
	return err
}

func parseReplacement(text string, groups int) ([]sedPart, error) {
	var parts []sedPart
	var fixed []byte
	group := func(n int) {
		if len(fixed) > 0 {
			parts = append(parts, sedPart{fixed, -1})
		}
		fixed = nil
		parts = append(parts, sedPart{nil, n})
	}
	for i := 0; i < len(text); i++ {
		ch := text[i]
		if ch == '&' {
			group(0)
			continue
		}
		if ch != '\\' || i+1 == len(text) {
			fixed = append(fixed, ch)
			continue
		}
		i++
		switch ch = text[i]; {
		case ch >= '0' && ch <= '9':
			if n := int(ch - '0'); n > groups {
				return nil, fmt.Errorf("s: \\%d: the pattern has %d groups", n, groups)
			}
			group(int(ch - '0'))
		case ch == 'n':
			fixed = append(fixed, '\n')
		case ch == 't':
			fixed = append(fixed, '\t')
		case 'a' <= ch && ch <= 'z' || 'A' <= ch && ch <= 'Z':
			return nil, fmt.Errorf("s: \\%c in a replacement is not here", ch)
		default:
			fixed = append(fixed, ch)
		}
	}
	if len(fixed) > 0 {
		parts = append(parts, sedPart{fixed, -1})
	}
	return parts, nil
}

// letters reads /FROM/TO/ of y.
func (p *sedParser) letters(c *sedCommand) error {
	from, to, err := p.pair()
	if err != nil {
		return fmt.Errorf("y: %w", err)
	}
	unescape := strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t")
	source, target := []rune(unescape.Replace(from)), []rune(unescape.Replace(to))
	if len(source) != len(target) || !utf8.ValidString(from+to) {
		return fmt.Errorf("y: %d characters for %d", len(target), len(source))
	}
	c.letters = make(map[rune]rune, len(source))
	for i, r := range source {
		if _, twice := c.letters[r]; !twice {
			c.letters[r] = target[i]
		}
	}
	return nil
}

// transliterate is y; bytes that are no text stay.
func (cmd *sedCommand) transliterate(line []byte) []byte {
	out := make([]byte, 0, len(line))
	for len(line) > 0 {
		r, n := utf8.DecodeRune(line)
		if to, ok := cmd.letters[r]; ok && (r != utf8.RuneError || n > 1) {
			out = utf8.AppendRune(out, to)
		} else {
			out = append(out, line[:n]...)
		}
		line = line[n:]
	}
	return out
}
