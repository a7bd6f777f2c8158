package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/otters-sh/otters/internal/testprograms"
)

// program under test, built once with the flags of a release.
var built string

func TestMain(m *testing.M) {
	if target := os.Getenv(bindVariable); target != "" {
		runBound(target)
	}
	os.Exit(func() int {
		programs := testprograms.Of("cmd/otters-tools")
		dir, err := programs.Dir()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer programs.Remove()
		built = filepath.Join(dir, "otters-tools")
		return m.Run()
	}())
}

// result is what a run of the program left.
type result struct {
	stdout, stderr string
	code           int
}

// start runs argv in a folder with no environment at all.
func start(t *testing.T, dir, stdin string, path string, argv ...string) result {
	t.Helper()
	return startIn(t, []string{}, dir, stdin, path, argv...)
}

func startIn(t *testing.T, env []string, dir, stdin string, path string, argv ...string) result {
	t.Helper()
	return startWith(t, env, dir, strings.NewReader(stdin), path, argv...)
}

func startWith(t *testing.T, env []string, dir string, stdin io.Reader, path string, argv ...string) result {
	t.Helper()
	cmd := exec.Command(path)
	cmd.Args = argv
	cmd.Dir = dir
	cmd.Env = env
	cmd.Stdin = stdin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// files is what the cases work on.
var files = map[string]string{
	"notes.txt":    "otter\nBeaver\n\notter pup\n",
	"last.txt":     "no newline",
	"empty.txt":    "",
	"num.txt":      "10\n9\n-2.5\n-2.50\n0\nx\n100000000000000000000\n99999999999999999999\n",
	"sight.csv":    "id,river,count\n1,Severn,4\n2,Alde,12\n3,Tay,12\n",
	"pat.txt":      "a|b\na+b\naab\n(x)\n^y\n1*2\nword\nsword\n",
	"one.json":     `{"b":1.10,"a":[1,{"c":"é"}],"big":12345678901234567890}`,
	"two.json":     "{\"n\":1}\n{\"n\":2}\n",
	"bad.json":     "{\"n\":1}\n{\"n\":",
	"f.jq":         ".n + 1",
	"step.sed":     "0~2p",
	"script.sed":   "# comment\n/^B/p\nd\n",
	"tree/a.json":  "{}\n",
	"tree/b/C.JSO": "otter\n",
	"tree/.hidden": "otter\n",
	"héllo.txt":    "naïve café\n",
}

// tempDir is a folder by the path that the kernel tells a program of its working folder, whatever links TMPDIR
// goes through.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func newTree(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"link": "tree", "dangling": "nowhere", "tree/out": "../notes.txt"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Invariant: a tool prints exactly what its usage says, reports every file that it could not read,
// and refuses what it does not know. Worst inputs: an option that would silently change the meaning,
// a file that is a folder or missing between good ones, and one endless line.
func TestTools(t *testing.T) {
	t.Parallel()
	dir := newTree(t)
	tests := []toolCase{
		{argv: "cat notes.txt", stdout: files["notes.txt"]},
		{argv: "cat", stdin: "in", stdout: "in"},
		{argv: "cat last.txt - last.txt", stdin: "+", stdout: "no newline+no newline"},
		{argv: "cat -n last.txt notes.txt", stdout: "     1\tno newline     2\totter\n     3\tBeaver\n     4\t\n     5\totter pup\n"},
		{argv: "cat absent notes.txt", stdout: files["notes.txt"], stderr: "cat: absent: no such file or directory", code: 1},
		{argv: "cat tree", stderr: "cat: tree: is a directory", code: 1},
		{argv: "cat -A notes.txt", stderr: "cat: unknown shorthand flag: 'A' in -A", code: 2},
		{argv: "cat -- -n", stderr: "cat: -n: no such file or directory", code: 1},

		{argv: "head -n 1 notes.txt", stdout: "otter\n"},
		{argv: "head -2", stdin: "a\nb\nc\n", stdout: "a\nb\n"},
		{argv: "head -n2 -q last.txt notes.txt", stdout: "no newlineotter\nBeaver\n"},
		{argv: "head -c 3 notes.txt last.txt", stdout: "==> notes.txt <==\nott\n==> last.txt <==\nno "},
		{argv: "head -n 0 notes.txt"},
		{argv: "head -n -1 notes.txt", stderr: "head: -n -1: want a whole number, 0 or more", code: 2},
		{argv: "head -n +1 notes.txt", stderr: "head: -n +1: want a whole number, 0 or more", code: 2},
		{argv: "head -n 1 -c 1 notes.txt", stderr: "head: -n and -c: only one of them at a time", code: 2},

		{argv: "tail -n 1 notes.txt", stdout: "otter pup\n"},
		{argv: "tail -n 3", stdin: "a\nb\nc\nd\ne", stdout: "c\nd\ne"},
		{argv: "tail -n +3 notes.txt", stdout: "\notter pup\n"},
		{argv: "tail -c 4 notes.txt", stdout: "pup\n"},
		{argv: "tail -c +7 last.txt", stdout: "line"},
		{argv: "tail -c +70 last.txt"},
		{argv: "tail -f notes.txt", stderr: "tail: unknown shorthand flag: 'f' in -f", code: 2},

		{argv: "wc notes.txt", stdout: "4 4 24 notes.txt\n"},
		{argv: "wc", stdin: "a b\n", stdout: "1 2 4\n"},
		{argv: "wc -l notes.txt empty.txt", stdout: "4 notes.txt\n0 empty.txt\n4 total\n"},
		{argv: "wc -m -c héllo.txt", stdout: "11 13 héllo.txt\n"},
		{argv: "wc -lw absent last.txt", stdout: "0 2 last.txt\n0 2 total\n", stderr: "wc: absent: no such file or directory", code: 1},
		{argv: "wc -L notes.txt", stderr: "wc: unknown shorthand flag: 'L' in -L", code: 2},

		{argv: "grep otter notes.txt", stdout: "otter\notter pup\n"},
		{argv: "grep nothing notes.txt", code: 1},
		{argv: "grep -v -n otter notes.txt", stdout: "2:Beaver\n3:\n"},
		{argv: "grep -ic BEAVER notes.txt last.txt", stdout: "notes.txt:1\nlast.txt:0\n"},
		{argv: "grep -h -e otter -e new notes.txt last.txt", stdout: "otter\notter pup\nno newline\n"},
		{argv: "grep -l otter notes.txt last.txt", stdout: "notes.txt\n"},
		{argv: "grep -q otter absent notes.txt", stderr: "grep: absent: no such file or directory"},
		{argv: "grep -q nothing notes.txt", code: 1},
		{argv: "grep -m1 -A1 otter notes.txt", stdout: "otter\nBeaver\n"},
		{argv: "grep -n -B1 pup notes.txt", stdout: "3-\n4:otter pup\n"},
		{argv: "grep -nA0 otter notes.txt", stdout: "1:otter\n4:otter pup\n"},
		{argv: "grep -C1 otter notes.txt", stdout: "otter\nBeaver\n\notter pup\n"},
		{argv: "grep -A1 x -", stdin: "x\n1\n2\n3\nx\n4\n", stdout: "x\n1\n--\nx\n4\n"},
		{argv: "grep a|b pat.txt", stdout: "a|b\n"},
		{argv: `grep a\|b pat.txt`, stdout: "a|b\na+b\naab\n"},
		{argv: "grep -E a+b pat.txt", stdout: "aab\n"},
		{argv: "grep a+b pat.txt", stdout: "a+b\n"},
		{argv: "grep -F 1*2 pat.txt", stdout: "1*2\n"},
		{argv: "grep *2 pat.txt", stdout: "1*2\n"},
		{argv: "grep (x) pat.txt", stdout: "(x)\n"},
		{argv: "grep [(^]. pat.txt", stdout: "(x)\n^y\n"},
		{argv: "grep -w word pat.txt", stdout: "word\n"},
		{argv: "grep -x .word pat.txt", stdout: "sword\n"},
		{argv: "grep -o o[a-z]* notes.txt", stdout: "otter\notter\n"},
		{argv: "grep -rn otter tree", stdout: "tree/.hidden:1:otter\ntree/b/C.JSO:1:otter\n"},
		{argv: "grep otter tree", stderr: "grep: tree: is a directory", code: 2},
		{argv: "grep otter absent notes.txt", stdout: "notes.txt:otter\nnotes.txt:otter pup\n", stderr: "grep: absent: no such file or directory", code: 2},
		{argv: "grep -E ( notes.txt", stderr: "grep: pattern (: missing closing ): `(`", code: 2},
		{argv: "grep -P x notes.txt", stderr: "grep: unknown shorthand flag: 'P' in -P", code: 2},
		{argv: "grep", stderr: "grep: no pattern given", code: 2},
		{argv: "grep -A -1 x notes.txt", stderr: "grep: -A -1: want a whole number, 0 or more", code: 2},
		{argv: "grep -o -v x notes.txt", stderr: "grep: -o and -v: only one of them at a time", code: 2},
		{argv: "grep -c -A1 x notes.txt", stderr: "grep: -A, -B, -C: not together with -o, -c, -l or -q", code: 2},

		{argv: "ls tree", stdout: "a.json\nb\nout\n"},
		{argv: "ls -aF tree", stdout: ".hidden\na.json\nb/\nout@\n"},
		{argv: "ls link notes.txt", stdout: "notes.txt\n\nlink:\na.json\nb\nout\n"},
		{argv: "ls -d tree", stdout: "tree\n"},
		{argv: "ls -R tree", stdout: "tree:\na.json\nb\nout\n\ntree/b:\nC.JSO\n"},
		{argv: "ls -S -r one.json two.json notes.txt", stdout: "two.json\nnotes.txt\none.json\n"},
		{argv: "ls dangling", stdout: "dangling\n"},
		{argv: "ls absent notes.txt", stdout: "notes.txt\n", stderr: "ls: absent: no such file or directory", code: 1},
		{argv: "ls -h tree", stderr: "ls: -h: only together with -l", code: 2},
		{argv: "ls -i tree", stderr: "ls: unknown shorthand flag: 'i' in -i", code: 2},

		{argv: "find tree", stdout: "tree\ntree/.hidden\ntree/a.json\ntree/b\ntree/b/C.JSO\ntree/out\n"},
		{argv: "find tree -name *.json", stdout: "tree/a.json\n"},
		{argv: "find tree -iname *.js? -type f", stdout: "tree/b/C.JSO\n"},
		{argv: "find tree -mindepth 1 -maxdepth 1 -type d", stdout: "tree/b\n"},
		{argv: "find tree/b/ tree -type l", stdout: "tree/out\n"},
		{argv: "find absent tree -type d", stdout: "tree\ntree/b\n", stderr: "find: absent: no such file or directory", code: 1},
		{argv: "find tree -exec rm", stderr: "find: unknown test: -exec", code: 2},
		{argv: "find tree -name", stderr: "find: -name : want a pattern such as '*.json'", code: 2},
		{argv: "find tree -name [", stderr: "find: -name [: syntax error in pattern", code: 2},
		{argv: "find tree -type x", stderr: "find: -type x: want f (file), d (folder) or l (link)", code: 2},

		{argv: "sort notes.txt", stdout: "\nBeaver\notter\notter pup\n"},
		{argv: "sort -rf notes.txt", stdout: "otter pup\notter\nBeaver\n\n"},
		{argv: "sort -n num.txt", stdout: "-2.5\n-2.50\n0\nx\n9\n10\n99999999999999999999\n100000000000000000000\n"},
		{argv: "sort -nu num.txt", stdout: "-2.5\n0\n9\n10\n99999999999999999999\n100000000000000000000\n"},
		{argv: "sort -t, -k3,3nr -k2,2 sight.csv", stdout: "2,Alde,12\n3,Tay,12\n1,Severn,4\nid,river,count\n"},
		{argv: "sort -s -k2 -", stdin: "z b\na b\nz a\n", stdout: "z a\nz b\na b\n"},
		{argv: "sort notes.txt absent", stderr: "sort: absent: no such file or directory", code: 2},
		{argv: "sort -k0 notes.txt", stderr: "sort: -k 0: want N or N,M, fields counted from 1, then any of the letters n, f, r", code: 2},
		{argv: "sort -k1.2 notes.txt", stderr: "sort: -k 1.2: want N or N,M, fields counted from 1, then any of the letters n, f, r", code: 2},
		{argv: "sort -t ab notes.txt", stderr: "sort: -t ab: want one character", code: 2},
		{argv: "sort -h notes.txt", stderr: "sort: unknown shorthand flag: 'h' in -h; --help prints the usage", code: 2},

		{argv: "jq -c . one.json", stdout: `{"a":[1,{"c":"é"}],"b":1.10,"big":12345678901234567890}` + "\n"},
		{argv: "jq .a one.json", stdout: "[\n  1,\n  {\n    \"c\": \"é\"\n  }\n]\n"},
		{argv: "jq --indent 1 .a[1] one.json", stdout: "{\n \"c\": \"é\"\n}\n"},
		{argv: "jq -r .a[1].c one.json", stdout: "é\n"},
		{argv: "jq .n", stdin: files["two.json"], stdout: "1\n2\n"},
		{argv: "jq -f f.jq two.json", stdout: "2\n3\n"},
		{argv: "jq -sc map(.n) two.json two.json", stdout: "[1,2,1,2]\n"},
		{argv: "jq -n [inputs.n]|add two.json", stdout: "3\n"},
		{argv: "jq -n input two.json -c", stdout: "{\"n\":1}\n"},
		{argv: "jq -R . last.txt", stdout: "\"no newline\"\n"},
		{argv: "jq -Rs . notes.txt", stdout: `"otter\nBeaver\n\notter pup\n"` + "\n"},
		{argv: "jq -nc --arg a x~y --argjson b {\"k\":1} [$a,$b]", stdout: `["x y",{"k":1}]` + "\n"},
		{argv: "jq -j .n two.json", stdout: "12"},
		{argv: "jq -e .absent two.json", stdout: "null\nnull\n", code: 1},
		{argv: "jq -e empty two.json", code: 4},
		{argv: "jq -e .n two.json", stdout: "1\n2\n"},
		{argv: "jq -n env", stdout: "{}\n"},
		{argv: "jq .n bad.json two.json", stdout: "1\n1\n2\n", stderr: "jq: bad.json: after byte 7: not JSON: it ends inside a value", code: 2},
		{argv: "jq .n absent two.json", stdout: "1\n2\n", stderr: "jq: absent: no such file or directory", code: 2},
		{argv: "jq .n[ two.json", stderr: "jq: filter: byte 3: unexpected EOF", code: 3},
		{argv: "jq $x two.json", stderr: "jq: filter: variable not defined: $x", code: 3},
		{argv: "jq .n.x two.json", stderr: "jq: expected an object but got: number (1)", code: 5},
		{argv: "jq -n \"no\"|halt_error(7)", stderr: "no", code: 7},
		{argv: "jq", stderr: "jq: no filter given", code: 2},
		{argv: "jq --arg a", stderr: "jq: --arg: want a name and a value", code: 2},
		{argv: "jq --argjson a { .", stderr: "jq: --argjson a: { is not one JSON value", code: 2},
		{argv: "jq --indent 8 .", stderr: "jq: --indent 8: want 0 to 7", code: 2},
		{argv: "jq -c --tab .", stderr: "jq: -c, --tab, --indent: only one of them at a time", code: 2},
		{argv: "jq --stream .", stderr: "jq: unknown flag: --stream", code: 2},
	}
	for _, tt := range append(tests, editingCases...) {
		t.Run(tt.argv, func(t *testing.T) {
			t.Parallel()
			argv := strings.Fields(tt.argv)
			for i := range argv {
				argv[i] = strings.ReplaceAll(argv[i], "~", " ")
			}
			got := start(t, dir, tt.stdin, built, argv...)
			first, rest, _ := strings.Cut(got.stderr, "\n")
			if got.stdout != tt.stdout || first != tt.stderr || got.code != tt.code {
				t.Errorf("%s\ngot  %q, %q, %d\nwant %q, %q, %d", tt.argv, got.stdout, first, got.code, tt.stdout, tt.stderr, tt.code)
			}
			// The usage stands below the refusal of a wrong call and nowhere else.
			wrong := tt.code == exitUsage && !strings.Contains(tt.stderr, "no such file") &&
				!strings.Contains(tt.stderr, "is a directory") && !strings.Contains(tt.stderr, "not JSON") &&
				!strings.Contains(tt.stderr, "standard input: ") && !strings.Contains(tt.stderr, "sh:1:1")
			if usage := strings.HasPrefix(rest, "usage: "+argv[0]+" "); usage != wrong {
				t.Errorf("usage shown: %v, want %v: %q", usage, wrong, got.stderr)
			}
		})
	}
}

func TestALineWithoutEndIsRefusedAndALongOneIsNot(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxLine-1) + "\n"
	if got := start(t, tempDir(t), long, built, "head", "-n1"); got.code != 0 || got.stdout != long {
		t.Errorf("a line of %d bytes: %q, code %d", len(long), got.stderr, got.code)
	}
	got := start(t, tempDir(t), strings.Repeat("x", maxLine+64<<10), built, "head", "-n1")
	if got.code != exitError || got.stderr != "head: -: a line is longer than 16 MiB\n" {
		t.Errorf("a longer line: %q, code %d", got.stderr, got.code)
	}
}

func TestAFailedOutputIsReported(t *testing.T) {
	t.Parallel()
	dir := newTree(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full here:", err)
	}
	defer full.Close()
	for _, argv := range [][]string{
		{"cat", "notes.txt"}, {"cat", "-n", "notes.txt"}, {"head", "notes.txt"}, {"tail", "notes.txt"}, {"wc", "notes.txt"},
		{"grep", "otter", "notes.txt"}, {"ls", "."}, {"find", "."}, {"sort", "notes.txt"}, {"jq", ".", "one.json"},
		{"uniq", "notes.txt"}, {"tree", "tree"}, {"diff", "notes.txt", "last.txt"}, {"sed", "p", "notes.txt"}, {"yq", ".", "one.json"},
		{"edit", "notes.txt", "--view", "1"}, {"tar", "-c", "-f", "-", "notes.txt"}, {"write", "-a", "empty.txt", "x"},
	} {
		cmd := exec.Command(built)
		cmd.Args, cmd.Dir, cmd.Stdout = argv, dir, full
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err == nil {
			t.Errorf("%v: no error", argv)
		}
		if want := argv[0] + ": standard output: no space left on device\n"; stderr.String() != want {
			t.Errorf("%v: %q, want %q", argv, stderr.String(), want)
		}
	}
}

// Invariant: what a tool keeps is bounded, however much comes in. The same input passes a tool that
// keeps only its end.
func TestMoreThanCanBeHeldIsRefused(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("reads 300 MB more than once")
	}
	line := `"` + strings.Repeat("x", 1<<20-3) + "\"\n"
	big := func() io.Reader { // no file, since a disk may be small
		lines := make([]io.Reader, 300)
		for i := range lines {
			lines[i] = strings.NewReader(line)
		}
		return io.MultiReader(lines...)
	}
	tests := []struct {
		argv   []string
		stderr string
		code   int
	}{
		{[]string{"sort"}, "sort: -: more than 256 MiB to keep in memory\n", exitUsage},
		{[]string{"tail", "-n", "1000"}, "tail: -: more than 256 MiB to keep in memory\n", exitError},
		{[]string{"grep", "-B", "1000", "no such line"}, "grep: -: more than 256 MiB to keep in memory\n", exitUsage},
		{[]string{"jq", "-s", "length"}, "jq: standard input: more than 256 MiB to keep in memory\n", exitUsage},
		{[]string{"tail", "-n", "1"}, "", exitOK},
		{[]string{"jq", "-n", "input | length"}, "", exitOK},
	}
	for _, tt := range tests {
		if got := startWith(t, []string{}, tempDir(t), big(), built, tt.argv...); got.stderr != tt.stderr || got.code != tt.code {
			t.Errorf("%v: %q, code %d", tt.argv, got.stderr, got.code)
		}
	}
}

// What no bound of its own tells is bounded by the memory that is taken in all.
func TestMoreMemoryThanAToolMayTakeIsRefused(t *testing.T) {
	t.Parallel()
	if os.Getenv("OTTERS_LOAD") == "" {
		t.Skip("it takes a GiB of memory; make load runs it")
	}
	got := start(t, tempDir(t), "", built, "jq", "-n", "[range(1e9)] | length")
	if got.code != exitUsage || got.stdout != "" || got.stderr != "jq: takes more than 1024 MiB of memory\n" {
		t.Errorf("%+v", got)
	}
	if got = start(t, tempDir(t), "", built, "jq", "-n", "[range(1e6)] | length"); got.code != exitOK || got.stdout != "1000000\n" {
		t.Errorf("the allowed twin: %+v", got)
	}
}

// Lines cost more than their bytes: two files of them are compared up to a number, and told of beyond it.
func TestDiffOfMoreLinesThanItTakes(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	for name, lines := range map[string]int{"fits": maxComparedLines, "more": maxComparedLines + 1} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte("x\n"), lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := start(t, dir, strings.Repeat("x\n", maxComparedLines-1), built, "diff", "-U1", "fits", "-"); got.code != exitDiffer || got.stdout != "--- fits\n+++ -\n@@ -1,2 +1 @@\n-x\n x\n" {
		t.Errorf("%+v", got)
	}
	if got := start(t, dir, "", built, "diff", "fits", "more"); got.code != exitUsage || got.stdout != "" || got.stderr != "diff: more: 500001 lines, more than 500000; -q tells whether they differ\n" {
		t.Errorf("%+v", got)
	}
	if got := start(t, dir, "", built, "diff", "-q", "fits", "more"); got.code != exitDiffer || got.stdout != "fits and more differ\n" {
		t.Errorf("%+v", got)
	}
}

// A line goes out before the next one is there, so that a tool in front of a slow producer is no dam.
func TestLinesComeOutAsTheyComeIn(t *testing.T) {
	t.Parallel()
	for _, argv := range [][]string{{"cat"}, {"cat", "-n"}, {"grep", "o"}, {"head", "-n", "5"}} {
		cmd := exec.Command(built)
		cmd.Args = argv
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(in, "otter")
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || !strings.HasSuffix(line, "otter\n") {
			t.Errorf("%v: %q, %v", argv, line, err)
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", argv, err)
		}
	}
}

func TestTheNameItIsCalledByChoosesTheTool(t *testing.T) {
	t.Parallel()
	dir := newTree(t)
	link := filepath.Join(dir, "cat")
	if err := os.Symlink(built, link); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		path string
		argv []string
		want result
	}{
		{link, []string{link, "last.txt"}, result{"no newline", "", 0}},
		{built, []string{built, "cat", "last.txt"}, result{"no newline", "", 0}},
		{built, []string{"other", "wc", "-c", "last.txt"}, result{"10 last.txt\n", "", 0}},
		{built, []string{built, "rm", "last.txt"}, result{"", "otters-tools: rm: no such tool; `otters-tools list` shows them\n", 2}},
		{built, []string{built, "usage", "rm"}, result{"", "otters-tools: rm: no such tool; `otters-tools list` shows them\n", 2}},
		{built, []string{built}, result{"", "usage: otters-tools NAME [ARGUMENT…] | list [--json] | usage NAME\n", 2}},
		{built, []string{built, "list", "-x"}, result{"", "usage: otters-tools list [--json]\n", 2}},
		{built, []string{""}, result{"", "usage: otters-tools NAME [ARGUMENT…] | list [--json] | usage NAME\n", 2}},
	}
	for _, tt := range tests {
		got := start(t, dir, "", tt.path, tt.argv...)
		if got != tt.want {
			t.Errorf("%q: got %+v, want %+v", tt.argv, got, tt.want)
		}
	}
}

// Invariant: any script is refused or taken, and never ends the program; one that is taken edits a
// text without end of its own.
func FuzzSed(f *testing.F) {
	for _, script := range []string{
		"s/a/b/g", "1,3{p;d}", "/a/I,+2!s|b\\(c*\\)|[&\\1]|2p", "$!N;P;D", ":a;s/x/y/;ta", "y/ab/ba/", "1~2a\\\ntext\n$q3", "G;h;x", "s/x*/-/gi", "{", "}", "\\,a,p",
	} {
		f.Add(script, "abc\nxay\n\nlast")
	}
	f.Fuzz(func(t *testing.T, script, text string) {
		commands, err := parseSed(script, false)
		if err != nil || len(text) > 1<<10 || len(script) > 1<<10 {
			return
		}
		var out limitedWriter
		c := newCall(tool{}, nil, io.Discard, io.Discard)
		e := &editor{c: c, script: commands, out: &out, all: true, steps: 1000, in: c.lines(strings.NewReader(text))}
		_ = e.lines()
	})
}

func FuzzFromBasicNeverPanicsAndKeepsPlainText(f *testing.F) {
	for _, p := range []string{"a", "[", "[]a]", `\`, `\(`, "a*", "^*", "[[:alpha:]]", "$^", `[\]]`, "a$b"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		out := fromBasic(p)
		if !strings.ContainsAny(p, `[](){}|+?*^$\`) && out != p {
			t.Errorf("%q became %q", p, out)
		}
	})
}
