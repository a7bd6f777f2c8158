package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Outcomes of an attack.
const (
	outcomeDenied    = "denied"
	outcomeSucceeded = "succeeded"
	// outcomeSkipped: there was nothing to attack.
	outcomeSkipped = "skipped"
	// outcomePlanted: whoever started this looks afterwards whether it succeeded.
	outcomePlanted = "planted"
	// outcomeBroken: the attack itself did not work, which says nothing of the sandbox.
	outcomeBroken = "broken"
)

// modeRuntime is the value of target mode where this program stands in for a runtime; anything else
// is a tool.
const modeRuntime = "runtime"

// patience bounds an attack that names no bound of its own.
const patience = time.Minute

// attack is one way out.
type attack struct {
	// id never changes. covers are ids of the list of cases that the attack stems from.
	id, name, covers string
	// needs are the targets without which there is nothing to attack.
	needs []string
	// twin is the nearest thing that must work.
	twin string
	// inline runs it in the process that was started, and not in a child.
	inline  bool
	timeout time.Duration
	run     func(targets) result
}

// result is what came of an attack, and what proves it.
type result struct {
	Outcome  string `json:"outcome"`
	Evidence string `json:"evidence"`
}

// report is a result with all that goes with it, as printed.
type report struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Covers string `json:"covers"`
	result
	Twin string `json:"twin"`
	// TwinEvidence tells why a twin is broken.
	TwinEvidence string `json:"twin_evidence,omitempty"`
}

func won(format string, args ...any) result {
	return result{outcomeSucceeded, fmt.Sprintf(format, args...)}
}

func denied(format string, args ...any) result {
	return result{outcomeDenied, fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) result {
	return result{outcomeSkipped, fmt.Sprintf(format, args...)}
}

func broken(format string, args ...any) result {
	return result{outcomeBroken, fmt.Sprintf(format, args...)}
}

// verdict is a success where err is nil.
func verdict(err error, format string, args ...any) result {
	if err != nil {
		return denied("%v", err)
	}
	return won(format, args...)
}

// permitted judges a call that is made so that it can do nothing even where it is let through: it
// was refused where the kernel asked for a right before it looked at the nonsense that followed.
func permitted(err error, call string) result {
	switch {
	case err == nil:
		return won("%s went through", call)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOSYS):
		return denied("%s: %v", call, err)
	}
	return won("%s was let through as far as %v", call, err)
}

// call is a raw system call with its error.
func call(trap uintptr, args ...uintptr) (uintptr, error) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := syscall.Syscall6(trap, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

// targets are what there is to attack, by name.
type targets map[string]string

func readTargets(given string) (targets, error) {
	if given == "" {
		given = os.Getenv(targetsVariable)
	}
	t := targets{}
	if given != "" {
		if err := json.Unmarshal([]byte(given), &t); err != nil {
			return nil, fmt.Errorf("targets: %w", err)
		}
	}
	if t["root"] == "" {
		t["root"] = os.Getenv("OTTERS_AGENT_ROOT")
	}
	return t, nil
}

func (t targets) pid(name string) int {
	pid, err := strconv.Atoi(t[name])
	if err != nil {
		return -1
	}
	return pid
}

func (t targets) runtime() bool { return t["mode"] == modeRuntime }

// workspace is where the agent may write.
func (t targets) workspace() string {
	if t["root"] == "" {
		return "."
	}
	return filepath.Join(t["root"], "workspace")
}

// marker is the name of a file of this process alone.
func (t targets) marker() string { return ".otters-attack-" + strconv.Itoa(os.Getpid()) }

// readSecret reads a file in which the secret lies; with an empty secret anything read will do.
func readSecret(path, secret string) result {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return denied("%v", err)
	}
	defer f.Close()
	b := make([]byte, 64<<10)
	n, err := f.Read(b)
	switch {
	case n > 0 && strings.Contains(string(b[:n]), secret):
		return won("read %d bytes of %s", n, path)
	case n > 0:
		return denied("%s: not the host's", path)
	}
	return denied("%s: nothing to read: %v", path, err)
}

// create makes a file of its own in dir and removes it.
func create(t targets, dir string) result {
	path := filepath.Join(dir, t.marker())
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return denied("%v", err)
	}
	_ = f.Close()
	return won("made %s, and removed it: %v", path, os.Remove(path))
}

// writable opens an existing file for writing and writes nothing.
func writable(path string) result {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ETXTBSY) {
		return won("%s may be written once it does not run", path)
	}
	if err == nil {
		_ = unix.Close(fd)
	}
	return verdict(err, "opened %s for writing", path)
}

// attacks are all there are. The order is that of the table.
func attacks() []attack {
	var all []attack
	for _, more := range [][]attack{
		fileAttacks(), metadataAttacks(), stateAttacks(), descriptorAttacks(), mountAttacks(), deviceAttacks(), processAttacks(), laterProcessAttacks(), privilegeAttacks(),
		kernelAttacks(), newerAttacks(), archAttacks(), namespaceAttacks(), inheritanceAttacks(), socketAttacks(), elsewhereAttacks(), proxyAttacks(), localAttacks(), bindAttacks(), resourceAttacks(), survivalAttacks(),
	} {
		all = append(all, more...)
	}
	return all
}
