package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The test's program is started again with these set, in namespaces of its own, to put the program
// under test where strict puts it, and then becomes it.
const (
	bindVariable   = "OTTERS_TOOLS_TEST_BIND"   // the path to be bound at
	removeVariable = "OTTERS_TOOLS_TEST_REMOVE" // set: the file is removed before it is run
	builtVariable  = "OTTERS_TOOLS_TEST_BUILT"
)

// exitNoMount says that namespaces can't be had here.
const exitNoMount = 77

func runBound(target string) {
	err := bindAndExec(target, os.Getenv(builtVariable), os.Getenv(removeVariable) != "")
	fmt.Fprintln(os.Stderr, err)
	os.Exit(exitNoMount)
}

func bindAndExec(target, source string, remove bool) error {
	if err := syscall.Mount("none", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return err
	}
	// Open before the folder it may lie in is covered.
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := syscall.Mount("none", boundDir, "tmpfs", 0, ""); err != nil {
		return err
	}
	to, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if err := to.Close(); err != nil {
		return err
	}
	argv := os.Args[1:]
	if !remove {
		if err := syscall.Mount(source, target, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
		return syscall.Exec(target, argv, nil)
	}
	fd, err := syscall.Open(target, syscall.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if err := os.Remove(target); err != nil {
		return err
	}
	return syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), argv, nil)
}

// startBound runs argv of the program bound at a path.
func startBound(t *testing.T, dir, target string, remove bool, argv ...string) result {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, argv...)
	cmd.Dir = dir
	cmd.Env = []string{bindVariable + "=" + target, builtVariable + "=" + built}
	if remove {
		cmd.Env = append(cmd.Env, removeVariable+"=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		t.Skip("no namespaces here:", err)
	case cmd.ProcessState.ExitCode() == exitNoMount:
		t.Skip("no mounts here:", stderr.String())
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// Invariant: a file bound at /usr/bin/NAME is NAME, so that a grant of cat never runs sh. Worst
// inputs: argv[0] of another tool, the program's own name with the other tool as its argument, and a
// file that was removed since.
func TestThePathItIsBoundAtBeatsItsName(t *testing.T) {
	t.Parallel()
	dir := newTree(t)
	uniqUsage := start(t, dir, "", built, "otters-tools", "usage", "uniq").stdout
	refused := func(name string) string {
		return "otters-tools: this file is /usr/bin/" + name +
			": in /usr/bin/ it must have the name of its tool; a file elsewhere is the tool that it is called by"
	}
	for _, tt := range []struct {
		target string
		remove bool
		argv   []string
		stdout string
		stderr string
		code   int
	}{
		{"/usr/bin/cat", false, []string{"cat", "last.txt"}, "no newline", "", 0},
		{"/usr/bin/cat", false, []string{"head", "last.txt"}, "no newline", "", 0},
		{"/usr/bin/cat", false, []string{"sh", "-c", "echo got in"}, "", "cat: unknown shorthand flag: 'c' in -c", 2},
		{"/usr/bin/cat", false, []string{"/usr/bin/otters-tools", "sh", "-c", "echo got in"}, "", "cat: unknown shorthand flag: 'c' in -c", 2},
		{"/usr/bin/cat", false, []string{"otters-tools", "list"}, "", "cat: list: no such file or directory", 1},
		{"/usr/bin/cat", true, []string{"sh", "-c", "echo got in"}, "", "cat: unknown shorthand flag: 'c' in -c", 2},
		{"/usr/bin/sh", false, []string{"cat", "-c", "echo let in"}, "let in\n", "", 0},
		{"/usr/bin/cat", false, nil, "", "", 0},
		{"/usr/bin/otters-tools", false, []string{"otters-tools", "usage", "uniq"}, uniqUsage, "", 0},
		{"/usr/bin/otters-tools", false, []string{"otters-tools", "sh", "-c", "echo got in"}, "", refused("otters-tools"), 2},
		{"/usr/bin/otters-tools", false, []string{"sh", "-c", "echo got in"}, "", refused("otters-tools"), 2},
		{"/usr/bin/reader", false, []string{"cat", "last.txt"}, "", refused("reader"), 2},
		{"/usr/bin/reader", false, []string{"reader", "sh", "-c", "echo got in"}, "", refused("reader"), 2},
	} {
		got := startBound(t, dir, tt.target, tt.remove, tt.argv...)
		first, _, _ := strings.Cut(got.stderr, "\n")
		if got.stdout != tt.stdout || first != tt.stderr || got.code != tt.code {
			t.Errorf("%s as %q: got %+v", filepath.Base(tt.target), tt.argv, got)
		}
	}
}
