package wire

import (
	"strconv"
	"time"
)

// Files of a state folder.
const (
	// ControlSocket is where the monitor answers.
	ControlSocket = "control.sock"
	// ProcessFile identifies the running program and its monitor, for whoever comes after the
	// monitor was killed; it goes when the exit is recorded.
	ProcessFile = "process.json"
	// ExitFile is the record of the exit.
	ExitFile = "exit.json"
)

// DefaultGrace is the time between SIGTERM and SIGKILL where the monitor itself is asked to end.
const DefaultGrace = 10 * time.Second

// TailLines and TailBytes bound what an exit quotes of standard error.
const (
	TailLines = 20
	TailBytes = 1 << 10
)

// LimitedABI is the first Landlock version that scopes signals and abstract sockets, below which
// level limited would leave them open.
const LimitedABI = 6

// Spec is a program to run, as the monitor gets it. The descriptors come beside it: the state
// folder, the ones of Log, Stdin, Stdout and Stderr where these are true, then Files, then Held.
type Spec struct {
	Level                      string
	Path, Dir                  string
	Args, Env                  []string
	UID, GID                   int
	Log, Stdin, Stdout, Stderr bool
	Files, Held                []string
	// What follows are the fields of sandbox.Spec; Listen and Relay hold one port for each name.
	Binds       []Bind
	ListenNames []string
	ListenPorts []int
	Ports       []int
	Serve       []int
	RelayNames  []string
	RelayPorts  []int
	Tied        bool
	Memory      int64
	PIDs        int64
	LogLimit    int64
	// Groups is how many control groups the program enters: as many pairs of descriptors come last, to
	// enter each and to leave it. Before them, where these are true, come the folder of one that it is
	// cloned into, in place of entering the last, what kills all in it, and what tells of processes
	// killed for want of memory.
	Groups                    int
	Into, KillFile, OOMEvents bool
}

// Bind is a file or folder of the host that a program gets.
type Bind struct {
	Source, Target string
	ReadOnly       bool
}

// Marshal encodes s.
func (s Spec) Marshal() []byte {
	var m Message
	m.Add("level", s.Level)
	m.Add("path", s.Path)
	m.Add("dir", s.Dir)
	m.AddAll("arg", s.Args)
	m.AddAll("env", s.Env)
	m.AddInt("uid", int64(s.UID))
	m.AddInt("gid", int64(s.GID))
	addBool(&m, "log", s.Log)
	addBool(&m, "stdin", s.Stdin)
	addBool(&m, "stdout", s.Stdout)
	addBool(&m, "stderr", s.Stderr)
	m.AddAll("file", s.Files)
	m.AddAll("held", s.Held)
	for _, b := range s.Binds {
		m.Add("source", b.Source)
		m.Add("target", b.Target)
		m.Add("access", map[bool]string{true: "ro", false: "rw"}[b.ReadOnly])
	}
	m.AddAll("listen", s.ListenNames)
	addInts(&m, "listen-port", s.ListenPorts)
	addInts(&m, "port", s.Ports)
	addInts(&m, "serve", s.Serve)
	m.AddAll("relay", s.RelayNames)
	addInts(&m, "relay-port", s.RelayPorts)
	addBool(&m, "tied", s.Tied)
	m.AddInt("memory", s.Memory)
	m.AddInt("pids", s.PIDs)
	m.AddInt("log-limit", s.LogLimit)
	m.AddInt("groups", int64(s.Groups))
	addBool(&m, "into", s.Into)
	addBool(&m, "kill-file", s.KillFile)
	addBool(&m, "oom-events", s.OOMEvents)
	return m.Marshal()
}

// ParseSpec decodes what Marshal made.
func ParseSpec(b []byte) (Spec, error) {
	m, err := Parse(b)
	if err != nil {
		return Spec{}, err
	}
	s := Spec{
		Level: m.Get("level"), Path: m.Get("path"), Dir: m.Get("dir"),
		Args: m.All("arg"), Env: m.All("env"),
		UID: int(m.Int("uid")), GID: int(m.Int("gid")),
		Log: m.Get("log") != "", Stdin: m.Get("stdin") != "", Stdout: m.Get("stdout") != "", Stderr: m.Get("stderr") != "",
		Files: m.All("file"), Held: m.All("held"),
		ListenNames: m.All("listen"), ListenPorts: numbers(m.All("listen-port")), Ports: numbers(m.All("port")),
		Serve: numbers(m.All("serve")), RelayNames: m.All("relay"), RelayPorts: numbers(m.All("relay-port")),
		Tied: m.Get("tied") != "", Memory: m.Int("memory"), PIDs: m.Int("pids"), LogLimit: m.Int("log-limit"),
		Groups: int(m.Int("groups")), Into: m.Get("into") != "", KillFile: m.Get("kill-file") != "", OOMEvents: m.Get("oom-events") != "",
	}
	if s.Groups < 0 || s.Groups > MaxGroups || s.Into && s.Groups == 0 {
		return Spec{}, errMalformed
	}
	sources, targets, access := m.All("source"), m.All("target"), m.All("access")
	if len(targets) != len(sources) || len(access) != len(sources) || len(s.ListenNames) != len(s.ListenPorts) || len(s.RelayNames) != len(s.RelayPorts) {
		return Spec{}, errMalformed
	}
	for i := range sources {
		s.Binds = append(s.Binds, Bind{sources[i], targets[i], access[i] != "rw"})
	}
	return s, nil
}

// numbers reads decimal numbers; what is none becomes -1.
func numbers(all []string) []int {
	var out []int
	for _, v := range all {
		n, err := strconv.Atoi(v)
		if err != nil {
			n = -1
		}
		out = append(out, n)
	}
	return out
}

// Descriptors is how many descriptors s comes with.
func (s Spec) Descriptors() int {
	n := 1 + len(s.Files) + len(s.Held) + 2*s.Groups
	for _, b := range []bool{s.Log, s.Stdin, s.Stdout, s.Stderr, s.Into, s.KillFile, s.OOMEvents} {
		if b {
			n++
		}
	}
	return n
}

// Status describes a running program.
type Status struct {
	PID     int
	Start   uint64 // of the program, in clock ticks since boot, as in proc_pid_stat(5)
	Monitor int
	At      time.Time
	Level   string
	OwnUser bool
	// Facts are what the monitor has read back from the kernel once the program ran.
	Facts Facts
}

// Facts are what confines a program, as the kernel tells it.
type Facts struct {
	// NoNewPrivs, Seccomp and Caps are of proc_pid_status(5), of the program; Caps is the union of
	// its effective, permitted, inheritable and ambient sets, Bounding the bounding set.
	NoNewPrivs, Seccomp int
	Caps, Bounding      uint64
	// Landlock is the version of the rules put in force, 0 for none.
	Landlock int
	// Namespaces are the ids of the monitor's, which are the program's, in the order of
	// NamespaceKinds; empty where they are the host's.
	Namespaces string
	// MemoryLimit and PIDLimit are rlimits in force where they were asked for; 0 for none.
	MemoryLimit, PIDLimit int64
	Each                  Each
	// Judged tells of level limited that the monitor makes the calls that a filter can't judge.
	Judged bool
}

// Each are the hard limits of every process of a program: how many files it has open, the bytes of
// memory that it locks and of a core it dumps, and how far it raises its priority, real-time and
// not. Less than 0 is no limit.
type Each struct {
	Files, Locked, Core, Nice, RealTime int64
}

// MaxEach is what a program gets at every level, or less where its starter has less. A core of one byte
// is none, and keeps the kernel also from starting the program that a host has for cores, which a
// limit of 0 does not.
var MaxEach = Each{Files: 8192, Locked: 64 << 10, Core: 1}

func (e *Each) fields() [5]*int64 {
	return [...]*int64{&e.Files, &e.Locked, &e.Core, &e.Nice, &e.RealTime}
}

// Within tells whether no limit is above that of most.
func (e Each) Within(most Each) bool {
	m := most.fields()
	for i, n := range e.fields() {
		if *n < 0 || *n > *m[i] {
			return false
		}
	}
	return true
}

// eachOf reads the limits that Fill added; one that is not there is none.
func eachOf(all []string) Each {
	numbers := numbers(all)
	e := Each{-1, -1, -1, -1, -1}
	for i, to := range e.fields() {
		if len(numbers) == len(e.fields()) {
			*to = int64(numbers[i])
		}
	}
	return e
}

// NamespaceKinds are the namespaces that a program at strict has of its own.
var NamespaceKinds = []string{"user", "mnt", "pid", "ipc", "uts", "net"}

// Fill adds s to a message.
func (s Status) Fill(m *Message) {
	m.AddInt("pid", int64(s.PID))
	m.AddInt("start", int64(s.Start))
	m.AddInt("monitor", int64(s.Monitor))
	m.AddInt("at", s.At.UnixNano())
	m.Add("level", s.Level)
	addBool(m, "own", s.OwnUser)
	f := s.Facts
	m.AddInt("nnp", int64(f.NoNewPrivs))
	m.AddInt("seccomp", int64(f.Seccomp))
	m.Add("caps", strconv.FormatUint(f.Caps, 16))
	m.Add("bounding", strconv.FormatUint(f.Bounding, 16))
	m.AddInt("landlock", int64(f.Landlock))
	m.Add("namespaces", f.Namespaces)
	m.AddInt("memory", f.MemoryLimit)
	m.AddInt("pids", f.PIDLimit)
	addBool(m, "judged", f.Judged)
	for _, n := range f.Each.fields() {
		m.AddInt("each", *n)
	}
}

// StatusOf reads what Fill added.
func StatusOf(m Message) Status {
	return Status{
		PID: int(m.Int("pid")), Start: uint64(m.Int("start")), Monitor: int(m.Int("monitor")),
		At: time.Unix(0, m.Int("at")).UTC(), Level: m.Get("level"), OwnUser: m.Get("own") != "",
		Facts: Facts{
			NoNewPrivs: int(m.Int("nnp")), Seccomp: int(m.Int("seccomp")), Caps: Hex(m.Get("caps")), Bounding: Hex(m.Get("bounding")),
			Landlock: int(m.Int("landlock")), Namespaces: m.Get("namespaces"), MemoryLimit: m.Int("memory"), PIDLimit: m.Int("pids"), Each: eachOf(m.All("each")),
			Judged: m.Get("judged") != "",
		},
	}
}

// Hex reads a set of bits; what is none reads as all of them, so that nothing passes for confined.
func Hex(s string) uint64 {
	n, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return ^uint64(0)
	}
	return n
}

// Exit is how a program ended; see sandbox.Exit for the fields.
type Exit struct {
	Code   int
	Signal string
	At     time.Time
	Stderr []string
	Asked  bool
	OOM    bool
}

// Fill adds e to a message.
func (e Exit) Fill(m *Message) {
	m.AddInt("code", int64(e.Code))
	m.Add(Signal, e.Signal)
	m.AddInt("at", e.At.UnixNano())
	m.AddAll("stderr", e.Stderr)
	addBool(m, "asked", e.Asked)
	addBool(m, "oom", e.OOM)
}

// ExitOf reads what Fill added.
func ExitOf(m Message) Exit {
	return Exit{
		Code: int(m.Int("code")), Signal: m.Get(Signal), At: time.Unix(0, m.Int("at")).UTC(),
		Stderr: m.All("stderr"), Asked: m.Get("asked") != "", OOM: m.Get("oom") != "",
	}
}

func addInts(m *Message, key string, all []int) {
	for _, n := range all {
		m.AddInt(key, int64(n))
	}
}

func addBool(m *Message, key string, b bool) {
	if b {
		m.Add(key, "1")
	}
}
