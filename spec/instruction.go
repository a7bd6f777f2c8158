package spec

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

var keywords = []string{
	"FROM", "RUNTIME", "MODEL", "NAME", "CONTEXT", "CONFIG", "ENV", "BIN", "EXEC", "ADD", "LABEL", "ARG", "CAPABILITY",
}

// foreign are keywords of other languages with what is written here instead.
var foreign = map[string]string{
	"COPY": "ADD", "CMD": "EXEC", "ENTRYPOINT": "EXEC", "TOOL": "BIN", "SYSTEM": "CONTEXT", "PARAMETER": "CONFIG",
}

// form is how each instruction is written; it ends the message about one that is not.
var form = map[string]string{
	"FROM":       "FROM scratch or FROM image",
	"RUNTIME":    "RUNTIME image",
	"MODEL":      "MODEL provider/model",
	"NAME":       "NAME name",
	"CONTEXT":    `CONTEXT NAME ["description"] file://path, or <<MARK in place of the path`,
	"CONFIG":     `CONFIG key[!][=value] ["description"]`,
	"ENV":        `ENV KEY=value ["description"]`,
	"BIN":        `BIN name image ["description"] [<<MARK]`,
	"EXEC":       `EXEC ["argument", …]`,
	"ADD":        `ADD path [name] ["description"], the path of a skill's folder with a / at its end`,
	"LABEL":      "LABEL key=value",
	"ARG":        "ARG key[=default]",
	"CAPABILITY": "CAPABILITY name …",
}

// meantInstruction is what to write in place of an instruction that there is not.
func meantInstruction(keyword string) string {
	if like := meant(keyword, keywords); like != "" {
		return like
	}
	return "write one of " + strings.Join(keywords, ", ")
}

func (p *parser) instruction(at int) {
	word, _, _ := strings.Cut(strings.ReplaceAll(p.text[at:], "\t", " "), " ")
	keyword := strings.ToUpper(word)
	p.heredoc()
	if !slices.Contains(keywords, keyword) {
		hint := ""
		if k := foreign[keyword]; k != "" {
			hint = "did you mean " + k + "?"
		} else {
			hint = meantInstruction(keyword)
		}
		p.problem(at, hint, "unknown instruction %q", clip(word))
		return
	}
	if p.count == 1 && keyword != "FROM" {
		p.problem(at, "start with FROM scratch, or FROM and the image to build on", "%s before FROM", keyword)
	}
	rest := at + len(word)
	if keyword == "EXEC" {
		p.exec(rest)
		return
	}
	list, ok := p.tokens(rest)
	if !ok {
		return
	}
	switch keyword {
	case "CONTEXT", "BIN":
	default:
		if p.body != nil && len(list) > 0 {
			p.problem(list[len(list)-1].at, "", "%s takes no <<MARK; only CONTEXT and BIN do", keyword)
			return
		}
	}
	in := instruction{parser: p, keyword: keyword, at: at, rest: list}
	in.read()
}

// meant is the hint for a near-miss.
func meant(word string, candidates []string) string {
	if n := nearest(word, candidates); n != "" {
		return "did you mean " + n + "?"
	}
	return ""
}

// instruction reads the words of one instruction.
type instruction struct {
	*parser
	keyword string
	at      int
	rest    []token
	failed  bool
}

func (in *instruction) read() {
	switch in.keyword {
	case "FROM":
		if t, ok := in.only(checkFrom); ok {
			in.from(t)
		}
	case "RUNTIME":
		if t, ok := in.only(checkReference); ok {
			in.a.Runtime = t.text
			for _, c := range in.a.Configs {
				delete(in.index, "CONFIG "+c.Key)
			}
			in.a.Configs = nil
		}
	case "MODEL":
		if t, ok := in.only(checkModel); ok {
			in.a.Model = t.text
		}
	case "NAME":
		if t, ok := in.only(checkName); ok {
			in.a.Name = t.text
		}
	case "CONTEXT":
		in.context()
	case "CONFIG":
		in.config()
	case "ENV":
		in.env()
	case "BIN":
		in.bin()
	case "ADD":
		in.add()
	case "LABEL":
		in.label()
	case "ARG":
		in.arg()
	case "CAPABILITY":
		in.capability()
	}
}

// wrong notes that the instruction is not written as it must be.
func (in *instruction) wrong(at int, format string, args ...any) {
	if !in.failed {
		in.problem(at, "write "+form[in.keyword], format, args...)
	}
	in.failed = true
}

// word takes the next word and checks it.
func (in *instruction) word(what string, check func(string) error) (t token) {
	if len(in.rest) == 0 {
		in.wrong(len(in.text), "%s without %s", in.keyword, what)
		return t
	}
	t, in.rest = in.rest[0], in.rest[1:]
	if check != nil && !in.check(t.at, check(t.text)) {
		in.failed = true
	}
	return t
}

// only takes the one word that the instruction has.
func (in *instruction) only(check func(string) error) (token, bool) {
	t := in.word("a value", check)
	in.end()
	return t, !in.failed
}

// pair takes key=value.
func (in *instruction) pair(check func(string) error) (t token) {
	if t = in.word("a key", nil); in.failed {
		return t
	}
	switch {
	case t.quoted || t.key == "":
		in.wrong(t.at, "%s without a key", in.keyword)
	case t.valueAt < 0 && strings.Contains(t.text, "="):
		// An ARG brought the whole pair.
		t.key, t.value, _ = strings.Cut(t.text, "=")
		t.valueAt = t.at
	}
	if in.failed {
		return t
	}
	if len(in.rest) > 0 && strings.HasPrefix(in.rest[0].text, "=") && !in.rest[0].quoted {
		in.wrong(in.rest[0].at, "blanks around the =")
		return t
	}
	if t.valueAt >= 0 && heredocLike.MatchString(t.value) && in.text[t.valueAt] == '<' {
		in.wrong(t.valueAt, "%s takes no <<MARK; only CONTEXT and BIN do", in.keyword)
		return t
	}
	if !in.check(t.at, check(t.key)) || t.valueAt >= 0 && !in.check(t.valueAt, checkValue(t.value)) {
		in.failed = true
	}
	return t
}

// description takes the quoted string that may come next.
func (in *instruction) description() string {
	if len(in.rest) == 0 || !in.rest[0].quoted {
		return ""
	}
	t := in.word("a description", checkDescription)
	return t.text
}

// end notes a problem when there are words left.
func (in *instruction) end() {
	if in.failed || len(in.rest) == 0 {
		return
	}
	t := in.rest[0]
	switch {
	case t.quoted:
		in.wrong(t.at, "a string that %s does not take here", in.keyword)
	default:
		in.wrong(t.at, "%q is more than %s takes; a value or description with blanks is put in quotes", clip(t.text), in.keyword)
	}
}

func (in *instruction) from(t token) {
	switch {
	case in.hasFrom:
		in.problem(in.at, "", "a second FROM: an agent has one parent")
	case in.count > 1:
		// Told at the first instruction.
	default:
		in.a.From = t.text
	}
	in.hasFrom = true
}

func (in *instruction) context() {
	c := Context{Name: in.word("a name", checkContextName).text}
	if in.failed {
		return
	}
	if len(in.rest) > 1 {
		c.Description = in.description()
	}
	if in.failed {
		return
	}
	source := in.word("a source", nil)
	if in.failed {
		return
	}
	switch {
	case in.body != nil && len(in.rest) == 0:
		c.Content = *in.body
		if !in.check(source.at, checkContent(c.Content)) {
			return
		}
	case strings.HasPrefix(source.text, "file://"):
		c.File = path.Clean(strings.TrimPrefix(source.text, "file://"))
		if !in.check(source.at, checkSource(strings.TrimPrefix(source.text, "file://"))) {
			return
		}
	case !source.quoted && heredocLike.MatchString(source.text):
		in.wrong(source.at, "a text is announced by << and a word of letters, digits and _, last on the line")
	case source.quoted && len(in.rest) == 0:
		in.wrong(len(in.text), "CONTEXT without a source")
	default:
		in.wrong(source.at, "%q is not a source", clip(source.text))
	}
	if in.end(); !in.failed {
		in.places["CONTEXT "+c.Name] = place{in.line, source.at, in.text}
		put(in.parser, "CONTEXT", c.Name, &in.a.Contexts, c)
	}
}

func (in *instruction) config() {
	required := false
	t := in.pair(func(key string) error {
		key, required = strings.CutSuffix(key, "!")
		return checkConfigKey(key)
	})
	c := Config{Key: strings.TrimSuffix(t.key, "!"), Required: required}
	if !in.failed && t.valueAt >= 0 {
		if required {
			in.problem(t.valueAt, "leave out the ! or the value", "%s must be given at deploy, so it has no default", t.key)
			return
		}
		c.Value = &t.value
	}
	c.Description = in.description()
	if in.end(); !in.failed {
		put(in.parser, "CONFIG", c.Key, &in.a.Configs, c)
	}
}

func (in *instruction) env() {
	t := in.pair(checkEnvKey)
	if !in.failed && t.valueAt < 0 {
		in.wrong(t.at, "ENV %s without a value", t.key)
	}
	e := Env{Key: t.key, Value: t.value, Description: in.description()}
	if in.end(); !in.failed {
		put(in.parser, "ENV", e.Key, &in.a.Envs, e)
	}
}

func (in *instruction) bin() {
	b := Bin{Name: in.word("a name", checkName).text}
	if in.failed {
		return
	}
	b.Image = in.word("an image", checkReference).text
	b.Description = in.description()
	if in.body != nil && len(in.rest) == 1 {
		b.Usage = *in.body
		if !in.check(in.rest[0].at, checkContent(b.Usage)) {
			return
		}
		in.rest = nil
	}
	if in.end(); !in.failed {
		put(in.parser, "BIN", b.Name, &in.a.Bins, b)
	}
}

func (in *instruction) add() {
	src := in.word("a path", checkAddSource)
	if in.failed {
		return
	}
	d := Add{Src: path.Clean(src.text)}
	d.Name = path.Base(d.Src)
	at, hint := src.at, "give it one: ADD path name"
	if len(in.rest) > 0 && !in.rest[0].quoted {
		t := in.word("a name", nil)
		d.Name, at, hint = t.text, t.at, ""
		if strings.HasPrefix(d.Name, "/data/") {
			d.Name = path.Base(d.Name)
		}
	}
	check, dir := checkDataName, ""
	if strings.HasSuffix(src.text, "/") {
		check, dir = checkSkillName, skillsDir
	}
	if err := check(d.Name); err != nil {
		in.problem(at, hint, "%v", err)
		return
	}
	d.Name = dir + d.Name
	d.Description = in.description()
	if in.end(); !in.failed {
		in.places["ADD "+d.Name] = place{in.line, src.at, in.text}
		put(in.parser, "ADD", d.Name, &in.a.Adds, d)
	}
}

func (in *instruction) label() {
	t := in.pair(checkLabelKey)
	if !in.failed && t.valueAt < 0 {
		in.wrong(t.at, "LABEL %s without a value", clip(t.key))
	}
	if in.end(); !in.failed {
		put(in.parser, "LABEL", t.key, &in.a.Labels, Pair{t.key, t.value})
	}
}

// arg makes ${key} mean something from here on. An ARG that has neither a default nor a build
// argument keeps what an earlier line gave it.
func (in *instruction) arg() {
	t := in.pair(checkArgKey)
	if in.end(); in.failed {
		return
	}
	value, given := in.given[t.key]
	switch {
	case given:
		if !in.check(t.at, checkValue(value)) {
			return
		}
		in.args[t.key] = value
	case t.valueAt >= 0:
		in.args[t.key] = t.value
	}
	put(in.parser, "ARG", t.key, &in.a.Args, Pair{t.key, in.args[t.key]})
}

func (in *instruction) capability() {
	if len(in.rest) == 0 {
		in.word("a name", nil)
	}
	for len(in.rest) > 0 {
		t := in.word("a name", checkCapability)
		if in.failed {
			in.failed = false
			continue
		}
		name := capability(t.text)
		put(in.parser, "CAPABILITY", name, &in.a.Capabilities, name)
	}
	if len(in.a.Capabilities) > MaxInstructions {
		in.problem(in.at, "", "%d capabilities, more than %d", len(in.a.Capabilities), MaxInstructions)
	}
}

var openBracket = regexp.MustCompile(`^[ \t]*\[`)

// exec reads ["argument", …].
func (p *parser) exec(at int) {
	in := instruction{parser: p, keyword: "EXEC", at: at}
	open := openBracket.FindString(p.text[at:])
	if open == "" {
		in.wrong(skip(p.text, at), "EXEC without a list")
		return
	}
	at = skip(p.text, at+len(open))
	var list []string
	for at < len(p.text) && p.text[at] == '"' {
		arg, end, ok := p.quoted(at)
		if !ok {
			return
		}
		if !p.check(at, checkValue(arg)) {
			return
		}
		list = append(list, arg)
		at = skip(p.text, end)
		if at == len(p.text) || p.text[at] != ',' {
			break
		}
		at = skip(p.text, at+1)
		if at == len(p.text) || p.text[at] != '"' {
			in.wrong(at, "a comma without an argument after it")
			return
		}
	}
	switch {
	case at == len(p.text):
		in.wrong(at, "the list is not closed")
	case p.text[at] != ']':
		in.wrong(at, "an argument is a string in double quotes, followed by a comma or ]")
	case skip(p.text, at+1) != len(p.text):
		in.wrong(skip(p.text, at+1), "something after the list")
	case len(list) == 0:
		in.wrong(at, "the list is empty")
	case len(list) > MaxExec:
		in.wrong(at, "%d arguments, more than %d", len(list), MaxExec)
	default:
		p.a.Exec = list
	}
}

func skip(s string, at int) int {
	for at < len(s) && blank(s[at]) {
		at++
	}
	return at
}

// put adds an element, or replaces the one with its key where that stands.
func put[L ~[]T, T any](p *parser, kind, key string, list *L, v T) {
	id := kind + " " + key
	if i, ok := p.index[id]; ok {
		(*list)[i] = v
		return
	}
	p.index[id] = len(*list)
	*list = append(*list, v)
}
