package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// child is a process as /proc has it.
type child struct {
	pid          int32
	command, cwd string
}

// childrenOf lists the direct children of a process that run.
func childrenOf(t *testing.T, parent int) []child {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var out []child
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		// The name in parentheses may have anything in it.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" || fields[1] != strconv.Itoa(parent) {
			continue
		}
		var c child
		if _, err := fmt.Sscanf(filepath.Base(filepath.Dir(path)), "%d", &c.pid); err != nil {
			t.Fatal(err)
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		c.command = strings.ReplaceAll(string(command), "\x00", " ")
		c.cwd, _ = os.Readlink(filepath.Join(filepath.Dir(path), "cwd"))
		out = append(out, c)
	}
	return out
}
