package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/otters-sh/otters/client"
	"github.com/otters-sh/otters/spec"
)

// Invariant: lint tells everything that is wrong and nothing of a file that is right; fmt changes no
// file that it can't read. Neither needs a daemon.

func TestLint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "Agentfile")
	writeFile(t, filepath.Join(dir, "a.txt"), "a")
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, "FROM scratch\nARG v\nBIN x host.io/x:${v}\nADD a.txt\n")
	none := filepath.Join(dir, "none")
	check(t, otters(t.Context(), none, "", "image", "lint", "--build-arg", "v=1", dir), outcome{})

	writeFile(t, file, "FROM scratch\nADD a.txt\nADD gone.txt\nCONTEXT A file://out\n")
	got := otters(t.Context(), none, "", "image", "lint", file)
	if got.code != 1 || !strings.Contains(got.out, file+":3:5: ADD gone.txt: gone.txt: there is no such file") || !strings.Contains(got.out, "CONTEXT A: out: path escapes") {
		t.Errorf("%+v", got)
	}
	// The words, the files, a bound and what is left out: all in one go, and the same as JSON.
	if err := os.WriteFile(filepath.Join(dir, "large"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "large"), spec.MaxFile+1); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, client.IgnoreFile), "*.pem\n")
	writeFile(t, filepath.Join(dir, "key.pem"), "x")
	if err := os.Symlink("key.pem", filepath.Join(dir, "key")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, "FROM scratch\nNAM x\nADD a.tx\nADD large\nADD key.pem\nADD key\n")
	want := file + `:2:1: unknown instruction "NAM"; did you mean NAME?
    NAM x
    ^
` + file + `:3:5: ADD a.tx: a.tx: there is no such file in the build folder; did you mean a.txt?
    ADD a.tx
        ^
` + file + `:4:5: ADD large: large: 1073741825 bytes, more than 1073741824
    ADD large
        ^
` + file + `:5:5: ADD key.pem: key.pem: .agentignore leaves it out of the build folder
    ADD key.pem
        ^
` + file + `:6:5: ADD key: key: .agentignore leaves it out of the build folder
    ADD key
        ^
`
	check(t, otters(t.Context(), none, "", "image", "lint", file), outcome{code: 1, out: want})
	var problems []spec.Problem
	got = otters(t.Context(), none, "", "image", "lint", "--format", "json", file)
	if err := json.Unmarshal([]byte(got.out), &problems); err != nil || got.code != 1 || len(problems) != 5 ||
		problems[1].Line != 3 || problems[1].Column != 5 || problems[1].Hint != "did you mean a.txt?" || problems[1].Source != "ADD a.tx" {
		t.Errorf("%v %+v", err, got)
	}

	// The folder is that of build: with -f another one than the Agentfile's own.
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(dir, "sub", "Agentfile")
	writeFile(t, inner, "FROM scratch\nADD a.txt\n")
	check(t, otters(t.Context(), none, "", "image", "lint", "-f", "sub/Agentfile", dir), outcome{})
	check(t, otters(t.Context(), none, "FROM scratch\nADD a.txt\n", "image", "lint", "-f", "-", dir), outcome{})
	check(t, otters(t.Context(), none, "", "image", "lint", inner), outcome{code: 1,
		out: inner + ":2:5: ADD a.txt: a.txt: there is no such file in the build folder\n    ADD a.txt\n        ^\n"})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "sub", "away")); err != nil {
		t.Fatal(err)
	}
	for says, args := range map[string][]string{
		"is a file, and -f names one of a folder": {"-f", "sub/Agentfile", inner}, "not a path inside the folder": {"-f", "../Agentfile", dir},
		"standard input is the Agentfile": {"-f", "x", "-"}, "path escapes from parent": {"-f", "sub/away", dir},
	} {
		if got := otters(t.Context(), none, "", append([]string{"image", "lint"}, args...)...); got.code == 0 || got.out != "" || !strings.Contains(got.err, says) {
			t.Errorf("%q: %+v", args, got)
		}
	}

	got = otters(t.Context(), none, "FROM scratch\nNAM x\nMODEL y\n", "image", "lint", "-")
	want = "-:2:1: unknown instruction \"NAM\"; did you mean NAME?\n    NAM x\n    ^\n-:3:7: \"y\" is not a model: write provider/model\n    MODEL y\n          ^\n"
	check(t, got, outcome{code: 1, out: want})

	problems = nil
	got = otters(t.Context(), none, "FROM scratch\nNAM x\n", "image", "lint", "--format", "json", "-")
	if err := json.Unmarshal([]byte(got.out), &problems); err != nil || got.code != 1 || len(problems) != 1 || problems[0].Line != 2 || problems[0].Hint == "" {
		t.Errorf("%v %+v", err, got)
	}
	if got = otters(t.Context(), none, "FROM scratch\n", "image", "lint", "--format", "json", "-"); got.code != 0 || got.out != "[]\n" {
		t.Errorf("%+v", got)
	}
	if got = otters(t.Context(), none, "", "image", "lint", filepath.Join(dir, "nothing")); got.code != 1 || !strings.Contains(got.err, "no such file") {
		t.Errorf("%+v", got)
	}
}

func TestFmt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "Agentfile")
	writeFile(t, file, "from  scratch\n\n\n# kept\nname x")
	none := filepath.Join(dir, "none")
	if got := otters(t.Context(), none, "", "image", "fmt", "--check", dir); got.code != 1 || !strings.Contains(got.err, "not in its one form") {
		t.Errorf("%+v", got)
	}
	check(t, otters(t.Context(), none, "", "image", "fmt", dir), outcome{})
	const want = "FROM scratch\n\n# kept\nNAME x\n"
	if text, err := os.ReadFile(file); err != nil || string(text) != want {
		t.Errorf("%q %v", text, err)
	}
	check(t, otters(t.Context(), none, "", "image", "fmt", "--check", dir), outcome{})
	check(t, otters(t.Context(), none, "from scratch", "image", "fmt", "-"), outcome{out: "FROM scratch\n"})

	const bad = "FROM scratch\nNAME \"x\n"
	writeFile(t, file, bad)
	if got := otters(t.Context(), none, "", "image", "fmt", file); got.code != 1 || !strings.Contains(got.err, "Agentfile:2:6: the quote is not closed") {
		t.Errorf("%+v", got)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != bad {
		t.Errorf("%q %v", text, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("left behind: %v %v", list, err)
	}
}
