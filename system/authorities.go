package system

import (
	"errors"
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
	if err == nil && data != nil {
		err = a.writeAuthorities(data)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.authorities = err == nil && data != nil
	return err
}

func (a *Agent) writeAuthorities(data []byte) error {
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
	return nil
}

// readAuthorities is nil where the host has none. Like a program of the host it takes the file of
// SSL_CERT_FILE first, which must be there.
func readAuthorities(fs billy.Filesystem) ([]byte, error) {
	if own := os.Getenv("SSL_CERT_FILE"); own != "" {
		data, err := readBounded(fs, own, maxAuthorities)
		if err != nil {
			return nil, fmt.Errorf("%w: authorities of SSL_CERT_FILE: %w; name a file that can be read, or none, when starting the daemon", ErrConfig, err)
		}
		return data, nil
	}
	var unread error
	for _, name := range hostAuthorities {
		data, err := readBounded(fs, name, maxAuthorities)
		if err == nil {
			return data, nil
		}
		if unread == nil && !errors.Is(err, os.ErrNotExist) {
			unread = fmt.Errorf("authorities: %w", err)
		}
	}
	return nil, unread
}

// readBounded reads a file of the host whole. A named pipe is refused, and its other end not waited for.
func readBounded(fs billy.Filesystem, name string, limit int64) ([]byte, error) {
	switch info, err := fs.Stat(name); {
	case err != nil:
		return nil, err
	case info.Mode()&os.ModeNamedPipe != 0:
		return nil, fmt.Errorf("%s: a named pipe and no file", name)
	}
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is over %d bytes", name, limit)
	}
	return data, err
}
