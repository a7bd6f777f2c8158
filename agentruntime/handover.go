package agentruntime

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// firstFD is where the socket-activation protocol puts the first descriptor.
	firstFD = 3
	// maxFDs bounds LISTEN_FDS.
	maxFDs = 16
	// maxToken bounds a serve token, in bytes.
	maxToken = 4096
	minToken = 16
)

// Names of descriptors in LISTEN_FDNAMES.
const (
	ListenerName   = "runtime"
	ServeTokenName = "serve-token"
)

// Handover is what whoever started the process gave it.
type Handover struct {
	// Listener is nil where none was given.
	Listener net.Listener
	// ServeToken is empty where none was given.
	ServeToken string
}

// Inherit takes the descriptors that the systemd socket-activation protocol describes in LISTEN_FDS,
// LISTEN_PID (own pid or absent) and LISTEN_FDNAMES, and closes them for programs started later. It
// is called once, at the start. A descriptor that is not what its name says is an error.
func Inherit(getenv func(string) string) (Handover, error) {
	var h Handover
	// Tools get none of what this process was given, named or not.
	if err := closeOnExecFrom(firstFD); err != nil {
		return h, fmt.Errorf("keep descriptors from tools: %w", err)
	}
	count := getenv("LISTEN_FDS")
	if pid := getenv("LISTEN_PID"); count == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return h, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxFDs {
		return h, fmt.Errorf("LISTEN_FDS %q: want 0 to %d", count, maxFDs)
	}
	names := []string{ListenerName}
	if s := getenv("LISTEN_FDNAMES"); s != "" {
		names = strings.Split(s, ":")
	}
	if n > 0 && len(names) != n {
		return h, fmt.Errorf("LISTEN_FDNAMES has %d names for %d descriptors", len(names), n)
	}
	for i := range n {
		if err := h.take(firstFD+i, names[i]); err != nil {
			return h, fmt.Errorf("descriptor %d (%s): %w", firstFD+i, names[i], err)
		}
	}
	return h, nil
}

func (h *Handover) take(fd int, name string) error {
	// Where none was given the number may be one that this process uses itself, which is left alone.
	var is unix.Stat_t
	if name == ListenerName {
		if err := unix.Fstat(fd, &is); err != nil {
			return fmt.Errorf("not a listener: %w", err)
		}
		if is.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return errors.New("not a listener: it is no socket")
		}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	switch name {
	case ListenerName:
		if h.Listener != nil {
			return errors.New("named twice")
		}
		l, err := net.FileListener(f)
		if err != nil {
			return fmt.Errorf("not a listener: %w", err)
		}
		h.Listener = l
	case ServeTokenName:
		if h.ServeToken != "" {
			return errors.New("named twice")
		}
		data, err := io.ReadAll(io.LimitReader(f, maxToken+1))
		if err != nil {
			return err
		}
		token := strings.TrimSpace(string(data))
		if len(token) < minToken || len(token) > maxToken {
			return fmt.Errorf("a serve token has %d to %d bytes, this one %d", minToken, maxToken, len(token))
		}
		h.ServeToken = token
	default:
		return fmt.Errorf("unknown name; known are %s and %s", ListenerName, ServeTokenName)
	}
	return nil
}
