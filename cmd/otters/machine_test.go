package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/otters-sh/otters/internal/testprograms"
)

// patience bounds what is over at once on an idle machine.
const patience = 5 * time.Minute

// built is where the real programs are, built once with the flags of a release.
var built = testprograms.Of("cmd/otters", "cmd/ottersd", "cmd/otters-runtime", "cmd/otters-sandbox", "cmd/otters-tools")

func TestMain(m *testing.M) {
	code := m.Run()
	if err := built.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func programs(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the real programs")
	}
	return built.For(t)
}

// machine is a fresh home with the real programs.
type machine struct {
	t    *testing.T
	bin  string
	dir  string
	home string
	// env is more of the environment, KEY=VALUE.
	env []string
	// skopeo tells that the machine has one that reads archives.
	skopeo bool
}

// newMachine ends everything of its folder at the end of the test, and fails where the test left
// something running.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, bin: programs(t), dir: tempDir(t)}
	m.home = filepath.Join(m.dir, "home")
	t.Cleanup(func() {
		if t.Failed() {
			if log, err := os.ReadFile(filepath.Join(m.home, "logs", "ottersd.log")); err == nil {
				t.Logf("ottersd.log:\n%s", log)
			}
		}
		m.otters("daemon", "stop", "--stop-agents")
		m.nothingRuns()
	})
	return m
}

// newHome is a machine whose daemon gives runtimes all the time that they need to be ready on a busy one.
func newHome(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.configure("ready-timeout: " + patience.String() + "\n")
	return m
}

func (m *machine) configure(text string) {
	m.t.Helper()
	if err := os.MkdirAll(m.home, 0o711); err != nil {
		m.t.Fatal(err)
	}
	writeFile(m.t, filepath.Join(m.home, "config.yaml"), text)
}

func (m *machine) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(m.bin, "otters"), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir, "OTTERS_HOME=" + m.home, "TMPDIR=" + m.dir}
	cmd.Env = append(cmd.Env, m.env...)
	cmd.Dir = m.dir
	cmd.WaitDelay = patience
	return cmd
}

func (m *machine) otters(args ...string) outcome { return m.ottersIn("", args...) }

func (m *machine) ottersIn(in string, args ...string) outcome {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := m.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.t.Errorf("otters %q: %v", args, err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// must runs a command that has to succeed.
func (m *machine) must(args ...string) outcome {
	m.t.Helper()
	got := m.otters(args...)
	if got.code != 0 {
		m.t.Fatalf("otters %q: %+v", args, got)
	}
	return got
}

// survivors finds processes by what the kernel shows of them: started for the folder, or in it.
func (m *machine) survivors() []string {
	m.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		m.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, sign := range []string{"cmdline", "environ", "maps"} {
			text, err := os.ReadFile(filepath.Join("/proc", e.Name(), sign))
			if err == nil && bytes.Contains(text, []byte(m.dir+"/")) {
				comm, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
				out = append(out, e.Name()+" "+strings.TrimSpace(string(comm)))
				break
			}
		}
	}
	return out
}

func (m *machine) nothingRuns() {
	m.t.Helper()
	left := m.survivors()
	if len(left) == 0 {
		return
	}
	m.t.Errorf("processes are left: %v", left)
	for _, s := range left {
		pid, err := strconv.Atoi(strings.Fields(s)[0])
		if err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// nothingLeft checks for processes and for files in the machine's folder.
func (m *machine) nothingLeft() {
	m.t.Helper()
	m.nothingRuns()
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range entries {
		m.t.Errorf("left behind: %s", e.Name())
	}
}

// guide is the folder of the demo agent.
func guide(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../testdata/agents/guide")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
