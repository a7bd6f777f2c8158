//go:build linux

package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/otters-sh/otters/sandbox"
)

// Invariant: a log that goes on in another file loses no line, cuts none, and nothing comes to the one
// before. Worst input: a program that writes as fast as it can.
func TestALogGoesOnInAnotherFileWithoutALineLost(t *testing.T) {
	t.Parallel()
	const lines, files = 20_000, 20
	spec := shell(t, "i=0; while [ $i -lt "+strconv.Itoa(lines)+" ]; do i=$((i+1)); echo $i; done; exit 4")
	paths := []string{logFile(t, &spec)}
	p := start(t, newLauncher(t, sandbox.LauncherOptions{}), spec)
	for range files {
		path := filepath.Join(t.TempDir(), "next")
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		err = p.SwitchLog(deadline(t), f, 0)
		_ = f.Close()
		if errors.Is(err, sandbox.ErrNotRunning) {
			break // it was faster
		}
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if exit := wait(t, p); exit.Code != 4 {
		t.Errorf("exit %+v", exit)
	}
	n := 0
	for _, path := range paths {
		for _, l := range readLog(t, path) {
			if l.Stream != "stdout" {
				continue
			}
			if n++; l.Line != strconv.Itoa(n) {
				t.Fatalf("line %d is %q", n, l.Line)
			}
		}
	}
	if n != lines {
		t.Errorf("%d lines, want %d", n, lines)
	}
	f, err := os.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := p.SwitchLog(deadline(t), f, 0); err == nil {
		t.Error("a file that is not opened for appending was taken")
	}
}
