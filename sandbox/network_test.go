//go:build linux

package sandbox_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/otters-sh/otters/sandbox"
)

// The listener inside is reached from inside and accepted on outside, by a later process too.
func TestListenerInside(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Strict)
	w := newWorld(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := copyProgram(t, self, filepath.Join(w.dir, "program"))
	spec := w.spec(t, sandbox.Strict, "")
	spec.Binds = append(spec.Binds, sandbox.Bind{Source: program, Target: "/program", ReadOnly: true})
	spec.Path, spec.Args = "/program", []string{"127.0.0.1:5528"}
	spec.Env = []string{roleVariable + "=dial", "GORACE=atexit_sleep_ms=0"}
	spec.Listen = []sandbox.Listen{{Name: "gateway", Port: 5528}}
	p := start(t, l, spec)
	q, err := sandbox.Attach(deadline(t), spec.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if q.PID() != p.PID() || q.MonitorPID() != p.MonitorPID() || p.PID() < 1 {
		t.Errorf("attached to %d under %d, started %d under %d", q.PID(), q.MonitorPID(), p.PID(), p.MonitorPID())
	}
	files, err := q.Files(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	f := files["gateway"]
	ln, err := net.FileListener(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if got := ln.Addr().String(); got != "127.0.0.1:5528" {
		t.Error(got)
	}
	for range 2 { // a second program may listen on the same port
		if err := ln.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(c)
		c.Close()
		if err != nil || string(b) != "hello" {
			t.Errorf("%q %v", b, err)
		}
	}
	if e := wait(t, p); e.Code != 0 {
		t.Errorf("%+v", e)
	}
}

// dial is the role that says hello twice.
func dial() int {
	for range 2 {
		c, err := net.Dial("tcp", os.Args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		_, _ = c.Write([]byte("hello"))
		_ = c.(*net.TCPConn).CloseWrite()
		// Whoever accepts may come late, and takes this program over before.
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
	return 0
}

// At limited the ports that were given are open and others are not.
func TestPortsAtLimited(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: -1})
	need(t, l, sandbox.Limited)
	w := newWorld(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := copyProgram(t, self, filepath.Join(w.dir, "program"))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	defer func() { ln.Close(); <-served }()
	go func() {
		defer close(served)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	for name, given := range map[string]bool{"given": true, "not given": false} {
		spec := w.spec(t, sandbox.Limited, "")
		spec.Binds = append(spec.Binds, sandbox.Bind{Source: program, ReadOnly: true})
		spec.Path, spec.Args = program, []string{ln.Addr().String()}
		spec.Env = []string{roleVariable + "=dial", "GORACE=atexit_sleep_ms=0"}
		if given {
			spec.Ports = []int{ln.Addr().(*net.TCPAddr).Port}
		}
		if e := wait(t, start(t, l, spec)); (e.Code == 0) != given {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
