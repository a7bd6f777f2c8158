package spec

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Invariant: formatting changes how a file looks and nothing that it says; comments and texts stay;
// to format twice changes nothing more.

const untidy = "\ufeff#   syntax =  openotters/agentfile:1  \r\n\n\n  # kept  \nfrom\tscratch\n" +
	"  # syntax=other\n\n\nexec [ \"a b\",\"c\" ]  \nContext  A   \"a  b\"  <<END \n  body  \n\n\n# no comment\nEND\nconfig k=\"x  y\"  \n\n\n"

const tidy = "# syntax=openotters/agentfile:1\n\n# kept\nFROM scratch\n # syntax=other\n\nEXEC [\"a b\", \"c\"]\n" +
	"CONTEXT A \"a  b\" <<END\n  body  \n\n\n# no comment\nEND\nCONFIG k=\"x  y\"\n"

func TestFormat(t *testing.T) {
	t.Parallel()
	got, err := Format("f", []byte(untidy))
	if err != nil || string(got) != tidy {
		t.Fatalf("%v\n%s", err, cmp.Diff(tidy, string(got)))
	}
	sameMeaning(t, []byte(untidy), nil)
}

func TestFormatKeepsArgsAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	src := []byte("FROM scratch\nARG v\nBIN  x  host.io/x:${v}\n")
	if _, err := Parse("f", src, ParseOptions{}); err == nil {
		t.Fatal("the reference is right without its ARG; the test shows nothing")
	}
	got, err := Format("f", src)
	if err != nil || string(got) != "FROM scratch\nARG v\nBIN x host.io/x:${v}\n" {
		t.Fatalf("%q %v", got, err)
	}
	sameMeaning(t, src, map[string]string{"v": "2"})
}

func TestFormatRefusesWhatItCannotSplit(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"FROM scratch\nNAME \"x\n":                 "f:2:6: the quote is not closed",
		"FROM scratch\nCONFG a=b\n":                "did you mean CONFIG?",
		"FROM scratch\nCONTEXT A <<END\nx\n":       "the text END has no end",
		"FROM scratch\nEXEC serve\n":               "EXEC without a list",
		"FROM scratch\nEXEC [\"a\",]\n":            "a comma without an argument",
		"FROM scratch\nNAME \xff\n":                "a byte that is not text",
		strings.Repeat("#", MaxSource+1):           "more than",
		"FROM scratch\nNAME \"a\"b\nNAME \"c\"d\n": "f:3:9",
	} {
		_, err := Format("f", []byte(src))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v; want %q", src, err, want)
		}
	}
}

// sameMeaning checks the invariant for a file that Parse takes.
func sameMeaning(t *testing.T, src []byte, args map[string]string) {
	t.Helper()
	before, err := Parse("f", src, ParseOptions{Args: args})
	if err != nil {
		t.Fatal(err)
	}
	printed, err := Format("f", src)
	if err != nil {
		t.Fatalf("Parse takes it and Format does not: %v", err)
	}
	after, err := Parse("f", printed, ParseOptions{Args: args})
	if err != nil {
		t.Fatalf("what Format printed is no Agentfile: %v\n%s", err, printed)
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Fatalf("another meaning: %s\n%s", d, printed)
	}
	again, err := Format("f", printed)
	if err != nil || string(again) != string(printed) {
		t.Fatalf("not idempotent: %v\n%s", err, cmp.Diff(string(printed), string(again)))
	}
}

func FuzzFormat(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(untidy))
	f.Add([]byte("FROM scratch\r\r\nCONTEXT A <<E\r\nx\r\nE\r\n# x\r\r\n"))
	f.Add([]byte("FROM scratch\nEXEC[\"\\x22]\" ,\"${a}\"]\nLABEL a=\"b\"\n #syntax=1"))
	f.Fuzz(func(t *testing.T, src []byte) {
		if _, err := Parse("f", src, ParseOptions{}); err == nil {
			sameMeaning(t, src, nil)
			return
		}
		printed, err := Format("f", src)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || err.Error() == "" {
				t.Fatalf("error %#v", err)
			}
			return
		}
		again, err := Format("f", printed)
		if err != nil || string(again) != string(printed) {
			t.Fatalf("not idempotent: %v\n%s", err, cmp.Diff(string(printed), string(again)))
		}
	})
}
