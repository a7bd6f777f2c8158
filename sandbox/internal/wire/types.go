package wire

import "time"

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

// Spec is a program to run, as the monitor gets it. The descriptors come beside it: the state
// folder, the ones of Log, Stdout and Stderr where these are true, then Files, then Held.
type Spec struct {
	Level               string
	Path, Dir           string
	Args, Env           []string
	UID, GID            int
	Log, Stdout, Stderr bool
	Files, Held         []string
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
	addBool(&m, "stdout", s.Stdout)
	addBool(&m, "stderr", s.Stderr)
	m.AddAll("file", s.Files)
	m.AddAll("held", s.Held)
	return m.Marshal()
}

// ParseSpec decodes what Marshal made.
func ParseSpec(b []byte) (Spec, error) {
	m, err := Parse(b)
	if err != nil {
		return Spec{}, err
	}
	return Spec{
		Level: m.Get("level"), Path: m.Get("path"), Dir: m.Get("dir"),
		Args: m.All("arg"), Env: m.All("env"),
		UID: int(m.Int("uid")), GID: int(m.Int("gid")),
		Log: m.Get("log") != "", Stdout: m.Get("stdout") != "", Stderr: m.Get("stderr") != "",
		Files: m.All("file"), Held: m.All("held"),
	}, nil
}

// Descriptors is how many descriptors s comes with.
func (s Spec) Descriptors() int {
	n := 1 + len(s.Files) + len(s.Held)
	for _, b := range []bool{s.Log, s.Stdout, s.Stderr} {
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
}

// Fill adds s to a message.
func (s Status) Fill(m *Message) {
	m.AddInt("pid", int64(s.PID))
	m.AddInt("start", int64(s.Start))
	m.AddInt("monitor", int64(s.Monitor))
	m.AddInt("at", s.At.UnixNano())
	m.Add("level", s.Level)
	addBool(m, "own", s.OwnUser)
}

// StatusOf reads what Fill added.
func StatusOf(m Message) Status {
	return Status{
		PID: int(m.Int("pid")), Start: uint64(m.Int("start")), Monitor: int(m.Int("monitor")),
		At: time.Unix(0, m.Int("at")).UTC(), Level: m.Get("level"), OwnUser: m.Get("own") != "",
	}
}

// Exit is how a program ended; see sandbox.Exit for the fields.
type Exit struct {
	Code   int
	Signal string
	At     time.Time
	Stderr []string
	Asked  bool
}

// Fill adds e to a message.
func (e Exit) Fill(m *Message) {
	m.AddInt("code", int64(e.Code))
	m.Add(Signal, e.Signal)
	m.AddInt("at", e.At.UnixNano())
	m.AddAll("stderr", e.Stderr)
	addBool(m, "asked", e.Asked)
}

// ExitOf reads what Fill added.
func ExitOf(m Message) Exit {
	return Exit{
		Code: int(m.Int("code")), Signal: m.Get(Signal), At: time.Unix(0, m.Int("at")).UTC(),
		Stderr: m.All("stderr"), Asked: m.Get("asked") != "",
	}
}

func addBool(m *Message, key string, b bool) {
	if b {
		m.Add(key, "1")
	}
}
