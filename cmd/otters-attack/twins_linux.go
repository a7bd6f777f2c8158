package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// twins are what must work wherever an agent runs.
var twins = map[string]func(targets) error{
	"write":   twinWrite,
	"read":    twinRead,
	"modes":   twinModes,
	"links":   twinLinks,
	"child":   func(targets) error { return exec.Command(own(), "role-nothing").Run() },
	"signal":  twinSignal,
	"pipe":    twinPipe,
	"gateway": twinGateway,
	"proxy":   twinProxy,
	"proc":    twinProc,
	"devices": twinDevices,
	"memory":  twinMemory,
	"id":      twinID,
}

func own() string {
	self, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return self
}

// gateway is the address of the agent's own gateway.
func (t targets) gateway() string {
	if t["gateway"] != "" {
		return t["gateway"]
	}
	for _, kv := range os.Environ() {
		if k, v, _ := strings.Cut(kv, "="); strings.HasSuffix(k, "_API_BASE") {
			host, _, _ := strings.Cut(strings.TrimPrefix(v, "http://"), "/")
			return host
		}
	}
	return ""
}

func twinWrite(t targets) error {
	path := filepath.Join(t.workspace(), t.marker())
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		return err
	}
	got, err := os.ReadFile(path)
	if err == nil && string(got) != "mine" {
		err = fmt.Errorf("read %q back", got)
	}
	return errors.Join(err, os.Remove(path))
}

// twinModes changes what is its own by a descriptor that only reads.
func twinModes(t targets) error {
	path := filepath.Join(t.workspace(), t.marker())
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	defer os.Remove(path)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	times := [2]unix.Timespec{{Sec: 1}, {Sec: 2}}
	_, err = call(unix.SYS_UTIMENSAT, f.Fd(), 0, uintptr(unsafe.Pointer(&times)))
	if err := errors.Join(err, f.Chmod(0o640)); err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil && (st.Mode() != 0o640 || st.ModTime().Unix() != 2) {
		err = fmt.Errorf("mode %v, time %v", st.Mode(), st.ModTime())
	}
	return err
}

func twinRead(t targets) error {
	b, err := os.ReadFile(filepath.Join(t["root"], "etc", "agent.yaml"))
	if err == nil && len(b) == 0 {
		err = errors.New("agent.yaml is empty")
	}
	return err
}

func twinLinks(t targets) error {
	path := filepath.Join(t.workspace(), t.marker())
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return errors.Join(
		os.Symlink(path, path+"-s"), os.Rename(path, path+"-r"), os.Mkdir(path+"-d", 0o700),
		os.Remove(path+"-s"), os.Remove(path+"-r"), os.Remove(path+"-d"))
}

func twinSignal(targets) error {
	cmd := exec.Command(own(), "role-wait")
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		return fmt.Errorf("a killed child ended with %v", err)
	}
	return nil
}

func twinPipe(targets) error {
	out, err := exec.Command(own(), "role-speak").Output()
	if err == nil && string(out) != "words" {
		err = fmt.Errorf("a child said %q", out)
	}
	return err
}

func twinGateway(t targets) error {
	fd, err := dial(unix.SOCK_STREAM, 0, t.gateway())
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "gateway")
	defer f.Close()
	if _, err := f.WriteString("GET /v1/models HTTP/1.0\r\nHost: " + t.gateway() + "\r\n\r\n"); err != nil {
		return err
	}
	b := make([]byte, 16)
	if _, err := io.ReadAtLeast(f, b, 4); err != nil || !bytes.HasPrefix(b, []byte("HTTP")) {
		return fmt.Errorf("gateway said %q: %w", b, err)
	}
	return nil
}

func twinProc(targets) error {
	b, err := os.ReadFile("/proc/self/status")
	if err == nil && !bytes.Contains(b, []byte("Pid:")) {
		err = errors.New("/proc/self/status tells nothing")
	}
	return err
}

func twinDevices(targets) error {
	b := make([]byte, 16)
	random, err := os.Open("/dev/urandom")
	if err != nil {
		return err
	}
	defer random.Close()
	if _, err := io.ReadFull(random, b); err != nil {
		return err
	}
	return os.WriteFile(os.DevNull, b, 0)
}

func twinMemory(targets) error {
	b, err := unix.Mmap(-1, 0, 16<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return unix.Munmap(b)
}

func twinID(targets) error {
	start := time.Now()
	time.Sleep(time.Millisecond)
	if unix.Getpid() <= 0 || unix.Getuid() < 0 || !time.Now().After(start) {
		return errors.New("no process id, user id or time")
	}
	return nil
}
