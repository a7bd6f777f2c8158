package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5"

	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/workspace"
)

// spawned is a runtime started by a Spawner.
type spawned struct {
	cmd  Cmd
	done chan struct{}
	exit sandbox.Exit
}

var _ process = (*spawned)(nil)

// launchSpawned starts the runtime by a Spawner, without a monitor.
func (a *Agent) launchSpawned(ctx context.Context) (process, error) {
	spawner := a.spawner
	if spawner == nil && a.disk {
		spawner = osSpawner{}
	}
	if spawner == nil {
		return nil, errors.New("start runtime: the workspace is not on disk, where nothing can be started from it; give a Spawner")
	}
	tail := &tailWriter{}
	closers, stdout, stderr, err := a.spawnOutputs(tail)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	cmd := spawner.Command(hostPath(a.fs, RuntimeBin), a.args()...)
	env := a.env()
	dir := hostPath(a.fs, workspace.WorkDir)
	a.mu.Unlock()
	var files openFiles
	defer files.close()
	passed, err := a.passFiles(ctx, cmd, &files)
	if err != nil {
		closers.close()
		return nil, fmt.Errorf("start runtime: %w", err)
	}
	cmd.SetEnv(append(passed, env...))
	cmd.SetDir(dir)
	cmd.SetStdout(stdout)
	cmd.SetStderr(stderr)
	if err := cmd.Start(); err != nil {
		closers.close()
		return nil, fmt.Errorf("start runtime: %w", err)
	}
	s := &spawned{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.exit = exitOf(cmd.Wait(), tail)
		closers.close()
	}()
	return s, nil
}

// passFiles hands the listener and a serve token to a Cmd that takes files, for a runtime that takes
// them, and returns the variables that tell of them. Any other runtime binds the address itself, which
// is freed for it.
func (a *Agent) passFiles(ctx context.Context, cmd Cmd, files *openFiles) ([]string, error) {
	a.mu.Lock()
	inherit, ln := a.ways.inherit, a.listener
	a.mu.Unlock()
	taker, ok := cmd.(interface{ SetFiles(files []*os.File) })
	if !ok || !inherit || ln == nil {
		a.setServeToken("")
		a.freeAddr(ctx)
		return nil, nil
	}
	inherited, err := a.inherited(ln, files)
	if err != nil {
		return nil, err
	}
	taker.SetFiles(inherited[:])
	return []string{"LISTEN_FDS=2", "LISTEN_FDNAMES=" + runtimeFile + ":" + serveTokenFile}, nil
}

// exitOf reads what Cmd.Wait answered: nil is exit code 0, and an error that knows a code, as
// *exec.ExitError does, has that one.
func exitOf(err error, tail *tailWriter) sandbox.Exit {
	e := sandbox.Exit{At: time.Now(), Stderr: tail.lines()}
	var coder interface{ ExitCode() int }
	switch {
	case err == nil:
	case errors.As(err, &coder):
		e.Code = coder.ExitCode()
	default:
		e.Code = -1
		e.Stderr = append(e.Stderr, err.Error())
	}
	return e
}

func (s *spawned) Done() <-chan struct{} { return s.done }
func (s *spawned) Exit() sandbox.Exit    { return s.exit }

// Signal passes sig on.
func (s *spawned) Signal(_ context.Context, sig os.Signal) error {
	select {
	case <-s.done:
		return sandbox.ErrNotRunning
	default:
		return s.cmd.Signal(sig)
	}
}

func (s *spawned) Stop(ctx context.Context, grace time.Duration) error {
	if err := s.cmd.Signal(syscall.SIGTERM); err == nil {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-s.done:
			return nil
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	err := s.cmd.Signal(os.Kill)
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
}

// Close stops the process: without a monitor it has nobody else.
func (s *spawned) Close() error {
	select {
	case <-s.done:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*stopGrace)
	defer cancel()
	return s.Stop(ctx, stopGrace)
}

// closerList closes what a run's outputs opened.
type closerList []io.Closer

func (c closerList) close() {
	for _, cl := range c {
		_ = cl.Close()
	}
}

// spawnOutputs are where a spawned runtime's output goes: the log, the caller's writers, and the
// tail for the exit record.
func (a *Agent) spawnOutputs(tail io.Writer) (closers closerList, stdout, stderr io.Writer, err error) {
	outs, errs := []io.Writer{}, []io.Writer{tail}
	if a.stdout != nil {
		outs = append(outs, a.stdout)
	}
	if a.stderr != nil {
		errs = append(errs, a.stderr)
	}
	if path := a.LogPath(); path != "" {
		f, err := a.provider.hostFS.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("log: %w", err)
		}
		log := &lineLog{w: f}
		closers = append(closers, log)
		outs = append(outs, log.stream("stdout"))
		errs = append(errs, log.stream("stderr"))
	}
	return closers, io.MultiWriter(outs...), io.MultiWriter(errs...), nil
}

// maxLogLine bounds a line of the log, in bytes; a longer one is split.
const maxLogLine = 64 << 10

// lineLog writes the JSON lines that the monitor writes for other agents.
type lineLog struct {
	mu      sync.Mutex
	w       billy.File
	streams []*logStream
}

type logStream struct {
	log  *lineLog
	name string
	buf  []byte
}

func (l *lineLog) stream(name string) io.Writer {
	s := &logStream{log: l, name: name}
	l.streams = append(l.streams, s)
	return s
}

func (s *logStream) Write(p []byte) (int, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.buf = append(s.buf, p...)
	for {
		i := bytes.IndexByte(s.buf, '\n')
		switch {
		case i >= 0:
			s.put(s.buf[:i])
			s.buf = s.buf[i+1:]
		case len(s.buf) > maxLogLine:
			s.put(s.buf[:maxLogLine])
			s.buf = s.buf[maxLogLine:]
		default:
			return len(p), nil
		}
	}
}

// put writes one line; a log that can't be written must not end the runtime.
func (s *logStream) put(line []byte) {
	entry, err := json.Marshal(struct {
		T      time.Time `json:"t"`
		Stream string    `json:"stream"`
		Line   string    `json:"line"`
	}{time.Now().UTC(), s.name, strings.ToValidUTF8(string(line), "\uFFFD")})
	if err == nil {
		_, _ = s.log.w.Write(append(entry, '\n'))
	}
}

// Close writes what came without a line's end.
func (l *lineLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.streams {
		if len(s.buf) > 0 {
			s.put(s.buf)
		}
	}
	return l.w.Close()
}

// tailWriter keeps the last lines of standard error, as the monitor does.
type tailWriter struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes, tailLines = 20 << 10, 20

func (t *tailWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tailWriter) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimRight(strings.ToValidUTF8(string(t.buf), "\uFFFD"), "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-tailLines):]
}

// outputs are the pipes by which a monitor passes a program's output to writers in this process.
type outputs struct {
	wg    sync.WaitGroup
	pipes []*os.File
}

func (o *outputs) any() bool { return len(o.pipes) > 0 }
func (o *outputs) wait()     { o.wg.Wait() }

// open makes a pipe for each writer that is not nil, whose other end is the monitor's.
func (o *outputs) open(s *sandbox.Spec, files *openFiles, stdout, stderr io.Writer) error {
	for _, out := range []struct {
		to   io.Writer
		file **os.File
	}{{stdout, &s.Stdout}, {stderr, &s.Stderr}} {
		if out.to == nil {
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		*out.file, _ = files.add(w, nil)
		o.pipes = append(o.pipes, r)
		o.wg.Go(func() {
			defer r.Close() // who writes on is told
			_, _ = io.Copy(out.to, r)
		})
	}
	return nil
}

// outputs opens the log for the monitor and pipes for the caller's writers.
func (a *Agent) outputs(s *sandbox.Spec, files *openFiles) (*outputs, error) {
	if path := a.LogPath(); path != "" {
		f, err := files.add(openLog(path))
		if err != nil {
			return nil, fmt.Errorf("log: %w", err)
		}
		s.Log, s.LogLimit = f, a.provider.logLimit
	}
	o := new(outputs)
	return o, o.open(s, files, a.stdout, a.stderr)
}

// teed is a monitored runtime whose output also goes to writers in this process; its end is told
// when they have had everything.
type teed struct {
	*sandbox.Process
	outputs *outputs
}

// Close waits for the writers once the runtime has ended.
func (t *teed) Close() error {
	select {
	case <-t.Process.Done():
		t.outputs.wait()
	default:
	}
	return t.Process.Close()
}
