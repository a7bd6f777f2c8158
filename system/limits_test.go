package system_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/sandbox"
	"github.com/otters-sh/otters/system"
)

// Invariants: the limits an agent was created with hold at every start of it and for whatever daemon
// starts it, and what is told of them is what the kernel has. The three worst inputs: a daemon that is
// replaced while the agent runs, an agent that comes to its limit and is started again, and a limit
// that nothing would enforce.

// limitedBy is what enforces limits here; it skips where nothing does.
func limitedBy(t *testing.T, level sandbox.Level, limits sandbox.Limits) []sandbox.Limit {
	t.Helper()
	all, err := launcher(t).LimitedBy(level, limits)
	if err != nil {
		t.Skip(err)
	}
	return all
}

func TestLimitsHoldAcrossStartsAndDaemons(t *testing.T) {
	t.Parallel()
	eachLevel(t, func(t *testing.T, level sandbox.Level) {
		limits := sandbox.Limits{Memory: 192 << 20, PIDs: 300, CPU: 4000}
		want := limitedBy(t, level, limits)
		dir := host(t)
		first := provider(t, dir, plain+"BIN take otters/tools/take\n", system.WithSandbox(level))
		a := created(t, first, []system.AgentOption{system.WithLimits(limits)}, role("serve"))
		if got := a.Process().Confinement.Limits; !slices.Equal(got, want) {
			t.Errorf("before the start: %+v, want %+v", got, want)
		}
		running(t, a)
		inForce := func(a *system.Agent) {
			t.Helper()
			if got := a.Process().Confinement.Limits; !slices.Equal(got, want) || a.Process().PID == 0 {
				t.Errorf("in force: %+v, want %+v", got, want)
			}
		}
		inForce(a)
		if said := prompt(t, a, "take:8"); said != "taken" {
			t.Errorf("within the limit: %q", said)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		b := loaded(t, provider(t, dir, plain+"BIN take otters/tools/take\n", system.WithSandbox(level)))
		if ok, err := b.Attach(t.Context()); !ok || err != nil {
			t.Fatalf("not taken over: %v", err)
		}
		done := make(chan error, 1)
		ready(t, b, done)
		inForce(b)
		if want[0].Mechanism == "rlimit" {
			return
		}
		if err := b.Prompt(t.Context(), executor.PromptRequest{SessionID: "s", Prompt: "take:512"}, new(strings.Builder)); err == nil {
			t.Error("over the limit: it answered")
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := executor.WaitForStatus(ctx, b, executor.StatusFailed); err != nil {
			t.Fatal(err)
		}
		// The status is told before the run is over, which no call of Run returns from here.
		if err := b.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		if e := b.Process().LastExit; e == nil || !e.OutOfMemory || e.Signal != "SIGKILL" {
			t.Errorf("exit %+v", e)
		}
		running(t, b)
		inForce(b)
		if res := b.Exec(t.Context(), "take", []string{"8"}, ""); res.Err != nil || res.ExitCode != 0 || res.Stdout != "taken\n" {
			t.Errorf("a BIN within the limit: %+v", res)
		}
		if res := b.Exec(t.Context(), "take", []string{"512"}, ""); res.ExitCode == 0 {
			t.Errorf("a BIN over the limit: %+v", res)
		}
	})
}

func TestACrashForWantOfMemoryIsToldAsSuch(t *testing.T) {
	t.Parallel()
	limits := sandbox.Limits{Memory: 192 << 20}
	if limitedBy(t, sandbox.Off, limits)[0].Mechanism == "rlimit" {
		t.Skip("no control group")
	}
	a := created(t, provider(t, host(t), plain, system.WithSandbox(sandbox.Off)), []system.AgentOption{system.WithLimits(limits)}, role("serve"))
	done := running(t, a)
	if err := a.Prompt(t.Context(), executor.PromptRequest{SessionID: "s", Prompt: "take:512"}, new(strings.Builder)); err == nil {
		t.Error("over the limit: it answered")
	}
	select {
	case err := <-done:
		if !errors.Is(err, system.ErrCrashed) || !strings.Contains(err.Error(), "SIGKILL for want of memory") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it runs on")
	}
}

func TestLimitsThatCanNotBeHadAreRefused(t *testing.T) {
	t.Parallel()
	p := provider(t, host(t), plain)
	for name, limits := range map[string]sandbox.Limits{
		"little memory":    {Memory: 31 << 20},
		"negative":         {CPU: -1},
		"few processes":    {PIDs: 15},
		"too many of them": {PIDs: 1 << 40},
	} {
		if _, err := p.CreateWithOptions(t.Context(), uuid.New(), ref, []system.AgentOption{system.WithLimits(limits)}); !errors.Is(err, system.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h := inMemory(t, plain)
	if _, err := h.Provider.CreateWithOptions(t.Context(), uuid.New(), ref, []system.AgentOption{system.WithLimits(sandbox.Limits{PIDs: 100})}); !errors.Is(err, system.ErrConfig) || !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("without a monitor: %v", err)
	}
	if _, err := h.Provider.CreateWithOptions(t.Context(), uuid.New(), ref, nil); err != nil {
		t.Errorf("without limits: %v", err)
	}
}
