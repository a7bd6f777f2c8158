package spec

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrInvalid is what a SyntaxError and an InvalidError are to errors.Is.
var ErrInvalid = errors.New("invalid agentfile")

// maxProblems is how many problems a SyntaxError keeps; more help nobody.
const maxProblems = 100

// Problem is one thing that is wrong with an Agentfile.
type Problem struct {
	// File is the name that Parse was given.
	File string `json:"file"`
	// Line counts from 1; it is 0 for a problem that is of no line, such as a build argument.
	Line int `json:"line"`
	// Column counts characters from 1.
	Column  int    `json:"column"`
	Message string `json:"message"`
	// Hint is what was perhaps meant; it may be empty.
	Hint string `json:"hint,omitempty"`
	// Source is the line, with what a terminal would act on replaced, and cut when it is long.
	Source string `json:"source,omitempty"`

	// caret is the position in Source, in characters from 0.
	caret int
	// cause is what a file was refused for.
	cause error
}

// String prints file:line:column: message; hint, then the source line and a caret beneath.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": " + p.Message)
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	if p.Source != "" {
		fmt.Fprintf(&b, "\n    %s\n    %s^", p.Source, strings.Repeat(" ", p.caret))
	}
	return b.String()
}

// SyntaxError is everything that is wrong with an Agentfile, in the order of its lines. It is
// ErrInvalid to errors.Is.
type SyntaxError struct {
	Problems []Problem
	// Omitted is how many problems were found beyond those kept.
	Omitted int
}

// Error prints the problems one below the other.
func (e *SyntaxError) Error() string {
	lines := make([]string, 0, len(e.Problems)+1)
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	if e.Omitted > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", e.Omitted))
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns what files of the build folder were refused for.
func (e *SyntaxError) Unwrap() []error {
	var causes []error
	for _, p := range e.Problems {
		if p.cause != nil {
			causes = append(causes, p.cause)
		}
	}
	return causes
}

// Is tells that target is ErrInvalid.
func (e *SyntaxError) Is(target error) bool { return target == ErrInvalid }

// show makes the printable form of a source line around the byte offset at, and says where at is in
// it, in characters.
func show(line string, at int) (string, int) {
	const most = 120
	from := 0
	if at > most*3/4 {
		from = at - most/2
		for from > 0 && !utf8.RuneStart(line[from]) {
			from--
		}
	}
	var b strings.Builder
	caret, n := 0, 0
	if from > 0 {
		b.WriteRune('…')
		n++
	}
	for i, r := range line[from:] {
		if from+i <= at {
			caret = n
		}
		if n > most {
			b.WriteRune('…')
			break
		}
		if !unicode.IsPrint(r) {
			r = printable(r)
		}
		b.WriteRune(r)
		n++
	}
	if at >= len(line) {
		caret = n
	}
	return strings.TrimRight(b.String(), " "), caret
}

// printable keeps the caret in its column and the terminal unharmed.
func printable(r rune) rune {
	if r == '\t' {
		return ' '
	}
	return '�'
}

// nearest is the candidate that word was perhaps meant to be: at most a third of its letters, and
// at most two, wrong, missing, added or swapped. It is empty where there is none.
func nearest(word string, candidates []string) string {
	if len(word) > 64 {
		return ""
	}
	// A file of thousands of keys that are all wrong must not take seconds.
	candidates = candidates[:min(len(candidates), 1000)]
	best, least := "", min(2, max(1, len(word)/3))+1
	for _, c := range candidates {
		if len(c) > 64 || c == word || len(c) > len(word)+least || len(word) > len(c)+least {
			continue
		}
		// Of two as near the one in the same case, else the first by name: a folder is listed in any order.
		d := distance(strings.ToLower(word), strings.ToLower(c))
		if d < least || d == least && best != "" && cmp.Or(cmp.Compare(distance(word, c), distance(word, best)), strings.Compare(c, best)) < 0 {
			best, least = c, d
		}
	}
	return best
}

// distance is the optimal string alignment distance in bytes.
func distance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, above, row := rows[0], rows[1], rows[2]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		rows[0], rows[1], rows[2] = above, row, before
	}
	return rows[1][len(b)]
}
