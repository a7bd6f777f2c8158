package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Invariant: every way out of the demo leaves no process and no file, but for success with --keep.
// Worst inputs: Ctrl-C before the daemon listens; Ctrl-C twice; a reader that goes away.

func TestDemo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	began := time.Now()
	got := m.must("demo")
	t.Logf("the demo took %s", time.Since(began))
	for _, want := range []string{
		"== otters build", "guide is ready", "→ jq", "← jq", "step 1 took", "turn took",
		"agent's tree", "registry", "confinement   ",
		"guide is stopped", "nothing is left",
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("the demo does not show %q", want)
		}
	}
	if strings.Count(got.out, "== otters prompt") != 3 || got.err != "" {
		t.Errorf("demo: %s%s", got.out, got.err)
	}
	m.nothingLeft()
}

func TestDemoKeepCanBeGoneOnWith(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	got := m.must("demo", "--keep")
	home := regexp.MustCompile(`export OTTERS_HOME=(\S+)`).FindStringSubmatch(got.out)
	if home == nil {
		t.Fatalf("no home named: %s", got.out)
	}
	m.home = home[1]
	if got := m.must("ps"); !regexp.MustCompile(`guide .* (ready|working) `).MatchString(got.out) {
		t.Errorf("ps: %s", got.out)
	}
	m.must("prompt", "guide", "who are you?")
	m.must("daemon", "stop", "--stop-agents")
	m.nothingRuns()
	if err := os.RemoveAll(m.home); err != nil {
		t.Fatal(err)
	}
	m.nothingLeft()
}

// started runs the demo until it has printed the marker; nothing is waited for where it is empty.
func (m *machine) started(marker string) (*exec.Cmd, *os.File, *bytes.Buffer) {
	t := m.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	cmd := m.command(ctx, "demo")
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	errs := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = w, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	lines := bufio.NewScanner(out)
	for marker != "" && lines.Scan() {
		if strings.Contains(lines.Text(), marker) {
			break
		}
	}
	return cmd, out, errs
}

func TestDemoInterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after  string
		pause  time.Duration
		signal syscall.Signal
	}{
		"at once":             {"", 0, syscall.SIGINT},
		"a little later":      {"", 15 * time.Millisecond, syscall.SIGINT},
		"daemon starts":       {"== a daemon of its own", 10 * time.Millisecond, syscall.SIGINT},
		"daemon answers":      {"ottersd ", 0, syscall.SIGTERM},
		"building":            {"== otters build", 0, syscall.SIGINT},
		"agent starts":        {"== otters run", 3 * time.Millisecond, syscall.SIGINT},
		"agent starts, later": {"== otters run", 30 * time.Millisecond, syscall.SIGINT},
		"agent is ready":      {"is ready", 0, syscall.SIGINT},
		"tool is called":      {"→ ", 0, syscall.SIGHUP},
		"agent stops":         {"== otters stop", 0, syscall.SIGINT},
		"at the very end":     {"guide is stopped", 0, syscall.SIGINT},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			cmd, out, errs := m.started(c.after)
			time.Sleep(c.pause)
			for range 2 {
				if err := cmd.Process.Signal(c.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
					t.Fatal(err)
				}
			}
			rest, err := io.ReadAll(out)
			if err != nil {
				t.Fatal(err)
			}
			err = cmd.Wait()
			code := cmd.ProcessState.ExitCode()
			// Before the program listens to signals, the signal itself ends it; there is nothing yet.
			early := c.after == "" && code == -1
			if code != exitInterrupted && code != 0 && !early {
				t.Errorf("exit %v, %s%s", err, rest, errs)
			}
			m.nothingLeft()
		})
	}
}

func TestDemoWhoseReaderGoesAwayLeavesNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	cmd, out, errs := m.started("is ready")
	out.Close()
	if err := cmd.Wait(); err == nil {
		t.Errorf("succeeded without a reader: %s", errs)
	}
	m.nothingLeft()
}

func TestDemoWithoutDaemonProgramLeavesNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	alone := filepath.Join(m.dir, "alone")
	if err := os.Mkdir(alone, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(filepath.Join(m.bin, "otters"))
	if err != nil {
		t.Fatal(err)
	}
	writeProgram(t, filepath.Join(alone, "otters"), string(program), 0o755)
	with := *m
	with.bin = alone
	if got := with.otters("demo"); got.code != 1 || !strings.Contains(got.err, "ottersd: no such program beside ") {
		t.Errorf("%+v", got)
	}
	if err := os.RemoveAll(alone); err != nil {
		t.Fatal(err)
	}
	m.nothingLeft()
}
