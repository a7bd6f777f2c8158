package spec

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// token is a word of an instruction: bare, quoted, or key=value whose value may be quoted.
type token struct {
	// at and end are byte offsets in the line; valueAt is where the value starts, -1 without "=".
	at, end, valueAt int
	// text is the whole word with ARGs expanded and quotes undone, key what stands before "=".
	text, key, value string
	// quoted tells that the word starts with a quote, so that it can't be key=value.
	quoted bool
}

// reference matches the use of an ARG.
var reference = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_.-]{0,62}\}`)

func blank(c byte) bool { return c == ' ' || c == '\t' }

// tokens splits the statement's line from the byte offset at. ok is false when the line can't be
// split; the problem has been noted.
func (p *parser) tokens(at int) (list []token, ok bool) {
	line := p.text
	for {
		for at < len(line) && blank(line[at]) {
			at++
		}
		if at == len(line) {
			return list, true
		}
		t, ok := p.token(at)
		if !ok {
			return nil, false
		}
		list = append(list, t)
		at = t.end
	}
}

func (p *parser) token(at int) (t token, ok bool) {
	line := p.text
	t = token{at: at, valueAt: -1}
	if line[at] == '"' {
		t.quoted = true
		if t.text, t.end, ok = p.quoted(at); !ok {
			return t, false
		}
		t.key = t.text
		return t, p.ends(t.end)
	}
	end := at
	for end < len(line) && !blank(line[end]) && line[end] != '"' {
		end++
		if line[end-1] == '=' && t.valueAt < 0 {
			t.valueAt = end
		}
	}
	if end < len(line) && line[end] == '"' && end != t.valueAt {
		p.problem(end, "put the whole value in quotes, and write a quote in it as \\\"", "a quote inside a word")
		return t, false
	}
	if t.valueAt < 0 {
		if t.text, ok = p.expand(line[at:end], at); !ok {
			return t, false
		}
		t.key, t.end = t.text, end
		return t, true
	}
	if t.key, ok = p.expand(line[at:t.valueAt-1], at); !ok {
		return t, false
	}
	if t.valueAt < len(line) && line[t.valueAt] == '"' {
		if t.value, t.end, ok = p.quoted(t.valueAt); !ok || !p.ends(t.end) {
			return t, false
		}
	} else {
		if t.value, ok = p.expand(line[t.valueAt:end], t.valueAt); !ok {
			return t, false
		}
		t.end = end
	}
	t.text = t.key + "=" + t.value
	return t, true
}

// ends notes a problem when a quoted string goes on after its quote.
func (p *parser) ends(at int) bool {
	if at == len(p.text) || blank(p.text[at]) {
		return true
	}
	p.problem(at, "put a blank between them", "a word right after a closing quote")
	return false
}

// quoted reads the string whose opening quote is at the offset at. ARGs are expanded in its source,
// so their values need no escapes, and \x24{key} is a ${key} that is left alone.
func (p *parser) quoted(at int) (text string, end int, ok bool) {
	line := p.text
	end = at + 1
	for end < len(line) && line[end] != '"' {
		if line[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(line) {
		p.problem(at, "", "the quote is not closed")
		return "", 0, false
	}
	var b strings.Builder
	from := at + 1
	var uses [][]int
	if strings.Contains(line[from:end], "${") {
		uses = reference.FindAllStringIndex(line[from:end], -1)
	}
	for _, m := range uses {
		value, known := p.args[line[at+1+m[0]+2:at+1+m[1]-1]]
		if !known {
			continue
		}
		if !p.unquote(&b, from, at+1+m[0]) || !p.grow(at, len(value)) {
			return "", 0, false
		}
		b.WriteString(value)
		from = at + 1 + m[1]
	}
	if !p.unquote(&b, from, end) {
		return "", 0, false
	}
	text = b.String()
	if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
		p.problem(at, "", "the escapes make text that is not UTF-8 or has a NUL byte")
		return "", 0, false
	}
	return text, end + 1, true
}

// unquote undoes the escapes of the line from one offset to another.
func (p *parser) unquote(b *strings.Builder, from, to int) bool {
	rest := p.text[from:to]
	for rest != "" {
		if i := strings.IndexByte(rest, '\\'); i != 0 {
			if i < 0 {
				i = len(rest)
			}
			b.WriteString(rest[:i])
			rest = rest[i:]
			continue
		}
		r, multibyte, tail, err := strconv.UnquoteChar(rest, '"')
		if err != nil {
			p.problem(to-len(rest), `the escapes are those of Go: \n \t \" \\ \xHH \uHHHH`, "not an escape")
			return false
		}
		if r < utf8.RuneSelf || !multibyte {
			b.WriteByte(byte(r))
		} else {
			b.WriteRune(r)
		}
		rest = tail
	}
	return true
}

// expand replaces the ARGs of a bare word; what no ARG defines stays as it is.
func (p *parser) expand(s string, at int) (string, bool) {
	if !strings.Contains(s, "${") {
		return s, true
	}
	ok := true
	out := reference.ReplaceAllStringFunc(s, func(m string) string {
		value, known := p.args[m[2:len(m)-1]]
		if !known || !ok {
			return m
		}
		if ok = p.grow(at, len(value)); !ok {
			return m
		}
		return value
	})
	return out, ok
}

// grow counts what expansion adds, over the whole file, so that ARGs made of ARGs stay bounded.
func (p *parser) grow(at, n int) bool {
	p.expanded += n
	if p.expanded > MaxSource {
		if !p.bloated {
			p.problem(at, "", "ARGs expand to more than %d bytes in this file", MaxSource)
			p.bloated = true
		}
		return false
	}
	return true
}
