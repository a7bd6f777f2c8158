package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every command that the README shows works, in the order it shows them, and at the end nothing
// runs. The demo's transcript is the shape of what the demo prints; demo_test.go runs it.
func TestREADMECommandsWork(t *testing.T) {
	t.Parallel()
	m := newHome(t)
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := console(t, string(text))
	if len(commands) < 10 {
		t.Fatalf("the README shows %d commands", len(commands))
	}
	for _, c := range commands {
		args := words(t, c)
		if args[0] != "bin/otters" {
			t.Fatalf("the README shows %q, which is not ours", c)
		}
		for i, a := range args {
			if a == "testdata/agents/guide" {
				args[i] = guide(t)
			}
		}
		m.must(args[1:]...)
	}
	m.nothingRuns()
}

// console are the lines with a prompt of the fenced console blocks.
func console(t *testing.T, text string) []string {
	t.Helper()
	var out []string
	inside := false
	for line := range strings.Lines(text) {
		switch line = strings.TrimRight(line, "\n"); {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case inside:
			command, ok := strings.CutPrefix(line, "$ ")
			if !ok {
				t.Fatalf("a console block shows %q, which is no command", line)
			}
			out = append(out, command)
		}
	}
	return out
}

// words splits a command at blanks outside double quotes.
func words(t *testing.T, command string) []string {
	t.Helper()
	var out []string
	for i, part := range strings.Split(command, `"`) {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}
