package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// seen is a process at a moment; the time of its start tells it from a later one with its number.
type seen struct {
	pid, parent int
	started     string
}

// processTable reads the processes that /proc shows.
func processTable() ([]seen, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("processes: %w", err)
	}
	var out []seen
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := lookAt(pid); ok {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// lookAt reads one process; a zombie is none.
func lookAt(pid int) (seen, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return seen{}, false
	}
	// The name in parentheses may hold anything; the fields after the last one are numbers
	// (proc_pid_stat(5)): state, parent, and the start as the 20th.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return seen{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	return seen{pid, parent, fields[19]}, err == nil
}

// below returns every process that came from pid and has not lost its parents since.
func below(table []seen, pid int) []seen {
	var out []seen
	for _, p := range table {
		if p.parent == pid && p.pid != pid {
			out = append(append(out, p), below(table, p.pid)...)
		}
	}
	return out
}

// mentions tells whether a process was started for the folder, or works in it. An argument counts
// for our own programs only: somebody may be reading a log of the demo.
func mentions(pid int, folder string) bool {
	base := fmt.Sprintf("/proc/%d/", pid)
	// Of a process that may not be looked into only the other signs count.
	if text, err := os.ReadFile(base + "environ"); err == nil && names(text, folder) {
		return true
	}
	if text, err := os.ReadFile(base + "cmdline"); err == nil {
		program, args, _ := bytes.Cut(text, []byte{0})
		if strings.HasPrefix(filepath.Base(string(program)), "otters") && names(args, folder) {
			return true
		}
	}
	for _, name := range []string{"exe", "cwd", "root"} {
		if target, err := os.Readlink(base + name); err == nil && (target == folder || strings.HasPrefix(target, folder+"/")) {
			return true
		}
	}
	return false
}

// names tells whether text holds the path, and not only one that begins like it.
func names(text []byte, path string) bool {
	for {
		_, after, ok := bytes.Cut(text, []byte(path))
		if !ok || len(after) == 0 || bytes.IndexByte([]byte("\x00/:,\"' "), after[0]) >= 0 {
			return ok
		}
		text = after
	}
}

// related returns the processes of a daemon and its agents: what descends from pid, what mentions
// the home, and those of the agents named by number.
func related(home string, pid int, known []int) ([]seen, error) {
	table, err := processTable()
	if err != nil {
		return nil, err
	}
	// The kernel shows where a process is by the path without links.
	real, err := filepath.EvalSymlinks(home)
	if err != nil {
		real = home
	}
	out := below(table, pid)
	for _, p := range table {
		if p.pid != os.Getpid() && (mentions(p.pid, home) || real != home && mentions(p.pid, real)) {
			out = append(out, p)
		}
	}
	for _, n := range known {
		if p, ok := lookAt(n); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

// alive returns those that still run.
func alive(of []seen) []seen {
	var out []seen
	for _, p := range of {
		if now, ok := lookAt(p.pid); ok && now.started == p.started {
			out = append(out, p)
		}
	}
	return out
}

// outlive waits until the processes have ended by themselves and kills those that have not when
// patience is over; it returns how many those were.
func outlive(ctx context.Context, of []seen, patience time.Duration) (int, error) {
	deadline := time.Now().Add(patience)
	for {
		of = alive(of)
		if len(of) == 0 || time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	killed := map[int]bool{}
	var errs []error
	for _, p := range of {
		if !killed[p.pid] {
			killed[p.pid] = true
			errs = append(errs, killSeen(ctx, p))
		}
	}
	return len(killed), errors.Join(errs...)
}

func killSeen(ctx context.Context, p seen) error {
	handle, err := openProcess(p.pid)
	if err != nil {
		return nil // it has ended
	}
	defer handle.close()
	// Looked at again after it was opened: now the number and the process belong together.
	if now, ok := lookAt(p.pid); !ok || now.started != p.started {
		return nil
	}
	if err := handle.kill(); err != nil {
		return fmt.Errorf("process %d: %w; end it with `kill -9 %d`", p.pid, err, p.pid)
	}
	return handle.wait(ctx)
}

// removeAll removes the home and, where an agent left folders that even its owner may not write,
// makes them writable first.
func removeAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if e != nil && e.IsDir() {
			return root.Chmod(filepath.FromSlash(path), 0o700)
		}
		return nil
	})
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
