package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/executor"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: a log of any size and content is told line by line in bounded memory. Worst inputs: a
// line of many megabytes, what is no JSON, something that is no file.

func logLines(t *testing.T, path string) ([]*daemonv1.LogsResponse, error) {
	t.Helper()
	var got []*daemonv1.LogsResponse
	files, err := openLogs(logNames(path, 3))
	if err != nil {
		return nil, err
	}
	defer closeLogs(files)
	s := &logSender{ctx: t.Context(), send: func(m *daemonv1.LogsResponse) error {
		got = append(got, m)
		return nil
	}}
	err = errors.Join(s.readAll(files, -1), s.finish(files))
	return got, err
}

func TestTheLastLinesAreFoundAcrossFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", 150<<10)
	for name, text := range map[string]string{".2": "a\nb\n", ".1": "c\n" + long + "\n", "": "d\ne\n\nf"} {
		if err := os.WriteFile(path+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := []string{"a", "b", "c", long, "d", "e", "", "f"}
	files, err := openLogs(logNames(path, 3))
	if err != nil {
		t.Fatal(err)
	}
	defer closeLogs(files)
	for n := range len(all) + 3 {
		var got []string
		s := &logSender{ctx: t.Context(), send: func(m *daemonv1.LogsResponse) error {
			got = append(got, m.GetLine())
			return nil
		}}
		if err := errors.Join(s.readAll(files, n), s.flush()); err != nil {
			t.Fatal(err)
		}
		if want := all[max(0, len(all)-n):]; strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
			t.Errorf("last %d: %d lines, %.60q; want %.60q", n, len(got), got, want)
		}
	}
}

func TestALineThatIsBeingWrittenIsToldWholeAndNoneAfterIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	// The longest line of a monitor: 64 KiB that are six times as much as JSON.
	longest := `{"t":"2026-01-02T03:04:05Z","stream":"stdout","line":"` + strings.Repeat(`\u0001`, 64<<10) + `"}` + "\n"
	for name, cut := range map[string]int{"at once": len(longest), "half done": len(longest) / 2, "all but its end": len(longest) - 1, "begun": 1} {
		if err := os.WriteFile(path, []byte(longest+longest[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		files, err := openLogs(logNames(path, 3))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(longest+longest+longest), 0o600); err != nil {
			t.Fatal(err)
		}
		n := 0
		s := &logSender{ctx: t.Context(), send: func(m *daemonv1.LogsResponse) error {
			if n++; m.GetStream() != "stdout" || len(m.GetLine()) != 64<<10 {
				t.Errorf("%s: stream %q, %d bytes", name, m.GetStream(), len(m.GetLine()))
			}
			return nil
		}}
		if err := errors.Join(s.readAll(files, -1), s.finish(files)); err != nil || n != 2 {
			t.Errorf("%s: %d lines, %v", name, n, err)
		}
		closeLogs(files)
	}
}

func TestAReaderThatIsTooSlowIsToldWhatItMissed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	var got []string
	s := &logSender{ctx: t.Context(), send: func(m *daemonv1.LogsResponse) error {
		got = append(got, m.GetLine())
		return nil
	}}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, rotations := new(supervised), 0
	var files []*logFile
	defer func() { closeLogs(files) }()
	drain := func(want string) {
		t.Helper()
		got = nil
		if err := a.drainOn(s, path, &files, &rotations); err != nil || strings.Join(got, "|") != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	write("", "one\n")
	drain("one")
	write(".1", "two\n")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write("", "three\n")
	a.rotations = 2
	drain("two|three")
	a.rotations = 7 // of which the two there are left
	drain("lines lost: 3 files of the log were replaced before they were read|two|three")
	drain("")
}

func TestALogIsToldWhateverIsInIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	text := `{"t":"2026-01-02T03:04:05.678Z","stream":"stdout","line":"one \"two\""}` + "\n" +
		"no json \xff\n" + `{"stream":"stdout"}` + "\n" + strings.Repeat("x", 5*maxLogLine) + "\n" + `{"t":"2026-01-02T03:04:05Z","stream":"stderr","line":"unfinished"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := logLines(t, path)
	if err != nil || len(got) != 5 {
		t.Fatalf("%d lines, %v", len(got), err)
	}
	if m := got[0]; m.GetAtMs() != 1767323045678 || m.GetStream() != "stdout" || m.GetLine() != `one "two"` {
		t.Errorf("first %v", m)
	}
	if m := got[1]; m.GetAtMs() != 0 || m.GetLine() != "no json \uFFFD" {
		t.Errorf("second %v", m)
	}
	if m := got[2]; m.GetLine() != `{"stream":"stdout"}` {
		t.Errorf("third %v", m)
	}
	if n := len(got[3].GetLine()); n != maxLogLine {
		t.Errorf("the long line has %d bytes, want it cut to %d", n, maxLogLine)
	}
	if m := got[4]; m.GetStream() != "stderr" || m.GetLine() != "unfinished" {
		t.Errorf("last %v", m)
	}
}

func TestP14WhatIsNoLogFileIsRefusedAndNoneIsEmpty(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got, err := logLines(t, filepath.Join(dir, "none")); err != nil || len(got) != 0 {
		t.Errorf("no file: %v, %v", got, err)
	}
	if err := errors.Join(os.Symlink("/etc/hostname", filepath.Join(dir, "link")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "fifo", "."} {
		if got, err := logLines(t, filepath.Join(dir, name)); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Invariant: an error reaches a client of either protocol with its code, its one message and its
// details. Worst inputs: an error of another layer, a huge one, one that is no UTF-8.

func TestErrorsBecomeAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		code codes.Code
		msg  string
	}{
		{"own", fail(codes.NotFound, "look there", "agent %q", "x"), codes.NotFound, `agent "x"`},
		{"own, wrapped", fmt.Errorf("list: %w", fail(codes.NotFound, "look there", "agent x")), codes.NotFound, "list: agent x"},
		{"cancelled", fmt.Errorf("wait: %w", context.Canceled), codes.Canceled, "wait: context canceled"},
		{"deadline", context.DeadlineExceeded, codes.DeadlineExceeded, "context deadline exceeded"},
		{"no such reference", fmt.Errorf("x: %w", executor.ErrRefNotFound), codes.NotFound, "x: reference not found"},
		{"not implemented", executor.ErrNotImplemented, codes.Unimplemented, "not implemented"},
		{"a runtime's", status.Error(codes.ResourceExhausted, "too much"), codes.ResourceExhausted, "too much"},
		{"full disk", fmt.Errorf("create: %w", unix.ENOSPC), codes.ResourceExhausted, "create: no space left on device"},
		{"any", errors.New("disk on fire"), codes.Internal, "disk on fire"},
		{"huge", errors.New(strings.Repeat("x", 1<<20)), codes.Internal, strings.Repeat("x", maxMessageBytes) + " … (cut)"},
		{"no UTF-8", errors.New("a\xffb"), codes.Internal, "a\uFFFDb"},
	} {
		st := toStatus(c.err)
		if st.Code() != c.code || st.Message() != c.msg {
			t.Errorf("%s: %v %.100q", c.name, st.Code(), st.Message())
		}
		var ce *connect.Error
		if !errors.As(toConnect(c.err), &ce) || codes.Code(ce.Code()) != c.code || ce.Message() != c.msg || len(ce.Details()) != len(st.Details()) {
			t.Errorf("%s over HTTP/1.1: %v", c.name, ce)
		}
		if strings.HasPrefix(c.name, "own") && (len(st.Details()) != 1 || st.Details()[0].(*daemonv1.Hint).GetText() != "look there") {
			t.Errorf("%s: details %v", c.name, st.Details())
		}
	}
	if toStatus(nil).Err() != nil || toConnect(nil) != nil {
		t.Error("no error became one")
	}
}
