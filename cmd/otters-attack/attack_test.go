//go:build linux

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/otters-sh/otters/internal/breakout"
	"github.com/otters-sh/otters/internal/testprograms"
	"github.com/otters-sh/otters/sandbox"
)

// Invariant: what gets out at a level is what docs/security.md lists for it, no more and no less,
// under a root daemon and under an ordinary user's. The three worst inputs: an attack that
// succeeds and is not listed, a listed one that no longer succeeds although the host would let it,
// and a sandbox in which nothing works, so that every attack fails.

const (
	// fewest is how many ways out there must be at the least.
	fewest = 80
	// ordinary is the user id of an ordinary user, where the test runs as root; nobody else has it.
	ordinary = 64123
	patience = 8 * time.Minute

	levelVariable = "OTTERS_ATTACK_TEST_LEVEL"
	// limitsVariable asks for an attacker with limits.
	limitsVariable = "OTTERS_ATTACK_TEST_LIMITS"
)

// built are the programs under test.
var built struct{ attack, monitor, setuid, self string }

func TestMain(m *testing.M) {
	if level := os.Getenv(levelVariable); level != "" {
		os.Exit(asUser(sandbox.Level(level)))
	}
	code, err := withPrograms(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withPrograms(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "otters-attack-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	// The ordinary user starts them too.
	if err := os.Chmod(dir, 0o755); err != nil {
		return 0, err
	}
	programs := testprograms.Of("cmd/otters-attack", "cmd/otters-sandbox")
	defer programs.Remove()
	bin, err := programs.Dir()
	if err != nil {
		return 0, err
	}
	built.attack, built.monitor = filepath.Join(bin, "otters-attack"), filepath.Join(bin, "otters-sandbox")
	// The sandbox looks for its monitor there.
	if err := os.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH")); err != nil {
		return 0, err
	}
	if os.Geteuid() == 0 {
		built.setuid = filepath.Join(dir, "setuid")
		if err := breakout.CopySetuid(built.attack, built.setuid); err != nil {
			return 0, err
		}
		// The folder of the go command is not everyone's: the ordinary user gets a copy.
		self, err := os.Executable()
		if err != nil {
			return 0, err
		}
		code, err := os.ReadFile(self)
		if err != nil {
			return 0, err
		}
		built.self = filepath.Join(dir, "test")
		// Whatever the umask is.
		if err := errors.Join(os.WriteFile(built.self, code, 0o755), os.Chmod(built.self, 0o755)); err != nil {
			return 0, err
		}
	}
	return m.Run(), nil
}

// asUser attacks as the user that this process was started as, and prints the reports.
func asUser(level sandbox.Level) int {
	// What a daemon may have got from whoever started it, and must not pass on.
	signal.Ignore(syscall.SIGHUP)
	syscall.Umask(0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var o outcome
	var limits sandbox.Limits
	limited := os.Getenv(limitsVariable) != ""
	if limited {
		limits = enforced(os.Args[2], level)
		for id, n := range map[string]int64{"memory-bomb": limits.Memory, "fork-bomb": limits.PIDs} {
			if n > 0 {
				o.Bounded = append(o.Bounded, id)
			}
		}
	}
	var err error
	if !limited || len(o.Bounded) > 0 {
		o.Reports, err = breakout.Run(ctx, breakout.Options{
			Limits: limits,
			Attack: os.Args[1], Monitor: os.Args[2], Setuid: os.Args[3], Level: level,
			// Once for each daemon: it is the same at every level.
			Bare: level == sandbox.Off && !limited,
		})
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// outcome is what asUser prints.
type outcome struct {
	// Bounded are the bombs that a limit is in force for.
	Bounded []string          `json:"bounded"`
	Reports []breakout.Report `json:"reports"`
}

// enforced are those of the test's limits that this host enforces at a level for this user.
func enforced(monitor string, level sandbox.Level) sandbox.Limits {
	var all sandbox.Limits
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: monitor, Warm: -1})
	if err != nil {
		return all
	}
	defer l.Close()
	if _, err := l.LimitedBy(level, sandbox.Limits{Memory: 256 << 20}); err == nil {
		all.Memory = 256 << 20
	}
	if _, err := l.LimitedBy(level, sandbox.Limits{PIDs: 300}); err == nil {
		all.PIDs = 300
	}
	return all
}

// attack runs everything in a process of its own, as root or as the ordinary user.
func attack(t *testing.T, level sandbox.Level, daemon string, env ...string) outcome {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "otters-attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(tmp)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
		os.RemoveAll(tmp)
	})
	setuid := built.setuid
	cmd := exec.Command(self, built.attack, built.monitor, setuid)
	cmd.Dir = "/"
	cmd.Env = []string{levelVariable + "=" + string(level), "TMPDIR=" + tmp, "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0", "OPENAI_API_KEY=of-the-daemon"}
	cmd.Env = append(cmd.Env, env...)
	mode := os.FileMode(0o711)
	if daemon == "user" && os.Geteuid() == 0 {
		mode = 0o700
		cmd.Path = built.self
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
		if err := os.Chown(tmp, ordinary, ordinary); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(tmp, mode); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var o outcome
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		t.Fatalf("%v: %s", err, stdout.String())
	}
	return o
}

func TestNothingGetsOutThatIsNotListed(t *testing.T) {
	t.Parallel()
	listed := exceptions(t)
	daemons := []string{"user"}
	if os.Geteuid() == 0 {
		daemons = []string{"root"}
		if os.Getenv("OTTERS_LOAD") != "" { // make load
			daemons = []string{"root", "user"}
		}
	}
	known := map[string]bool{}
	bare := map[string]map[string]bool{}
	for _, level := range sandbox.Supported() {
		for _, daemon := range daemons {
			t.Run(string(level)+"/"+daemon, func(t *testing.T) {
				reports := attack(t, level, daemon).Reports
				if level == sandbox.Off {
					bare[daemon], reports = splitBare(reports)
				}
				title := fmt.Sprintf("%s under a daemon of %s", level, daemon)
				var table strings.Builder
				if err := breakout.Print(&table, []breakout.Column{{Title: title, Reports: reports}}); err != nil {
					t.Error(err)
				}
				t.Log("\n" + table.String())
				check(t, reports, bare[daemon], string(level), daemon, listed)
				for _, r := range reports {
					known[r.ID] = true
				}
			})
		}
	}
	for _, e := range listed {
		if !known[e.id] {
			t.Errorf("docs/security.md lists %s, which is no attack", e.id)
		}
	}
}

// splitBare tells what succeeds without a sandbox, and takes it from the reports.
func splitBare(reports []breakout.Report) (map[string]bool, []breakout.Report) {
	bare := map[string]bool{}
	return bare, slices.DeleteFunc(reports, func(r breakout.Report) bool {
		if r.Role == breakout.Bare && r.Outcome == breakout.Succeeded {
			bare[r.ID] = true
		}
		return r.Role == breakout.Bare
	})
}

// K7: with limits the bombs do not go off, and nothing else gets out for that. Where a limit can be
// had without control groups, for an ordinary user at strict, is what runs each time.
func TestLimitsBoundTheBombs(t *testing.T) {
	t.Parallel()
	levels, daemons := []sandbox.Level{sandbox.Strict}, []string{"user"}
	if os.Getenv("OTTERS_LOAD") != "" { // make load
		levels = []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict}
		if os.Geteuid() == 0 {
			daemons = []string{"root", "user"}
		}
	}
	listed := exceptions(t)
	for _, level := range levels {
		for _, daemon := range daemons {
			t.Run(string(level)+"/"+daemon, func(t *testing.T) {
				if !slices.Contains(sandbox.Supported(), level) {
					t.Skip("this host does not give level " + string(level))
				}
				o := attack(t, level, daemon, limitsVariable+"=1")
				if len(o.Bounded) == 0 {
					t.Skip("no limit of memory or processes can be had here")
				}
				t.Log("bounded:", o.Bounded)
				allowed := listedFor(listed, string(level), daemon)
				for _, r := range o.Reports {
					_, known := allowed[r.ID]
					bounded := slices.Contains(o.Bounded, r.ID)
					if r.Outcome == breakout.Succeeded && !known || bounded && r.Outcome != breakout.Denied || r.Twin != "ok" {
						t.Errorf("%s, as %s: %s: %s; twin %s: %s", r.ID, r.Role, r.Outcome, r.Evidence, r.Twin, r.TwinEvidence)
					}
				}
			})
		}
	}
}

// check compares what succeeded, as runtime or as tool, with what is listed. What is listed for
// some hosts must succeed where the host gives it to a process without a sandbox.
func check(t *testing.T, reports []breakout.Report, bare map[string]bool, level, daemon string, listed []exception) {
	t.Helper()
	allowed := listedFor(listed, level, daemon)
	ids := map[string]bool{}
	succeeded := map[string]bool{}
	for _, r := range reports {
		ids[r.ID] = true
		switch r.Outcome {
		case breakout.Succeeded:
			succeeded[r.ID] = true
			if _, ok := allowed[r.ID]; !ok {
				t.Errorf("%s, as %s: %s: succeeded and is not listed: %s", r.ID, r.Role, r.Name, r.Evidence)
			}
		case breakout.Denied, breakout.Skipped:
		default:
			t.Errorf("%s, as %s: %s: %s", r.ID, r.Role, r.Outcome, r.Evidence)
		}
		if r.Twin != "ok" {
			t.Errorf("%s, as %s: its twin is %s: %s", r.ID, r.Role, r.Twin, r.TwinEvidence)
		}
	}
	for id, e := range allowed {
		if !succeeded[id] && (!e.host || bare[id]) {
			t.Errorf("%s: listed and did not succeed: take it off the list of level %s", id, level)
		}
	}
	if len(ids) < fewest {
		t.Errorf("%d attacks, want %d", len(ids), fewest)
	}
}

// exception is a line of the list in docs/security.md.
type exception struct {
	level   string
	daemons []string
	id      string
	// host tells that it depends on the host whether it succeeds.
	host bool
}

// listedFor are the lines for a level and a daemon, by their attack.
func listedFor(all []exception, level, daemon string) map[string]exception {
	found := map[string]exception{}
	for _, e := range all {
		if e.level == level && slices.Contains(e.daemons, daemon) {
			found[e.id] = e
		}
	}
	return found
}

// exceptions reads the list: level, daemons, "always" or "host", the attack's id, and why.
func exceptions(t *testing.T) []exception {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "```attacks\n")
	if !ok {
		t.Fatal("docs/security.md has no list")
	}
	block, _, _ := strings.Cut(rest, "```")
	var all []exception
	seen := map[string]bool{}
	for line := range strings.Lines(block) {
		f := strings.Fields(line)
		if len(f) < 5 || f[2] != "always" && f[2] != "host" || !slices.Contains([]string{"off", "limited", "strict"}, f[0]) {
			t.Errorf("docs/security.md: %q: want level, daemons, always or host, id, why", strings.TrimSpace(line))
			continue
		}
		daemons := strings.Split(f[1], ",")
		for _, d := range daemons {
			key := f[0] + " " + d + " " + f[3]
			if d != "root" && d != "user" || seen[key] {
				t.Errorf("docs/security.md: %q: not root or user, or listed twice", strings.TrimSpace(line))
			}
			seen[key] = true
		}
		all = append(all, exception{level: f[0], daemons: daemons, host: f[2] == "host", id: f[3]})
	}
	return all
}

// What the table does not run: the program refuses what it does not know.
func TestTheProgramSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nothing":         {nil, "no command"},
		"a command":       {[]string{"break"}, `unknown command "break"`},
		"an option":       {[]string{"run", "--hard"}, "hard"},
		"an argument":     {[]string{"run", "hard"}, "hard"},
		"targets":         {[]string{"run", "--targets", "{"}, "targets"},
		"an attack":       {[]string{"run", "--only", "wish"}, `no attack "wish"`},
		"a role's attack": {[]string{"role-attack", "wish"}, `no "wish"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(built.attack, c.args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Run(); err == nil || !strings.Contains(stderr.String(), c.want) {
				t.Errorf("%v: %q, want %q", err, stderr.String(), c.want)
			}
		})
	}
	out, err := exec.Command(built.attack, "run", "--only", "leak-umask").Output()
	if err != nil || !bytes.Contains(out, []byte(`"id":"leak-umask"`)) {
		t.Errorf("%v: %s", err, out)
	}
}

// An attack's id stands for it in docs/security.md: it is there once, and covers a known case.
func TestEveryAttackIsToldApart(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(built.attack, "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 5 || seen[f[0]] || f[len(f)-2] != "twin" {
			t.Errorf("%q: listed twice, or without cases, name or twin", line)
			continue
		}
		seen[f[0]] = true
		if !strings.ContainsAny(f[1][:1], "PKNA") {
			t.Errorf("%s covers %q", f[0], f[1])
		}
	}
	if len(seen) < fewest {
		t.Errorf("%d attacks, want %d", len(seen), fewest)
	}
}
