package gateway

import (
	"cmp"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

const (
	maxCount     = 10000 // as far as it counts
	maxSentences = 3     // sentences that an answer quotes
	maxSentence  = 600   // bytes of one that are quoted
)

var (
	selfQuestion = regexp.MustCompile(`(?i)\b(?:who|what) (?:are|is) you\b|\bare you (?:a|an|the)\b|\b(?:which|what) (?:language )?model\b|\blanguage model\b`)
	countTo      = regexp.MustCompile(`(?i)\bcount (?:up )?to (\d+)`)
	openTag      = regexp.MustCompile(`^<([a-z_]+)\s+name="([^"]*)"[^>]*>$`)
	closeTag     = regexp.MustCompile(`^</[a-z_]+>$`)
	heading      = regexp.MustCompile(`^#{1,6}\s+(.+)$`)
	listMark     = regexp.MustCompile(`^(?:[-*+]|\d+[.)])\s+`)
	sentenceEnd  = regexp.MustCompile(`[.!?]['")]?\s+`)
)

// talk answers a prompt that asks for no tool.
func (c *chatRequest) talk(prompt string, at int) string {
	if selfQuestion.MatchString(prompt) {
		return "I am " + offlineSelf + ". I quote the sentences of my contexts that share the most words with a question, " +
			"call a tool when I am asked for it by name, as in \"run wc -l on notes.txt\", and count. " + c.toolList()
	}
	if m := countTo.FindStringSubmatch(prompt); m != nil {
		return countUp(m[1])
	}
	found := search(c.sentences(at), wordsOf(prompt))
	if len(found) == 0 {
		return "I found nothing about that in my contexts. I am a small deterministic program, not a language model: " +
			"I quote sentences that share words with the question. " + c.toolList()
	}
	var b strings.Builder
	for i, s := range found {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s says: “%s”", s.document, s.text)
	}
	return b.String()
}

func (c *chatRequest) toolList() string {
	if len(c.Tools) == 0 {
		return "I have no tools here."
	}
	var names []string
	for _, t := range c.Tools {
		names = append(names, t.Function.Name)
	}
	return "My tools: " + strings.Join(names, ", ") + "."
}

func countUp(digits string) string {
	n, err := strconv.Atoi(digits)
	if err != nil || n > maxCount {
		return fmt.Sprintf("I count to %d at most; ask for less.", maxCount)
	}
	if n == 0 {
		return "I count from 1; ask for more."
	}
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.Itoa(i + 1))
	}
	return b.String()
}

// sentence is a piece of a context that can be quoted.
type sentence struct {
	document, text string
	words, above   map[string]bool // its own, and those of the headings above it
	score          int
}

// sentences are those of the system messages, and of what the user said before the prompt at place
// at, questions and calls left out.
func (c *chatRequest) sentences(at int) []sentence {
	var list []sentence
	for i, m := range c.Messages {
		switch {
		case m.Role == "system", m.Role == "developer":
			list = append(list, split("The system message", string(m.Content))...)
		case m.Role == "user" && i < at && len(findCalls(string(m.Content), c.Tools)) == 0:
			for _, s := range split("What you told me", string(m.Content)) {
				if !strings.HasSuffix(s.text, "?") {
					list = append(list, s)
				}
			}
		}
	}
	return list
}

// split takes a text apart. A tag with a name begins a document, as does a heading outside such a
// tag; inside one a heading is a section.
func split(document, text string) []sentence {
	var list []sentence
	outer, inTag, section := document, false, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := openTag.FindStringSubmatch(line); m != nil {
			document, inTag, section = m[2], true, ""
			continue
		}
		if closeTag.MatchString(line) {
			document, inTag, section = outer, false, ""
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			section = m[1]
			if !inTag {
				document = m[1]
			}
			continue
		}
		line = listMark.ReplaceAllString(line, "")
		for line != "" {
			end := len(line)
			if m := sentenceEnd.FindStringIndex(line); m != nil {
				end = m[1]
			}
			if s := strings.TrimSpace(line[:end]); s != "" {
				list = append(list, sentence{document: document, text: s, words: wordsOf(s), above: wordsOf(section)})
			}
			line = line[end:]
		}
	}
	return list
}

// dullWords say nothing about what a question is about.
var dullWords = strings.Fields(`a about all also am an and any are as at be been but by can could did do does for from
	get give had has have he her him his how i if in into is it its just know let like list many me more most much my
	no not of on one or our out please say she should show so some tell than that the their them then there these they
	this those to too up us use was we were what when where which who whom whose why will with would you your`)

// wordsOf are the telling words of a text, in lower case and without the s of a plural.
func wordsOf(text string) map[string]bool {
	words := map[string]bool{}
	for _, w := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if slices.Contains(dullWords, w) || len(w) < 2 {
			continue
		}
		if len(w) > 3 && !strings.HasSuffix(w, "ss") {
			w = strings.TrimSuffix(w, "s")
		}
		words[w] = true
	}
	return words
}

// search ranks sentences by the words that they share with the question. A rare word tells more than
// a common one, and a sentence's own words more than its heading's. Equal ones keep their order.
func search(list []sentence, question map[string]bool) []sentence {
	in := map[string]int{}
	for _, s := range list {
		for w := range s.words {
			in[w]++
		}
	}
	var found []sentence
	for _, s := range list {
		for w := range question {
			switch {
			case s.words[w]:
				s.score += 2 * bits.Len(uint(len(list)/in[w]))
			case s.above[w]:
				s.score++
			}
		}
		if s.score > 1 {
			if len(s.text) > maxSentence {
				s.text = strings.ToValidUTF8(s.text[:maxSentence], "") + " …"
			}
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(a, b sentence) int { return cmp.Compare(b.score, a.score) })
	for i, s := range found {
		if i == maxSentences || 2*s.score < found[0].score {
			return found[:i]
		}
	}
	return found
}
