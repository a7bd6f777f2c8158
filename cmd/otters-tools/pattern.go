package main

import (
	"bytes"
	"regexp"
	"strings"
)

// matcher finds a pattern in a line.
type matcher interface {
	// find returns the first match that starts at or after an offset, or nil.
	find(line []byte) []int
	all(line []byte) [][]int
}

// literal is one fixed string, the most common search, without the regular expression engine.
type literal []byte

func (l literal) find(line []byte) []int {
	i := bytes.Index(line, l)
	if i < 0 {
		return nil
	}
	return []int{i, i + len(l)}
}

func (l literal) all(line []byte) [][]int {
	var found [][]int
	for at := 0; len(l) > 0; {
		m := l.find(line[at:])
		if m == nil {
			break
		}
		found = append(found, []int{at + m[0], at + m[1]})
		at += m[1]
	}
	return found
}

type expression struct{ re *regexp.Regexp }

func (e expression) find(line []byte) []int  { return e.re.FindIndex(line) }
func (e expression) all(line []byte) [][]int { return e.re.FindAllIndex(line, -1) }

// dialect is how patterns are written and what a match must be.
type dialect struct {
	fixed, extended, fold, word, line bool
}

// compile makes one matcher of patterns, each of which may hold several, one a line.
func (d dialect) compile(patterns []string) (matcher, error) {
	var parts []string
	for _, p := range patterns {
		parts = append(parts, strings.Split(p, "\n")...)
	}
	if d.fixed && len(parts) == 1 && !d.fold && !d.word && !d.line {
		return literal(parts[0]), nil
	}
	for i, p := range parts {
		switch {
		case d.fixed:
			p = regexp.QuoteMeta(p)
		case !d.extended:
			p = fromBasic(p)
		}
		// Each on its own first, so that an error names what was written.
		if _, err := regexp.Compile(p); err != nil {
			return nil, usageError("pattern %s: %s", patterns[min(i, len(patterns)-1)], patternError(err))
		}
		parts[i] = "(?:" + p + ")"
	}
	text := "(?:" + strings.Join(parts, "|") + ")"
	if d.word {
		text = `\b` + text + `\b`
	}
	if d.line {
		text = "^" + text + "$"
	}
	if d.fold {
		text = "(?i)" + text
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, usageError("pattern: %s", patternError(err))
	}
	// As POSIX has it: of the matches that start first, the longest.
	re.Longest()
	return expression{re}, nil
}

func patternError(err error) string {
	return strings.TrimPrefix(err.Error(), "error parsing regexp: ")
}

// fromBasic turns a basic regular expression, in which \( \) \{ \} \| \+ \? are operators and the
// bare characters are not, into the syntax of package regexp. Bracket expressions stay as they are.
func fromBasic(p string) string {
	var out strings.Builder
	start := true // where * is a character and ^ an anchor
	for i := 0; i < len(p); i++ {
		ch := p[i]
		begins := false
		switch {
		case ch == '[':
			end := bracketEnd(p, i)
			out.WriteString(p[i:end])
			i = end - 1
		case ch == '\\' && i+1 < len(p):
			i++
			begins = p[i] == '(' || p[i] == '|'
			if !strings.ContainsRune("(){}|+?", rune(p[i])) {
				out.WriteByte('\\')
			}
			out.WriteByte(p[i])
		case strings.ContainsRune("(){}|+?", rune(ch)), ch == '*' && start, ch == '^' && !start,
			ch == '$' && !atEnd(p[i+1:]):
			out.WriteByte('\\')
			out.WriteByte(ch)
		default:
			out.WriteByte(ch)
			begins = ch == '^'
		}
		start = begins
	}
	return out.String()
}

func atEnd(rest string) bool {
	return rest == "" || strings.HasPrefix(rest, `\)`) || strings.HasPrefix(rest, `\|`)
}

// bracketEnd returns the offset after the bracket expression that starts at i, the end of the
// pattern where it is never closed. A ] that comes first stands for itself.
func bracketEnd(p string, i int) int {
	j := i + 1
	if j < len(p) && p[j] == '^' {
		j++
	}
	if j < len(p) && p[j] == ']' {
		j++
	}
	for j < len(p) && p[j] != ']' {
		if strings.HasPrefix(p[j:], "[:") {
			if k := strings.Index(p[j:], ":]"); k > 0 {
				j += k + 1
			}
		} else if p[j] == '\\' {
			j++
		}
		j++
	}
	return min(j+1, len(p))
}
