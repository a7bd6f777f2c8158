package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/protoadapt"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Invariant: a wrong command line is exit code 2 and one line, and asks nothing of the daemon; a
// failure is exit code 1 and one line with what to do.

func TestWrongUse(t *testing.T) {
	t.Parallel()
	f := &fake{}
	socket := serve(t, f)
	cases := []struct {
		args []string
		says string
	}{
		{[]string{"promt", "x"}, "unknown command \"promt\"; did you mean `otters prompt`?"},
		{[]string{"zzzzzzzz"}, "unknown command \"zzzzzzzz\"; see `otters --help`"},
		{[]string{"daemon", "strat"}, "did you mean `otters daemon start`?"},
		{[]string{"help", "nonsense"}, "no command \"nonsense\""},
		{[]string{"completion", "tcsh"}, "unknown command \"tcsh\""},
		{[]string{"--nope"}, "unknown flag: --nope"},
		{[]string{"ps", "--nope"}, "ps: unknown flag: --nope; see `otters ps --help`"},
		{[]string{"ps", "extra"}, "ps: unexpected argument \"extra\""},
		{[]string{"ps", "--format", "yaml"}, "want table or json"},
		{[]string{"images", "--format", ""}, "want table or json"},
		{[]string{"inspect", "x", "--format", "{{.ID}}"}, "want table or json"},
		{[]string{"info", "--format", "JSON"}, "want table or json"},
		{[]string{"inspect"}, "inspect: too few arguments (0); usage: otters inspect"},
		{[]string{"stop"}, "stop: too few arguments"},
		{[]string{"rm", "-f"}, "rm: too few arguments"},
		{[]string{"run"}, "run: too few arguments"},
		{[]string{"run", "a", "b"}, "run: unexpected argument \"b\""},
		{[]string{"run", "a", "-e", "OTTERS_TEST_UNSET"}, "-e OTTERS_TEST_UNSET: not set in the environment; give OTTERS_TEST_UNSET=VALUE"},
		{[]string{"run", "a", "-e", "=x"}, "no name before the value"},
		{[]string{"run", "a", "-e", "A=1", "-e", "A=2"}, "-e A: given twice"},
		{[]string{"run", "a", "--config", "K"}, "--config \"K\": want K=V"},
		{[]string{"run", "a", "--config", "k=1", "--config", "k=2"}, "--config k: given twice"},
		{[]string{"run", "a", "--stop-timeout", "-1s"}, "--stop-timeout -1s: is negative"},
		{[]string{"run", "a", "--stop-timeout", "soon"}, "--stop-timeout"},
		{[]string{"run", "a", "--memory", "lots"}, "--memory \"lots\": want a size such as 512m or 1g"},
		{[]string{"run", "a", "--name", ""}, "run: --name is empty; give it a value, or leave it out"},
		{[]string{"prompt", "a", "b", "--session="}, "prompt: --session is empty"},
		{[]string{"run", "a", "--memory", "0"}, "leave it out for no limit"},
		{[]string{"run", "a", "--memory", "-1g"}, "--memory \"-1g\": want"},
		{[]string{"run", "a", "--memory", "99999999999t"}, "--memory \"99999999999t\": want"},
		{[]string{"run", "a", "--memory", "1e9"}, "--memory \"1e9\": want"},
		{[]string{"run", "a", "--memory", ""}, "run: --memory is empty"},
		{[]string{"run", "a", "--cpus", "NaN"}, "--cpus \"NaN\": want a number of processors"},
		{[]string{"run", "a", "--cpus", "1.2.3"}, "--cpus \"1.2.3\": want"},
		{[]string{"run", "a", "--pids", "1.5"}, "--pids \"1.5\": want a whole number above 0"},
		{[]string{"run", "a", "--pids", "0"}, "--pids \"0\": want"},
		{[]string{"exec", "a"}, "exec: too few arguments (1); usage: otters exec [flags] AGENT BIN [ARG...]"},
		{[]string{"logs", "a", "--since", "yesterday"}, "--since \"yesterday\": neither a length of time"},
		{[]string{"logs", "a", "--since", "-1m"}, "--since \"-1m\""},
		{[]string{"logs", "a", "--tail", "-1"}, "--tail \"-1\": want a number of lines, or all"},
		{[]string{"logs", "a", "--tail", "some"}, "--tail \"some\""},
		{[]string{"run", "a", "-v", "/x"}, "-v \"/x\": want HOST:TARGET[:DESC][:ro]"},
		{[]string{"run", "a", "-v", ":x"}, "want HOST:TARGET[:DESC][:ro]"},
		{[]string{"run", "a", "-v", "/a:b:c:d"}, "want HOST:TARGET[:DESC][:ro]"},
		{[]string{"kill"}, "kill: too few arguments"},
		{[]string{"restart", "a", "b"}, "restart: unexpected argument \"b\""},
		{[]string{"build", "."}, "no name for the image"},
		{[]string{"build", "-t", "a"}, "build: too few arguments"},
		{[]string{"prompt", "a", ""}, "the text is empty"},
		{[]string{"prompt", "a", "b", "c"}, "prompt: unexpected argument \"c\""},
		{[]string{"inspect", "a\xff"}, "not valid UTF-8"},
		{[]string{"demo"}, "demo: --socket can't be used"},
	}
	for _, c := range cases {
		got := otters(t.Context(), socket, "", c.args...)
		if got.code != exitUsage || got.out != "" || !strings.HasPrefix(got.err, "otters: ") || !strings.Contains(got.err, c.says) || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%q: %+v; want %q", c.args, got, c.says)
		}
	}
	long := strings.Repeat("a", 100_000)
	if got := otters(t.Context(), socket, "", "run", long, "--pids", long); got.code != exitUsage || len(got.err) > 3000 || !strings.HasPrefix(got.err, "otters: --pids \"aaa") || !strings.HasSuffix(got.err, "a\": want a whole number above 0; leave it out for no limit\n") {
		t.Errorf("a long argument: %+v", got)
	}
	if f.last() != nil {
		t.Errorf("the daemon was asked: %v", f.last())
	}
	if got := otters(t.Context(), socket, ""); got.code != 0 || !strings.Contains(got.out, "Available Commands") {
		t.Errorf("no arguments: %+v", got)
	}
}

// Worst inputs: a named pipe that nobody writes, a folder, what is no text.
func TestFilesThatAreNoneAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	f := &fake{}
	socket, dir := serve(t, f), t.TempDir()
	pipe, bytes := filepath.Join(dir, "pipe"), filepath.Join(dir, "bytes")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, bytes, "\xff")
	const noFile = ": it is not a regular file; name another file"
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"bin", "build", "-t", "x", "--usage", pipe, bytes}, "build: usage: " + pipe + noFile},
		{[]string{"bin", "build", "-t", "x", "--usage", bytes, bytes}, "build: usage: " + bytes + ": it is not valid UTF-8; convert it first"},
		{[]string{"prompt", "--schema", pipe, "a", "b"}, "prompt: schema: " + pipe + noFile},
		{[]string{"prompt", "--attach", pipe, "a", "b"}, "prompt: attach: " + pipe + noFile + " (all together"},
		{[]string{"image", "lint", pipe}, "lint: " + pipe + ": it is not a regular file, nor a folder; name"},
		{[]string{"image", "load", "-i", dir}, "load: " + dir + ": it is a folder; name another file with -i"},
	} {
		if got := otters(t.Context(), socket, "", c.args...); got.code != 1 || got.out != "" || !strings.HasPrefix(got.err, "otters: "+c.says) || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%q: %+v; want %q", c.args, got, c.says)
		}
	}
	if f.last() != nil {
		t.Errorf("the daemon was asked: %v", f.last())
	}
}

func TestEveryCommandWithoutDaemonSaysHowToStartOne(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	writeFile(t, filepath.Join(dir, "Agentfile"), "FROM scratch\n")
	socket := filepath.Join(dir, "none")
	want := outcome{code: 1, err: "otters: no daemon is running: socket " + socket + " is not there; start one with `otters daemon start`, or `ottersd` in the foreground\n"}
	for _, args := range [][]string{
		{"build", "-t", "a", dir}, {"images"}, {"run", "a"}, {"ps"}, {"inspect", "a"}, {"prompt", "a", "hi"},
		{"logs", "a"}, {"stop", "a", "b"}, {"restart", "a"}, {"kill", "a"}, {"exec", "a", "b"}, {"start", "a"}, {"rm", "a"}, {"info"},
	} {
		t.Run(args[0], func(t *testing.T) { check(t, otters(t.Context(), socket, "", args...), want) })
	}
	check(t, otters(t.Context(), socket, "", "daemon", "status"), outcome{code: exitNotRunning, out: "daemon not running on socket " + socket + "\n"})
	check(t, otters(t.Context(), socket, "", "daemon", "stop"), outcome{out: "daemon not running on socket " + socket + "\n"})
	check(t, otters(t.Context(), dir+"/\x1b[2J", "", "daemon", "stop"), outcome{out: "daemon not running on socket " + dir + "/␛[2J\n"})
	if got := otters(t.Context(), filepath.Join(dir, "Agentfile", "s"), "", "ps"); got.code != 1 || !strings.HasSuffix(got.err, ": not a directory; name the socket with --socket, or the folder of the daemon's state with OTTERS_HOME\n") {
		t.Errorf("%+v", got)
	}
}

func TestRefusalsOfTheDaemonAreOneLine(t *testing.T) {
	t.Parallel()
	f := &fake{refuse: refusal(codes.FailedPrecondition, "agent \"gu\": the name\x1b fits 2 agents\nreally", "name one by its id",
		protoadapt.MessageV1Of(&daemonv1.AmbiguousName{Name: "gu", Candidates: []*daemonv1.AgentSummary{
			{Id: "id-1", Name: "gu", Image: "a:1", Status: "ready"}, {Id: "id-2", Name: "gu", Image: "b:1", Status: "failed"}}}))}
	check(t, otters(t.Context(), serve(t, f), "", "inspect", "gu"), outcome{code: 1,
		err: "otters: agent \"gu\": the name␛ fits 2 agents; really; name one by its id\n  id-1  gu  a:1  ready\n  id-2  gu  b:1  failed\n"})
}

func TestDaemonStatusOfARunningOne(t *testing.T) {
	t.Parallel()
	socket := serve(t, &fake{})
	check(t, otters(t.Context(), socket, "", "daemon", "status"), outcome{out: `daemon running
process   4711
home      /home/o
socket    /run/o.sock
registry  127.0.0.1:5527
agents    2, 1 of them running
`})
	check(t, otters(t.Context(), socket, "", "daemon", "start", "--home", "/srv/other"), outcome{code: 1,
		err: "otters: daemon start: socket " + socket + " belongs to a daemon of another home, /home/o; name another with --socket\n"})
	if got := otters(t.Context(), socket, "", "daemon", "start", "--home", "/home/o"); got.code != 0 || !strings.HasPrefix(got.out, "daemon is running already\n") {
		t.Errorf("%+v", got)
	}
}
