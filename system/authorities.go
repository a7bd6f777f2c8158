package system

import (
	"fmt"
	"io"
	"os"
	"path"

	"github.com/go-git/go-billy/v5"

	"github.com/otters-sh/otters/workspace"
)

// authoritiesFile is where programs look for the authorities that sign certificates of servers.
const authoritiesFile = workspace.EtcDir + "/ssl/certs/ca-certificates.crt"

// maxAuthorities bounds that file, in bytes; those of distributions have a quarter of a megabyte.
const maxAuthorities = 8 << 20

// hostAuthorities are where hosts have it.
var hostAuthorities = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem", "/etc/ssl/cert.pem",
}

// placeAuthorities copies the host's authorities into the tree of an agent that reaches servers,
// anew at each start. Without any it has none, and TLS to servers of the internet fails.
func (a *Agent) placeAuthorities() error {
	if len(a.allowNet) == 0 {
		return nil
	}
	data, err := readAuthorities(a.hostFS)
	if err != nil || data == nil {
		return err
	}
	dir := ""
	for _, name := range []string{workspace.EtcDir, "ssl", "certs"} {
		dir = path.Join(dir, name)
		if err := a.fs.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("authorities: %w", err)
		}
		// A tight umask of the daemon must not keep the agent from it.
		if c, ok := a.fs.(billy.Change); ok && dir != workspace.EtcDir {
			if err := c.Chmod(dir, 0o755); err != nil {
				return fmt.Errorf("authorities: %w", err)
			}
		}
	}
	if err := workspace.WriteFile(a.fs, authoritiesFile, data, 0o644, false); err != nil {
		return fmt.Errorf("authorities: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.authorities = true
	return nil
}

// readAuthorities is nil where the host has none. Like a program of the host it takes the file of
// SSL_CERT_FILE first.
func readAuthorities(fs billy.Filesystem) ([]byte, error) {
	files := hostAuthorities
	if own := os.Getenv("SSL_CERT_FILE"); own != "" {
		files = []string{own}
	}
	for _, name := range files {
		f, err := fs.Open(name)
		if err != nil {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(f, maxAuthorities+1))
		_ = f.Close()
		switch {
		case err != nil:
			return nil, fmt.Errorf("authorities: %w", err)
		case len(data) > maxAuthorities:
			return nil, fmt.Errorf("authorities: %s is over %d bytes", name, maxAuthorities)
		}
		return data, nil
	}
	return nil, nil
}
