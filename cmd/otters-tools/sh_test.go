package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Invariant: a script runs what is built in and the programs in PATH, and nothing else. Worst inputs: a
// program in the workspace, PATH set by the script, and a text without an interpreter.
func TestAScriptRunsTheToolsAndNothingElse(t *testing.T) {
	t.Parallel()
	bin, dir := binFolder(t), newTree(t)
	// No process is forked meanwhile: it would have a file open for writing, which then could not be run.
	syscall.ForkLock.RLock()
	for name, text := range map[string]string{
		filepath.Join(dir, "own"): "#!/bin/sh\necho out\n", filepath.Join(bin, "text"): "echo out\n", filepath.Join(dir, "lib.sh"): "greet() { echo hello $1; }\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Error(err)
		}
	}
	syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(bin, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		script, stdin, stdout, stderr string
		code                          int
	}{
		{script: "cat last.txt | wc -c; " + bin + "/head -n 1 notes.txt", stdout: "10\notter\n"},
		{script: "cat", stdin: "in", stdout: "in"},
		{script: "set -o pipefail; grep nothing notes.txt | cat; echo $?", stdout: "1\n"},
		{script: "sort notes.txt > made; cat < made | tail -n 1; echo no >&2", stdout: "otter pup\n", stderr: "no"},
		{script: "A=1 jq -n env.A; export B=2; sh -c 'echo $B'", stdout: "null\n2\n"},
		{script: ". ./lib.sh; greet otter; echo $(greet pup) *.csv", stdout: "hello otter\nhello pup sight.csv\n"},
		{script: "cd tree && cat a.json", stdout: "{}\n"},
		{script: "cat absent || echo caught", stdout: "caught\n", stderr: "cat: absent: no such file or directory"},
		{script: "exec wc -c last.txt; echo never", stdout: "10 last.txt\n"},
		{script: "rm notes.txt", stderr: "sh: rm: not found in BIN", code: 127},
		{script: "./own", stderr: "sh: ./own: only programs in BIN are run", code: 126},
		{script: "/bin/sh -c id", stderr: "sh: /bin/sh: only programs in BIN are run", code: 126},
		{script: "BIN/../own", stderr: "sh: BIN/../own: only programs in BIN are run", code: 126},
		{script: "exec ./own", stderr: "sh: ./own: only programs in BIN are run", code: 126},
		{script: "command ./own", stderr: "sh: ./own: only programs in BIN are run", code: 126},
		{script: "PATH=$PWD; own; PATH=/bin:/usr/bin id", stderr: "sh: own: not found in BIN", code: 127},
		{script: "text", stderr: "sh: text: exec format error", code: 126},
		{script: "plain", stderr: "sh: plain: not found in BIN", code: 127},
		{script: "cat bad.json | sh -c 'kill -9 $$'; exit 4", code: 4},
	}
	for _, tt := range tests {
		place := strings.NewReplacer("BIN", bin)
		got := startIn(t, []string{"PATH=" + bin + ":relative:"}, dir, tt.stdin, built, "sh", "-c", place.Replace(tt.script))
		first, _, _ := strings.Cut(got.stderr, "\n")
		if tt.code == 4 {
			first = "" // whatever kill says
		}
		if got.stdout != tt.stdout || first != place.Replace(tt.stderr) || got.code != tt.code {
			t.Errorf("%s: %+v", tt.script, got)
		}
	}
}

func TestAScriptThatIsTooLongIsRefused(t *testing.T) {
	t.Parallel()
	long := "echo hello\n" + strings.Repeat("#", maxScript-11)
	if got := start(t, tempDir(t), long, built, "sh"); got.stdout != "hello\n" || got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := start(t, tempDir(t), long+"#", built, "sh"); got != (result{"", "sh: standard input: more than 1 MiB\n", 1}) {
		t.Errorf("%+v", got)
	}
}
