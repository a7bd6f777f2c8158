package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: what is exported is written as it came and only when it is whole; what agents and models
// said cannot act on the terminal. Worst inputs: escape sequences in ids, messages and notes; an answer
// of a runtime that is no list of parts; a file that is there already.

func someTalk() fakeConversations {
	return fakeConversations{
		sessions: []*daemonv1.Session{
			{Id: "s/1", Messages: 4, LastActive: ago(3, time.Hour) / 1000},
			{Id: "e\x1b[2J\nx", Messages: 1, LastActive: ago(3, 24*time.Hour) / 1000},
		},
		messages: []*daemonv1.ShowSessionResponse{
			{Role: "user", Content: "what is\na holt?\x1b[2J", CreatedAt: 1_700_000_000},
			{Role: "assistant", CreatedAt: 1_700_000_001, ActiveBranch: 1, BranchesJson: `[[{"kind":"text","text":"no"}],[{"kind":"text","text":"Let me look."}]]`,
				Content: `[{"kind":"text","text":"Let me look."},{"kind":"tool","id":"1","tool":"jq","args":"{\"args\":[\".a\"]}","result":"7\n8\u001b","duration_ms":3},{"kind":"tool","id":"2","tool":"ls","args":"{}","incomplete":true,"reason":"interrupted"}]`},
			{Role: "assistant", Content: "plain", CreatedAt: 1_700_000_002},
		},
		export: "{\"type\":\"header\"}\n{\"type\":\"end\"}\n",
		notes: []*daemonv1.Note{
			{Key: "river", Content: "Severn\x1b[2J\n", Preview: "Severn\x1b[2J", Pinned: true, CreatedAt: 1_700_000_000, UpdatedAt: ago(1, time.Hour) / 1000},
		},
	}
}

func TestSessionLsAndShow(t *testing.T) {
	t.Parallel()
	f := &fake{fakeConversations: someTalk()}
	socket := serve(t, f)
	check(t, otters(t.Context(), socket, "", "session", "ls", "g"), outcome{out: `SESSION   MESSAGES   LAST ACTIVE
s/1       4          3h
e␛[2J␊x   1          3d
`})
	check(t, otters(t.Context(), socket, "", "session", "show", "g", "s/1"), outcome{out: `user  2023-11-14T22:13:20.000Z
    what is
    a holt?␛[2J
assistant  2023-11-14T22:13:21.000Z (answer 2 of 2)
    Let me look.
    → jq {"args":[".a"]}
    ← jq (3 ms)
        7
        8␛
    → ls {}
    ! ended early: interrupted
assistant  2023-11-14T22:13:22.000Z
    plain
`})
	want := &daemonv1.ShowSessionRequest{Agent: "g", SessionId: "s/1", Limit: 100}
	if diff := cmp.Diff(want, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	for _, limit := range []string{"0", "1001", "-1"} {
		if got := otters(t.Context(), socket, "", "session", "show", "g", "s", "--limit", limit); got.code != exitUsage || !strings.Contains(got.err, "want 1 to 1000") {
			t.Errorf("%+v", got)
		}
	}
	empty := serve(t, &fake{})
	check(t, otters(t.Context(), empty, "", "session", "ls", "g", "--format", "json"), outcome{out: "[]\n"})
	check(t, otters(t.Context(), empty, "", "note", "ls", "g", "--format", "json"), outcome{out: "[]\n"})
}

func TestJSONOfSessionsAndNotesIsStable(t *testing.T) {
	t.Parallel()
	talk := someTalk()
	talk.sessions = talk.sessions[:1]
	talk.sessions[0].LastActive, talk.notes[0].UpdatedAt = 1_700_000_000, 1_700_000_001
	talk.messages = talk.messages[:2]
	socket := serve(t, &fake{fakeConversations: talk})
	for command, want := range map[string]string{
		"session ls g": `[{"id":"s/1","messages":4,"last_active":"2023-11-14T22:13:20.000Z"}]`,
		"session show g s/1": `[{"role":"user","created_at":"2023-11-14T22:13:20.000Z","text":"what is\na holt?\u001b[2J","parts":[],"branches":[],"active_branch":0},` +
			`{"role":"assistant","created_at":"2023-11-14T22:13:21.000Z","text":"Let me look.","active_branch":1,"branches":[[{"kind":"text","text":"no"}],[{"kind":"text","text":"Let me look."}]],` +
			`"parts":[{"kind":"text","text":"Let me look."},{"kind":"tool","id":"1","tool":"jq","args":"{\"args\":[\".a\"]}","result":"7\n8\u001b","duration_ms":3},{"kind":"tool","id":"2","tool":"ls","args":"{}","incomplete":true,"reason":"interrupted"}]}]`,
		"session import g":  `{"sessions":1,"turns":2,"messages":3,"summaries":4,"notes":5}`,
		"note ls g":         `[{"key":"river","pinned":true,"created_at":"2023-11-14T22:13:20.000Z","updated_at":"2023-11-14T22:13:21.000Z","preview":"Severn\u001b[2J"}]`,
		"note show g river": `{"key":"river","pinned":true,"created_at":"2023-11-14T22:13:20.000Z","updated_at":"2023-11-14T22:13:21.000Z","preview":"Severn\u001b[2J","content":"Severn\u001b[2J\n"}`,
	} {
		got := otters(t.Context(), socket, "", append(strings.Fields(command), "--format", "json")...)
		var a, b any
		if err := json.Unmarshal([]byte(got.out), &a); err != nil || got.code != 0 {
			t.Errorf("%s: %+v: %v", command, got, err)
			continue
		}
		if err := json.Unmarshal([]byte(want), &b); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, a); diff != "" {
			t.Errorf("%s: want -, got +\n%s", command, diff)
		}
	}
}

func TestSessionsAreMovedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	f := &fake{fakeConversations: someTalk()}
	socket := serve(t, f)
	file := filepath.Join(t.TempDir(), "x.jsonl")
	check(t, otters(t.Context(), socket, "", "session", "export", "g", "--", "-s", "t"), outcome{out: f.export})
	check(t, otters(t.Context(), socket, "", "session", "export", "-o", file, "--notes", "g"), outcome{})
	if diff := cmp.Diff(&daemonv1.ExportSessionsRequest{Agent: "g", Notes: true}, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	data, err := os.ReadFile(file)
	info, statErr := os.Stat(file)
	if err != nil || statErr != nil || string(data) != f.export || info.Mode().Perm() != 0o600 {
		t.Errorf("%q, %v, %v", data, err, statErr)
	}
	const stored = "SESSIONS   TURNS   MESSAGES   SUMMARIES   NOTES\n1          2       3          4           5\n"
	check(t, otters(t.Context(), socket, "", "session", "import", "-i", file, "g"), outcome{out: stored})
	check(t, otters(t.Context(), socket, f.export, "session", "import", "g", "--replace"), outcome{out: stored})
	last := f.last().([]any)
	if diff := cmp.Diff(&daemonv1.ImportSessionsOptions{Agent: "g", Replace: true}, last[0], protocmp.Transform()); diff != "" || last[1] != f.export {
		t.Error(diff, last[1])
	}
	if got := otters(t.Context(), socket, "", "session", "import", "-i", file+".none", "g"); got.code != 1 || !strings.HasPrefix(got.err, "otters: import: open "+file+".none: ") {
		t.Errorf("%+v", got)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	check(t, otters(gone, socket, "", "session", "import", "-i", pipe, "g"), outcome{code: exitInterrupted, err: "otters: interrupted\n"})
	broken := serve(t, &fake{fakeConversations: someTalk(), refuse: refusal(9, "export of agent g: it runs", "stop it")})
	if got := otters(t.Context(), broken, "", "session", "export", "-o", file+"2", "g"); got.code != 1 || got.err != "otters: export of agent g: it runs; stop it\n" {
		t.Errorf("%+v", got)
	}
	if left, err := filepath.Glob(file + "2*"); err != nil || len(left) > 0 {
		t.Errorf("of an export that failed is left %v", left)
	}
	var out, errs bytes.Buffer
	term := &app{in: strings.NewReader(""), out: &out, err: &errs, outTerm: true, inTerm: true}
	for _, verb := range []string{"export", "import"} {
		if code := term.run(t.Context(), []string{"--socket", socket, "session", verb, "g"}); code != exitUsage || !strings.Contains(errs.String(), verb+": standard ") {
			t.Errorf("%s on a terminal: %d %s", verb, code, errs.String())
		}
	}
}

func TestSessionRm(t *testing.T) {
	t.Parallel()
	f := &fake{}
	socket := serve(t, f)
	check(t, otters(t.Context(), socket, "", "session", "rm", "g", "a", "b"), outcome{out: "a\nb\n"})
	got := otters(t.Context(), socket, "", "session", "rm", "g", "a", "none", "b")
	check(t, got, outcome{code: 1, out: "a\n", err: "otters: session none of agent g: there is no such session; `otters session ls` lists them\n"})
}

func TestNotes(t *testing.T) {
	t.Parallel()
	f := &fake{fakeConversations: someTalk()}
	socket := serve(t, f)
	check(t, otters(t.Context(), socket, "", "note", "ls", "g", "--pinned"), outcome{out: "KEY     PINNED   CHANGED   CONTENT\nriver   pinned   1h        Severn␛[2J\n"})
	if diff := cmp.Diff(&daemonv1.ListNotesRequest{Agent: "g", OnlyPinned: true}, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	check(t, otters(t.Context(), socket, "", "note", "show", "g", "river"), outcome{out: "Severn\x1b[2J\n"})
	var out, errs bytes.Buffer
	term := &app{in: strings.NewReader(""), out: &out, err: &errs, outTerm: true}
	if code := term.run(t.Context(), []string{"--socket", socket, "note", "show", "g", "river"}); code != 0 || out.String() != "Severn␛[2J\n" {
		t.Errorf("on a terminal: %d %q", code, out.String())
	}
	file := filepath.Join(t.TempDir(), "n")
	check(t, otters(t.Context(), socket, "", "note", "show", "-o", file, "g", "river"), outcome{})
	if data, err := os.ReadFile(file); err != nil || string(data) != "Severn\x1b[2J\n" {
		t.Errorf("%q, %v", data, err)
	}
	// What is no file is written to and stays what it is: root has /dev/null only once.
	pipe, link := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "link")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		data, err := os.ReadFile(pipe)
		read <- fmt.Sprintf("%s %v", data, err)
	}()
	check(t, otters(t.Context(), socket, "", "note", "show", "-o", pipe, "g", "river"), outcome{})
	if got := <-read; got != "Severn\x1b[2J\n <nil>" {
		t.Errorf("the reader of a pipe got %q", got)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("the pipe is %v, %v", info, err)
	}
	writeFile(t, file, "old")
	check(t, otters(t.Context(), socket, "", "note", "show", "-o", link, "g", "river"), outcome{})
	if data, err := os.ReadFile(file); err != nil || string(data) != "Severn\x1b[2J\n" {
		t.Errorf("behind a link: %q, %v", data, err)
	}
	if got := otters(t.Context(), socket, "", "note", "show", "-o", t.TempDir(), "g", "river"); got.code != 1 || !strings.HasSuffix(got.err, ": it is a folder; name a file with -o\n") {
		t.Errorf("a folder: %+v", got)
	}
	if got := otters(t.Context(), socket, "", "note", "show", "g", "none"); got.code != 1 || !strings.HasPrefix(got.err, "otters: note none of agent g: there is no such note") {
		t.Errorf("%+v", got)
	}
	check(t, otters(t.Context(), socket, "", "note", "set", "g", "b", "some text"), outcome{out: "b written\n"})
	check(t, otters(t.Context(), socket, "more\n", "note", "set", "g", "river"), outcome{out: "river overwritten\n"})
	if diff := cmp.Diff(&daemonv1.SetNoteRequest{Agent: "g", Key: "river", Content: "more\n"}, f.last(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	check(t, otters(t.Context(), socket, strings.Repeat("x", maxNote), "note", "set", "g", "b", "-"), outcome{out: "b written\n"})
	for in, says := range map[string]string{strings.Repeat("x", maxNote+1): "more than 1048576 bytes", "\xff": "not valid UTF-8"} {
		if got := otters(t.Context(), socket, in, "note", "set", "g", "b"); got.code != exitUsage || !strings.Contains(got.err, says) {
			t.Errorf("%+v", got)
		}
	}
	check(t, otters(t.Context(), socket, "", "note", "pin", "g", "a", "b"), outcome{out: "a pinned\nb pinned\n"})
	check(t, otters(t.Context(), socket, "", "note", "pin", "--off", "g", "a"), outcome{out: "a not pinned\n"})
	check(t, otters(t.Context(), socket, "", "note", "rm", "g", "river"), outcome{out: "river removed\n"})
	if got := otters(t.Context(), socket, "", "note", "rm", "g", "none"); got.code != 1 {
		t.Errorf("%+v", got)
	}
}
