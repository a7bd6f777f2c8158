package executortest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/executor/executortest/script"
	"github.com/otters-sh/otters/spec"
)

// tests is the suite, by the sentences that it proves.
var tests = map[string]func(*suite){
	"a new agent is pulling and has no runtime":                 newAgent,
	"an agent lives from create to removal":                     life,
	"an id is used once":                                        idOnce,
	"a bad override is refused and leaves nothing":              badOverride,
	"overrides and CONFIG reach the runtime":                    overrides,
	"subscribers find the latest status":                        subscribers,
	"a runtime that is given its address answers there":         plainRuntime,
	"each failure has its reason":                               failures,
	"a failed agent can be started again":                       failedAgain,
	"the supervisor's reason stays":                             readinessTimeout,
	"a cancelled Prepare leaves the agent as it was":            cancelPrepare,
	"a stop while pulling ends in stopped":                      cancelPull,
	"a stop before the first answer ends in stopped":            cancelStart,
	"the end of Run's context is the end of the runtime":        cancelRun,
	"a cancelled call ends and the next one works":              cancelCall,
	"a stop during a call ends both":                            stopDuringCall,
	"concurrent Prepares see one result":                        concurrentPrepare,
	"one of many Runs runs and every Stop returns":              concurrentRun,
	"many agents live side by side":                             manyAgents,
	"a prompt is answered":                                      prompt,
	"events come one by one and in order":                       stream,
	"a JSON object is prompted for":                             object,
	"sessions are listed, read and deleted":                     sessions,
	"notes are written, read, pinned and deleted":               notes,
	"a BIN runs in the agent's environment":                     execute,
	"a cancelled BIN leaves no process":                         cancelExec,
	"a BIN is fed and read by streams":                          executeStream,
	"a mount is seen by the agent":                              mounts,
	"tokens and keys go to the runtime and to nobody else":      tokens,
	"the model is resolved at every start":                      resolveAgain,
	"who has no serve token is not answered":                    strangers,
	"the next provider finds the agents":                        restore,
	"the next provider finds what the agent keeps":              restoreState,
	"a removed agent is not found again":                        restoreRemoved,
	"a running agent is taken over":                             takeOver,
	"removal leaves nothing":                                    removal,
	"Destroy leaves nothing":                                    destroy,
	"a running agent is not removed":                            removeRunning,
	"the registry answers or says that it has no such function": registry,
	"what is enforced is told":                                  features,
}

// suite is one test.
type suite struct {
	*testing.T
	o Options
	w *World
	p executor.Provider
}

func newSuite(t *testing.T, o Options) *suite {
	t.Helper()
	id := uuid.New()
	s := &suite{T: t, o: o, w: &World{
		Dir: openDir(t), Host: net.IPv4(127, 64+id[0]%64, id[1], id[2]).String(),
		DaemonURL: "unix:///run/tested.sock", AgentToken: "agenttoken-1", program: o.Program,
	}}
	s.p = o.New(t, s.w)
	return s
}

// next makes another provider in the same world, as the next process would.
func (s *suite) next() {
	s.Helper()
	if s.o.Close != nil {
		if err := s.o.Close(s.p); err != nil {
			s.Fatalf("close the provider: %v", err)
		}
	}
	s.p = s.o.New(s.T, s.w)
}

// create makes an agent of a new image; it is stopped and removed with the test.
func (s *suite) create(agentfile string, overrides ...spec.Override) executor.Agent {
	s.Helper()
	a, err := s.p.Create(s.Context(), uuid.New(), s.w.image(s.T, agentfile), overrides...)
	if err != nil {
		s.Fatal(err)
	}
	s.tidy(a)
	return a
}

// tidy stops and removes an agent with the test.
func (s *suite) tidy(a executor.Agent) {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			s.Errorf("stop: %v", err)
		}
	})
}

// run starts an agent and plays the supervisor: it probes until the runtime answers, and says ready.
func (s *suite) run(a executor.Agent) <-chan error {
	s.Helper()
	done := s.start(a)
	s.ready(a, done)
	return done
}

// start runs an agent and returns when its runtime was started.
func (s *suite) start(a executor.Agent) <-chan error {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	// A status of an earlier run must not pass for this one's.
	states, end := a.SubscribeStatus()
	defer end()
	before := <-states
	done := make(chan error, 1)
	go func() { done <- a.Start(context.Background()) }()
	for before == executor.StatusStopped || before == executor.StatusFailed {
		select {
		case before = <-states:
		case err := <-done:
			s.Fatalf("the start ended as %v (%v): %v", a.Status(), a.FailureReason(), err)
		case <-ctx.Done():
			s.Fatalf("the agent stays %v", a.Status())
		}
	}
	if _, err := executor.WaitForStatus(ctx, a, executor.StatusStarting, executor.StatusStopped, executor.StatusFailed); err != nil {
		s.Fatal(err)
	}
	if st := a.Status(); st == executor.StatusFailed {
		s.Fatalf("the agent is failed (%v): %v", a.FailureReason(), <-done)
	}
	return done
}

func (s *suite) ready(a executor.Agent, done <-chan error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	for {
		err := a.Probe(ctx)
		if err == nil {
			break
		}
		if st := a.Status(); ctx.Err() != nil || st != executor.StatusStarting {
			s.Fatalf("the agent is %v (%v) and never answered: %v", st, a.FailureReason(), err)
		}
		// A runtime that binds its address refuses at once until it is there.
		time.Sleep(probePause)
	}
	if !a.StatusTracker().Set(executor.StatusReady) {
		s.Fatalf("ready was refused from %v", a.Status())
	}
}

// stop stops an agent that runs and wants its run to have ended well.
func (s *suite) stop(a executor.Agent, done <-chan error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		s.Fatalf("stop: %v", err)
	}
	if done != nil {
		if err := s.ended(done); err != nil {
			s.Errorf("the stopped run ended with %v, want nil", err)
		}
	}
	s.status(a, executor.StatusStopped, executor.FailureNone)
}

// ended is what a run came to.
func (s *suite) ended(done <-chan error) error {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		s.Fatal("the run has not ended")
		return nil
	}
}

func (s *suite) status(a executor.Agent, want executor.Status, reason executor.FailureReason) {
	s.Helper()
	if st, r := a.StatusTracker().Snapshot(); st != want || r != reason {
		s.Errorf("the agent is %v (%q), want %v (%q)", st, r, want, reason)
	}
}

// ask prompts a running agent; without a Prompter the test is skipped.
func (s *suite) ask(a executor.Agent, text string) string {
	s.Helper()
	p, ok := a.(executor.Prompter)
	if !ok {
		s.Skip("the agent is no executor.Prompter")
	}
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	var b bytes.Buffer
	if err := p.Prompt(ctx, executor.PromptRequest{SessionID: "suite", Prompt: text}, &b); err != nil {
		s.Fatalf("prompt %q: %v", text, err)
	}
	return b.String()
}

// env is the runtime's environment.
func (s *suite) env(a executor.Agent) map[string]string {
	s.Helper()
	return variables(s.ask(a, "env"))
}

func variables(text string) map[string]string {
	env := make(map[string]string)
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		k, v, _ := strings.Cut(line, "=")
		env[k] = v
	}
	return env
}

// says is the override that makes the runtime do something else than answer.
func says(text string) spec.Override {
	return spec.WithExtraEnvs(spec.Env{Key: script.Var, Value: text})
}

// bins is an agent with all scripted tools.
func bins() string {
	text := agentfile
	for _, name := range script.Tools() {
		text += "BIN " + name + " " + tool + "\n"
	}
	return text
}

// entries are the names directly in the world's folder.
func (s *suite) entries() []string {
	s.Helper()
	list, err := os.ReadDir(s.w.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}
