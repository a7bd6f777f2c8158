package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Invariant: the commands of the README work one after the other on a fresh machine, and at the
// end nothing runs. Worst inputs: a daemon that ends in between, and one that was never started.

func (m *machine) inspect(agent string) agentJSON {
	m.t.Helper()
	var out agentJSON
	if err := json.Unmarshal([]byte(m.must("inspect", agent, "--format", "json").out), &out); err != nil {
		m.t.Fatal(err)
	}
	return out
}

func TestEndToEnd(t *testing.T) {
	t.Parallel()
	m := newHome(t)
	m.startDaemon()
	m.buildAndRun()
	a := m.running()
	m.prompts()
	m.must("logs", "g")
	m.stopAndStart(a)
	m.removeAndEnd(a)
}

func (m *machine) startDaemon() {
	t := m.t
	t.Helper()
	if got := m.otters("ps"); got.code != 1 || !strings.Contains(got.err, "otters daemon start") {
		t.Fatalf("no daemon: %+v", got)
	}
	if got := m.otters("daemon", "status"); got.code != exitNotRunning {
		t.Fatalf("status: %+v", got)
	}
	// The log of earlier daemons is as large as one may be.
	log := filepath.Join(m.home, "logs", "ottersd.log")
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o700), os.WriteFile(log, nil, 0o600), os.Truncate(log, 10<<20)); err != nil {
		t.Fatal(err)
	}
	if got := m.must("daemon", "start"); !strings.HasPrefix(got.out, "daemon started\n") || !strings.Contains(got.out, m.home) {
		t.Errorf("daemon start: %+v", got)
	}
	before, err := os.Stat(log + ".1")
	if text, failed := os.ReadFile(log); err != nil || failed != nil || before.Size() != 10<<20 || len(text) > 64<<10 || !strings.Contains(string(text), "ottersd ready") {
		t.Errorf("the log: %.1000q, %v; before it %v, %v", text, failed, before, err)
	}
	if got := m.must("daemon", "start"); !strings.HasPrefix(got.out, "daemon is running already\n") {
		t.Errorf("second daemon start: %+v", got)
	}
	m.must("daemon", "status")
	if got := m.must("version"); !strings.Contains(got.out, "\ndaemon  ") || strings.Contains(got.out, "not running") {
		t.Errorf("version: %+v", got)
	}
	if got := m.must("info"); !strings.Contains(got.out, "confinement  ") || !strings.Contains(got.out, "offline") {
		t.Errorf("info: %+v", got)
	}
}

func (m *machine) buildAndRun() {
	t := m.t
	t.Helper()
	first := m.must("build", "-t", "guide:1", "-t", "guide", guide(t))
	again := m.must("build", "-t", "guide:1", "-t", "guide", guide(t))
	if first.out != again.out || strings.Count(first.out, "sha256:") != 2 {
		t.Errorf("builds of one folder differ: %q, %q", first.out, again.out)
	}
	if got := m.must("images"); !strings.Contains(got.out, "guide:1 ") || !strings.Contains(got.out, "otters/runtime") || !strings.Contains(got.out, "otters/tools/jq") {
		t.Errorf("images: %s", got.out)
	}
	if got := m.must("run", "guide:1", "--name", "g", "-e", "GREETING=secret-value"); !regexp.MustCompile(`^g [0-9a-f-]{36} (ready|working)\n$`).MatchString(got.out) {
		t.Errorf("run: %+v", got)
	}
	if got := m.must("ps"); !regexp.MustCompile(`(?m)^g +\S+ +guide:1 +offline/otter +ready`).MatchString(got.out) {
		t.Errorf("ps: %s", got.out)
	}
}

func (m *machine) running() agentJSON {
	t := m.t
	t.Helper()
	a := m.inspect("g")
	if a.Status != "ready" || a.PID == 0 || a.MonitorPID == 0 || !strings.Contains(m.must("info").out, "confinement  "+a.Confinement.Level+"\n") || !a.ServeTokenChecked || !strings.HasPrefix(a.Root, m.home) {
		t.Errorf("inspect: %+v", a)
	}
	if os.Geteuid() == 0 && (a.UID == 0 || !a.Confinement.OwnUser) {
		t.Errorf("the agent of a root daemon runs as user %d", a.UID)
	}
	if table := m.must("inspect", "g"); strings.Contains(table.out, "secret-value") || !strings.Contains(table.out, "GREETING") {
		t.Errorf("inspect shows values of variables: %s", table.out)
	}
	return a
}

func (m *machine) removeAndEnd(a agentJSON) {
	t := m.t
	t.Helper()
	if got := m.otters("rm", "g"); got.code != 1 {
		t.Errorf("rm of a running agent: %+v", got)
	}
	m.must("rm", "-f", "g")
	if _, err := os.Stat(a.Root); !os.IsNotExist(err) {
		t.Errorf("the tree is still there: %v", err)
	}
	if got := m.otters("inspect", "g"); got.code != 1 {
		t.Errorf("inspect of a removed agent: %+v", got)
	}
	m.must("daemon", "stop")
	m.nothingRuns()
	if got := m.otters("daemon", "status"); got.code != exitNotRunning {
		t.Errorf("status: %+v", got)
	}
}

func (m *machine) prompts() {
	t := m.t
	t.Helper()
	got := m.must("prompt", "g", "Which river is the longest? Use `jq -r .rivers[0].name ../etc/data/rivers.json`")
	if !strings.Contains(got.err, "→ jq") || !strings.Contains(got.err, "← jq") || strings.TrimSpace(got.out) == "" || strings.Contains(got.out, "→") {
		t.Errorf("prompt: %+v", got)
	}
	session := regexp.MustCompile(`--session (\S+)`).FindStringSubmatch(got.err)
	if session == nil {
		t.Fatalf("no session named: %s", got.err)
	}
	in := m.ottersIn("What is a holt?\n", "prompt", "g", "--session", session[1])
	if in.code != 0 || strings.TrimSpace(in.out) == "" || !strings.Contains(in.err, session[1]) {
		t.Errorf("prompt from standard input: %+v", in)
	}
}

func (m *machine) stopAndStart(before agentJSON) {
	t := m.t
	t.Helper()
	m.must("stop", "g")
	if a := m.inspect("g"); a.Status != "stopped" || a.Reason != "" || a.PID != 0 {
		t.Errorf("stopped: %+v", a)
	}
	if got := m.otters("prompt", "g", "hi"); got.code != 1 || strings.Count(got.err, "\n") != 1 {
		t.Errorf("prompt to a stopped agent: %+v", got)
	}
	m.must("stop", "g")
	m.must("start", "g")
	if a := m.inspect("g"); a.Status != "ready" || a.ID != before.ID || a.StartedAt == before.StartedAt {
		t.Errorf("started again: %+v", a)
	}
}

// TestAgentsOutliveTheDaemon (K16): stop without --stop-agents leaves the very same process.
func TestAgentsOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	m := newHome(t)
	m.must("daemon", "start")
	m.must("build", "-t", "guide", guide(t))
	m.must("run", "guide", "--name", "g")
	before := m.inspect("g")
	if got := m.must("daemon", "stop"); got.out != "daemon stopped; agents stopped: 0, running on: 1\n" {
		t.Errorf("daemon stop: %+v", got)
	}
	if _, running := lookAt(int(before.PID)); !running {
		t.Fatal("the agent ended with the daemon")
	}
	m.must("daemon", "start")
	after := m.inspect("g")
	for end := time.Now().Add(patience); after.Status != "ready" && time.Now().Before(end); after = m.inspect("g") {
	}
	if after.PID != before.PID || after.Status != "ready" {
		t.Errorf("taken over: %+v, before %+v", after, before)
	}
	m.must("prompt", "g", "What is a holt?")
	if got := m.must("daemon", "stop", "--stop-agents"); got.out != "daemon stopped; agents stopped: 1, running on: 0\n" {
		t.Errorf("daemon stop: %+v", got)
	}
	m.nothingRuns()
}

func TestDaemonStartThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	m := newHome(t)
	m.configure("no-such-key: 1\n")
	got := m.otters("daemon", "start")
	if got.code != 1 || !strings.Contains(got.err, "no-such-key") || strings.Count(got.err, "\n") != 1 {
		t.Errorf("%+v", got)
	}
	m.nothingRuns()
	long := filepath.Join(m.dir, strings.Repeat("x", 100))
	if got := m.otters("daemon", "start", "--home", long); got.code != 1 || !strings.Contains(got.err, "--socket") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(long); !os.IsNotExist(err) {
		t.Errorf("left behind: %v", err)
	}
}

// TestBadInput is what people get wrong: each ends in one clear message, a code
// other than 0, and nothing half-made.
func TestBadInput(t *testing.T) {
	t.Parallel()
	m := newHome(t)
	m.must("daemon", "start")
	m.must("build", "-t", "guide", guide(t))
	empty, broken := filepath.Join(m.dir, "empty"), filepath.Join(m.dir, "broken")
	for _, dir := range []string{empty, broken} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(broken, "Agentfile"), "FROM scratch\n  NONSENSE here\n")
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"unknown command":      {[]string{"rum"}, "or `otters run`?"},
		"bad reference to run": {[]string{"run", "No//Such:ref:x"}, "No//Such:ref:x"},
		"unknown image":        {[]string{"run", "nosuch:1"}, "nosuch:1"},
		"bad tag":              {[]string{"build", "-t", "UPPER//x", guide(t)}, "UPPER//x"},
		"missing Agentfile":    {[]string{"build", "-t", "a", empty}, "no Agentfile in it"},
		"syntax error":         {[]string{"build", "-t", "a", broken}, "Agentfile:2:3: "},
		"unknown agent":        {[]string{"prompt", "nobody", "hi"}, "nobody"},
		"unknown provider":     {[]string{"run", "guide", "--name", "m", "--model", "nosuch/x"}, "nosuch"},
		"bad model":            {[]string{"run", "guide", "--model", "noslash"}, "noslash"},
		"bad name":             {[]string{"run", "guide", "--name", "../x"}, "../x"},
		"bad variable":         {[]string{"run", "guide", "-e", "a b=c"}, "a b"},
	} {
		got := m.otters(c.args...)
		if got.code == 0 || got.out != "" || !strings.HasPrefix(got.err, "otters: ") || !strings.Contains(got.err, c.says) || !oneMessage(got.err) {
			t.Errorf("%s: %+v; want %q", name, got, c.says)
		}
	}
	if a := m.inspect("m"); a.Status != "failed" || a.Reason != "model" {
		t.Errorf("unknown provider: %+v", a.summaryJSON)
	}
	if got := m.must("ps"); strings.Count(got.out, "\n") != 2 {
		t.Errorf("refused creates left agents: %s", got.out)
	}
	for name, c := range badRuntimes {
		m.badRuntime(name, c)
	}
	// One that never answers is given up: soon, and for that alone.
	m.must("daemon", "stop")
	m.configure("ready-timeout: 1s\n")
	m.must("daemon", "start")
	m.badRuntime("never-ready", badProgram{"#!/bin/sh\nexec /bin/sleep 600\n", 0o755, "readiness_timeout", "ready within 1s (ready-timeout)"})
	if got := m.must("images"); strings.Contains(got.out, "\na:") {
		t.Errorf("a failed build left an image: %s", got.out)
	}
}

// oneMessage tells whether only lines that belong beneath follow the first one.
func oneMessage(s string) bool {
	for i, line := range strings.Split(strings.TrimSuffix(s, "\n"), "\n") {
		if i > 0 && !strings.HasPrefix(line, "  ") {
			return false
		}
	}
	return true
}

// badProgram is a runtime that does not come up, why the agent is failed then, and what is told.
type badProgram struct {
	script string
	mode   os.FileMode
	reason string
	says   string
}

var badRuntimes = map[string]badProgram{
	"dies":           {"#!/bin/sh\necho no luck today >&2\nexit 3\n", 0o755, "crashed", "no luck today"},
	"misconfigured":  {"#!/bin/sh\necho bad key >&2\nexit 78\n", 0o755, "config", "bad key"},
	"not-executable": {"#!/bin/sh\nexit 0\n", 0o644, "init", "execut"},
}

func (m *machine) badRuntime(name string, c badProgram) {
	t := m.t
	t.Helper()
	path := filepath.Join(m.dir, name)
	writeProgram(t, path, c.script, c.mode)
	got := m.otters("run", "guide", "--name", name, "--runtime", path, "--sandbox", "off")
	if got.code != 1 || got.out != "" || !strings.HasPrefix(got.err, "otters: ") || !strings.Contains(got.err, c.says) || !oneMessage(got.err) {
		t.Errorf("%s: %+v; want %q", name, got, c.says)
	}
	agents := m.must("ps", "--format", "json").out
	if !strings.Contains(agents, `"name": "`+name+`"`) {
		// Refused before anything was made.
		if c.reason != "init" {
			t.Errorf("%s: no failed agent: %s", name, agents)
		}
		return
	}
	if a := m.inspect(name); a.Status != "failed" || a.Reason != c.reason {
		t.Errorf("%s: %+v; want failed, %s", name, a.summaryJSON, c.reason)
	}
	m.must("rm", name)
}
