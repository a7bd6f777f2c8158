package system_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"

	"github.com/otters-sh/otters/agentoci"
	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/internal/rootfs"
	"github.com/otters-sh/otters/spec"
	"github.com/otters-sh/otters/system"
)

// image builds an agent image in memory and tags it latest.
func image(t *testing.T, agentfile string) *memory.Store {
	t.Helper()
	store := memory.New()
	res, err := agentoci.Build(t.Context(), store, []byte(agentfile), agentoci.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Tag(t.Context(), res.Descriptor, "latest"); err != nil {
		t.Fatal(err)
	}
	return store
}

const plain = "FROM scratch\nRUNTIME otters/runtime\nMODEL offline/otter\nNAME tested\n"

// patience bounds a wait for something that happens at once on an idle machine, and in seconds on a busy one.
const patience = 3 * time.Minute

// host is a folder for agents that their own users can get through to, whatever the umask, by the name that a
// process in it has for it.
func host(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// ownHost is an address of the loopback that nobody else binds. A port of it that is let go, for a runtime or the
// next provider to bind, is not taken meanwhile, as one of 127.0.0.1 may be.
func ownHost() string {
	id := uuid.New()
	return net.IPv4(127, 64+id[0]%64, id[1], id[2]).String()
}

// ownPort listens there.
func ownPort() (net.Listener, error) { return net.Listen("tcp", ownHost()+":0") }

// lowPort listens on a port of 127.0.0.1 that the kernel gives to nobody who wants any, for those lie above. A
// runtime at limited may bind no other host.
func lowPort() (net.Listener, error) {
	const least = 10000
	var first int
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(text), &first)
	}
	for range 1000 * min(1, max(0, first-least)) {
		ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(least+rand.IntN(first-least)))
		if err == nil {
			return ln, nil
		}
	}
	return net.Listen("tcp", "127.0.0.1:0")
}

// provider works in dir with the test program as runtime and tools.
func provider(t *testing.T, dir, agentfile string, opts ...system.ProviderOption) *system.Provider {
	t.Helper()
	fs, err := rootfs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	store := image(t, agentfile)
	all := append([]system.ProviderOption{
		system.WithMonitor(monitor), system.WithSandbox(level), system.WithLogDir(t.TempDir()), system.WithPuller(pullSelf), system.WithLabelReader(inherit),
		system.WithAgentDefaults(system.WithStaticModelResolver("http://127.0.0.1:1/v1", "otr_key"), system.WithDigestResolver(func(ref string) string {
			return "sha256:" + strings.Repeat("0", 64)
		})),
	}, opts...)
	p := system.NewProvider(fs, func(spec.Reference) oras.ReadOnlyTarget { return store }, all...)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		fs.Close()
	})
	return p
}

func pullSelf(_ context.Context, _ spec.Reference, w io.Writer) error {
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func inherit(context.Context, spec.Reference) (map[string]string, error) {
	return map[string]string{system.ListenerLabel: "inherit", system.SessionsLabel: "offline"}, nil
}

func role(r string) spec.Override { return spec.WithExtraEnvs(spec.Env{Key: roleVar, Value: r}) }

var ref = spec.Reference{Name: "tested", Tag: "latest"}

// created is an agent that is stopped and removed with the test.
func created(t *testing.T, p *system.Provider, extra []system.AgentOption, overrides ...spec.Override) *system.Agent {
	t.Helper()
	a, err := p.CreateWithOptions(t.Context(), uuid.New(), ref, extra, overrides...)
	if err != nil {
		t.Fatal(err)
	}
	return a.(*system.Agent)
}

// running starts an agent and plays the supervisor: it waits for the first answer and says ready.
func running(t *testing.T, a *system.Agent) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	again := a.Status() == executor.StatusFailed
	runs, ended := context.WithCancel(t.Context())
	go func() {
		done <- a.Run(context.Background())
		ended()
	}()
	if again {
		if _, err := executor.WaitForStatus(runs, a, executor.StatusPulling, executor.StatusStarting); err != nil {
			t.Fatalf("started again it is %v (%v): %v; %v", a.Status(), a.FailureReason(), err, drained(done))
		}
	}
	ready(t, a, done)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return done
}

func ready(t *testing.T, a *system.Agent, done <-chan error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := executor.WaitForStatus(ctx, a, executor.StatusStarting, executor.StatusFailed)
	if err != nil || s == executor.StatusFailed {
		t.Fatalf("agent is %v (%v): %v; %v", s, a.FailureReason(), err, drained(done))
	}
	for a.Probe(ctx) != nil {
		if ctx.Err() != nil || a.Status() == executor.StatusFailed {
			t.Fatalf("never ready: %v (%v); %v", a.Status(), a.FailureReason(), drained(done))
		}
		// A runtime that binds its address refuses at once until it is there.
		time.Sleep(time.Millisecond)
	}
	if !a.StatusTracker().Set(executor.StatusReady) {
		t.Fatalf("ready was refused from %v", a.Status())
	}
}

func drained(done <-chan error) error {
	select {
	case err := <-done:
		return err
	default:
		return nil
	}
}

func prompt(t *testing.T, a *system.Agent, text string) string {
	t.Helper()
	var b strings.Builder
	if err := a.Prompt(t.Context(), executor.PromptRequest{SessionID: "s", Prompt: text}, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// process is a process of this machine, and never another one that has its id later.
type process struct {
	pid   int
	since string
}

func processOf(t *testing.T, pid int) process {
	t.Helper()
	state, since := stat(pid)
	if state == "" {
		t.Fatalf("there is no process %d", pid)
	}
	return process{pid, since}
}

// stat is the state of a process and when it was started; empty where there is none.
func stat(pid int) (state, since string) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", ""
	}
	// Its name is in brackets, and may hold anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	return fields[0], fields[19]
}

// gone tells that it has ended; pid 1 of this machine may leave it a zombie.
func (p process) gone() bool {
	state, since := stat(p.pid)
	return since != p.since || state == "Z" || state == "X"
}

func (p process) waitGone(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); !p.gone(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d is still there", p.pid)
		}
	}
}

// marked are the processes of the host whose command lines hold mark.
func marked(t *testing.T, mark string) []string {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Error(err)
	}
	var all []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), mark) {
			all = append(all, f)
		}
	}
	return all
}
