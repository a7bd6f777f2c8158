package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// neutral makes text of models, tools, logs and names harmless for a terminal: control characters
// become visible signs, so that no text can move the cursor, rename the window or hide a part of
// itself by changing the direction of writing. Where multiline is set, line breaks and tabs stay.
func neutral(s string, multiline bool) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return hostile(r, multiline) }) {
		return s
	}
	if multiline {
		s = strings.ReplaceAll(s, "\r\n", "\n")
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !hostile(r, multiline):
			b.WriteRune(r)
		case r < 0x20:
			b.WriteRune(0x2400 + r)
		case r == 0x7f:
			b.WriteRune(0x2421)
		case r == utf8.RuneError:
			b.WriteRune(utf8.RuneError)
		default:
			fmt.Fprintf(&b, "<U+%04X>", r)
		}
	}
	return b.String()
}

func hostile(r rune, multiline bool) bool {
	switch {
	case r == '\n' || r == '\t':
		return !multiline
	case r < 0x20, r >= 0x7f && r <= 0x9f, r == utf8.RuneError:
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return true // direction of writing
	case r == 0x2028, r == 0x2029:
		return true // line and paragraph separator
	case r >= 0xe0000 && r <= 0xe007f:
		return true // tags: invisible text
	}
	return false
}

// excerpt is the beginning of s on one line, of at most n characters.
func excerpt(s string, n int) string {
	s = neutral(strings.Join(strings.Fields(s), " "), false)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}
