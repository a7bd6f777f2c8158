package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Invariant: what Parse returns passes Validate, and what it refuses it tells in full, each problem
// at its place. The three worst inputs: ARGs made of ARGs that grow without end, a heredoc that
// never ends, and a megabyte of instructions that are all wrong.

const hex64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

const whole = `# syntax=openotters/agentfile:1
# A guide.
FROM scratch
ARG team=river
ARG owner="${team} crew"
runtime otters/runtime:1
MODEL openrouter/meta/llama-3
NAME guide

CONTEXT SOUL "Who it is" <<EOF
You are ${team}'s guide.
  # not a comment
EOF
CONTEXT RULES file://docs/rules.md
CONTEXT HOUSE "the house" file://house.md
CONFIG max-steps=1000000
CONFIG version=1.10 "the version"
CONFIG empty=""
CONFIG unset
CONFIG key! "must be given"
ENV TEAM="${owner}" "whose"
ENV LITERAL="\x24{team} and ${nobody}"
BIN cat otters/tools/cat "reads"
BIN jq ghcr.io/a/jq:1@sha256:` + hex64 + ` <<USAGE
jq FILTER
USAGE
EXEC [ "serve", "--name=${team}" ]
ADD data/map.txt
ADD data/x.txt /data/deep/y.txt "old form"
LABEL org.example.url=https://x.example/?a=b
CAPABILITY job_submit notes
CAPABILITY notes
`

func TestParseReadsEveryInstruction(t *testing.T) {
	t.Parallel()
	got, err := Parse("Agentfile", []byte(whole), ParseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := func(s string) *string { return &s }
	want := &Agentfile{
		Syntax: DefaultSyntax, From: "scratch", Runtime: "otters/runtime:1", Model: "openrouter/meta/llama-3", Name: "guide",
		Contexts: []Context{
			{Name: "SOUL", Description: "Who it is", Content: "You are ${team}'s guide.\n  # not a comment\n"},
			{Name: "RULES", File: "docs/rules.md"},
			{Name: "HOUSE", Description: "the house", File: "house.md"},
		},
		Configs: []Config{
			{Key: "max-steps", Value: text("1000000")},
			{Key: "version", Value: text("1.10"), Description: "the version"},
			{Key: "empty", Value: text("")},
			{Key: "unset"},
			{Key: "key", Required: true, Description: "must be given"},
		},
		Bins: []Bin{
			{Name: "cat", Image: "otters/tools/cat", Description: "reads"},
			{Name: "jq", Image: "ghcr.io/a/jq:1@sha256:" + hex64, Usage: "jq FILTER\n"},
		},
		Adds: []Add{
			{Src: "data/map.txt", Name: "map.txt"},
			{Src: "data/x.txt", Name: "y.txt", Description: "old form"},
		},
		Exec:         []string{"serve", "--name=river"},
		Labels:       Pairs{{"org.example.url", "https://x.example/?a=b"}},
		Args:         Pairs{{"team", "river"}, {"owner", "river crew"}},
		Envs:         []Env{{Key: "TEAM", Value: "river crew", Description: "whose"}, {Key: "LITERAL", Value: "${team} and ${nobody}"}},
		Capabilities: []string{"job-submit", "notes"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := got.Validate(); err != nil {
		t.Errorf("what Parse returns is not valid: %v", err)
	}
	if missing := got.MissingConfigs(); !cmp.Equal(missing, []string{"key"}) {
		t.Errorf("missing configs: %q", missing)
	}

	// The JSON form is the image's, and reading it back loses nothing.
	blob, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	again := &Agentfile{Syntax: DefaultSyntax}
	if err := json.Unmarshal(blob, again); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(got, again); d != "" {
		t.Error("JSON:", d)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		line string // after FROM scratch, so on line 2
		want string // line:column: and a part of the message
		good string // the allowed twin
	}{
		"an unknown instruction, with the near-miss":    {"RUNTMIE otters/runtime", `2:1: unknown instruction "RUNTMIE"; did you mean RUNTIME?`, "RUNTIME otters/runtime"},
		"an unknown instruction, like none":             {"[[[[", `2:1: unknown instruction "[[[["; write one of `, "NAME a"},
		"another language's keyword":                    {"COPY a b", "did you mean ADD?", "ADD a b"},
		"a value that is missing":                       {"NAME", "2:5: NAME without a value; write NAME name", "NAME a"},
		"a word too many":                               {"NAME a b", `2:8: "b" is more than NAME takes`, "NAME a"},
		"a name with a slash":                           {"NAME a/b", `2:6: "a/b" is not a name`, "NAME a.b"},
		"a name of 64 letters":                          {"NAME " + strings.Repeat("a", 64), "is not a name", "NAME " + strings.Repeat("a", 63)},
		"a model without a provider":                    {"MODEL otter", `"otter" is not a model: write provider/model`, "MODEL offline/otter"},
		"a reference with capitals":                     {"RUNTIME Otters/Runtime", `write "otters"`, "RUNTIME otters/runtime"},
		"a reserved context":                            {"CONTEXT AGENT file://a", "2:9: the name AGENT is reserved", "CONTEXT AGENTS file://a"},
		"a context with two sources":                    {"CONTEXT A file://a <<X\nX", `"<<X" is more than CONTEXT takes`, "CONTEXT A <<X\nX"},
		"a context without a source":                    {`CONTEXT A "file"`, "CONTEXT without a source", `CONTEXT A "file" file://a`},
		"a source above the folder":                     {"CONTEXT A file://../a", "has a .. part", "CONTEXT A file://x/a"},
		"a source that goes up in between":              {"CONTEXT A file://x/../a", "has a .. part", "CONTEXT A file://x/./a"},
		"an absolute source":                            {"CONTEXT A file:///etc/passwd", "is absolute", "CONTEXT A file://etc/passwd"},
		"a heredoc without its end":                     {"CONTEXT A <<X\n X", `line 3 has blanks around X; remove them`, "CONTEXT A <<X\n X\nX"},
		"a heredoc elsewhere":                           {"NAME <<X\nhi\nX", "NAME takes no <<MARK", "CONTEXT A <<X\nhi\nX"},
		"a heredoc as a value":                          {"CONFIG a=<<X", "CONFIG takes no <<MARK", `CONFIG a="<<X"`},
		"a heredoc mark of another kind":                {"CONTEXT A <<-X\nX", "a text is announced by <<", "CONTEXT A <<X\nX"},
		"a required config with a default":              {"CONFIG a!=1", "2:11: a! must be given at deploy", "CONFIG a!"},
		"a config key with capitals":                    {"CONFIG Abc=1", `"Abc" is not a CONFIG key`, "CONFIG abc=1"},
		"blanks around the =":                           {"CONFIG a = 1", "2:10: blanks around the =", "CONFIG a=1"},
		"a value with blanks and no quotes":             {"CONFIG a=1 2", "put in quotes", `CONFIG a="1 2"`},
		"a reserved variable":                           {"ENV PATH=/bin", "2:5: the key PATH is reserved", "ENV PATHS=/bin"},
		"a variable of the listener":                    {"ENV LISTEN_FDS=3", "reserved", "ENV LISTENER=3"},
		"a variable of a CONFIG":                        {"ENV RUNTIME_X=3", "write a CONFIG", "ENV RUNTIMEX=3"},
		"a model key":                                   {"ENV OPENAI_API_KEY=sk", "reserved", "ENV OPENAI_KEY_NAME=sk"},
		"a proxy":                                       {"ENV HTTPS_PROXY=x", "reserved", "ENV NO_PROXY=x"},
		"a variable without a value":                    {"ENV A", "ENV A without a value", "ENV A="},
		"a lower-case variable":                         {"ENV a=1", `"a" is not an ENV key`, "ENV A=1"},
		"a quote that is not closed":                    {`ENV A="x`, "2:7: the quote is not closed", `ENV A="x"`},
		"an escape that is none":                        {`ENV A="a\q"`, "2:9: not an escape", `ENV A="a\t"`},
		"a quote inside a word":                         {`ENV A=it"s`, "2:9: a quote inside a word", `ENV A="it\"s"`},
		"a word right after a quote":                    {`ENV A="x"y`, "right after a closing quote", `ENV A="x" "y"`},
		"escapes that are not UTF-8":                    {`ENV A="\xff"`, "not UTF-8", `ENV A="\u00ff"`},
		"a NUL in a value":                              {`ENV A="\x00"`, "NUL", `ENV A="\x01"`},
		"an EXEC without brackets":                      {"EXEC serve", "EXEC without a list", `EXEC ["serve"]`},
		"an EXEC with a comma too many":                 {`EXEC ["a",]`, "2:11: a comma without an argument", `EXEC ["a"]`},
		"an EXEC that is not closed":                    {`EXEC ["a"`, "not closed", `EXEC ["a", "b"]`},
		"an empty EXEC":                                 {`EXEC []`, "the list is empty", `EXEC [""]`},
		"something after EXEC":                          {`EXEC ["a"] b`, "something after the list", `EXEC ["a"] `},
		"an EXEC argument without quotes":               {`EXEC ["a" b]`, "2:11: an argument is a string", `EXEC ["a", "b"]`},
		"an ADD of a folder":                            {"ADD data//", "is a folder", "ADD data/x"},
		"an ADD above the folder":                       {"ADD ../x", "has a .. part", "ADD x"},
		"an ADD whose file name is no name":             {`ADD "my file"`, "give it one: ADD path name", `ADD "my file" file`},
		"an ADD over the tools' documents":              {"ADD bins", "the name bins is reserved", "ADD bin"},
		"an ADD into a folder":                          {"ADD x a/b", "is not a name", "ADD x /data/a/b"},
		"a label that the build computes":               {"LABEL io.openotters.base.chain=x", "reserved: the build computes it", "LABEL io.openotters.base=x"},
		"a capability with a dot":                       {"CAPABILITY a.b", "is not a capability", "CAPABILITY a_b a-b"},
		"a second FROM":                                 {"FROM scratch", "2:1: a second FROM", "NAME x"},
		"a syntax line that is not the first":           {"# syntax=openotters/agentfile:1", "2:1: the syntax line is not the first", "# the syntax=x"},
		"a control character that a terminal acts upon": {"NAME \x1b[31m", `"\x1b[31m" is not a name`, "NAME a"},
		"a wide character before the place":             {"LABEL é=1 ö", "2:11: ", "LABEL é=ö"},
		"a byte that is not UTF-8":                      {"NAME \xff", "2:6: a byte that is not text", "CONTEXT A <<X\n\ufffd\nX"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("Agentfile", []byte("FROM scratch\n"+tc.line+"\n"), ParseOptions{})
			if err == nil {
				t.Fatal("it was taken")
			}
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "Agentfile:") {
				t.Errorf("error:\n%v\nwant:\n%s", err, tc.want)
			}
			if strings.ContainsRune(err.Error(), 0x1b) {
				t.Error("an escape sequence reaches the terminal")
			}
			a, err := Parse("Agentfile", []byte("FROM scratch\n"+tc.good+"\n"), ParseOptions{})
			if err != nil {
				t.Fatalf("its allowed twin: %v", err)
			}
			if err := a.Validate(); err != nil {
				t.Errorf("its allowed twin is not valid: %v", err)
			}
		})
	}
}

func TestParseTellsEverythingAtOnceWithTheLineAndACaret(t *testing.T) {
	t.Parallel()
	_, err := Parse("dir/Agentfile", []byte("NAME a/b\nCONTEXT A <<E\nx\nE\n\tMODLE x/y\r\nENV\n"), ParseOptions{Args: map[string]string{"x": "y"}})
	want := `dir/Agentfile: build argument "x": the file has no ARG x
dir/Agentfile:1:1: NAME before FROM; start with FROM scratch, or FROM and the image to build on
    NAME a/b
    ^
dir/Agentfile:1:6: "a/b" is not a name: a name is 1 to 63 letters, digits, ., _ or -, the first a letter or digit
    NAME a/b
         ^
dir/Agentfile:5:2: unknown instruction "MODLE"; did you mean MODEL?
     MODLE x/y
     ^
dir/Agentfile:6:4: ENV without a key; write ENV KEY=value ["description"]
    ENV
       ^`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestParseOfNothing(t *testing.T) {
	t.Parallel()
	for _, src := range []string{"", "\n\n", "# only a comment\n", "\ufeff"} {
		_, err := Parse("Agentfile", []byte(src), ParseOptions{})
		if err == nil || !strings.Contains(err.Error(), "Agentfile:1:1: the file has no instruction; start with FROM") {
			t.Errorf("%q: %v", src, err)
		}
	}
	for _, src := range []string{"FROM scratch", "\ufeff# syntax = openotters/agentfile:1\r\nfrom scratch\r\n", "  FROM scratch  "} {
		if a, err := Parse("Agentfile", []byte(src), ParseOptions{}); err != nil || a.From != "scratch" {
			t.Errorf("%q: %v", src, err)
		}
	}
	if _, err := Parse("Agentfile", []byte("# syntax=docker/dockerfile:1\nFROM scratch"), ParseOptions{}); err == nil ||
		!strings.Contains(err.Error(), `1:10: unknown syntax "docker/dockerfile:1"; write openotters/agentfile:1`) {
		t.Error(err)
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	src := "FROM scratch\nARG a=1\nARG b=${a}2\nARG c\nCONFIG x=${a}${b}${c}\nENV A=\"${a}\"\nARG a=9\nCONFIG y=n${a}\n"
	for name, tc := range map[string]struct {
		args    map[string]string
		x, y, a string
	}{
		"defaults are used, and an ARG without one stays literal": {nil, "112${c}", "n9", "1"},
		"build arguments override, and are not expanded":          {map[string]string{"a": "${b}", "c": "-"}, "${b}${b}2-", "n${b}", "${b}"},
		"a value with quotes and blanks stays one value":          {map[string]string{"a": `" x`}, `" x" x2${c}`, `n" x`, `" x`},
	} {
		a, err := Parse("f", []byte(src), ParseOptions{Args: tc.args})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if *a.Configs[0].Value != tc.x || *a.Configs[1].Value != tc.y || a.Envs[0].Value != tc.a {
			t.Errorf("%s: %q %q %q", name, *a.Configs[0].Value, *a.Configs[1].Value, a.Envs[0].Value)
		}
	}
	_, err := Parse("f", []byte(src), ParseOptions{Args: map[string]string{"d1234": "1", "bb": "1"}})
	if err == nil || !strings.Contains(err.Error(), `f: build argument "bb": the file has no ARG bb; did you mean b?`) ||
		!strings.Contains(err.Error(), `build argument "d1234"`) {
		t.Error("unknown build arguments:", err)
	}
	a, err := Parse("f", []byte("FROM scratch\nARG kv=a=b\nLABEL ${kv}\nARG k=x\nLABEL ${k}=${k}="), ParseOptions{})
	if err != nil || !cmp.Equal(a.Labels, Pairs{{"a", "b"}, {"x", "x="}}) {
		t.Errorf("%+v %v", a, err)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	grow := "FROM scratch\nARG a=" + strings.Repeat("x", 1000) + "\n"
	for i := range 30 {
		last := "a"
		if i > 0 {
			last = fmt.Sprintf("a%d", i-1)
		}
		grow += fmt.Sprintf("ARG a%d=${%s}${%s}\n", i, last, last)
	}
	spread := func(n int) string {
		return "FROM scratch\nARG a=" + strings.Repeat("x", 60_000) + "\n" + strings.Repeat("CONFIG k=${a}\n", n)
	}
	for name, tc := range map[string]struct{ bad, want, good string }{
		"ARGs that double in every line":   {grow, "the value has", grow[:strings.Index(grow, "ARG a5")]},
		"ARGs that add more than the file": {spread(70), "ARGs expand to more than", spread(69)},
		"a line":                           {"FROM scratch\nNAME " + strings.Repeat("x", MaxLine), "the line has", "FROM scratch\n#" + strings.Repeat("x", MaxLine)},
		"a value":                          {"FROM scratch\nCONFIG a=" + strings.Repeat("x", MaxValue+1), "the value has 65537 bytes, more than 65536", "FROM scratch\nCONFIG a=" + strings.Repeat("x", MaxValue)},
		"a text":                           {"FROM scratch\nCONTEXT A <<E\n" + strings.Repeat("x", MaxContent) + "\nE", "the text has", "FROM scratch\nCONTEXT A <<E\n" + strings.Repeat("x", MaxContent-1) + "\nE"},
		"a file":                           {"FROM scratch\n" + strings.Repeat("#", MaxSource), "the file has", "FROM scratch\n" + strings.Repeat("#", MaxSource-20)},
		"instructions":                     {"FROM scratch\n" + strings.Repeat("NAME a\n", MaxInstructions), "more than 10000 instructions", "FROM scratch\n" + strings.Repeat("NAME a\n", MaxInstructions-1)},
		"EXEC":                             {"FROM scratch\nEXEC [" + strings.Repeat(`"a",`, MaxExec) + `"a"]`, "257 arguments, more than 256", "FROM scratch\nEXEC [" + strings.Repeat(`"a",`, MaxExec-1) + `"a"]`},
	} {
		if _, err := Parse("f", []byte(tc.bad), ParseOptions{}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %.300v", name, err)
		}
		if _, err := Parse("f", []byte(tc.good), ParseOptions{}); err != nil {
			t.Errorf("%s, its allowed twin: %.300v", name, err)
		}
	}
	many := func(n int) string {
		var b strings.Builder
		b.WriteString("FROM scratch\n")
		for i := range n {
			fmt.Fprintf(&b, "CAPABILITY a%d b%d c%d d%d\n", i, i, i, i)
		}
		return b.String()
	}
	if _, err := Parse("f", []byte(many(2501)), ParseOptions{}); err == nil || !strings.Contains(err.Error(), "10004 capabilities, more than 10000") {
		t.Errorf("capabilities: %.300v", err)
	}
	if _, err := Parse("f", []byte(many(2500)), ParseOptions{}); err != nil {
		t.Errorf("capabilities, the allowed twin: %.300v", err)
	}
	// Each of these would be looked for through four megabytes.
	endless := "FROM scratch\n"
	for i := range 9000 {
		endless += fmt.Sprintf("BIN b i <<E%d\n", i)
	}
	endless += strings.Repeat("#\n", 1<<20)
	if _, err := Parse("f", []byte(endless), ParseOptions{}); err == nil || !strings.Contains(err.Error(), "more than 20 texts have no end") {
		t.Errorf("texts without an end: %.300v", err)
	}
	_, err := Parse("f", []byte(strings.Repeat("X\n", 5000)), ParseOptions{})
	var all *SyntaxError
	if !errors.As(err, &all) || len(all.Problems) != maxProblems || all.Omitted != 5000-maxProblems {
		t.Errorf("%.300v", err)
	}
}

func TestRuntimeClearsTheConfigsBeforeIt(t *testing.T) {
	t.Parallel()
	a, err := Parse("f", []byte("FROM scratch\nCONFIG a=1\nCONFIG b=1\nRUNTIME x\nCONFIG b=2\nCONFIG c=3\nCONFIG b=4\nNAME n\nNAME m"), ParseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range a.Configs {
		got = append(got, c.Key+"="+*c.Value)
	}
	if !cmp.Equal(got, []string{"b=4", "c=3"}) || a.Name != "m" {
		t.Error(got, a.Name)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("FROM scratch\nCONTEXT A <<E\nx\nE\nADD a \"d\"\n"))
	f.Add([]byte("FROM scratch\nARG a=${a}\nARG b=\"${a}\\x24{a}\"\nCONFIG ${b}=${b}"))
	f.Add([]byte("\ufeff# syntax=\xff\nEXEC [\"\\"))
	f.Fuzz(func(t *testing.T, src []byte) {
		a, err := Parse("f", src, ParseOptions{})
		if err != nil {
			if !errors.Is(err, ErrInvalid) || err.Error() == "" {
				t.Fatalf("error %#v", err)
			}
			return
		}
		if err := a.Validate(); err != nil {
			t.Fatalf("what Parse returns is not valid: %v", err)
		}
		blob, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		again := &Agentfile{Syntax: a.Syntax}
		if err := json.Unmarshal(blob, again); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(a, again); d != "" {
			t.Fatal(d)
		}
	})
}
