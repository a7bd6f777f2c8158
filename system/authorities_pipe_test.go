//go:build unix

package system_test

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/otters-sh/otters/system"
)

// Nobody writes into a named pipe, so a start that waits for it waits for ever.
func TestAPipeInPlaceOfTheAuthoritiesIsRefused(t *testing.T) {
	p := provider(t, host(t), plain)
	a := created(t, p, []system.AgentOption{system.WithAllowNet([]string{"example.com"}), system.WithEgress(newProxied().accept)}, role("serve"))
	if err := a.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(host(t), "authorities.pem")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", pipe)
	has, err := a.PlaceAuthorities()
	if has || !errors.Is(err, system.ErrConfig) || !strings.Contains(err.Error(), pipe+": a named pipe and no file; name a file that can be read") {
		t.Errorf("%v, %v", has, err)
	}
}
