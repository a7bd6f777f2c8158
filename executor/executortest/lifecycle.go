package executortest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
)

func newAgent(s *suite) {
	id := uuid.New()
	a, err := s.p.Create(s.Context(), id, s.w.image(s.T, agentfile))
	if err != nil {
		s.Fatal(err)
	}
	s.tidy(a)
	s.status(a, executor.StatusPulling, executor.FailureNone)
	if a.UUID() != id || a.Runtime() != nil || a.StatusTracker() == nil {
		s.Errorf("agent %s of %s, runtime %v, tracker %v", a.UUID(), id, a.Runtime(), a.StatusTracker())
	}
	if len(s.w.pulls) != 0 {
		s.Errorf("Create pulled %v", s.w.pulls)
	}
	if err := a.Stop(s.Context()); err != nil {
		s.Errorf("Stop of an agent that never ran: %v", err)
	}
	s.status(a, executor.StatusPulling, executor.FailureNone)
	if err := a.Probe(s.Context()); err == nil {
		s.Error("an agent that never ran answers its probe")
	}
}

func life(s *suite) {
	a := s.create(agentfile)
	id := a.UUID()
	// Start on an agent that never ran behaves as Run.
	done := s.run(a)
	if rt := a.Runtime(); rt == nil || rt.ID != id || rt.Source.Name != "tested" || rt.Config.Model != "offline/otter" {
		s.Errorf("runtime %+v", rt)
	}
	addr := a.Addr()
	if addr == "" {
		s.Error("a running agent has no address")
	}
	if err := a.Start(s.Context()); err == nil {
		s.Error("a running agent was started")
	}
	for _, st := range []executor.Status{executor.StatusWorking, executor.StatusReady} {
		if !a.StatusTracker().Set(st) {
			s.Errorf("the supervisor could not set %v", st)
		}
	}
	s.stop(a, done)
	if err := a.Stop(s.Context()); err != nil {
		s.Errorf("Stop of a stopped agent: %v", err)
	}
	s.stop(a, s.run(a))
	if a.UUID() != id {
		s.Errorf("%s became %s", id, a.UUID())
	}
	if err := a.Remove(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.status(a, executor.StatusRemoved, executor.FailureNone)
	if err := a.Start(s.Context()); err == nil {
		s.Error("a removed agent was started")
	}
	if err := a.Run(s.Context()); err == nil {
		s.Error("a removed agent was run")
	}
}

func idOnce(s *suite) {
	a := s.create(agentfile)
	if b, err := s.p.Create(s.Context(), a.UUID(), s.w.image(s.T, agentfile)); err == nil {
		s.Errorf("two agents have one id: %v", b.UUID())
	}
	s.stop(a, s.run(a))
}

func badOverride(s *suite) {
	before := s.entries()
	for name, o := range map[string]spec.Override{
		"a reserved variable":    spec.WithExtraEnvs(spec.Env{Key: "OTTERSD_URL", Value: "x"}),
		"a model of no provider": spec.WithModel("otter"),
		"a setting's key":        spec.WithConfig("Not_A_Key", "x"),
		"a mount of nowhere":     spec.WithMounts(spec.Mount{Host: "nowhere", Target: "/workspace/x"}),
	} {
		id := uuid.New()
		if _, err := s.p.Create(s.Context(), id, s.w.image(s.T, agentfile), o); err == nil {
			s.Errorf("%s was taken", name)
		}
		for _, e := range s.entries() {
			if strings.Contains(e, id.String()) {
				s.Errorf("%s left %s", name, e)
			}
		}
	}
	if len(before) == 0 {
		agents, err := s.p.Load(s.Context())
		if err != nil || len(agents) != 0 {
			s.Errorf("Load finds %v, %v", agents, err)
		}
	}
}

func overrides(s *suite) {
	a := s.create(agentfile+"CONFIG max-tokens=77\nCONFIG region!\nENV GREETING=hi\nENV KEPT=yes\n",
		spec.WithModel("offline/other"), spec.WithConfig("region", "north"), spec.WithConfig("temperature", "1.10"),
		spec.WithExtraEnvs(spec.Env{Key: "GREETING", Value: "hello"}))
	s.run(a)
	if src := a.Runtime().Source; src.Model != "offline/other" {
		s.Errorf("the definition's model is %s", src.Model)
	}
	env := s.env(a)
	for k, want := range map[string]string{
		"RUNTIME_MAX_TOKENS": "77", "RUNTIME_REGION": "north", "RUNTIME_TEMPERATURE": "1.10",
		"GREETING": "hello", "KEPT": "yes", "LANG": "C.UTF-8",
	} {
		if env[k] != want {
			s.Errorf("the runtime has %s=%q, want %q", k, env[k], want)
		}
	}
	for _, k := range []string{"PATH", "HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "OTTERS_AGENT_ROOT"} {
		if env[k] == "" {
			s.Errorf("the runtime has no %s", k)
		}
	}
	if args := s.ask(a, "args"); !strings.HasPrefix(args, "serve\n") || !strings.Contains(args, "--model\noffline/other") {
		s.Errorf("the runtime's arguments are %q", args)
	}
}

func subscribers(s *suite) {
	a := s.create(agentfile)
	slow, end := a.SubscribeStatus()
	defer end()
	var wg sync.WaitGroup
	s.Cleanup(wg.Wait)
	for range 4 {
		wg.Go(func() {
			ch, end := a.SubscribeStatus()
			defer end()
			last := executor.Status(-1)
			for open := true; open; {
				var next executor.Status
				select {
				case next, open = <-ch:
				case <-s.Context().Done(): // the test has failed
					return
				}
				if open {
					last = next
				}
			}
			if last != executor.StatusRemoved {
				s.Errorf("a subscriber's last status is %v", last)
			}
		})
	}
	s.stop(a, s.run(a))
	if got := <-slow; got != executor.StatusStopped {
		s.Errorf("a slow subscriber finds %v", got)
	}
	if err := a.Remove(s.Context()); err != nil {
		s.Error(err)
		a.StatusTracker().Set(executor.StatusRemoving)
		a.StatusTracker().Set(executor.StatusRemoved)
	}
	wg.Wait()
}

func plainRuntime(s *suite) {
	a := s.create(agentfile, spec.WithRuntime(plain))
	s.run(a)
	if args := s.ask(a, "args"); !strings.Contains(args, "--addr\n") {
		s.Errorf("the runtime's arguments are %q", args)
	}
}

func concurrentPrepare(s *suite) {
	a := s.create(agentfile)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := a.Prepare(s.Context()); err != nil {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.w.pulls[inheriting]; n > 1 {
		s.Errorf("the runtime was pulled %d times", n)
	}
	s.status(a, executor.StatusPulling, executor.FailureNone)
	before := a.Runtime()
	if err := a.Prepare(s.Context()); err != nil || before == nil || a.Runtime() != before {
		s.Errorf("a later Prepare: %v, runtime %p became %p", err, before, a.Runtime())
	}
	s.stop(a, s.run(a))
	// A failure is one result too.
	b := s.create(agentfile, spec.WithRuntime(gone))
	errs := make(chan error, 8)
	for range cap(errs) {
		wg.Go(func() { errs <- b.Prepare(s.Context()) })
	}
	wg.Wait()
	first := <-errs
	for range cap(errs) - 1 {
		if err := <-errs; first == nil || err == nil || err.Error() != first.Error() {
			s.Errorf("one caller saw %v, another %v", first, err)
		}
	}
	s.status(b, executor.StatusFailed, executor.FailurePull)
}

func concurrentRun(s *suite) {
	a := s.create(agentfile)
	done := s.start(a)
	refused := make(chan error, 4)
	for range cap(refused) {
		go func() { refused <- a.Run(s.Context()) }()
	}
	for range cap(refused) {
		if err := s.ended(refused); err == nil {
			s.Error("a second Run ran")
		}
	}
	s.ready(a, done)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := a.Stop(s.Context()); err != nil {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	if err := s.ended(done); err != nil {
		s.Error(err)
	}
	s.status(a, executor.StatusStopped, executor.FailureNone)
}

func manyAgents(s *suite) {
	const count = 6
	agents := make([]executor.Agent, count)
	for i := range agents {
		agents[i] = s.create(agentfile, spec.WithExtraEnvs(spec.Env{Key: "NUMBER", Value: fmt.Sprint(i)}))
	}
	addrs := make([]string, count)
	var wg sync.WaitGroup
	for i, a := range agents {
		wg.Go(func() {
			done := make(chan error, 1)
			go func() { done <- a.Run(context.Background()) }()
			ctx, cancel := context.WithTimeout(s.Context(), patience)
			defer cancel()
			if _, err := executor.WaitForStatus(ctx, a, executor.StatusStarting, executor.StatusFailed); err != nil {
				s.Error(err)
				return
			}
			for a.Probe(ctx) != nil {
				if ctx.Err() != nil || a.Status() == executor.StatusFailed {
					s.Errorf("agent %d is %v (%v)", i, a.Status(), a.FailureReason())
					return
				}
				time.Sleep(probePause)
			}
			addrs[i] = a.Addr()
			if p, ok := a.(executor.Prompter); ok {
				var b bytes.Buffer
				if err := p.Prompt(ctx, executor.PromptRequest{SessionID: "s", Prompt: "env"}, &b); err != nil || variables(b.String())["NUMBER"] != fmt.Sprint(i) {
					s.Errorf("agent %d answers as %s, %v", i, variables(b.String())["NUMBER"], err)
				}
			}
			if err := a.Stop(ctx); err != nil {
				s.Error(err)
			}
			if err := <-done; err != nil {
				s.Error(err)
			}
			if err := a.Remove(ctx); err != nil {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	seen := make(map[string]bool)
	for _, addr := range addrs {
		if addr == "" || seen[addr] {
			s.Errorf("addresses %v", addrs)
			break
		}
		seen[addr] = true
	}
}

func removal(s *suite) {
	// What the provider keeps for all agents is there after the first one.
	first := s.create(bins())
	s.stop(first, s.run(first))
	before := s.entries()
	a := s.create(bins())
	s.stop(a, s.run(a))
	addr := a.Addr()
	if err := a.Remove(s.Context()); err != nil {
		s.Fatal(err)
	}
	if after := s.entries(); strings.Join(after, " ") != strings.Join(before, " ") {
		s.Errorf("%v became %v", before, after)
	}
	// A process that is being started meanwhile has copies of what its parent holds, for a moment.
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			break
		}
		conn.Close()
		if time.Now().After(end) {
			s.Errorf("somebody answers at %s still", addr)
			break
		}
	}
	if err := a.Probe(s.Context()); err == nil {
		s.Error("a removed agent answers its probe")
	}
	if err := a.Remove(s.Context()); err != nil {
		s.Errorf("Remove of a removed agent: %v", err)
	}
	// The other one is not touched, and one that failed can be removed as well.
	s.stop(first, s.run(first))
	failed := s.create(agentfile, spec.WithRuntime(gone))
	if err := failed.Run(s.Context()); err == nil {
		s.Error("a runtime that is gone ran")
	}
	if err := failed.Remove(s.Context()); err != nil {
		s.Error(err)
	}
	s.status(failed, executor.StatusRemoved, executor.FailureNone)
}

func destroy(s *suite) {
	a, b := s.create(agentfile), s.create(agentfile)
	s.stop(a, s.run(a))
	if err := s.p.Destroy(s.Context()); err != nil {
		s.Fatal(err)
	}
	for _, e := range s.entries() {
		if strings.Contains(e, a.UUID().String()) || strings.Contains(e, b.UUID().String()) {
			s.Errorf("left behind: %s", e)
		}
	}
	s.next()
	if agents, err := s.p.Load(s.Context()); err != nil || len(agents) != 0 {
		s.Errorf("Load finds %v, %v", agents, err)
	}
}

func removeRunning(s *suite) {
	a := s.create(agentfile)
	done := s.run(a)
	if err := a.Remove(s.Context()); err == nil {
		s.Error("a running agent was removed")
	}
	s.status(a, executor.StatusReady, executor.FailureNone)
	if err := a.Probe(s.Context()); err != nil {
		s.Errorf("it does not answer any more: %v", err)
	}
	s.stop(a, done)
	if err := a.Remove(s.Context()); err != nil {
		s.Error(err)
	}
}

func registry(s *suite) {
	r := s.p.Registry()
	if r == nil {
		s.Fatal("the registry is nil")
	}
	unknown := func(call string, err error) {
		if !errors.Is(err, executor.ErrRefNotFound) && !errors.Is(err, executor.ErrNotImplemented) {
			s.Errorf("%s of what is not there: %v", call, err)
		}
	}
	ctx := s.Context()
	if _, err := r.List(ctx); err != nil && !errors.Is(err, executor.ErrNotImplemented) {
		s.Errorf("list: %v", err)
	}
	_, err := r.Resolve(ctx, "nobody/nothing:none")
	unknown("resolve", err)
	_, err = r.Inspect(ctx, "nobody/nothing:none")
	unknown("inspect", err)
	unknown("tag", r.Tag(ctx, "nobody/nothing:none", "nobody/nothing:other"))
	unknown("remove", r.Remove(ctx, "nobody/nothing:none"))
}

func features(s *suite) {
	r, ok := s.p.(executor.FeatureReporter)
	if !ok {
		s.Skip("the provider is no executor.FeatureReporter")
	}
	f := r.Features()
	if f.Level == "" || len(f.Enforced)+len(f.Open) == 0 {
		s.Errorf("features %+v say nothing", f)
	}
}
