// Package system runs agents as processes of this machine: it implements executor.Provider with a
// tree of files, a monitor and a runtime process per agent.
//
// A Provider works in one folder, which holds for each agent ID/root (the agent's tree),
// ID/state (the monitor's, out of the agent's reach) and ID/handle.json (what is needed to find
// the agent again), and .store, the programs of runtimes and tools, unpacked once per digest. Only
// one Provider may use a folder at a time.
//
// Everything that a program brings along itself has a seam: where images come from (StoreFor, agentoci.Puller),
// what a model's address and key are (model.Resolver), how a runtime is started (Spawner), reached (Dialer) and
// addressed (LoopbackAllocator). Functions and values given in options stay the caller's; they are called from
// several goroutines at once, and not after Provider.Close and the last Run have returned. With a filesystem in
// memory and a Spawner and Dialer of the caller's nothing of the machine is touched.
//
// Invariants: a tree is complete or not there; everything below an agent's root is reached through
// a descriptor of that root; an agent's status is stopped only after an exit that was asked for.
package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-billy/v5"
	"google.golang.org/grpc"
	"oras.land/oras-go/v2"

	"github.com/otters-sh/otters/internal/rootfs"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/workspace"
)

// ErrModel indicates that the model of an agent could not be resolved: its provider is missing, or
// the model is not allowed there. Such an agent fails with executor.FailureModel.
var ErrModel = fmt.Errorf("model resolve error")

// ErrPull indicates that an image of an agent could not be loaded: its own, its runtime's or a
// tool's. Such an agent fails with executor.FailurePull.
var ErrPull = fmt.Errorf("agent pull error")

// Errors of ours, matched with errors.Is.
var (
	// ErrConfig indicates a setting that is missing or wrong. Create refuses it where it can be seen then.
	// Otherwise the agent fails with executor.FailureConfig: before anything was started, or by exit code 78
	// of a runtime that was not ready yet.
	ErrConfig = errors.New("agent config error")
	// ErrCrashed indicates that the runtime exited though nobody asked; the error tells its code or signal and
	// the last line of its standard error.
	ErrCrashed = errors.New("runtime crashed")
	// ErrRunning indicates that a Run or Start is in progress.
	ErrRunning = errors.New("agent is running")
	// ErrNotRunning indicates a call that needs a running runtime.
	ErrNotRunning = errors.New("agent is not running")
	// ErrRemoved indicates that the agent was removed.
	ErrRemoved = errors.New("agent is removed")
	// ErrDetached is what Run and Start return when Provider.Close let go of an agent that runs on.
	ErrDetached = errors.New("agent runs on, detached")
	// ErrExists indicates that the id is in use.
	ErrExists = errors.New("agent exists")
	// ErrNoAddress indicates that no loopback address could be reserved.
	ErrNoAddress = errors.New("no loopback address")
	// ErrHandle indicates a handle.json that can't be used, since it is damaged or of another version, since its
	// sealed values don't open, or since the tree that it tells of is gone.
	ErrHandle = errors.New("unusable handle")
)

var errClosed = errors.New("provider is closed")

// RuntimeBin is where the runtime's program lies in an agent's tree. It is a variable only since
// the separator is the host's.
var RuntimeBin = filepath.FromSlash(workspace.RuntimeBin)

// ListenerLabel is the label of a runtime image that says how its runtime gets its listener:
// "inherit" takes a descriptor by systemd's socket-activation protocol, anything else is given
// --addr.
const ListenerLabel = "io.openotters.runtime.listener"

// SessionsLabel is the label of a runtime image whose runtime works on its sessions while it does not
// serve: "offline" has the session command of docs/runtime.md, anything else has not. Ours.
const SessionsLabel = "io.openotters.runtime.sessions"

// CapabilitiesLabel is the label of a runtime image that lists what CAPABILITY may name with its
// runtime, by commas. An image without it does not tell, and its runtime refuses at its start.
const CapabilitiesLabel = "io.openotters.runtime.capabilities"

// CheckCapabilities says which of an agent's capabilities a runtime whose image has these labels does
// not provide. Names may be written with hyphens or underscores. The error wraps ErrConfig. Ours.
func CheckCapabilities(labels map[string]string, names []string) error {
	list, told := labels[CapabilitiesLabel]
	if !told {
		return nil
	}
	plain := func(name string) string { return strings.ReplaceAll(strings.TrimSpace(name), "_", "-") }
	provided := strings.Split(list, ",")
	for _, name := range names {
		if !slices.ContainsFunc(provided, func(p string) bool { return p != "" && plain(p) == plain(name) }) {
			there := "it provides none"
			if strings.TrimSpace(list) != "" {
				there = "there are " + strings.Join(provided, ", ")
			}
			return fmt.Errorf("%w: CAPABILITY %s: the runtime does not provide it; %s", ErrConfig, name, there)
		}
	}
	return nil
}

// StoreFor returns the target that holds an agent's image, under the tag or digest of ref. The Provider calls
// it once per Create and once per agent that Load restores, and reads from what it returns at the first Prepare;
// nil is an agent that can't be prepared.
type StoreFor func(ref spec.Reference) oras.ReadOnlyTarget

// DigestResolver returns the digest of an image reference, or an empty string where it has none.
// What it answers is recorded in agent.yaml's provenance and pins what is unpacked.
type DigestResolver func(ref string) string

// CreatedAtFunc returns when the manifest at repo:tag was first stored, in unix seconds, or 0.
type CreatedAtFunc func(repo, tag string) int64

// Dialer opens the gRPC connection to an agent's runtime; DialLoopback is the default.
type Dialer interface {
	// Dial is called at the first call of a run, before the runtime has necessarily come up: a connection
	// should be tried again rather than refused for good. ctx is the call's. The agent uses the connection
	// for one run, from several goroutines, and closes it.
	Dial(ctx context.Context, addr string) (*grpc.ClientConn, error)
}

// DialerFunc is a function that is a Dialer.
type DialerFunc func(ctx context.Context, addr string) (*grpc.ClientConn, error)

// Dial calls d(ctx, addr).
func (d DialerFunc) Dial(ctx context.Context, addr string) (*grpc.ClientConn, error) {
	return d(ctx, addr)
}

// LoopbackAllocator reserves the address an agent's runtime answers on, such as "127.0.0.1:51234".
// The default one also has ReserveListener() (net.Listener, error), which keeps the address; with
// any other the address is only free at the moment of the call, and the runtime is given --addr.
type LoopbackAllocator interface {
	// Reserve returns a host:port that no other agent has. It is called at Create; an error is Create's
	// and wraps ErrNoAddress.
	Reserve() (string, error)
}

// Spawner makes the command that runs a runtime. With a Spawner of the caller's there is no monitor, and
// the sandbox level is off; such a runtime ends with the Provider. Without one a runtime on disk has a monitor,
// or, for an agent of NewAgent, is a process started by os/exec.
type Spawner interface {
	// Command makes a command that was not started yet; it is called once for each start. name is the
	// program's path, and args are its arguments without its name.
	Command(name string, args ...string) Cmd
}

// Cmd is one run of a program, as *os/exec.Cmd has it. The setters are called before Start, which is called
// once; Wait is called once after it, by one goroutine, while others may call Signal.
//
// A Cmd may also have SetFiles([]*os.File), called before Start: the files become descriptors 3 and following, and
// the Cmd must have duplicated them when Start returns. With the default LoopbackAllocator it is given the listener
// and the serve token of a runtime that inherits them. Ours.
type Cmd interface {
	// Start starts the program; its error is that of the agent's start.
	Start() error
	// Wait returns when the program has exited and its output is written: nil for exit code 0, and for
	// another one an error that has ExitCode() int.
	Wait() error
	// Signal must return an error, not panic, before Start and after Wait. SIGTERM asks for the end, and
	// where it is an error, or not heeded within the grace, os.Kill follows.
	Signal(sig os.Signal) error
	// SetStdout takes the writer of the program's standard output.
	SetStdout(w io.Writer)
	// SetStderr takes the writer of its standard error, which may be written to while the other is.
	SetStderr(w io.Writer)
	// SetEnv is the whole environment; nothing is inherited.
	SetEnv(env []string)
	// SetDir is the working folder; empty keeps the parent's.
	SetDir(dir string)
}

// onDisk tells whether what fs writes is found on the host below fs.Root(): it writes a file and
// looks. Only such a tree can be the home of a process.
func onDisk(fs billy.Filesystem) bool {
	// A bound osfs takes "" for another folder than its root.
	f, err := fs.TempFile(".", ".probe-")
	if err != nil {
		return false
	}
	name := filepath.Base(f.Name())
	defer func() { _ = fs.Remove(name) }()
	if err := f.Close(); err != nil {
		return false
	}
	_, err = os.Lstat(filepath.Join(fs.Root(), name))
	return err == nil
}

// bound is fs by a descriptor of its folder where fs is on disk and is not that already: billy's own
// filesystems go by paths, rewrite the targets of symlinks and can't change owners. The closer is for
// what was opened here; it is nil where nothing was.
func bound(fs billy.Filesystem, disk bool) (billy.Filesystem, io.Closer, error) {
	if _, ok := fs.(billy.Change); ok || !disk {
		return fs, nil, nil
	}
	r, err := rootfs.Open(fs.Root())
	if err != nil {
		return nil, nil, err
	}
	return r, r, nil
}
