package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// Invariant: doctor tells about a host on which no daemon runs. Worst inputs: a format that there is
// not, and an argument.
func TestDoctorTellsWhatConfines(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if got := m.must("doctor"); !strings.Contains(got.out, "otters-sandbox") || !strings.Contains(got.out, "LEVEL") {
		t.Errorf("%+v", got)
	}
	var said struct {
		Checks []struct {
			Name, Fix string
			OK        bool
		}
		Levels []struct {
			Level     string
			Supported bool
		}
	}
	got := m.must("doctor", "--format", "json")
	if err := json.Unmarshal([]byte(got.out), &said); err != nil {
		t.Fatal(err)
	}
	if len(said.Levels) != 3 || said.Levels[0].Level != "off" || !said.Levels[0].Supported {
		t.Errorf("levels %+v", said.Levels)
	}
	for _, c := range said.Checks {
		if !c.OK && c.Fix == "" {
			t.Errorf("%s lacks, and how to get it is not told", c.Name)
		}
	}
}

func TestDoctorRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	none := filepath.Join(tempDir(t), "none")
	for says, args := range map[string][]string{
		"unexpected argument \"x\"": {"doctor", "x"}, "want table or json": {"doctor", "--format", "yaml"}, "unknown flag: --nope": {"doctor", "--nope"},
	} {
		if got := otters(t.Context(), none, "", args...); got.code != exitUsage || got.out != "" || !strings.Contains(got.err, says) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}
