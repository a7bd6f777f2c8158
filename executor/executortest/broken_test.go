package executortest_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/executor/executortest"
	"github.com/otters-sh/otters/internal/testprograms"
	"github.com/otters-sh/otters/spec"
)

// A suite that nothing fails proves nothing: each executor below has one thing wrong, and the test of the
// suite that is about it must tell.

// wrongs are what is wrong, by the test that must tell.
var wrongs = map[string]wrong{
	"removal leaves nothing": {remove: func(_ context.Context, a *agent) error {
		a.tracker.Set(executor.StatusRemoving)
		a.tracker.Set(executor.StatusRemoved)
		return nil
	}},
	"a running agent is not removed": {remove: func(ctx context.Context, a *agent) error {
		if err := a.Stop(ctx); err != nil {
			return err
		}
		return a.Remove(ctx)
	}},
	"tokens and keys go to the runtime and to nobody else": {exec: func(res *executor.ExecResult, _ string) { res.Stdout += "OFFLINE_API_KEY=modelkey-1\n" }},
	"a BIN runs in the agent's environment": {exec: func(res *executor.ExecResult, bin string) {
		if bin == "sh" {
			res.Err, res.ExitCode = nil, 0
		}
	}},
	"an agent lives from create to removal": {stop: func(ctx context.Context, a *agent) error {
		if a.run.Load() == nil {
			return errors.New("it does not run")
		}
		return a.Stop(ctx)
	}},
	"one of many Runs runs and every Stop returns": {run: func(ctx context.Context, a *agent) error {
		if a.run.Load() != nil {
			return nil
		}
		return a.Run(ctx)
	}},
	"the end of Run's context is the end of the runtime": {run: func(ctx context.Context, a *agent) error {
		err := a.Run(ctx)
		a.tracker.Set(executor.StatusStarting)
		a.tracker.SetFailure(executor.FailureCrashed)
		return err
	}},
	"concurrent Prepares see one result": {prepare: func(ctx context.Context, a *agent) error {
		a.rt.Store(nil)
		return a.Prepare(ctx)
	}},
	"a cancelled Prepare leaves the agent as it was": {prepare: func(ctx context.Context, a *agent) error {
		err := a.Prepare(ctx)
		if err != nil {
			a.tracker.SetFailure(executor.FailurePull)
		}
		return err
	}},
	"overrides and CONFIG reach the runtime":       {overrides: func(all []spec.Override) []spec.Override { return all[1:] }},
	"a bad override is refused and leaves nothing": {overrides: func([]spec.Override) []spec.Override { return nil }},
	"the next provider finds the agents":           {load: func(all []executor.Agent) []executor.Agent { return all[:min(len(all), 1)] }},
	"Destroy leaves nothing":                       {destroy: func() error { return nil }},
	"a prompt is answered": {prompt: func(ctx context.Context, a *agent, req executor.PromptRequest, w io.Writer) error {
		return a.PromptStream(ctx, req, func(e executor.PromptEvent) { io.WriteString(w, e.Content) })
	}},
	"the model is resolved at every start": {resolve: func(string) (string, string, error) { return "http://127.0.0.1:1/v1", "modelkey-1", nil }},
}

// wrong is one thing that is done in place of what the executor does.
type wrong struct {
	remove    func(context.Context, *agent) error
	stop      func(context.Context, *agent) error
	run       func(context.Context, *agent) error
	prepare   func(context.Context, *agent) error
	prompt    func(context.Context, *agent, executor.PromptRequest, io.Writer) error
	exec      func(res *executor.ExecResult, bin string)
	overrides func([]spec.Override) []spec.Override
	load      func([]executor.Agent) []executor.Agent
	destroy   func() error
	resolve   func(string) (string, string, error)
}

type brokenProvider struct {
	*Tiny
	w wrong
}

func (p brokenProvider) Create(ctx context.Context, id uuid.UUID, ref spec.Reference, overrides ...spec.Override) (executor.Agent, error) {
	if p.w.overrides != nil && len(overrides) > 0 {
		overrides = p.w.overrides(overrides)
	}
	a, err := p.Tiny.Create(ctx, id, ref, overrides...)
	if err != nil {
		return nil, err
	}
	return &broken{a.(*agent), p.w}, nil
}

func (p brokenProvider) Load(ctx context.Context) ([]executor.Agent, error) {
	all, err := p.Tiny.Load(ctx)
	if p.w.load != nil {
		all = p.w.load(all)
	}
	return all, err
}

func (p brokenProvider) Destroy(ctx context.Context) error {
	if p.w.destroy != nil {
		return p.w.destroy()
	}
	return p.Tiny.Destroy(ctx)
}

type broken struct {
	*agent
	w wrong
}

// or calls the wrong thing where there is one.
func or(f func(context.Context, *agent) error, ctx context.Context, a *agent, right func(context.Context) error) error {
	if f != nil {
		return f(ctx, a)
	}
	return right(ctx)
}

func (b *broken) Remove(ctx context.Context) error {
	return or(b.w.remove, ctx, b.agent, b.agent.Remove)
}
func (b *broken) Stop(ctx context.Context) error  { return or(b.w.stop, ctx, b.agent, b.agent.Stop) }
func (b *broken) Run(ctx context.Context) error   { return or(b.w.run, ctx, b.agent, b.agent.Run) }
func (b *broken) Start(ctx context.Context) error { return b.Run(ctx) }
func (b *broken) Prepare(ctx context.Context) error {
	return or(b.w.prepare, ctx, b.agent, b.agent.Prepare)
}

func (b *broken) Prompt(ctx context.Context, req executor.PromptRequest, w io.Writer) error {
	if b.w.prompt != nil {
		return b.w.prompt(ctx, b.agent, req, w)
	}
	return b.agent.Prompt(ctx, req, w)
}

func (b *broken) Exec(ctx context.Context, bin string, args []string, stdin string) executor.ExecResult {
	res := b.agent.Exec(ctx, bin, args, stdin)
	if b.w.exec != nil {
		b.w.exec(&res, bin)
	}
	return res
}

// Variables of the child process that runs the suite over a broken executor.
const (
	brokenVar  = "EXECUTORTEST_BROKEN"
	programVar = "EXECUTORTEST_PROGRAM"
)

func TestABrokenExecutor(t *testing.T) {
	name := os.Getenv(brokenVar)
	if name == "" {
		t.Skip("it is run by TestTheSuiteTellsWhatIsWrong")
	}
	executortest.Run(t, executortest.Options{
		Program: os.Getenv(programVar),
		New: func(_ *testing.T, w *executortest.World) executor.Provider {
			p := brokenProvider{tiny(w), wrongs[name]}
			if p.w.resolve != nil {
				p.Resolve = p.w.resolve
			}
			return p
		},
	})
}

func TestTheSuiteTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	if os.Getenv("OTTERS_LOAD") == "" {
		t.Skip("it takes long; make load runs it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	programs := testprograms.Of("executor/executortest/scripted")
	defer programs.Remove()
	program := filepath.Join(programs.For(t), "scripted")
	// A child of its own, since a test can't expect its subtest to fail.
	child := func(broken, tests string) (string, error) {
		cmd := exec.Command(self, "-test.run", "^TestABrokenExecutor$/^("+strings.ReplaceAll(tests, " ", "_")+")$", "-test.timeout", "20m")
		cmd.Env = append(os.Environ(), brokenVar+"="+broken, programVar+"="+program)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for name := range wrongs {
		if out, err := child(name, name); err == nil || !strings.Contains(out, "--- FAIL: TestABrokenExecutor/"+strings.ReplaceAll(name, " ", "_")) {
			t.Errorf("%s: an executor that is wrong passes: %v\n%s", name, err, out)
		}
	}
	// Their twin has nothing wrong.
	if out, err := child("nothing", strings.Join(slices.Collect(maps.Keys(wrongs)), "|")); err != nil {
		t.Errorf("an executor that is right fails: %v\n%s", err, out)
	}
}
