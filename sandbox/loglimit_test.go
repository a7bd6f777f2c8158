//go:build linux

package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/otters-sh/otters/sandbox"
)

// Invariant: a file of a log never grows beyond its limit and what Spec.LogLimit states, and no line
// that was read is lost without being counted. Worst inputs: a line without an end, output whose lines
// are a byte each on both streams, a stop or an exit while the log is full and nobody rotates it.

const (
	testLimit = 128 << 10
	overLimit = 1 << 20
)

// nextLog is a file for a log to go on in.
func nextLog(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "next"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// fills waits until the log at path has size bytes.
func fills(t *testing.T, path string, size int64) {
	t.Helper()
	for ctx := deadline(t); ; time.Sleep(time.Millisecond) {
		info, err := os.Stat(path)
		if err != nil || ctx.Err() != nil {
			t.Fatalf("not full: %v, %v", info, err)
		}
		if info.Size() >= size {
			return
		}
	}
}

func bounded(t *testing.T, path string) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Size() > testLimit+overLimit {
		t.Errorf("%s: %d bytes, %v", path, info.Size(), err)
	}
}

// lostLines is how many lines the log says were lost.
func lostLines(t *testing.T, all []logLine) int {
	t.Helper()
	sum := 0
	for _, l := range all {
		if l.Stream != "monitor" {
			continue
		}
		var n int
		if _, err := fmt.Sscanf(l.Line, "%d lines lost: the log was full", &n); err != nil {
			t.Errorf("%q", l.Line)
		}
		sum += n
	}
	return sum
}

func TestAFullLogHoldsItsProgramUpAndLosesNothing(t *testing.T) {
	t.Parallel()
	// More than four files take, each with a write beyond its limit.
	const lines = 8_000
	spec := shell(t, "i=0; while [ $i -lt "+strconv.Itoa(lines)+" ]; do i=$((i+1)); echo $i; echo $i >&2; done; read x; exit 4")
	spec.LogLimit = testLimit
	// It does not end before all of it is in the log: what waits in its pipes is given up after a while.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	spec.Stdin = r
	r.Fd() // makes it blocking, which a shell needs
	paths := []string{logFile(t, &spec)}
	p := start(t, newLauncher(t, sandbox.LauncherOptions{}), spec)
	for len(paths) < 100 {
		fills(t, paths[len(paths)-1], testLimit)
		f := nextLog(t)
		limit := int64(testLimit)
		if len(paths) == 4 {
			limit = 0 // as a daemon that knows of none asks
		}
		if err := p.SwitchLog(deadline(t), f, limit); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, f.Name())
		if limit == 0 {
			break
		}
	}
	for ctx, all := deadline(t), 0; all < 2*lines; time.Sleep(time.Millisecond) {
		all = 0
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil || ctx.Err() != nil {
				t.Fatalf("%d lines of %d: %v", all, 2*lines, err)
			}
			all += bytes.Count(b, []byte("\n"))
		}
	}
	if _, err := w.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Code != 4 {
		t.Errorf("exit %+v", exit)
	}
	next := map[string]int{"stdout": 1, "stderr": 1}
	for i, path := range paths {
		if i < len(paths)-1 {
			bounded(t, path)
		}
		for _, l := range readLog(t, path) {
			if l.Line != strconv.Itoa(next[l.Stream]) {
				t.Fatalf("%s: line %d is %q", l.Stream, next[l.Stream], l.Line)
			}
			next[l.Stream]++
		}
	}
	if next["stdout"] != lines+1 || next["stderr"] != lines+1 {
		t.Errorf("next lines %v", next)
	}
}

func TestAProgramEndsThoughNobodyRotatesItsFullLog(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	for name, c := range map[string]struct {
		text  string
		grace time.Duration
		code  int // -1 where it is killed
	}{
		"exits by itself":      {"i=0; while [ $i -lt 1700 ]; do i=$((i+1)); echo $i a line that fills the log up little by little; done; echo why >&2; exit 7", -1, 7},
		"asked to stop":        {"trap 'echo why >&2; exit 7' TERM; while :; do echo a flood; done", time.Minute, 7},
		"killed":               {"echo why >&2; exec yes a flood", 0, -1},
		"without a line's end": {"echo why >&2; exec tr '\\0' '\\1' </dev/zero", 0, -1},
		"empty lines":          {"echo why >&2; exec yes ''", 0, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := shell(t, c.text)
			spec.LogLimit = testLimit
			path := logFile(t, &spec)
			p := start(t, l, spec)
			fills(t, path, testLimit)
			if c.grace >= 0 {
				if err := p.Stop(context.Background(), c.grace); err != nil {
					t.Fatal(err)
				}
			}
			exit := wait(t, p)
			if exit.Code != c.code || len(exit.Stderr) == 0 || exit.Stderr[len(exit.Stderr)-1] != "why" {
				t.Errorf("exit %+v", exit)
			}
			bounded(t, path)
			all := readLog(t, path)
			lost := lostLines(t, all)
			// What a pipe holds of lines of this length has the room that is kept.
			if name == "exits by itself" && (len(all) != 1701 || lost != 0) {
				t.Errorf("%d lines, %d lost", len(all), lost)
			}
		})
	}
}

// A daemon that comes late, or could not rotate a log, hears of a full one again and again.
func TestAFullLogIsHeardOfAtEveryLevel(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l *sandbox.Launcher, level sandbox.Level) {
		spec := newWorld(t).spec(t, level, "while :; do echo a flood; done")
		spec.LogLimit = testLimit
		path := logFile(t, &spec)
		start(t, l, spec)
		fills(t, path, testLimit)
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			t.Fatal(err)
		}
		defer watcher.Close()
		if err := watcher.Add(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		// The first may be of a write that was under way.
		for heard := 0; heard < 2; {
			select {
			case e := <-watcher.Events:
				if e.Name == path {
					heard++
				}
			case <-deadline(t).Done():
				t.Fatalf("heard of %d times", heard)
			}
		}
		bounded(t, path)
	})
}

func TestLinesLostInAStopAreCounted(t *testing.T) {
	t.Parallel()
	spec := shell(t, "trap '' TERM; exec seq 1 1000000000")
	spec.LogLimit = testLimit
	paths := []string{logFile(t, &spec)}
	p := start(t, newLauncher(t, sandbox.LauncherOptions{}), spec)
	fills(t, paths[0], testLimit)
	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop(t.Context(), long) }()
	for told := false; !told; {
		// That it goes on beyond the limit shows that nothing waits any more.
		fills(t, paths[len(paths)-1], testLimit+overLimit/2)
		f := nextLog(t)
		if err := p.SwitchLog(deadline(t), f, testLimit); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, f.Name())
		fills(t, f.Name(), 1)
		b, err := os.ReadFile(f.Name())
		told = err != nil || strings.Contains(string(b), "lines lost")
	}
	if err := p.Stop(deadline(t), 0); err != nil {
		t.Fatal(err)
	}
	wait(t, p)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	next, lost := 1, 0
	for _, path := range paths {
		bounded(t, path)
		for _, l := range readLog(t, path) {
			if l.Stream == "monitor" {
				n := lostLines(t, []logLine{l})
				next, lost = next+n, lost+n
				continue
			}
			// The kill may have cut the very last in two.
			if n, err := strconv.Atoi(l.Line); err != nil || n != next && !strings.HasPrefix(strconv.Itoa(next), l.Line) {
				t.Fatalf("%s: got %q, want %d", path, l.Line, next)
			}
			next++
		}
	}
	if lost == 0 {
		t.Error("nothing was lost")
	}
}

func TestALogThatWasRemovedHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	spec := shell(t, "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); echo $i; done; read x; exit 4")
	spec.LogLimit = testLimit
	path := logFile(t, &spec)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	spec.Stdin = r
	r.Fd() // makes it blocking, which a shell needs
	p := start(t, newLauncher(t, sandbox.LauncherOptions{}), spec)
	// The program reads it once all but what a pipe holds is written or lost.
	if _, err := w.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, p); exit.Code != 4 {
		t.Errorf("exit %+v", exit)
	}
	info, err := spec.Log.Stat()
	if err != nil || info.Size() > testLimit+overLimit {
		t.Errorf("%v %v", info, err)
	}
}
