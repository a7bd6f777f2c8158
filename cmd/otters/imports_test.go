package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLinksNoDaemonCode: the command line is quick and small because it holds nothing of the daemon.
func TestLinksNoDaemonCode(t *testing.T) {
	t.Parallel()
	const module = "github.com/otters-sh/otters/"
	out, err := exec.Command("go", "list", "-tags", "grpcnotrace", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	allowed := []string{"client", "cmd/otters", "internal/flow", "internal/gate", "internal/home", "proto/otters/daemon/v1", "spec", "testdata/agents"}
	for _, name := range allowed {
		if !slices.Contains(deps, module+name) {
			t.Errorf("%s is not linked; is the list right?", name)
		}
	}
	for _, dep := range deps {
		if ours, ok := strings.CutPrefix(dep, module); ok && !slices.Contains(allowed, ours) {
			t.Errorf("%s is linked", dep)
		}
		if strings.HasPrefix(dep, "modernc.org/") || strings.HasPrefix(dep, "oras.land/") || dep == "net/http/pprof" {
			t.Errorf("%s is linked", dep)
		}
	}
}
