package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// Invariant: what was said to an agent outlives its stop and the daemon, and moves to another agent as
// it was. Worst inputs: an agent that the next daemon has only read of; a second import; one that was cut.

func TestSessionsMoveFromOneAgentToAnother(t *testing.T) {
	t.Parallel()
	m := newHome(t)
	m.must("daemon", "start")
	m.must("build", "-t", "guide", guide(t))
	m.must("run", "guide", "--name", "a")
	m.must("run", "guide", "--name", "b")
	m.must("prompt", "--session", "s", "a", "What is a holt?")
	m.must("prompt", "--session", "s", "--regenerate", "a")
	got := m.must("prompt", "--json", "--session", "s", "a", "Which river is the longest? Use `jq -r .rivers[0].name ../etc/data/rivers.json`")
	lines := strings.Split(strings.TrimSpace(got.out), "\n")
	var first, last eventJSON
	if json.Unmarshal([]byte(lines[0]), &first) != nil || json.Unmarshal([]byte(lines[len(lines)-1]), &last) != nil ||
		first.SessionID != "s" || len(first.RunID) != 36 || last.Type != "turn.finish" || last.Reason != "done" || last.Usage == nil {
		t.Errorf("events: %+v", got)
	}
	m.must("note", "set", "a", "river", "the Severn")
	m.must("note", "pin", "a", "river")
	if got := m.must("note", "ls", "a"); !strings.Contains(got.out, "pinned") || !strings.Contains(got.out, "the Severn") {
		t.Errorf("notes: %+v", got)
	}
	running := m.must("session", "show", "a", "s", "--format", "json").out
	if !strings.Contains(running, `"tool": "jq"`) || !strings.Contains(running, `"active_branch": 1`) {
		t.Errorf("show: %s", running)
	}
	file := filepath.Join(m.dir, "moved.jsonl")
	if got := m.otters("session", "export", "a", "-o", file); got.code != 1 || !strings.Contains(got.err, "it runs") || !strings.Contains(got.err, "otters stop a") {
		t.Errorf("export of an agent that runs: %+v", got)
	}

	// The next daemon has only read of the agents.
	m.must("daemon", "stop", "--stop-agents")
	m.must("daemon", "start")
	for _, name := range []string{"a", "b"} {
		m.must("stop", name)
	}
	if stopped := m.must("session", "show", "a", "s", "--format", "json").out; stopped != running {
		t.Errorf("stopped: %s", stopped)
	}
	m.must("session", "export", "a", "--notes", "-o", file)
	if got := m.must("session", "import", "b", "-i", file); !strings.HasPrefix(got.out, "SESSIONS   TURNS   MESSAGES") {
		t.Errorf("import: %+v", got)
	}
	if got := m.otters("session", "import", "b", "-i", file); got.code != 1 || !strings.Contains(got.err, "session s: not imported: there is one already") {
		t.Errorf("a second import: %+v", got)
	}
	text := m.must("session", "export", "b", "--notes").out
	if got := m.ottersIn(text[:len(text)/2], "session", "import", "b", "--replace"); got.code != 1 || !strings.Contains(got.err, "it was cut") {
		t.Errorf("an import that was cut: %+v", got)
	}
	if again := m.must("session", "export", "b", "--notes").out; again != text {
		t.Errorf("it has left %s", again)
	}
	for _, args := range [][]string{{"session", "show", "b", "none"}, {"session", "rm", "b", "none"}, {"session", "export", "b", "none"}} {
		if got := m.otters(args...); got.code != 1 || !strings.Contains(got.err, "session none: there is no such session") || !strings.Contains(got.err, "otters session ls b") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	m.must("start", "b")
	if moved := m.must("session", "show", "b", "s", "--format", "json").out; moved != running {
		t.Errorf("moved: %s", moved)
	}
	if got := m.must("note", "show", "b", "river"); got.out != "the Severn" {
		t.Errorf("the note: %+v", got)
	}
	m.must("prompt", "--session", "s", "b", "and then?")
	m.must("session", "rm", "b", "s")
	if got := m.must("session", "ls", "b"); strings.Count(got.out, "\n") != 1 {
		t.Errorf("after rm: %+v", got)
	}
}
