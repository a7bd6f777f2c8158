package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/testdata/agents"
)

// The demo's agent has only tools that are here, and what its prompts ask for can be done with them
// in an agent's workspace.
func TestTheDemoAgentsToolsAndPrompts(t *testing.T) {
	t.Parallel()
	guide, err := fs.Sub(agents.Guide, "guide")
	if err != nil {
		t.Fatal(err)
	}
	text, err := fs.ReadFile(guide, "Agentfile")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := spec.Parse("Agentfile", text, spec.ParseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	root := tempDir(t)
	data, workspace := filepath.Join(root, "etc/data"), filepath.Join(root, "workspace")
	for _, dir := range []string{data, workspace} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, add := range agent.Adds {
		content, err := fs.ReadFile(guide, add.Src)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, add.Name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	has := map[string]bool{}
	for _, bin := range agent.Bins {
		_, known := find(bin.Name)
		if has[bin.Name] = true; !known || bin.Image != "otters/tools/"+bin.Name {
			t.Errorf("BIN %s %s is not one of ours", bin.Name, bin.Image)
		}
	}
	runPrompts(t, guide, has, workspace)
}

// runPrompts runs what stands between backquotes in each prompt.
func runPrompts(t *testing.T, guide fs.FS, has map[string]bool, workspace string) {
	t.Helper()
	prompts, err := fs.ReadFile(guide, "prompts.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"", "Severn\n", "3\n"}
	lines := strings.Split(strings.TrimSpace(string(prompts)), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d prompts, want %d", len(lines), len(want))
	}
	call := regexp.MustCompile("`([^`]*)`")
	for i, line := range lines {
		m := call.FindStringSubmatch(line)
		if m == nil {
			if want[i] != "" {
				t.Errorf("%q calls no tool", line)
			}
			continue
		}
		argv := strings.Fields(m[1])
		if !has[argv[0]] {
			t.Errorf("%q: the agent has no tool %s", line, argv[0])
		}
		if got := start(t, workspace, "", built, argv...); got.code != 0 || got.stdout != want[i] {
			t.Errorf("%q: %+v, want %q", line, got, want[i])
		}
	}
}
