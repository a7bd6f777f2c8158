//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otters-sh/otters/internal/modelserver"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/sandbox"
)

// Invariant: of a daemon that has ended, however it has, its agents are left and nothing else, and the
// next daemon has them as they were. Worst inputs: SIGKILL while a turn and a model call are in
// flight, a runtime that ends while no daemon runs, a monitor started ahead.

// machine is a home with programs of its own, so that its processes can be told from all others.
type machine struct {
	*testing.T
	home, bin string
	// user is who the daemon runs as.
	user *syscall.Credential
	// seen are processes that once descended from a daemon.
	seen map[identity]bool
}

// identity is a process and the time of its start.
type identity struct {
	pid   int
	start string
}

// ordinary is the id of an ordinary user, where the test runs as root; nobody else has it.
const ordinary = 64124

func newMachine(t *testing.T, asRoot bool) *machine {
	t.Helper()
	m := &machine{T: t, home: newHome(t), seen: map[identity]bool{}}
	if os.Geteuid() == 0 && !asRoot {
		m.user = &syscall.Credential{Uid: ordinary, Gid: ordinary}
		if err := os.Chown(filepath.Dir(m.home), ordinary, ordinary); err != nil {
			t.Fatal(err)
		}
	}
	m.bin = filepath.Join(filepath.Dir(m.home), "bin")
	if err := copyPrograms(m.bin, built.For(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range m.processes() {
			t.Errorf("process %d is left", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return m
}

// copyPrograms copies the programs of a folder, for everybody. No child that is forked meanwhile keeps one open for
// writing, and thus from being run.
func copyPrograms(to, from string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	return filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chmod(path, 0o755))
	})
}

// processes are those that descend from a daemon of the home, or run one of its programs, whoever
// their parent is by now.
func (m *machine) processes() []int {
	m.Helper()
	programs := map[[2]uint64]bool{}
	for _, dir := range []string{m.bin, m.home} {
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return nil
			}
			if info, err := e.Info(); err == nil && info.Mode()&0o100 != 0 {
				programs[inode(info)] = true
			}
			return nil
		})
	}
	var out []int
	for _, p := range m.stats() {
		if p.state == "Z" || p.state == "X" {
			continue
		}
		// Through the link itself: what it names may be of another root.
		info, err := os.Stat(fmt.Sprintf("/proc/%d/exe", p.pid))
		if m.seen[p.identity] || err == nil && programs[inode(info)] {
			out = append(out, p.pid)
		}
	}
	slices.Sort(out)
	return out
}

// stat is what proc_pid_stat(5) tells of a process.
type stat struct {
	identity
	parent int
	state  string
}

// stats are the processes of the host.
func (m *machine) stats() []stat {
	m.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		m.Fatal(err)
	}
	var all []stat
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) < 20 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(fields[1])
		all = append(all, stat{identity{pid, fields[19]}, parent, fields[0]})
	}
	return all
}

func inode(info fs.FileInfo) [2]uint64 {
	st := info.Sys().(*syscall.Stat_t)
	return [2]uint64{st.Dev, st.Ino}
}

// remember looks at what descends from a daemon now.
func (m *machine) remember(daemon int) {
	m.Helper()
	below := map[int][]identity{}
	for _, p := range m.stats() {
		below[p.parent] = append(below[p.parent], p.identity)
	}
	for queue := []int{daemon}; len(queue) > 0; queue = queue[1:] {
		for _, p := range below[queue[0]] {
			m.seen[p] = true
			queue = append(queue, p.pid)
		}
	}
}

// settle waits until the processes of the home are exactly these.
func (m *machine) settle(want []int) {
	m.Helper()
	slices.Sort(want)
	var got []int
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if got = m.processes(); slices.Equal(got, want) {
			return
		}
	}
	var text strings.Builder
	for _, pid := range got {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		fmt.Fprintf(&text, "\n%d %q", pid, b)
	}
	m.Fatalf("processes %v, want %v%s", got, want, &text)
}

// await waits until an agent has a status, and asks for it.
func (m *machine) await(api daemonv1.DaemonServiceClient, agent, want string) *daemonv1.Agent {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	stream, err := api.WatchAgent(ctx, &daemonv1.WatchAgentRequest{Agent: agent})
	for err == nil {
		var now *daemonv1.WatchAgentResponse
		if now, err = stream.Recv(); err == nil && now.GetAgent().GetStatus() == want {
			break
		}
	}
	var r *daemonv1.GetAgentResponse
	if err == nil {
		r, err = api.GetAgent(ctx, &daemonv1.GetAgentRequest{Agent: agent})
	}
	if err != nil {
		m.Fatalf("agent %s: wait for %s: %v", agent, want, err)
	}
	return r.GetAgent()
}

// logged waits for a line of an agent's log that begins so.
func (m *machine) logged(api daemonv1.DaemonServiceClient, agent, begin string) string {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	stream, err := api.Logs(ctx, &daemonv1.LogsRequest{Agent: agent, Follow: true})
	var all []string
	for err == nil {
		var line *daemonv1.LogsResponse
		if line, err = stream.Recv(); err == nil && strings.HasPrefix(line.GetLine(), begin) {
			return line.GetLine()
		}
		all = append(all, line.GetLine())
	}
	m.Fatalf("agent %s: no line %q: %v: %q", agent, begin, err, all)
	return ""
}

func (m *machine) create(api daemonv1.DaemonServiceClient, req *daemonv1.CreateAgentRequest) {
	m.Helper()
	req.Image = "a"
	if _, err := api.CreateAgent(m.Context(), req); err != nil {
		m.Fatal(err)
	}
}

// prompt runs a turn to its end.
func prompt(ctx context.Context, api daemonv1.DaemonServiceClient, agent, text string) (string, error) {
	stream, err := api.Prompt(ctx, &daemonv1.PromptRequest{Agent: agent, Text: text})
	said := ""
	for err == nil {
		var ev *daemonv1.PromptResponse
		ev, err = stream.Recv()
		said += ev.GetContent()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return said, err
}

// scripted serves a model that answers all but what asks it to hold.
func (m *machine) scripted() {
	hold := make(chan struct{})
	server := modelserver.Start(func(r modelserver.Request) modelserver.Answer {
		if strings.Contains(r.Last().Content, "hold") {
			return modelserver.Answer{Text: "one moment", Hold: hold}
		}
		return modelserver.Answer{Text: "answered"}
	})
	m.Cleanup(server.Close)
	m.Cleanup(func() { close(hold) })
	text := fmt.Sprintf("providers:\n  - name: scripted\n    api-key: secret-key\n    api-base: %s\n    models: [m]\n", server.URL)
	if err := os.MkdirAll(m.home, 0o711); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(m.home, "providers.yaml"), []byte(text), 0o600); err != nil {
		m.Fatal(err)
	}
	if m.user == nil {
		return
	}
	for _, path := range []string{m.home, filepath.Join(m.home, "providers.yaml")} {
		if err := os.Chown(path, ordinary, ordinary); err != nil {
			m.Fatal(err)
		}
	}
}

func TestK16OfADaemonItsAgentsAreLeftAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sig    syscall.Signal
		asRoot bool
	}{{syscall.SIGTERM, true}, {syscall.SIGKILL, true}, {syscall.SIGTERM, false}, {syscall.SIGKILL, false}} {
		if c.asRoot && os.Geteuid() != 0 {
			continue
		}
		// All of them take long; make load runs them.
		if os.Getenv("OTTERS_LOAD") == "" && (c.sig != syscall.SIGKILL || c.asRoot != (os.Geteuid() == 0)) {
			continue
		}
		t.Run(fmt.Sprintf("%v/root %t", c.sig, c.asRoot), func(t *testing.T) {
			t.Parallel()
			takeOver(newMachine(t, c.asRoot), c.sig)
		})
	}
}

// levels are those that this host gives.
func (m *machine) levels() []sandbox.Level {
	m.Helper()
	l, err := sandbox.NewLauncher(sandbox.LauncherOptions{Monitor: filepath.Join(m.bin, "otters-sandbox"), Warm: -1})
	if err != nil {
		m.Fatal(err)
	}
	defer l.Close()
	return l.Supported()
}

func takeOver(m *machine, sig syscall.Signal) {
	m.scripted()
	first := startFrom(m.T, m.bin, m.home, m.user)
	build(m.T, first.api)
	caller := filepath.Join(m.bin, "caller")
	names := []string{"calls", "code", "signal"}
	for _, l := range m.levels() {
		names = append(names, "talks-"+string(l))
		m.create(first.api, &daemonv1.CreateAgentRequest{Name: "talks-" + string(l), Sandbox: string(l), Model: "scripted/m"})
	}
	for _, name := range names[:3] {
		m.create(first.api, &daemonv1.CreateAgentRequest{Name: name, Model: "scripted/m", RuntimePath: caller})
	}
	before := map[string]*daemonv1.Agent{}
	var left []int
	for _, name := range names {
		a := m.await(first.api, name, "ready")
		before[name] = a
		left = append(left, int(a.GetPid()), int(a.GetMonitorPid()))
	}

	// A model call of a runtime's own and a turn are in flight when the daemon ends.
	m.logged(first.api, "calls", "hold: answer begins")
	turn := make(chan error, 1)
	go func() {
		_, err := prompt(m.Context(), first.api, "talks-off", "hold")
		turn <- err
	}()
	m.await(first.api, "talks-off", "working")
	m.remember(first.Process.Pid)
	if err := first.Process.Signal(sig); err != nil {
		m.Fatal(err)
	}
	if err := <-turn; status.Code(err) != codes.Unavailable {
		m.Errorf("the turn ended with %v", err)
	}
	_ = first.Wait()
	m.settle(left)

	// While no daemon runs one agent says something, one ends with a code, one by a signal.
	since := time.Now()
	for name, sig := range map[string]syscall.Signal{"calls": syscall.SIGUSR1, "code": syscall.SIGUSR2, "signal": syscall.SIGKILL} {
		if err := syscall.Kill(int(before[name].GetPid()), sig); err != nil {
			m.Fatal(err)
		}
	}
	left = slices.DeleteFunc(left, func(pid int) bool {
		return slices.ContainsFunc([]string{"code", "signal"}, func(name string) bool {
			return pid == int(before[name].GetPid()) || pid == int(before[name].GetMonitorPid())
		})
	})
	m.settle(left)
	until := time.Now()

	begin := time.Now()
	second := startFrom(m.T, m.bin, m.home, m.user)
	for _, name := range names {
		if strings.HasPrefix(name, "talks") || name == "calls" {
			m.sameAgent(before[name], m.await(second.api, name, "ready"))
		}
	}
	m.Logf("%d agents ready again %v after the next daemon's start", len(left)/2, time.Since(begin))
	m.endedMeanwhile(second.api, since, until)
	m.logged(second.api, "calls", "while nobody looked")
	// The answer had begun, so that a killed daemon can but break it off.
	clear := map[syscall.Signal]string{syscall.SIGTERM: "the gateway is stopping; try again", syscall.SIGKILL: "then error: unexpected EOF"}[sig]
	if got := m.logged(second.api, "calls", "hold: status"); !strings.Contains(got, clear) {
		m.Errorf("the model call in flight: %q, want %q", got, clear)
	}
	m.logged(second.api, "calls", "answer: status 200")
	for name, a := range before {
		if !strings.HasPrefix(name, "talks") {
			continue
		}
		if said, err := prompt(m.Context(), second.api, name, "answer"); err != nil || !strings.Contains(said, "answered") {
			m.Errorf("prompt of %s after the take-over: %q, %v", name, said, err)
		}
		m.sameAgent(a, m.await(second.api, name, "ready"))
	}
	m.remember(second.Process.Pid)
	if r, err := second.api.Shutdown(m.Context(), &daemonv1.ShutdownRequest{StopAgents: true}); err != nil || int(r.GetStopped()) != len(left)/2 {
		m.Errorf("shutdown: %v, %v", r, err)
	}
	if err := second.Wait(); err != nil {
		m.Errorf("after the shutdown: %v: %s", err, second.stderr)
	}
	m.settle(nil)
}

// sameAgent holds an agent after the take-over against the one before.
func (m *machine) sameAgent(before, after *daemonv1.Agent) {
	m.Helper()
	if after.GetPid() != before.GetPid() || after.GetMonitorPid() != before.GetMonitorPid() {
		m.Errorf("%s: processes %d and %d became %d and %d", before.GetSummary().GetName(), before.GetPid(), before.GetMonitorPid(), after.GetPid(), after.GetMonitorPid())
	}
	if was, is := before.GetSummary().GetStartedAtMs(), after.GetSummary().GetStartedAtMs(); was != is {
		m.Errorf("%s: started at %d, before at %d", before.GetSummary().GetName(), is, was)
	}
}

// endedMeanwhile holds the exits that no daemon saw against what they were.
func (m *machine) endedMeanwhile(api daemonv1.DaemonServiceClient, since, until time.Time) {
	m.Helper()
	for name, want := range map[string]struct {
		code            int32
		signal, message string
		last            []string
	}{
		"code":   {3, "", "runtime ended: exit code 3: last of the last words", []string{"first of the last words", "last of the last words"}},
		"signal": {-1, "SIGKILL", "runtime ended: SIGKILL", nil},
	} {
		a := m.await(api, name, "failed")
		exit, s := a.GetLastExit(), a.GetSummary()
		if exit.GetCode() != want.code || exit.GetSignal() != want.signal || exit.GetAtMs() < since.UnixMilli() || exit.GetAtMs() > until.UnixMilli() {
			m.Errorf("%s: exit %v, want %+v between %d and %d", name, exit, want, since.UnixMilli(), until.UnixMilli())
		}
		if s.GetReason() != "crashed" || !strings.HasPrefix(s.GetMessage(), want.message) {
			m.Errorf("%s: %v, want %q", name, s, want.message)
		}
		if n := len(exit.GetStderr()); n < len(want.last) || !slices.Equal(exit.GetStderr()[n-len(want.last):], want.last) {
			m.Errorf("%s: last lines %q, want %q", name, exit.GetStderr(), want.last)
		}
	}
}
