package system_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/otters-sh/otters/system"
)

// Invariant: an agent that reaches servers has the authorities that the daemon was given, or does not
// start. Worst inputs: a file that is not there, one that can't be read, and one that went away
// between two starts.
func TestAuthoritiesThatCantBeReadAreTold(t *testing.T) {
	dir, files := host(t), host(t)
	p := provider(t, dir, plain)
	a := created(t, p, []system.AgentOption{system.WithAllowNet([]string{"example.com"}), system.WithEgress(newProxied().accept)}, role("serve"))
	if err := a.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(files, "good.pem")
	if err := os.WriteFile(good, []byte("authorities"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file string
		ok   bool
	}{{good, true}, {filepath.Join(files, "none.pem"), false}, {good, true}, {files, false}} {
		t.Setenv("SSL_CERT_FILE", c.file)
		has, err := a.PlaceAuthorities()
		if has != c.ok || (err == nil) != c.ok || err != nil && (!errors.Is(err, system.ErrConfig) || !strings.Contains(err.Error(), c.file)) {
			t.Errorf("%s: %v, %v", c.file, has, err)
		}
	}
}
