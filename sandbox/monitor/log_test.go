//go:build linux

package monitor

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/otters-sh/otters/sandbox/internal/wire"
)

type logged struct {
	T      time.Time `json:"t"`
	Stream string    `json:"stream"`
	Line   string    `json:"line"`
	More   bool      `json:"more"`
}

// pumped writes chunks through a pump and returns the log.
func pumped(t *testing.T, chunks ...string) ([]logged, *tail) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		defer w.Close()
		for _, c := range chunks {
			_, _ = w.WriteString(c)
		}
	}()
	p := &pump{stream: "stderr", tee: -1, sink: newSink(int(f.Fd()), 0), tail: &tail{}}
	p.run(r)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []logged
	for s := bufio.NewReader(bytes.NewReader(b)); ; {
		line, err := s.ReadBytes('\n')
		if err != nil {
			break
		}
		var l logged
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatalf("%.100q: %v", line, err)
		}
		if !utf8.Valid(line) || l.Stream != "stderr" || l.T.IsZero() {
			t.Errorf("%.100q", line)
		}
		all = append(all, l)
	}
	return all, p.tail
}

func TestLongLinesAreSplitAndSaySo(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"just fits":    strings.Repeat("x", maxLine),
		"one more":     strings.Repeat("x", maxLine+1),
		"many":         strings.Repeat("0123456789", maxLine) + "end",
		"runes":        strings.Repeat("äö€😀", maxLine),
		"not a letter": strings.Repeat("\x01", 3*maxLine),
		"quotes":       strings.Repeat(`"\`, maxLine),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, tail := pumped(t, "before\n", text, "\nafter\n", "end")
			if all[0].Line != "before" || all[len(all)-2].Line != "after" || all[len(all)-1].Line != "end" {
				t.Fatalf("neighbours are damaged: %d lines", len(all))
			}
			var joined strings.Builder
			for i, l := range all[1 : len(all)-2] {
				if len(l.Line) > maxLine || l.More != (i < len(all)-4) {
					t.Errorf("part %d: %d bytes, more %v", i, len(l.Line), l.More)
				}
				joined.WriteString(l.Line)
			}
			if joined.String() != text {
				t.Errorf("%d bytes became %d", len(text), joined.Len())
			}
			if want := (len(text) + maxLine - 1) / maxLine; len(all)-3 < want {
				t.Errorf("%d parts", len(all)-3)
			}
			quoted := tail.lines()
			if len(quoted) != 4 || !strings.HasPrefix(text, quoted[1]) || len(quoted[1]) < wire.TailBytes-utf8.UTFMax {
				t.Errorf("quoted: %d lines, %d bytes", len(quoted), len(quoted[1]))
			}
		})
	}
}

func TestLinesInPiecesAreOne(t *testing.T) {
	t.Parallel()
	all, _ := pumped(t, "a", "b", "\n", "\n", "c\xe2\x82", "\xac\nd\xe2\x82\n")
	want := []string{"ab", "", "c€", "d\uFFFD\uFFFD"}
	if len(all) != len(want) {
		t.Fatalf("%+v", all)
	}
	for i, l := range all {
		if l.Line != want[i] || l.More {
			t.Errorf("%q", l.Line)
		}
	}
}

func FuzzString(f *testing.F) {
	f.Add([]byte("plain"))
	f.Add([]byte("\x00\x1f\"\\\n\t\x7f\xff\xe2\x82\u2028😀\xf0\x9f\x98"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var got string
		if err := json.Unmarshal(appendString(nil, b), &got); err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if want := string([]rune(string(b))); got != want {
			t.Errorf("%q became %q, want %q", b, got, want)
		}
	})
}

func TestExitRecordIsWhatJSONMakesOfIt(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	for want, e := range map[string]wire.Exit{
		`{"code":0,"at":"2026-01-02T03:04:05.000000678Z"}`:                                                             {At: at},
		`{"code":-1,"signal":"SIGKILL","at":"2026-01-02T03:04:05.000000678Z","stderr":["a","\"b\u0001"],"asked":true}`: {Code: -1, Signal: "SIGKILL", At: at, Stderr: []string{"a", "\"b\x01"}, Asked: true},
	} {
		if got := strings.TrimSpace(string(exitRecord(e))); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
