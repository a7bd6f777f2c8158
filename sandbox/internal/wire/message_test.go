package wire

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	spec := Spec{
		Level: "off", Path: "/bin/sh", Dir: "/", Args: []string{"", "-c", "a\nb"}, Env: []string{"A=", "B=\xff"},
		UID: -1, GID: 1 << 31, Log: true, Stderr: true, Files: []string{"a", "b"}, Held: []string{"c"},
		Stdin: true, Binds: []Bind{{"/a", "/b", true}, {"/c\n", "", false}}, ListenNames: []string{"g"}, ListenPorts: []int{5528},
		Ports: []int{1, 65535}, Serve: []int{2}, Tied: true, RelayNames: []string{"c"}, RelayPorts: []int{3}, Memory: 1 << 40, PIDs: 7, LogLimit: 1 << 41, Groups: 2, Into: true, KillFile: true, OOMEvents: true,
	}
	if got, err := ParseSpec(spec.Marshal()); err != nil || !reflect.DeepEqual(got, spec) {
		t.Errorf("%+v %v", got, err)
	}
	if n := spec.Descriptors(); n != 14 {
		t.Errorf("%d descriptors", n)
	}
	exit := Exit{Code: -1, Signal: "SIGKILL", At: time.Unix(1, 2).UTC(), Stderr: []string{"", strings.Repeat("x", TailBytes)}, Asked: true, OOM: true}
	var m Message
	exit.Fill(&m)
	parsed, err := Parse(m.Marshal())
	if err != nil || !reflect.DeepEqual(ExitOf(parsed), exit) {
		t.Errorf("%+v %v", ExitOf(parsed), err)
	}
	status := Status{PID: 1, Start: 1 << 40, Monitor: 2, At: time.Unix(3, 4).UTC(), Level: "off", OwnUser: true,
		Facts: Facts{NoNewPrivs: 1, Seccomp: 2, Caps: 1 << 63, Bounding: 3, Landlock: 7, Namespaces: "a b", MemoryLimit: 8, PIDLimit: 9, Each: Each{10, 11, 12, -1, 13}, Judged: true}}
	m = Message{}
	status.Fill(&m)
	if got := StatusOf(m); got != status {
		t.Errorf("%+v", got)
	}
	if got := StatusOf(Message{}).Facts.Each; got != (Each{-1, -1, -1, -1, -1}) || got.Within(MaxEach) {
		t.Errorf("a monitor that says nothing of limits: %+v", got)
	}
}

func TestTheLargestExitFitsAMessage(t *testing.T) {
	t.Parallel()
	var exit Exit
	for range TailLines {
		exit.Stderr = append(exit.Stderr, strings.Repeat("x", TailBytes))
	}
	var m Message
	exit.Fill(&m)
	if n := len(m.Marshal()); n > MaxMessage/2 {
		t.Errorf("%d bytes", n)
	}
}

func TestAnotherVersionIsTold(t *testing.T) {
	t.Parallel()
	b := Message{}.Marshal()
	if _, err := Parse(b); err != nil {
		t.Error(err)
	}
	b[0]++
	if _, err := Parse(b); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
}

// Whatever Parse takes is what Marshal makes of it again: nothing is hidden between fields.
func FuzzParse(f *testing.F) {
	var m Message
	m.Add(Op, OpStop)
	m.AddInt(Grace, -5)
	f.Add(m.Marshal())
	f.Add([]byte{Version, 255, 0})
	f.Add([]byte{Version, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err == nil && !bytes.Equal(m.Marshal(), b) {
			t.Errorf("%x became %x", b, m.Marshal())
		}
	})
}
