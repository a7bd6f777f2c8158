// Package sandbox starts a program so that the kernel confines it, and says what is in force. Each
// program gets a monitor, the small program otters-sandbox, which starts and reaps it, outlives
// the process that asked for it, keeps its log and records its exit.
//
// Invariant: nothing is weaker than what Confinement reports; a level that can't be had is an
// error, never a weaker one.
package sandbox

import (
	"errors"
	"os"
	"time"
)

// Level is how strongly a program is confined.
type Level string

// The levels, weakest first.
const (
	// Off confines by nothing but the user id.
	Off Level = "off"
	// Limited confines without namespaces.
	Limited Level = "limited"
	// Strict confines with namespaces and everything else the kernel has.
	Strict Level = "strict"
)

// Errors that callers match with errors.Is.
var (
	// ErrUnsupported tells that the host, or this version, can't confine at the level asked for.
	ErrUnsupported = errors.New("sandbox level not supported")
	// ErrNoMonitor tells that the monitor's program was not found.
	ErrNoMonitor = errors.New("monitor program not found")
	// ErrNotRunning tells that no monitor answers in the state folder; ReadExit may tell why.
	ErrNotRunning = errors.New("no monitor is running")
	// ErrStart tells that the program could not be started, such as one that is not executable.
	ErrStart = errors.New("program not started")
)

// Spec describes a program to run.
type Spec struct {
	// Level must be a level that the host supports.
	Level Level
	// Path is the program, Args what follows its name. At strict it is a path inside.
	Path string
	Args []string
	// Env is the whole environment; nothing is inherited. LISTEN_FDS and LISTEN_FDNAMES are added
	// where there are Files, LISTEN_PID is left out; all three are taken out of Env.
	Env []string
	// Dir is the working folder, at strict inside. Paths are absolute.
	Dir string
	// UID and GID the program runs under; negative keeps the caller's. Where the caller is root
	// the program has no further groups; an ordinary user's keeps that user's. Root can't run a
	// program as root at strict and limited. Inside of strict both are 0, without any power of root.
	UID, GID int
	// Binds are what the program has of the host's files. At strict they are all it sees, beside
	// /proc and a few devices, each at its Target, one mounted upon another in their order; at
	// limited they are all it can reach, each at its Source. Off does not look at them.
	Binds []Bind
	// Listen are sockets that the monitor opens on the loopback inside and keeps, as it does Held.
	// Strict alone has a loopback of the program's own; at other levels they are refused.
	Listen []Listen
	// Ports are the TCP ports of 127.0.0.1 that the program may connect to at limited; see Confinement
	// for hosts where they are open on any address.
	Ports []int
	// Serve are the TCP ports of 127.0.0.1 that the program may listen on at limited, with the same
	// exception.
	Serve []int
	// Relay names listeners of Held whose connections the monitor passes on to a port of the
	// loopback inside, for a program at strict that can't take a listener over.
	Relay []Listen
	// Tied kills the program with all that it has started when the process that started it ends, or
	// closes its Process.
	Tied bool
	// Limits bound what the program may take.
	Limits Limits
	// StateDir is an existing folder, 0700 and out of the program's reach, for the monitor's
	// control socket, its state and the record of the exit. A record of an earlier program there
	// is replaced; a program that still runs with the folder makes Start fail.
	StateDir string
	// Log takes what the program writes, as JSON lines {"t","stream","line"}: the time in UTC,
	// "stdout" or "stderr", the line in valid UTF-8. A line over 64 KiB is split, and all but its
	// last part carry "more":true; a line of stream "monitor" tells of lines that could not be
	// written. It must be opened for appending; where it can be read too, a line that an earlier monitor
	// has left half written, since it was killed, is ended first. Nil drops it.
	Log *os.File
	// LogLimit is the size in bytes from which on Log takes no more: the program waits in its writes
	// until SwitchLog has given it another file. Once it is asked to stop, or has ended, nothing waits;
	// there is then room for 512 KiB more, and a last line of stream "monitor" tells of what found
	// none. No file is larger by more than 1 MiB. 0 is no limit.
	LogLimit int64
	// Stdin is the program's standard input; nil is /dev/null.
	Stdin *os.File
	// Stdout and Stderr, where not nil, get the program's output as well, byte for byte. One that
	// takes nothing holds the program up; one whose reader is gone is dropped.
	Stdout, Stderr *os.File
	// Files are handed to the program from descriptor 3 on, by the socket-activation protocol of
	// systemd (sd_listen_fds(3)). Names are unique among Files and Held, of at most 255 printable
	// ASCII characters and without a colon; there are at most 128 of both.
	Files []File
	// Held are kept open by the monitor for whoever takes over, as Files are, and not seen by the
	// program.
	Held []File
}

// File is an open file with the name by which it is known.
type File struct {
	Name string
	*os.File
}

// Bind is a file or folder that a program gets, with all that is mounted below it. What is not
// ReadOnly the program may write where its user may.
type Bind struct {
	Source, Target string
	ReadOnly       bool
}

// Listen is a listening socket on 127.0.0.1 inside, and the name by which it is known.
type Listen struct {
	Name string
	Port int
}

// Exit is how a program ended.
type Exit struct {
	// Code is the exit code, -1 where a signal ended it.
	Code int `json:"code"`
	// Signal is the name of the signal, such as "SIGKILL"; empty where none.
	Signal string `json:"signal,omitempty"`
	// At is when it was reaped.
	At time.Time `json:"at"`
	// Stderr is the last lines it wrote to standard error, at most 20 lines of at most 1 KiB.
	Stderr []string `json:"stderr,omitempty"`
	// Asked tells that it was stopped through Stop.
	Asked bool `json:"asked,omitempty"`
	// OutOfMemory tells that it was killed by SIGKILL, which nobody asked for, and that the kernel had
	// killed in its control group for want of memory.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
	// Lost tells that the monitor ended without a record, killed for instance.
	Lost bool `json:"lost,omitempty"`
}

// Confinement is what is in force for a program.
type Confinement struct {
	Level Level `json:"level"`
	// OwnUser tells that the program runs under a user id that nothing else uses.
	OwnUser bool `json:"own_user"`
	// Enforced and Open are sentences for a person.
	Enforced []string `json:"enforced"`
	Open     []string `json:"open"`
	// Limits are in force beside the level.
	Limits []Limit `json:"limits,omitempty"`
}
