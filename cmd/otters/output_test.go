package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/spec"
)

// Invariant: what a command says is on standard output, in a form that does not change; everything
// else is on standard error, and no text of an agent can act on the terminal. Worst inputs: escape
// sequences in names, answers and logs; a list with nothing in it; a turn that ends early.

func someAgent() *daemonv1.Agent {
	return &daemonv1.Agent{
		Summary: &daemonv1.AgentSummary{
			Id: "01996f2c-1d2e-7abc-8def-0123456789ab", Name: "guide", Image: "guide:1", Digest: "sha256:1111", Model: "offline/otter",
			Status: "failed", Reason: "crashed", Message: "the runtime ended with code 1",
			CreatedAtMs: 1_700_000_000_123, StartedAtMs: 1_700_000_001_000, Attempts: 2,
		},
		Restart: "on-failure:3", LastFailure: "crashed: exit code 1", StopTimeoutMs: 1500, AllowNet: []string{"example.com", "10.0.0.1:8080"},
		Mounts: []*daemonv1.Mount{{Host: "/srv/a", Target: "workspace/a", Description: "my files", ReadOnly: true}},
		Limits: []*daemonv1.Limit{{Name: "memory", Value: 1536 << 20, Mechanism: "cgroup v2"}, {Name: "cpus", Value: 1500, Mechanism: "cgroup v2"}, {Name: "pids", Value: 64, Mechanism: "rlimit"}},
		Root:   "/o/agents/1/root", Address: "127.0.0.1:4000", Pid: 12, MonitorPid: 11, Uid: 231000,
		Confinement: &daemonv1.Confinement{Level: "off", OwnUser: true, Enforced: []string{"It has a user of its own."}, Open: []string{"The network.", "Files of others that all may read."}},
		RuntimeRef:  "otters/runtime", RuntimeDigest: "sha256:2222",
		Tools:   []*daemonv1.Tool{{Name: "jq", Description: "reads JSON", Ref: "otters/tools/jq", Digest: "sha256:3333"}},
		Envs:    []string{"LANG"},
		Configs: map[string]string{"max-tokens": "5", "a": "b"},
		LastExit: &daemonv1.LastExit{Code: 1, AtMs: 1_700_000_002_000,
			Stderr: []string{"reading", "boom \x1b[31m"}, OutOfMemory: true},
		ServeTokenChecked: true, LogFile: "/o/agents/1/log", Warnings: []string{"skill x: left out"},
	}
}

// ago is the time, in milliseconds, when something is as many units old and a half: however long a test
// takes, it is as many whole ones.
func ago(n time.Duration, unit time.Duration) int64 {
	return time.Now().Add(-n*unit - unit/2).UnixMilli()
}

func check(t *testing.T, got outcome, want outcome) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(outcome{})); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

func TestPs(t *testing.T) {
	t.Parallel()
	evil := someAgent()
	evil.Summary = &daemonv1.AgentSummary{Id: "short", Name: "e\x1b]0;owned\a\nx\ty\u202e", Status: "ready", CreatedAtMs: ago(3, time.Hour)}
	first := someAgent()
	first.Summary.CreatedAtMs = ago(2, 24*time.Hour)
	socket := serve(t, &fake{agents: []*daemonv1.Agent{first, evil}})
	check(t, otters(t.Context(), socket, "", "ps"), outcome{out: `NAME                      ID              IMAGE     MODEL           STATUS             AGE
guide                     01996f2c-1d2e   guide:1   offline/otter   failed (crashed)   2d
e␛]0;owned␇␊x␉y<U+202E>   short                                     ready              3h
`})
	empty := serve(t, &fake{})
	check(t, otters(t.Context(), empty, "", "ps"), outcome{out: "NAME   ID   IMAGE   MODEL   STATUS   AGE\n"})
	check(t, otters(t.Context(), empty, "", "ps", "--format", "json"), outcome{out: "[]\n"})
	check(t, otters(t.Context(), empty, "", "images", "--format", "json"), outcome{out: "[]\n"})
}

func TestInspectTable(t *testing.T) {
	t.Parallel()
	socket := serve(t, &fake{agents: []*daemonv1.Agent{someAgent()}})
	check(t, otters(t.Context(), socket, "", "inspect", "guide"), outcome{out: `name          guide
id            01996f2c-1d2e-7abc-8def-0123456789ab
status        failed (crashed)
message       the runtime ended with code 1
warning       skill x: left out
restart       on-failure:3
restarts      2 in a row
last failure  crashed: exit code 1
stop timeout  1.5s
image         guide:1
digest        sha256:1111
model         offline/otter
runtime       otters/runtime  sha256:2222
created       2023-11-14T22:13:20.123Z
started       2023-11-14T22:13:21.000Z
tree          /o/agents/1/root
log           /o/agents/1/log
address       127.0.0.1:4000
process       12, monitor 11
user id       231000
confinement   off: the kernel does not confine it, do not run what you do not trust
  enforced    It has a user of its own.
  open        The network.
              Files of others that all may read.
limit         memory 1536m  cgroup v2
              cpus 1.5  cgroup v2
              pids 64  rlimit
mounts        /srv/a:workspace/a:my files:ro
network       example.com
              10.0.0.1:8080
tools         jq  reads JSON
variables     LANG
config        a=b
              max-tokens=5
last exit     code 1, for want of memory  2023-11-14T22:13:22.000Z
last lines    reading
              boom ␛[31m
`})
}

func TestInspectSaysThatARuntimeIsOpenToOthers(t *testing.T) {
	t.Parallel()
	a := someAgent()
	a.ServeTokenChecked = false
	got := otters(t.Context(), serve(t, &fake{agents: []*daemonv1.Agent{a}}), "", "inspect", "guide")
	if !strings.Contains(got.out, "127.0.0.1:4000  open to other local users") {
		t.Error(got.out)
	}
}

// TestJSONIsStable holds the documented fields: one that is missing or renamed here breaks users.
func TestJSONIsStable(t *testing.T) {
	t.Parallel()
	socket := serve(t, &fake{agents: []*daemonv1.Agent{someAgent()}, images: []*daemonv1.Image{{
		Reference: "guide:1", Digest: "sha256:1111", MediaType: "m", Kind: "agent", Size: 9, CreatedAt: 1_700_000_000, Description: "<d>"}}})
	cases := map[string]string{
		"images": `[{"created_at":"2023-11-14T22:13:20.000Z","description":"<d>","digest":"sha256:1111","kind":"agent","media_type":"m","reference":"guide:1","size":9}]`,
		"ps": `[{"attempts":2,"next_try_at":"","queue_place":0,"created_at":"2023-11-14T22:13:20.123Z","digest":"sha256:1111","id":"01996f2c-1d2e-7abc-8def-0123456789ab","image":"guide:1","message":"the runtime ended with code 1",` +
			`"model":"offline/otter","name":"guide","reason":"crashed","started_at":"2023-11-14T22:13:21.000Z","status":"failed"}]`,
		"inspect guide": `{"allow_net":["example.com","10.0.0.1:8080"],"warnings":["skill x: left out"],"attempts":2,"next_try_at":"","queue_place":0,"restart":"on-failure:3","last_failure":"crashed: exit code 1","stop_timeout_ms":1500,"mounts":["/srv/a:workspace/a:my files:ro"],"limits":[{"name":"memory","value":1610612736,"mechanism":"cgroup v2"},{"name":"cpus","value":1500,"mechanism":"cgroup v2"},{"name":"pids","value":64,"mechanism":"rlimit"}],"address":"127.0.0.1:4000","configs":{"a":"b","max-tokens":"5"},"confinement":{"enforced":["It has a user of its own."],"level":"off","open":["The network.","Files of others that all may read."],"own_user":true},` +
			`"created_at":"2023-11-14T22:13:20.123Z","digest":"sha256:1111","envs":["LANG"],"id":"01996f2c-1d2e-7abc-8def-0123456789ab","image":"guide:1",` +
			`"last_exit":{"at":"2023-11-14T22:13:22.000Z","code":1,"signal":"","stderr":["reading","boom \u001b[31m"],"out_of_memory":true},"log_file":"/o/agents/1/log","message":"the runtime ended with code 1","model":"offline/otter","monitor_pid":11,"name":"guide","pid":12,` +
			`"reason":"crashed","root":"/o/agents/1/root","runtime_digest":"sha256:2222","runtime_ref":"otters/runtime","serve_token_checked":true,"started_at":"2023-11-14T22:13:21.000Z","status":"failed",` +
			`"tools":[{"description":"reads JSON","digest":"sha256:3333","name":"jq","ref":"otters/tools/jq"}],"uid":231000}`,
		"info": `{"agents":2,"agents_running":1,"confinement":{"enforced":[],"level":"off","open":["The network is open."],"own_user":false},"home":"/home/o","pid":4711,"platform":"linux/amd64",` +
			`"providers":["offline","other"],"registry":"127.0.0.1:5527","schema_version":3,"socket":"/run/o.sock","started_at":"2023-11-14T22:13:20.123Z","version":"v9.8.7"}`,
	}
	for command, want := range cases {
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

func TestImagesAndInfo(t *testing.T) {
	t.Parallel()
	socket := serve(t, &fake{images: []*daemonv1.Image{
		{Reference: "guide:1", Digest: "sha256:" + strings.Repeat("ab", 32), Kind: "agent", Size: 1 << 20, CreatedAt: ago(1, time.Hour) / 1000},
		{Reference: "otters/tools/jq:latest", Digest: "sha256:cd", Kind: "bin", Size: 17},
	}})
	check(t, otters(t.Context(), socket, "", "images"), outcome{out: `IMAGE                    KIND    DIGEST                SIZE      AGE
guide:1                  agent   sha256:abababababab   1.0 MiB   1h
otters/tools/jq:latest   bin     sha256:cd             17 B      ` + "\n"})
	check(t, otters(t.Context(), socket, "", "info"), outcome{out: `version      v9.8.7
platform     linux/amd64
process      4711
started      2023-11-14T22:13:20.123Z
home         /home/o
socket       /run/o.sock
registry     127.0.0.1:5527
database     schema version 3
agents       2, 1 of them running
providers    offline
             other
confinement  off: the kernel does not confine it, do not run what you do not trust
  open       The network is open.
`})
}

func TestVersionWithAndWithoutDaemon(t *testing.T) {
	t.Parallel()
	with := otters(t.Context(), serve(t, &fake{}), "", "version")
	if with.code != 0 || !regexp.MustCompile(`^client  \S+ `+regexp.QuoteMeta(runtime.GOOS+"/"+runtime.GOARCH+" "+runtime.Version())+`\ndaemon  v9\.8\.7 linux/amd64\n$`).MatchString(with.out) {
		t.Errorf("%+v", with)
	}
	without := otters(t.Context(), filepath.Join(tempDir(t), "none"), "", "version")
	if without.code != 0 || !strings.HasSuffix(without.out, "\ndaemon  not running\n") {
		t.Errorf("%+v", without)
	}
}

func TestBuild(t *testing.T) {
	t.Parallel()
	f := &fake{}
	socket := serve(t, f)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Other"), []byte("FROM scratch\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, otters(t.Context(), socket, "", "build", "-t", "a:1", "-t", "b", "-f", "Other", "--build-arg", "K=V=W", dir),
		outcome{out: "a:1 sha256:abc\nb sha256:abc\n", err: "warning: CONTEXT X is empty\n"})
	// The file alone stands for the folder that it lies in.
	other := filepath.Join(dir, "Other")
	check(t, otters(t.Context(), socket, "", "build", "-t", "a:1", "-t", "b", "--build-arg", "K=V=W", other),
		outcome{out: "a:1 sha256:abc\nb sha256:abc\n", err: "warning: CONTEXT X is empty\n"})
	check(t, otters(t.Context(), socket, "", "build", "-t", "a", "-f", "Other", other),
		outcome{code: exitUsage, err: "otters: build: " + other + " is a file, and -f names one of a folder; leave out -f, or name the folder\n"})
	want := &daemonv1.BuildOptions{Tags: []string{"a:1", "b"}, File: "Other", BuildArgs: map[string]string{"K": "V=W"}}
	if diff := cmp.Diff(want, f.last().(*daemonv1.BuildRequest).GetOptions(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	check(t, otters(t.Context(), socket, "", "build", "-t", "a", dir),
		outcome{code: 1, err: "otters: build " + dir + ": build folder: no Agentfile in it; write one, or name another with -f\n"})
	check(t, otters(t.Context(), socket, "", "build", "-t", "a", dir+"/none"),
		outcome{code: 1, err: "otters: build: " + dir + "/none: no such file or directory; name an Agentfile or a folder with one\n"})
}

func TestBuildFromStandardInput(t *testing.T) {
	t.Parallel()
	f := &fake{}
	socket := serve(t, f)
	var archive bytes.Buffer
	if err := client.WriteArchive(t.Context(), &archive, os.DirFS(guide(t))); err != nil {
		t.Fatal(err)
	}
	for what, in := range map[string]string{"an Agentfile": "FROM scratch\n", "an archive": archive.String()} {
		got := otters(t.Context(), socket, in, "build", "-t", "a", "-")
		if got.code != 0 || got.out != "a sha256:abc\n" {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if got := otters(t.Context(), socket, "", "build", "-t", "a", "-"); got.code != exitUsage || !strings.Contains(got.err, "standard input is empty") {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		in   string
		code int
		says string
		args []string
	}{
		{"\x1f\x8b\x08", exitFailed, "unexpected EOF", []string{"-"}},
		{"\x28\xb5\x2f\xfd...", exitUsage, "compressed with zstd", []string{"-"}},
		{"BZh9...", exitUsage, "compressed with bzip2", []string{"-"}},
		{"\xfd7zXZ...", exitUsage, "compressed with xz", []string{"-"}},
		{"FROM scratch\n", exitUsage, "can't be the folder and the Agentfile", []string{"-f", "-", "-"}},
		{"", exitUsage, "standard input is empty", []string{"-f", "-", t.TempDir()}},
		{strings.Repeat("#", spec.MaxSource+1), exitFailed, "larger than", []string{"-f", "-", t.TempDir()}},
		{"", exitUsage, "is no folder; fetch it first", []string{"https://host.example/agent.git"}},
		{"", exitUsage, "is no folder; fetch it first", []string{"git@host.example:agent.git"}},
	} {
		got := otters(t.Context(), socket, c.in, append([]string{"build", "-t", "a"}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%q: %+v, want %q", c.args, got, c.says)
		}
	}
	if got := otters(t.Context(), socket, "FROM scratch\n", "build", "-t", "a", "-f", "x", "-"); got.code != exitUsage {
		t.Errorf("%+v", got)
	}
}

func TestRunBuildsAFolder(t *testing.T) {
	t.Parallel()
	f := &fake{}
	socket := serve(t, f)
	for text, want := range map[string]string{"FROM scratch\nNAME My_Guide\n": "my-guide:latest@sha256:abc", "FROM scratch\n": "a-folder:latest@sha256:abc"} {
		dir := filepath.Join(t.TempDir(), "A folder")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "Agentfile"), text)
		got := otters(t.Context(), socket, "", "run", "-d", dir)
		if req, ok := f.last().(*daemonv1.CreateAgentRequest); got.code != 0 || !ok || req.GetImage() != want {
			t.Errorf("%+v %v", got, f.last())
		}
	}
	if got := otters(t.Context(), socket, "", "run", "./none"); got.code != 1 || !strings.Contains(got.err, "run: ./none") {
		t.Errorf("%+v", got)
	}
}

func TestRun(t *testing.T) {
	f := &fake{states: []*daemonv1.AgentSummary{{Status: "starting"}, {Id: "0199aaaa", Name: "n", Status: "ready"}}}
	socket := serve(t, f)
	t.Setenv("OTTERS_TEST_VALUE", "from outside")
	check(t, otters(t.Context(), socket, "", "run", "guide:1", "--name", "n", "--model", "p/m", "--runtime", "/r", "--sandbox", "limited", "--restart", "on-failure:3", "--stop-timeout", "1.5s", "--memory", "1.5G", "--cpus", "0.25", "--pids", "64", "-v", "/a/:workspace/a", "-v", "/b:/mnt/b:notes:ro", "-v", "/c:mnt/c:ro", "--allow-net", "example.com", "--allow-net", "*.a.test:8443", "--config", "max-steps=5", "--config", "k=", "-e", "A=1=2", "-e", "OTTERS_TEST_VALUE", "-e", "B="),
		outcome{out: "n 0199aaaa ready\n"})
	want := &daemonv1.CreateAgentRequest{Image: "guide:1", Name: "n", Model: "p/m", RuntimePath: "/r", Sandbox: "limited", AllowNet: []string{"example.com", "*.a.test:8443"}, Restart: "on-failure:3", StopTimeoutMs: proto.Int64(1500), MemoryLimit: 1536 << 20, CpuLimit: 250, PidsLimit: 64,
		Mounts: []*daemonv1.Mount{{Host: "/a", Target: "workspace/a"}, {Host: "/b", Target: "/mnt/b", Description: "notes", ReadOnly: true}, {Host: "/c", Target: "mnt/c", ReadOnly: true}}, Configs: map[string]string{"max-steps": "5", "k": ""},
		Envs: []*daemonv1.EnvVar{{Key: "A", Value: "1=2"}, {Key: "OTTERS_TEST_VALUE", Value: "from outside"}, {Key: "B"}}}
	if diff := cmp.Diff(proto.Message(want), f.last().(proto.Message), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	check(t, otters(t.Context(), socket, "", "run", "-d", "guide:1", "--name", "n"), outcome{out: "n 0199aaaa pulling\n"})
	// What its runtime says is to be known goes to standard error, once, and acts on no terminal.
	f.agents = []*daemonv1.Agent{{Summary: &daemonv1.AgentSummary{Id: "0199aaaa", Name: "n"}, Warnings: []string{"skill x:\n\x1b[2J"}}}
	check(t, otters(t.Context(), socket, "", "run", "guide:1"), outcome{out: "n 0199aaaa ready\n", err: "warning: n: skill x:; ␛[2J\n"})
	f.agents[0].Warnings = append(f.agents[0].Warnings, "b", "c")
	check(t, otters(t.Context(), socket, "", "start", "n"), outcome{out: "n 0199aaaa ready\n", err: "warning: n: skill x:; ␛[2J (and 2 more: see `otters inspect n`)\n"})
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	otters(t.Context(), socket, "", "run", "-d", "guide:1", "--runtime", "./r")
	if got := f.last().(*daemonv1.CreateAgentRequest).GetRuntimePath(); got != filepath.Join(here, "r") {
		t.Errorf("a relative runtime is sent as %q", got)
	}
}

func TestAnAgentThatIsStartedAgainSaysWhen(t *testing.T) {
	t.Parallel()
	a := someAgent()
	a.Summary.NextTryAtMs = time.Now().Add(90 * time.Minute).UnixMilli()
	socket := serve(t, &fake{agents: []*daemonv1.Agent{a}, states: []*daemonv1.AgentSummary{a.GetSummary()}})
	if got := otters(t.Context(), socket, "", "ps"); !regexp.MustCompile(`failed \(crashed\), restart 2 in 1h\d+m\d+s`).MatchString(got.out) {
		t.Error(got.out)
	}
	if got := otters(t.Context(), socket, "", "inspect", "guide"); !strings.Contains(got.out, "2 in a row, the last of them due at 2") {
		t.Error(got.out)
	}
	queued := someAgent()
	queued.Summary = &daemonv1.AgentSummary{Name: "q", Status: "starting", QueuePlace: 3}
	if got := otters(t.Context(), serve(t, &fake{agents: []*daemonv1.Agent{queued}}), "", "ps"); !strings.Contains(got.out, "starting, place 3 in the queue") {
		t.Error(got.out)
	}
	got := otters(t.Context(), socket, "", "run", "guide:1", "--name", "guide")
	if got.code != 1 || !strings.Contains(got.err, "it is started again by itself; `otters ps` shows when, `otters stop guide` ends that\n") {
		t.Error(got)
	}
}

func TestRunThatFailsShowsWhy(t *testing.T) {
	t.Parallel()
	a := someAgent()
	socket := serve(t, &fake{agents: []*daemonv1.Agent{a}, states: []*daemonv1.AgentSummary{a.GetSummary()}})
	why := ": failed (crashed): the runtime ended with code 1; see `otters logs guide`, then `otters start guide` again, or `otters rm guide`\n  reading\n  boom ␛[31m\n"
	check(t, otters(t.Context(), socket, "", "run", "guide:1", "--name", "guide"), outcome{code: 1, err: "otters: run guide" + why})
	check(t, otters(t.Context(), socket, "", "start", "guide"), outcome{code: 1, err: "otters: start guide" + why})
}

func TestStopAndRemoveSeveral(t *testing.T) {
	t.Parallel()
	b := someAgent()
	b.Summary.Name, b.Summary.Id = "b", "id-b"
	f := &fake{agents: []*daemonv1.Agent{someAgent(), b}}
	socket := serve(t, f)
	missing := "otters: agent \"none\": not found; list agents with `otters ps`\n"
	check(t, otters(t.Context(), socket, "", "stop", "guide", "none", "b"), outcome{code: 1, out: "guide\nb\n", err: missing})
	check(t, otters(t.Context(), socket, "", "rm", "none", "none", "id-b"), outcome{code: 1, out: "b\n", err: missing + missing})
	check(t, otters(t.Context(), socket, "", "rm", "-f", "guide"), outcome{out: "guide\n"})
	if r := f.last().(*daemonv1.RemoveAgentRequest); !r.GetForce() {
		t.Error("-f is not sent")
	}
}
