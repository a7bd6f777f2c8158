package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/otters-sh/otters/client"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// daemonProcess is an ottersd that this program has started.
type daemonProcess struct {
	cmd     *exec.Cmd
	socket  string
	log     string
	logFrom int64
	// done is closed when it has ended.
	done chan struct{}
}

// findDaemon finds ottersd beside this program, or else in PATH.
func findDaemon() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("ottersd: %w", err)
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	beside := filepath.Join(filepath.Dir(self), "ottersd")
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
		return beside, nil
	}
	path, err := exec.LookPath("ottersd")
	if err != nil {
		return "", fmt.Errorf("ottersd: no such program beside %s or in PATH; install it there", self)
	}
	return filepath.Abs(path)
}

// startDaemon starts ottersd in a session of its own, so that neither Ctrl-C nor the end of the
// terminal reaches it.
func startDaemon(home, socket string) (*daemonProcess, error) {
	path, err := findDaemon()
	if err != nil {
		return nil, err
	}
	logs := filepath.Join(home, "logs")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, fmt.Errorf("home: %w; choose another with --home or OTTERS_HOME", err)
	}
	log, err := os.OpenFile(filepath.Join(logs, "ottersd.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	cmd := exec.Command(path, "--home", home, "--socket", socket, "--log-file", log.Name())
	cmd.Dir = "/"
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "OTTERS_HOME=") }), "OTTERS_HOME="+home)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("ottersd: %w", err)
	}
	d := &daemonProcess{cmd: cmd, socket: socket, log: log.Name(), logFrom: from, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		// How it ended is in its log, and in ProcessState.
		_ = cmd.Wait()
	}()
	return d, nil
}

// answers waits until the daemon answers, and fails with the last line of its log where it ends
// before.
func (d *daemonProcess) answers(ctx context.Context) (*daemonv1.InfoResponse, error) {
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		info, err := ask(wait, d.socket)
		if err == nil && int(info.GetPid()) == d.cmd.Process.Pid {
			return info, nil
		}
		select {
		case <-d.done:
			return nil, d.ended()
		case <-wait.Done():
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("ottersd does not answer after %s; see %s", startTimeout, d.log)
		case <-time.After(pause):
		}
		if err != nil && !errors.Is(err, client.ErrNoDaemon) && wait.Err() == nil {
			return nil, err
		}
	}
}

func (d *daemonProcess) ended() error {
	if line := strings.TrimPrefix(d.lastLine(), "ottersd: "); line != "" {
		return fmt.Errorf("ottersd: %s", line)
	}
	return fmt.Errorf("ottersd ended without a word (%s); see %s", d.cmd.ProcessState, d.log)
}

// lastLine is the last line that this daemon wrote to its log.
func (d *daemonProcess) lastLine() string {
	f, err := os.Open(d.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	const most = 16 << 10
	from := d.logFrom
	if from > info.Size() {
		from = 0 // it went on in a new file
	}
	from = max(from, info.Size()-most)
	text, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if err != nil {
		return ""
	}
	text = bytes.TrimSpace(text)
	return strings.TrimSpace(string(text[bytes.LastIndexByte(text, '\n')+1:]))
}

// end sends SIGTERM, which leaves agents running, and SIGKILL to a daemon that is still there
// after grace. It returns when the process is gone.
func (d *daemonProcess) end(ctx context.Context, grace time.Duration) error {
	// A signal to a process that has ended is no error here: the wait below tells.
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
	}
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ottersd: process %d: %w", d.cmd.Process.Pid, err)
	}
	<-d.done
	return nil
}
