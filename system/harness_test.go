package system_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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

// host is a folder for agents that their own users can get through to.
func host(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
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
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return done
}

func ready(t *testing.T, a *system.Agent, done <-chan error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := executor.WaitForStatus(ctx, a, executor.StatusStarting, executor.StatusFailed)
	if err != nil || s == executor.StatusFailed {
		t.Fatalf("agent is %v (%v): %v; %v", s, a.FailureReason(), err, drained(done))
	}
	for a.Probe(ctx) != nil {
		if ctx.Err() != nil || a.Status() == executor.StatusFailed {
			t.Fatalf("never ready: %v (%v); %v", a.Status(), a.FailureReason(), drained(done))
		}
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

func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// waitGone waits until the process has ended; pid 1 of this machine may leave it a zombie.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if syscall.Kill(pid, 0) != nil || zombie(pid) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is still there", pid)
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
