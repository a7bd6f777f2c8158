// Package home tells where a daemon keeps its state and where its socket is, so that daemon and
// clients agree without asking each other. It creates nothing.
package home

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// MaxSocket is the longest path of a unix socket in bytes: sun_path of unix(7) has 108, one of
// them for the closing zero.
const MaxSocket = 107

const (
	variable   = "OTTERS_HOME"
	socketName = "ottersd.sock"
	// rootHome is used by root because an agent's own user has to get through to its tree, which
	// root's home folder does not allow.
	rootHome = "/var/lib/otters"
)

// Home returns the absolute folder of the daemon's state: OTTERS_HOME, else otters in
// XDG_STATE_HOME, else /var/lib/otters for root and ~/.local/state/otters for everyone else. A
// relative XDG_STATE_HOME is ignored, as the XDG base directory specification asks.
func Home() (string, error) {
	if dir := os.Getenv(variable); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("%s: %w", variable, err)
		}
		return abs, nil
	}
	return defaultHome()
}

func defaultHome() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "otters"), nil
	}
	if os.Geteuid() == 0 {
		return rootHome, nil
	}
	user := os.Getenv("HOME")
	if !filepath.IsAbs(user) {
		return "", fmt.Errorf("home folder: HOME is not set to an absolute path; set it, or %s", variable)
	}
	return filepath.Join(user, ".local", "state", "otters"), nil
}

// Socket returns the path of the daemon's socket for the state folder dir, as Home returns it or
// as it was named: otters/ottersd.sock in XDG_RUNTIME_DIR for the default folder, ottersd.sock in
// dir where OTTERS_HOME is set, dir is another one, or XDG_RUNTIME_DIR is missing or belongs to
// somebody else. A path of over MaxSocket bytes is an error.
func Socket(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("socket: %w", err)
	}
	path := filepath.Join(abs, socketName)
	if usual, err := defaultHome(); err == nil && usual == abs && os.Getenv(variable) == "" {
		if runtime := os.Getenv("XDG_RUNTIME_DIR"); ownDir(runtime) {
			path = filepath.Join(runtime, "otters", socketName)
		}
	}
	return path, CheckSocket(path)
}

// ownDir keeps a variable that came along with su or sudo from naming a folder of another user.
func ownDir(dir string) bool {
	if !filepath.IsAbs(dir) {
		return false
	}
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// CheckSocket tells whether a unix socket can have this path.
func CheckSocket(path string) error {
	if path == "" {
		return fmt.Errorf("socket: the path is empty")
	}
	if len(path) > MaxSocket {
		return fmt.Errorf("socket %s: the path has %d bytes, a unix socket at most %d; name a shorter one with --socket or OTTERS_HOME", path, len(path), MaxSocket)
	}
	return nil
}
