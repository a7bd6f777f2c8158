//go:build linux

package sandbox_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/otters-sh/otters/sandbox"
)

func TestExitIsRecordedAsItWas(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	for name, c := range map[string]struct {
		script string
		want   sandbox.Exit
	}{
		"zero":           {"exit 0", sandbox.Exit{}},
		"code":           {"echo out; echo why >&2; exit 78", sandbox.Exit{Code: 78, Stderr: []string{"why"}}},
		"SIGKILL":        {"kill -KILL $$", sandbox.Exit{Code: -1, Signal: "SIGKILL"}},
		"SIGSEGV":        {"kill -SEGV $$", sandbox.Exit{Code: -1, Signal: "SIGSEGV"}},
		"not UTF-8":      {`printf 'a\377b\n' >&2`, sandbox.Exit{Stderr: []string{"a\uFFFDb"}}},
		"no newline":     {"printf end >&2; exit 1", sandbox.Exit{Code: 1, Stderr: []string{"end"}}},
		"quotes":         {`printf '"\\\t\001\n' >&2`, sandbox.Exit{Stderr: []string{"\"\\\t\x01"}}},
		"the last lines": {"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do echo $i >&2; done", sandbox.Exit{Stderr: strings.Fields("3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22")}},
		"a long line":    {"head -c 3000 /dev/zero | tr '\\0' x >&2", sandbox.Exit{Stderr: []string{strings.Repeat("x", 1024)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := shell(t, c.script)
			before := time.Now()
			p := start(t, l, spec)
			got := wait(t, p)
			if got.At.Before(before.Add(-time.Second)) || got.At.After(time.Now()) {
				t.Errorf("ended at %v", got.At)
			}
			read, ok, err := sandbox.ReadExit(spec.StateDir)
			if err != nil || !ok {
				t.Fatalf("record: %v %v", ok, err)
			}
			if d := cmp.Diff(got, read); d != "" {
				t.Errorf("record differs from what was told: %s", d)
			}
			got.At = time.Time{}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if left := names(t, spec.StateDir); !slices.Equal(left, []string{"exit.json"}) {
				t.Errorf("left in the state folder: %v", left)
			}
		})
	}
}

// K15: what the monitor makes is its user's alone, whatever the umask of who started it.
func TestStateIsPrivate(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "umask; exec sleep 1000")
	out := output(t, &spec)
	p := start(t, l, spec)
	if got := line(t, out); got != "0022" {
		t.Errorf("umask of the program %s", got)
	}
	q, err := sandbox.Attach(deadline(t), spec.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for _, name := range append(names(t, spec.StateDir), "control.sock") {
		st, err := os.Lstat(filepath.Join(spec.StateDir, name))
		if err == nil && st.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v", name, st.Mode())
		}
	}
	if err := p.Stop(deadline(t), time.Second); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(spec.StateDir, "exit.json")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("exit.json: %v %v", st, err)
	}
}

// K3: the program has standard input, its two outputs and its files, and nothing else.
func TestProgramHasExactlyItsDescriptors(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	leak, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	list := "ls -1 /proc/$$/fd; readlink /proc/$$/fd/0"
	for name, c := range map[string]struct{ script, want string }{
		"none": {list, "0 1 2 /dev/null"},
		"two":  {list + "; cat <&3; cat <&4", "0 1 2 3 4 /dev/null first second"},
	} {
		spec := shell(t, c.script)
		if name == "two" {
			spec.Files = []sandbox.File{{Name: "a", File: content(t, "first\n")}, {Name: "b", File: content(t, "second\n")}}
		}
		spec.Held = []sandbox.File{{Name: "held", File: content(t, "x")}}
		path := logFile(t, &spec)
		output(t, &spec)
		wait(t, start(t, l, spec))
		var got []string
		for _, l := range readLog(t, path) {
			got = append(got, l.Line)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", name, s, c.want)
		}
	}
}

func content(t *testing.T, s string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// K4: the environment is the spec's; a forged LISTEN_ variable does not get through.
func TestEnvironmentIsExact(t *testing.T) {
	t.Setenv("OTTERS_TEST_SECRET", "must not be inherited")
	l := newLauncher(t, sandbox.LauncherOptions{})
	for name, c := range map[string]struct {
		files []sandbox.File
		want  []string
	}{
		"without files": {nil, []string{"A=1", "B="}},
		"with files":    {[]sandbox.File{{Name: "runtime", File: content(t, "")}, {Name: "serve-token", File: content(t, "")}}, []string{"A=1", "B=", "LISTEN_FDS=2", "LISTEN_FDNAMES=runtime:serve-token"}},
	} {
		spec := shell(t, "")
		spec.Path, spec.Args = "/usr/bin/env", nil
		spec.Env = []string{"A=1", "LISTEN_PID=1", "LISTEN_FDS=9", "B="}
		spec.Files = c.files
		path := logFile(t, &spec)
		wait(t, start(t, l, spec))
		var got []string
		for _, l := range readLog(t, path) {
			got = append(got, l.Line)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestUserIsDropped(t *testing.T) {
	t.Parallel()
	// What a launcher ignores its children inherit, and the program must not. The Go runtime of the
	// monitor sees to all signals but 32 and 33.
	ignore := [4]uintptr{1}
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, 32, uintptr(unsafe.Pointer(&ignore)), 0, 8, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	l := newLauncher(t, sandbox.LauncherOptions{})
	const script = "grep -E '^(Uid|Gid|Groups|NoNewPrivs|CapEff|SigBlk|SigIgn):' /proc/self/status | tr -s '\\t ' ' '"
	spec := shell(t, script)
	path := logFile(t, &spec)
	if os.Geteuid() != 0 {
		spec.UID = os.Geteuid() + 1
		if _, err := l.Start(deadline(t), spec); !errors.Is(err, sandbox.ErrStart) || !errors.Is(err, fs.ErrPermission) {
			t.Errorf("another user's id: %v", err)
		}
		spec.UID = os.Geteuid()
		if e := wait(t, start(t, l, spec)); e.Code != 0 {
			t.Errorf("own id: %+v", e)
		}
		t.Skip("dropping to another user needs root")
	}
	spec.UID, spec.GID = 64001, 64002
	p := start(t, l, spec)
	if !p.Confinement().OwnUser {
		t.Error("not reported as a user of its own")
	}
	wait(t, p)
	var got []string
	for _, l := range readLog(t, path) {
		got = append(got, strings.TrimSpace(l.Line))
	}
	want := []string{"Uid: 64001 64001 64001 64001", "Gid: 64002 64002 64002 64002", "Groups:", "SigBlk: 0000000000000000", "SigIgn: 0000000000000000", "CapEff: 0000000000000000", "NoNewPrivs: 1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	keep := shell(t, "exit $(id -u)")
	q := start(t, l, keep)
	if e := wait(t, q); e.Code != 0 || q.Confinement().OwnUser {
		t.Errorf("caller's own: %+v", e)
	}
}

func TestStartErrorsNameTheCauseAndLeaveNothing(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	plain := filepath.Join(t.TempDir(), "plain")
	garbage := filepath.Join(t.TempDir(), "garbage")
	script := filepath.Join(t.TempDir(), "script")
	for path, mode := range map[string]fs.FileMode{plain: 0o644, garbage: 0o755, script: 0o755} {
		body := "not a program"
		if path == script {
			body = "#!/nowhere/interpreter\n"
		}
		writeProgram(t, path, []byte(body))
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(*sandbox.Spec)
		is     error
		says   string
	}{
		"missing":         {func(s *sandbox.Spec) { s.Path = "/nowhere/program" }, fs.ErrNotExist, "/nowhere/program"},
		"not executable":  {func(s *sandbox.Spec) { s.Path = plain }, fs.ErrPermission, plain},
		"a folder":        {func(s *sandbox.Spec) { s.Path = "/usr" }, fs.ErrPermission, "/usr"},
		"no format":       {func(s *sandbox.Spec) { s.Path = garbage }, syscall.ENOEXEC, garbage},
		"no interpreter":  {func(s *sandbox.Spec) { s.Path = script }, fs.ErrNotExist, "its interpreter"},
		"no folder":       {func(s *sandbox.Spec) { s.Dir = "/nowhere" }, fs.ErrNotExist, "working folder /nowhere"},
		"relative":        {func(s *sandbox.Spec) { s.Path = "sh" }, nil, "not an absolute path"},
		"NUL":             {func(s *sandbox.Spec) { s.Args = []string{"a\x00b"} }, nil, "NUL"},
		"no variable":     {func(s *sandbox.Spec) { s.Env = []string{"secret"} }, nil, "NAME=VALUE"},
		"too large":       {func(s *sandbox.Spec) { s.Args = []string{strings.Repeat("x", 5<<20)} }, nil, "more than"},
		"one long":        {func(s *sandbox.Spec) { s.Args = []string{strings.Repeat("x", 1<<20)} }, syscall.E2BIG, "/bin/sh"},
		"open state":      {func(s *sandbox.Spec) { os.Chmod(s.StateDir, 0o755) }, nil, "must be 0700"},
		"no state":        {func(s *sandbox.Spec) { os.Remove(s.StateDir) }, fs.ErrNotExist, "/state"},
		"log not append":  {func(s *sandbox.Spec) { s.Log = content(t, "") }, nil, "appending"},
		"name twice":      {func(s *sandbox.Spec) { f := content(t, ""); s.Held = []sandbox.File{{"a", f}, {"a", f}} }, nil, "twice"},
		"name with colon": {func(s *sandbox.Spec) { s.Files = []sandbox.File{{"a:b", content(t, "")}} }, nil, "colon"},
		"no file":         {func(s *sandbox.Spec) { s.Files = []sandbox.File{{"a", nil}} }, nil, "not open"},
		"no level":        {func(s *sandbox.Spec) { s.Level = "" }, sandbox.ErrUnsupported, "off, limited or strict"},
		"nothing wrong":   {func(s *sandbox.Spec) {}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := shell(t, "exit 0")
			c.change(&spec)
			p, err := l.Start(deadline(t), spec)
			if name == "nothing wrong" {
				if err != nil {
					t.Fatal(err)
				}
				wait(t, p)
				p.Close()
				return
			}
			if err == nil {
				end(t, p)
				t.Fatal("it started")
			}
			if c.is != sandbox.ErrUnsupported && !errors.Is(err, sandbox.ErrStart) {
				t.Errorf("not ErrStart: %v", err)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("not %v: %v", c.is, err)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("does not say %q: %v", c.says, err)
			}
			if name != "no state" {
				if left := names(t, spec.StateDir); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
				if _, ok, err := sandbox.ReadExit(spec.StateDir); ok || err != nil {
					t.Errorf("record of an exit: %v %v", ok, err)
				}
			}
		})
	}
}

func TestFolderHasOneProgramAtATime(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, "exec sleep 1000")
	p := start(t, l, spec)
	if _, err := l.Start(deadline(t), spec); !errors.Is(err, sandbox.ErrStart) || !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("second start: %v", err)
	}
	for range 20 {
		if err := p.Stop(deadline(t), time.Second); err != nil {
			t.Fatal(err)
		}
		p = start(t, l, spec)
		if _, ok, err := sandbox.ReadExit(spec.StateDir); ok || err != nil {
			t.Fatalf("the earlier record is still there: %v", err)
		}
	}
}

func TestManyStartAtOnce(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: 2})
	const many = 50
	specs := make([]sandbox.Spec, many)
	for i := range specs {
		specs[i] = shell(t, "echo up; exec sleep 1000")
	}
	ctx := deadline(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	pids := make(map[int]bool)
	begin := time.Now()
	var all []*sandbox.Process
	for _, s := range specs {
		wg.Go(func() {
			p, err := l.Start(ctx, s)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			pids[p.PID()], pids[p.MonitorPID()] = true, true
			all = append(all, p)
		})
	}
	wg.Wait()
	t.Logf("%d started within %v", len(all), time.Since(begin))
	if len(pids) != 2*many {
		t.Errorf("%d processes, want %d", len(pids), 2*many)
	}
	for _, p := range all {
		wg.Go(func() { end(t, p) })
	}
	wg.Wait()
}

// A start that is cancelled at any moment leaves no program, no monitor and no socket.
func TestCancelledStartIsUndone(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	cancelled := 0
	for i := range 40 {
		spec := shell(t, "exec sleep 1000")
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*200*time.Microsecond)
		p, err := l.Start(ctx, spec)
		cancel()
		if err == nil {
			end(t, p)
			continue
		}
		cancelled++
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if _, err := sandbox.Attach(deadline(t), spec.StateDir); !errors.Is(err, sandbox.ErrNotRunning) {
			t.Fatalf("still there: %v", err)
		}
		q, err := l.Start(deadline(t), spec)
		if err != nil {
			t.Fatal(err)
		}
		end(t, q)
	}
	if cancelled == 0 {
		t.Error("nothing was cancelled")
	}
}

func TestMonitorKilledWhileItWaitsIsReplaced(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{Warm: 4})
	first := start(t, l, shell(t, "exit 7"))
	if e := wait(t, first); e.Code != 7 {
		t.Fatalf("%+v", e)
	}
	for _, pid := range l.WarmPIDs() {
		fd := held(t, pid)
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil || !gone(t, fd, patience) {
			t.Fatal("not killed", err)
		}
	}
	for range 8 {
		if e := wait(t, start(t, l, shell(t, "exit 7"))); e.Code != 7 {
			t.Fatalf("%+v", e)
		}
	}
}

func TestMonitorNotFound(t *testing.T) {
	t.Parallel()
	_, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: "/nowhere/otters-sandbox"})
	if !errors.Is(err, sandbox.ErrNoMonitor) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: "/bin/true"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Start(deadline(t), shell(t, "exit 0")); !errors.Is(err, sandbox.ErrStart) {
		t.Errorf("another program as the monitor: %v", err)
	}
}

func TestOutputGoesToTheCallerAsWell(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, sandbox.LauncherOptions{})
	spec := shell(t, `printf 'a\377\n\nend'; echo err >&2`)
	begin := time.Now()
	path := logFile(t, &spec)
	out := output(t, &spec)
	w := spec.Stdout
	p := start(t, l, spec)
	wait(t, p)
	w.Close()
	b, err := io.ReadAll(out)
	if err != nil || string(b) != "a\xff\n\nend" {
		t.Errorf("%q %v", b, err)
	}
	perStream := map[string][]string{}
	for _, l := range readLog(t, path) {
		if l.T.Location() != time.UTC || l.T.Before(begin) || l.T.After(time.Now()) {
			t.Errorf("time %v", l.T)
		}
		perStream[l.Stream] = append(perStream[l.Stream], l.Line)
	}
	if d := cmp.Diff(map[string][]string{"stdout": {"a\uFFFD", "", "end"}, "stderr": {"err"}}, perStream); d != "" {
		t.Error(d)
	}
}
