package spec

import (
	"slices"
	"strings"
)

// Format prints an Agentfile in its one form: keywords in capitals, one blank between words, no blanks
// at the ends of a line, at most one empty line in a row, and none at the ends of the file. Comments
// and texts stay as they are, and so does what Parse makes of the file; to format what Format printed
// changes nothing.
//
// ARGs are not expanded and values not checked: only a file whose lines can't be split into words is
// an error, a *SyntaxError.
func Format(name string, src []byte) ([]byte, error) {
	p := &parser{file: name, a: &Agentfile{}, args: map[string]string{}, index: map[string]int{}}
	if len(src) > MaxSource {
		p.problem(0, "", "the file has %d bytes, more than %d", len(src), MaxSource)
		return nil, p.wrong()
	}
	p.src = strings.TrimPrefix(string(src), "\ufeff")
	if !p.readable() {
		return nil, p.wrong()
	}
	var out strings.Builder
	empty := false
	for p.next() {
		trimmed := strings.Trim(p.text, " \t")
		if trimmed == "" {
			empty = out.Len() > 0
			continue
		}
		if empty {
			out.WriteByte('\n')
		}
		empty = false
		if trimmed[0] == '#' {
			out.WriteString(p.formatComment(trimmed) + "\n")
			continue
		}
		out.WriteString(p.formatInstruction() + "\n")
		if p.body != nil && p.taken > 0 {
			list := strings.Fields(p.text)
			out.WriteString(*p.body + strings.TrimPrefix(list[len(list)-1], "<<") + "\n")
		}
		if p.endless > maxEndless {
			break
		}
	}
	if len(p.problems) > 0 {
		return nil, p.wrong()
	}
	if out.Len() > MaxSource {
		// A blank or the last line's end more would make it too large.
		return slices.Clone(src), nil
	}
	return []byte(out.String()), nil
}

// formatComment moves a comment to the line's start. One that would become a syntax line there keeps
// a blank before it.
func (p *parser) formatComment(trimmed string) string {
	m := syntaxLine.FindStringSubmatch(trimmed)
	switch {
	case m == nil:
		return trimmed
	case p.text[0] != '#':
		return " " + trimmed
	}
	return "# syntax=" + m[1]
}

func (p *parser) formatInstruction() string {
	at := skip(p.text, 0)
	raw := strings.TrimRight(p.text[at:], " \t")
	word, _, _ := strings.Cut(strings.ReplaceAll(raw, "\t", " "), " ")
	keyword := strings.ToUpper(word)
	p.heredoc()
	if !slices.Contains(keywords, keyword) {
		p.problem(at, meantInstruction(keyword), "unknown instruction %q", clip(word))
		return raw
	}
	rest := at + len(word)
	if keyword == "EXEC" {
		if out, ok := p.formatExec(rest); ok && len(out) <= max(MaxLine, len(raw)) {
			return out
		}
		return keyword + raw[len(word):]
	}
	list, ok := p.tokens(rest)
	if !ok {
		return raw
	}
	words := []string{keyword}
	for _, t := range list {
		words = append(words, p.text[t.at:t.end])
	}
	return strings.Join(words, " ")
}

// formatExec prints the list with a blank after each comma.
func (p *parser) formatExec(at int) (string, bool) {
	before := len(p.problems) + p.omitted
	if p.exec(at); len(p.problems)+p.omitted > before {
		return "", false
	}
	var list []string
	for at < len(p.text) {
		if p.text[at] != '"' {
			at++
			continue
		}
		_, end, ok := p.quoted(at)
		if !ok {
			return "", false
		}
		list = append(list, p.text[at:end])
		at = end
	}
	return "EXEC [" + strings.Join(list, ", ") + "]", true
}

// wrong is the error of the problems that were found.
func (p *parser) wrong() error {
	return &SyntaxError{Problems: p.problems, Omitted: p.omitted}
}
