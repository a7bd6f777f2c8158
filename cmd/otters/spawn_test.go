package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// Invariant: a daemon that does not come up is told with its own words and leaves no process. Worst
// inputs: one that ends without a word, one that never listens, one that does not obey.

// daemonScript puts a program in the place of ottersd and returns a folder for homes.
func daemonScript(t *testing.T, script string) string {
	t.Helper()
	bin := t.TempDir()
	writeProgram(t, filepath.Join(bin, "ottersd"), "#!/bin/sh\n"+script+"\n", 0o755)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("OTTERS_HOME", "")
	return tempDir(t)
}

func runApp(ctx context.Context, args ...string) outcome {
	var out, errs bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, err: &errs}
	code := a.run(ctx, args)
	return outcome{code, out.String(), errs.String()}
}

func TestDaemonThatEndsAtOnceIsToldInItsWords(t *testing.T) {
	dir := daemonScript(t, `echo "level=INFO msg=x" >&2; echo "ottersd: lock home: taken; choose another" >&2; exit 1`)
	home := filepath.Join(dir, "h")
	for range 2 { // the second time there is a log already
		check(t, runApp(t.Context(), "daemon", "start", "--home", home),
			outcome{code: 1, err: "otters: daemon start: ottersd: lock home: taken; choose another\n"})
	}
	log, err := os.ReadFile(filepath.Join(home, "logs", "ottersd.log"))
	if err != nil || strings.Count(string(log), "taken") != 2 {
		t.Errorf("log %q, %v", log, err)
	}
}

func TestDaemonThatEndsWithoutAWord(t *testing.T) {
	dir := daemonScript(t, "exit 7")
	log := filepath.Join(dir, "logs", "ottersd.log")
	writeLog := []byte("ottersd: of an earlier one\n")
	if err := os.MkdirAll(filepath.Dir(log), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, writeLog, 0o600); err != nil {
		t.Fatal(err)
	}
	check(t, runApp(t.Context(), "daemon", "start", "--home", dir),
		outcome{code: 1, err: "otters: daemon start: ottersd ended without a word (exit status 7); see " + log + "\n"})
}

func TestDaemonThatNeverListensIsEndedWithTheWait(t *testing.T) {
	dir := daemonScript(t, `echo $$ > "$2/pid"; exec sleep 600`)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for ctx.Err() == nil {
			if text, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil && bytes.HasSuffix(text, []byte("\n")) {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if got := runApp(ctx, "daemon", "start", "--home", dir); got.code != exitInterrupted {
		t.Errorf("%+v", got)
	}
	if left, err := related(dir, 1<<30, nil); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestDaemonThatDoesNotObeyIsKilled(t *testing.T) {
	dir := daemonScript(t, `trap "" TERM; echo $$ > "$2/pid"; exec sleep 600`)
	d, err := startDaemon(dir, filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	for {
		if text, err := os.ReadFile(filepath.Join(dir, "pid")); err == nil && len(text) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := d.end(t.Context(), 20*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, running := lookAt(d.cmd.Process.Pid); running {
		t.Error("it still runs")
	}
}

func TestDemoWhoseDaemonFailsLeavesNothing(t *testing.T) {
	dir := daemonScript(t, `echo "ottersd: no luck" >&2; exit 1`)
	t.Setenv("TMPDIR", dir)
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs}
	err := a.demo(t.Context(), fstest.MapFS{}, false)
	if err == nil || err.Error() != "demo: ottersd: no luck" {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestDemoInAFolderThatIsTooDeepLeavesNothing(t *testing.T) {
	dir := filepath.Join(tempDir(t), strings.Repeat("d", 100))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	var out, errs bytes.Buffer
	a := &app{out: &out, err: &errs}
	if err := a.demo(t.Context(), fstest.MapFS{}, false); err == nil || !strings.Contains(err.Error(), "set TMPDIR") {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
