package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// counts is what wc counts.
type counts struct{ lines, words, chars, bytes int64 }

func wc(c *call, flags *pflag.FlagSet) func([]string) error {
	lines := flags.BoolP("lines", "l", false, "count newlines")
	words := flags.BoolP("words", "w", false, "count words: runs of anything but white space")
	chars := flags.BoolP("chars", "m", false, "count characters (UTF-8; an invalid byte counts as one)")
	size := flags.BoolP("bytes", "c", false, "count bytes")
	return func(files []string) error {
		if !*lines && !*words && !*chars && !*size {
			*lines, *words, *size = true, true, true
		}
		report := func(n counts, name string) {
			var fields []string
			add := func(wanted bool, v int64) {
				if wanted {
					fields = append(fields, strconv.FormatInt(v, 10))
				}
			}
			add(*lines, n.lines)
			add(*words, n.words)
			add(*chars, n.chars)
			add(*size, n.bytes)
			if len(files) > 0 {
				fields = append(fields, name)
			}
			fmt.Fprintln(c.stdout, strings.Join(fields, " "))
		}
		var total counts
		err := c.each(files, func(name string, r io.Reader) error {
			n, err := count(r, *words, *chars)
			if err != nil {
				return err
			}
			total.lines += n.lines
			total.words += n.words
			total.chars += n.chars
			total.bytes += n.bytes
			report(n, name)
			return nil
		})
		if err == nil && len(files) > 1 {
			report(total, "total")
		}
		return err
	}
}

// count counts r; words and characters only when they are asked for, since they are slower.
func count(r io.Reader, words, chars bool) (counts, error) {
	var n counts
	buf := make([]byte, 64<<10)
	inWord, kept := false, 0
	for {
		got, err := r.Read(buf[kept:])
		n.bytes += int64(got)
		n.lines += int64(bytes.Count(buf[kept:kept+got], []byte{'\n'}))
		chunk := buf[:kept+got]
		kept = 0
		for words || chars {
			if len(chunk) == 0 || err == nil && !utf8.FullRune(chunk) {
				kept = copy(buf, chunk)
				break
			}
			char, size := utf8.DecodeRune(chunk)
			chunk = chunk[size:]
			n.chars++
			space := unicode.IsSpace(char)
			if !space && !inWord {
				n.words++
			}
			inWord = !space
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}
