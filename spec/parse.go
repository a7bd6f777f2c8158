package spec

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// ParseOptions are what Parse is given beside the text. The zero value gives no build arguments.
type ParseOptions struct {
	// Args are build arguments. Each overrides the default of the ARG with that key and is taken as
	// it is; one for which the file has no ARG is an error.
	Args map[string]string
	// Folder is the build folder, such as os.Root.FS, whose symlinks lead nowhere else. With it the files
	// that CONTEXT and ADD name are checked too, and the texts of CONTEXT read. Without it the texts of
	// CONTEXT file:// stay empty.
	Folder fs.FS
}

// Parse reads the Agentfile src; name is what its problems call it. The outcome is what the file
// itself says: FROM names the parent that Merge then needs, and the content of ADD is not read. The
// bounds are the constants of this package.
//
// What is wrong is told all at once: the error is a *SyntaxError, and errors.Is finds what the files of
// the folder were refused for.
func Parse(name string, src []byte, opts ParseOptions) (*Agentfile, error) {
	p := &parser{
		file:  name,
		a:     &Agentfile{Syntax: DefaultSyntax},
		given: opts.Args,
		args:  map[string]string{},
		index: map[string]int{},

		places: map[string]place{},
	}
	p.parse(src)
	p.skills()
	if opts.Folder != nil {
		p.sources(opts.Folder)
	}
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b Problem) int {
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Column - b.Column
		})
		return nil, &SyntaxError{Problems: p.problems, Omitted: p.omitted}
	}
	return p.a, nil
}

// maxEndless is how often the end of a text is looked for in vain.
const maxEndless = 20

type parser struct {
	file string
	a    *Agentfile
	// given are the build arguments and args what ${…} means on the line that is read.
	given, args map[string]string
	// index finds an element by kind and key, places the source of one.
	index  map[string]int
	places map[string]place

	// src is what is not read yet; line, text and body are the statement that is.
	src  string
	line int
	text string
	// body is the text that the line announces, and taken the lines it had, its end included.
	body    *string
	taken   int
	count   int
	hasFrom bool

	// plain tells that the file says it is of DefaultSyntax.
	plain bool

	expanded int
	bloated  bool
	// endless counts texts without an end, each of which was looked for through the whole file.
	endless  int
	problems []Problem
	omitted  int
}

// problem notes that something is wrong at the byte offset at of the line.
func (p *parser) problem(at int, hint, format string, args ...any) {
	if len(p.problems) == maxProblems {
		p.omitted++
		return
	}
	at = min(at, len(p.text))
	pr := Problem{File: p.file, Message: fmt.Sprintf(format, args...), Hint: hint}
	if p.line > 0 {
		pr.Line, pr.Column = p.line, utf8.RuneCountInString(p.text[:at])+1
		pr.Source, pr.caret = show(p.text, at)
	}
	p.problems = append(p.problems, pr)
}

// check notes err at the offset at, and tells whether there was none.
func (p *parser) check(at int, err error) bool {
	if err != nil {
		p.problem(at, "", "%v", err)
	}
	return err == nil
}

var syntaxLine = regexp.MustCompile(`(?i)^#[ \t]*syntax[ \t]*=[ \t]*(.*?)[ \t]*$`)

func (p *parser) parse(src []byte) {
	if len(src) > MaxSource {
		p.problem(0, "", "the file has %d bytes, more than %d", len(src), MaxSource)
		return
	}
	p.src = strings.TrimPrefix(string(src), "\ufeff")
	if !p.readable() {
		return
	}
	for p.next() {
		trimmed := strings.TrimLeft(p.text, " \t")
		switch {
		case trimmed == "":
		case trimmed[0] == '#':
			p.comment()
		case len(p.text) > MaxLine:
			p.problem(MaxLine, "", "the line has %d bytes, more than %d", len(p.text), MaxLine)
		default:
			if p.count++; p.count > MaxInstructions {
				p.problem(0, "", "more than %d instructions", MaxInstructions)
				return
			}
			p.instruction(len(p.text) - len(trimmed))
		}
		if p.endless > maxEndless {
			p.problem(0, "", "more than %d texts have no end; the rest of the file was not read", maxEndless)
			return
		}
	}
	if p.count == 0 {
		p.line, p.text = 1, ""
		p.problem(0, "start with FROM scratch, or FROM and the image to build on", "the file has no instruction")
	}
	p.line = 0
	if len(p.given) > MaxInstructions {
		p.problem(0, "", "%d build arguments, more than %d", len(p.given), MaxInstructions)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(p.given)) {
		if _, ok := p.index["ARG "+key]; !ok {
			p.problem(0, meant(key, p.a.Args.keys()), "build argument %q: the file has no ARG %s", clip(key), clip(key))
		}
	}
}

// readable notes the first place that is not text.
func (p *parser) readable() bool {
	if utf8.ValidString(p.src) && strings.IndexByte(p.src, 0) < 0 {
		return true
	}
	for rest := p.src; ; {
		line, tail, _ := strings.Cut(rest, "\n")
		p.line++
		p.text = line
		for i, r := range line {
			if r == 0 || r == utf8.RuneError && !strings.HasPrefix(line[i:], "\ufffd") {
				p.problem(i, "save the file as UTF-8", "a byte that is not text")
				return false
			}
		}
		rest = tail
	}
}

// next reads a line.
func (p *parser) next() bool {
	if p.src == "" {
		return false
	}
	p.text, p.src, _ = strings.Cut(p.src, "\n")
	p.text = strings.TrimRight(p.text, "\r")
	p.line += 1 + p.taken
	p.body, p.taken = nil, 0
	return true
}

func (p *parser) comment() {
	m := syntaxLine.FindStringSubmatch(p.text)
	switch {
	case m == nil:
	case p.line != 1:
		p.problem(0, "move it there", "the syntax line is not the first line of the file")
	case m[1] == DefaultSyntax:
		p.plain = true
	case m[1] != SkillSyntax:
		p.problem(strings.Index(p.text, "=")+1, "write "+DefaultSyntax, "unknown syntax %q", clip(m[1]))
	}
}

// skills checks the skills of the file together.
func (p *parser) skills() {
	hint := ""
	name, err := checkSkills(p.a.Adds)
	if i := slices.IndexFunc(p.a.Adds, Add.IsSkill); i >= 0 {
		p.a.Syntax = SkillSyntax
		if p.plain && err == nil {
			name, hint = p.a.Adds[i].Name, "write # syntax="+SkillSyntax+" in the first line, or leave it out"
			err = fmt.Errorf("there are no skills in %s", DefaultSyntax)
		}
	}
	if err != nil {
		at := p.places["ADD "+name]
		p.line, p.text = at.line, at.text
		p.problem(at.at, hint, "%v", err)
	}
}

var (
	heredocEnd  = regexp.MustCompile(`(?:^|[ \t])<<([A-Za-z_][A-Za-z0-9_]*)[ \t]*$`)
	heredocLike = regexp.MustCompile(`^<<-?["']?[A-Za-z0-9_]*["']?$`)
)

// heredoc takes the body that the line announces. A body whose end is missing takes nothing, so
// that the lines after it are still checked.
func (p *parser) heredoc() {
	if !strings.Contains(p.text, "<<") {
		return
	}
	m := heredocEnd.FindStringSubmatchIndex(p.text)
	if m == nil {
		return
	}
	mark := p.text[m[2]:m[3]]
	almost, n := 0, 0
	for rest := p.src; rest != ""; {
		line, tail, _ := strings.Cut(rest, "\n")
		n++
		if strings.TrimSuffix(line, "\r") == mark {
			body := p.src[:len(p.src)-len(rest)]
			p.body, p.src, p.taken = &body, tail, n
			return
		}
		if almost == 0 && strings.TrimSpace(line) == mark {
			almost = p.line + n
		}
		rest = tail
	}
	hint := "end it with a line that has only " + mark
	if almost > 0 {
		hint = fmt.Sprintf("line %d has blanks around %s; remove them", almost, mark)
	}
	p.problem(m[2]-2, hint, "the text %s has no end", mark)
	p.endless++
	p.body = new(string)
}
