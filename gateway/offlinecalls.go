package gateway

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxAsked  = 16   // calls that one prompt may ask for
	maxQuoted = 4000 // bytes of a result that are quoted
)

// askedCall is a call of a tool that a prompt asks for.
type askedCall struct {
	at    int // where in the prompt
	name  string
	words []string
	stdin *string
}

var (
	verbForm   = regexp.MustCompile("(?i)\\b(?:use|run|call|execute)\\s+(?:the\\s+)?(tool\\s+|command\\s+)?([`\"']?)([a-z0-9][a-z0-9._-]*)[`\"']?(\\s+tool\\b)?")
	verbBefore = regexp.MustCompile(`(?i)\b(?:use|run|call|execute)\s+(?:the\s+)?(?:tool\s+|command\s+)?$`)
	notBefore  = regexp.MustCompile(`(?i)\b(?:don['’]t|do not|never|not)\s+$`)
	backticks  = regexp.MustCompile("`([^`\n]*)`")
)

// noTools are words after "use" and its like that begin no name.
var noTools = strings.Fields("a an all and any both for her him his it its me my one our some that their them these this those to us what which you your")

// endWords end the words of a call unless they are quoted.
var endWords = strings.Fields("and then to so please")

// findCalls reads the calls out of a prompt, in the order in which they stand there.
func findCalls(prompt string, tools []chatTool) []askedCall {
	var calls []askedCall
	masked := []byte(prompt)
	for _, at := range backticks.FindAllStringSubmatchIndex(prompt, -1) {
		if !strings.ContainsAny(strings.TrimSpace(prompt[at[2]:at[3]]), " \t") {
			continue // a name or a word of a sentence, which verbForm reads
		}
		before := verbBefore.FindStringIndex(prompt[:at[0]])
		words, stdin := plainWords(prompt[at[2]:at[3]]), inputAfter(prompt[at[1]:])
		if len(words) == 0 {
			continue
		}
		_, known := findTool(tools, words[0])
		if (known || before != nil) && (before == nil || !notBefore.MatchString(prompt[:before[0]])) {
			calls = append(calls, askedCall{at[0], words[0], words[1:], stdin})
		}
		for i := at[0]; i < at[1]; i++ {
			masked[i] = 0
		}
	}
	text := string(masked)
	for from := 0; ; {
		m := verbForm.FindStringSubmatchIndex(text[from:])
		if m == nil {
			break
		}
		for i := range m {
			if m[i] >= 0 {
				m[i] += from
			}
		}
		call, end, ok := sentenceCall(text, m, tools)
		if ok {
			calls = append(calls, call)
		}
		from = end
	}
	slices.SortStableFunc(calls, func(a, b askedCall) int { return a.at - b.at })
	return calls[:min(len(calls), maxAsked)]
}

// sentenceCall reads the call whose verb and name verbForm found at m, and tells where it ends.
func sentenceCall(text string, m []int, tools []chatTool) (call askedCall, end int, ok bool) {
	name := text[m[6]:m[7]]
	trimmed := strings.TrimRight(name, ".-_")
	closed := trimmed != name // a full stop after the name ends the call
	call = askedCall{at: m[0], name: trimmed}
	_, known := findTool(tools, trimmed)
	rest := text[m[1]:]
	clear := m[2] >= 0 || m[8] >= 0 || m[4] < m[5]
	if !closed && (rest == "" || strings.ContainsRune(" \t", rune(rest[0]))) {
		var used int
		var on bool
		call.words, call.stdin, on, used = sentenceWords(rest)
		end = m[1] + used
		clear = clear || on || len(call.words) > 0 && strings.ContainsAny(strings.TrimLeft(rest, " \t")[:1], "-'\"")
	} else {
		end = m[1]
	}
	if notBefore.MatchString(text[:m[0]]) {
		return call, end, false
	}
	if !known && (!clear || slices.Contains(noTools, strings.ToLower(trimmed))) {
		return call, m[7], false
	}
	return call, end, true
}

// word is a word of a command line.
type word struct {
	text   string
	quoted bool
	end    int // where it ends in the text it was read from
}

// nextWord reads as a shell does: quotes at the beginning of a word or after "=", backslashes, no
// expansion. A quote that is not closed is an ordinary character.
func nextWord(text string, from int) (w word, ok bool) {
	i := from
	for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
		i++
	}
	if i == len(text) || text[i] == '\n' || text[i] == '\r' || text[i] == 0 {
		return word{end: i}, false
	}
	var b strings.Builder
	for start := i; i < len(text) && !strings.ContainsRune(" \t\r\n\x00", rune(text[i])); {
		c := text[i]
		if (c == '\'' || c == '"' || c == '`') && (i == start || text[i-1] == '=' || w.quoted) {
			if n := strings.IndexByte(text[i+1:], c); n >= 0 {
				b.WriteString(text[i+1 : i+1+n])
				i, w.quoted = i+n+2, true
				continue
			}
		}
		if c == '\\' && i+1 < len(text) {
			i++
			w.quoted = true
		}
		b.WriteByte(text[i])
		i++
	}
	w.text, w.end = b.String(), i
	return w, true
}

// plainWords are all words of a command line.
func plainWords(text string) []string {
	var words []string
	for from := 0; ; {
		w, ok := nextWord(text, from)
		if !ok {
			return words
		}
		words, from = append(words, w.text), w.end
	}
}

// sentenceWords are the words of a call in a sentence, up to its end, a comma or one of endWords.
// It tells whether an "on" was dropped, and how much of the text was used.
func sentenceWords(text string) (words []string, stdin *string, on bool, used int) {
	for last := false; !last; {
		if in := inputAfter(text[used:]); in != nil {
			stdin = in
			break
		}
		w, ok := nextWord(text, used)
		if !ok || !w.quoted && slices.Contains(endWords, strings.ToLower(w.text)) {
			break
		}
		used = w.end
		bare := w.text
		if !w.quoted || strings.ContainsRune(".,;:!?", rune(text[w.end-1])) {
			bare = strings.TrimRight(w.text, ".,;:!?")
			if bare == "" && strings.Trim(w.text, ".") == "" {
				bare = w.text // "." and ".." are folders
			}
			last = bare != w.text
		}
		switch {
		case bare == "":
		case !w.quoted && !on && bare == "on":
			on = true
		case !w.quoted && len(words) == 0 && bare == "with" && !on:
		case !w.quoted && on && (bare == "the" || bare == "file"):
		default:
			words = append(words, bare)
		}
	}
	return words, stdin, on, used
}

var withInput = regexp.MustCompile(`(?i)^\s*with\s+(?:the\s+)?(?:input|stdin)\s+`)

// inputAfter is the quoted text after "with input", nil if text does not begin so.
func inputAfter(text string) *string {
	at := withInput.FindStringIndex(text)
	if at == nil {
		return nil
	}
	w, ok := nextWord(text, at[1])
	if !ok || !w.quoted {
		return nil
	}
	return &w.text
}

// findTool finds a tool by its name; runtimes write an underscore for a dot.
func findTool(tools []chatTool, name string) (chatTool, bool) {
	for _, n := range []string{name, strings.ReplaceAll(name, ".", "_"), strings.ToLower(name)} {
		for _, t := range tools {
			if t.Type == "function" && t.Function.Name == n {
				return t, true
			}
		}
	}
	return chatTool{}, false
}

func noSuchTool(name string, tools []chatTool) string {
	if len(tools) == 0 {
		return fmt.Sprintf("I have no tool named %s, nor any other.", name)
	}
	var names []string
	for _, t := range tools {
		names = append(names, t.Function.Name)
	}
	return fmt.Sprintf("I have no tool named %s. The tools that I have: %s.", name, strings.Join(names, ", "))
}

// arguments writes the words of a call as the tool's parameters want them, or tells why not.
func (t chatTool) arguments(asked askedCall) (text, why string) {
	var schema struct {
		Properties map[string]struct {
			Type string `json:"type"`
		} `json:"properties"`
		Required []string `json:"required"`
	}
	if len(t.Function.Parameters) > 0 && json.Unmarshal(t.Function.Parameters, &schema) != nil {
		return "", "its parameters are described in a way that I cannot read"
	}
	args := map[string]any{}
	if asked.stdin != nil {
		if schema.Properties["stdin"].Type != "string" {
			return "", "it takes no standard input"
		}
		args["stdin"] = *asked.stdin
	}
	if schema.Properties["args"].Type == "array" {
		args["args"] = append([]string{}, asked.words...)
	} else {
		for _, w := range asked.words {
			name, value, named := strings.Cut(w, "=")
			if _, ok := schema.Properties[name]; !named || !ok {
				i := slices.IndexFunc(schema.Required, func(n string) bool { _, taken := args[n]; return !taken })
				if i < 0 {
					return "", fmt.Sprintf("it has no parameter for %q", w)
				}
				name, value = schema.Required[i], w
			}
			typed, err := typedValue(schema.Properties[name].Type, value)
			if err != nil {
				return "", fmt.Sprintf("%q is not what its parameter %s takes", value, name)
			}
			args[name] = typed
		}
	}
	for _, name := range schema.Required {
		if _, ok := args[name]; !ok {
			return "", fmt.Sprintf("its parameter %s is missing", name)
		}
	}
	// Strings, numbers and truth values always marshal.
	out, _ := json.Marshal(args)
	return string(out), ""
}

func typedValue(kind, text string) (any, error) {
	switch kind {
	case "integer":
		return strconv.ParseInt(text, 10, 64)
	case "number":
		return strconv.ParseFloat(text, 64)
	case "boolean":
		return strconv.ParseBool(text)
	case "string", "":
		return text, nil
	}
	return nil, fmt.Errorf("a parameter of type %s cannot be written as a word", kind)
}

var exitLine = regexp.MustCompile(`(?:^|\n)(exit code -?\d+|killed by signal [a-z0-9 ]+)\s*$`)

// describeResult tells what a call gave, with its output quoted.
func describeResult(call toolCall, messages []chatMessage) string {
	name := call.Function.Name
	i := slices.IndexFunc(messages, func(m chatMessage) bool { return m.Role == "tool" && m.ToolCallID == call.ID })
	if i < 0 {
		return fmt.Sprintf("The tool %s has not answered.", name)
	}
	text, ending := string(messages[i].Content), ""
	if m := exitLine.FindStringSubmatchIndex(text); m != nil {
		ending, text = text[m[2]:m[3]], text[:m[0]]
	}
	if strings.HasPrefix(ending, "exit") {
		ending = "with " + ending
	}
	text = strings.TrimRight(text, "\r\n")
	switch {
	case strings.TrimSpace(text) == "" && ending == "":
		return fmt.Sprintf("The tool %s answered nothing.", name)
	case strings.TrimSpace(text) == "":
		return fmt.Sprintf("The tool %s wrote nothing and ended %s.", name, ending)
	case ending != "":
		ending = ", ended " + ending
	}
	cut := ""
	if len(text) > maxQuoted {
		end := maxQuoted
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		cut = fmt.Sprintf("\n\nThese are the first %d of %d bytes.", end, len(text))
		text = text[:end]
	}
	return fmt.Sprintf("The tool %s answered%s:\n\n> %s%s", name, ending, strings.ReplaceAll(text, "\n", "\n> "), cut)
}
