//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

// Invariant: every level and every limit that can't be had has its reason. Worst input: a user who may
// not make namespaces.

func TestDoctorTellsWhyALevelCanNotBeHad(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string]uintptr{
		"here": 0,
		// Whose user id is nobody's may make no namespaces below.
		"without namespaces": unix.CLONE_NEWUSER,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(format string) []byte {
				cmd := exec.Command(filepath.Join(built.For(t), "ottersd"), "doctor", "--format", format)
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
				var stdout, stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				if err := cmd.Start(); err != nil && flags != 0 {
					t.Skipf("no user namespaces here: %v", err)
				} else if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					t.Fatalf("%v: %s", err, stderr.String())
				}
				return stdout.Bytes()
			}
			var d diagnosis
			if err := json.Unmarshal(run("json"), &d); err != nil {
				t.Fatal(err)
			}
			text := string(run("table"))
			if len(d.Levels) != 3 {
				t.Fatalf("levels %+v", d.Levels)
			}
			for _, l := range d.Levels {
				if l.Supported == (l.Lacks != "") || l.Supported && len(l.Limits) != 3 || !l.Supported && !strings.Contains(text, l.Lacks) {
					t.Errorf("level %+v in %s", l, text)
				}
				if l.Level == sandbox.Strict && flags != 0 && l.Supported {
					t.Errorf("level %+v without namespaces", l)
				}
				for _, limit := range l.Limits {
					if (limit.By == "") == (limit.Lacks == "") {
						t.Errorf("level %s: limit %+v", l.Level, limit)
					}
				}
			}
			for _, c := range d.Checks {
				if !c.OK && (c.Fix == "" || !strings.Contains(text, c.Fix)) {
					t.Errorf("check %+v in %s", c, text)
				}
			}
		})
	}
}

// Invariant: the table of levels has the same columns in every row, whichever level can't be had. Worst inputs: the
// one in the middle, all of them, one whose limits have long names.
func TestDoctorsLevelsHaveTheSameColumns(t *testing.T) {
	t.Parallel()
	limits := []limit{{Name: "memory", By: "rlimit of address space"}, {Name: "cpus", Lacks: "nothing"}, {Name: "pids", By: "cgroup v2"}}
	has, lacks := level{Supported: true, Limits: limits}, level{Lacks: "too old"}
	for name, levels := range map[string][3]level{
		"all": {has, has, has}, "none": {lacks, lacks, lacks}, "but for the middle": {has, lacks, has}, "the middle": {lacks, has, lacks},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := diagnosis{Levels: levels[:]}
			for i, l := range []sandbox.Level{sandbox.Off, sandbox.Limited, sandbox.Strict} {
				levels[i].Level = l
			}
			var out bytes.Buffer
			if err := d.print(&out); err != nil {
				t.Fatal(err)
			}
			_, table, _ := strings.Cut(out.String(), "\n\n")
			rows := strings.Split(table, "\n")[:4]
			for _, title := range []string{"SUPPORTED", "MEMORY", "CPUS", "PIDS"} {
				at := strings.Index(rows[0], title)
				for _, row := range rows[1:] {
					if len(row) <= at || row[at] == ' ' || row[at-1] != ' ' {
						t.Errorf("no cell below %s in %q of\n%s", title, row, table)
					}
				}
			}
		})
	}
}
