package executortest

import (
	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
)

// found are the agents that the provider of the next process loads, by their ids.
func (s *suite) found() map[uuid.UUID]executor.Agent {
	s.Helper()
	agents, err := s.p.Load(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	byID := make(map[uuid.UUID]executor.Agent)
	for _, a := range agents {
		byID[a.UUID()] = a
		s.tidy(a)
	}
	return byID
}

func restore(s *suite) {
	source := openDir(s.T)
	all := []spec.Override{
		spec.WithModel("offline/other"), spec.WithConfig("region", "north"), spec.WithExtraEnvs(spec.Env{Key: "PASSWORD", Value: "hunter2"}),
		spec.WithMounts(spec.Mount{Host: source, Target: "/workspace/src"}),
	}
	file := agentfile + "CONFIG region!\n"
	fresh, ran := s.create(file, all...), s.create(file, all...)
	failed := s.create(agentfile, says("exit 3"))
	s.stop(ran, s.run(ran))
	if err := failed.Run(s.Context()); err == nil {
		s.Error("it did not crash")
	}
	s.next()
	agents := s.found()
	if len(agents) != 3 {
		s.Fatalf("%d agents were found, want 3", len(agents))
	}
	if st := agents[failed.UUID()].Status(); st != executor.StatusFailed && st != executor.StatusStopped {
		s.Errorf("the failed one is %v", st)
	}
	s.status(agents[fresh.UUID()], executor.StatusPulling, executor.FailureNone)
	s.status(agents[ran.UUID()], executor.StatusStopped, executor.FailureNone)
	for _, old := range []executor.Agent{fresh, ran} {
		a := agents[old.UUID()]
		s.run(a)
		src := a.Runtime().Source
		if src.Model != "offline/other" || len(src.Mounts) != 1 || src.Mounts[0].Host != source {
			s.Errorf("restored %+v", src)
		}
		env := s.env(a)
		if env["PASSWORD"] != "hunter2" || env["RUNTIME_REGION"] != "north" || env["OTTERS_AGENT_TOKEN"] != s.w.AgentToken {
			s.Errorf("restored with %v", env)
		}
	}
	if again, err := s.p.Load(s.Context()); err != nil {
		s.Errorf("Load again: %v, %v", again, err)
	}
}

func restoreState(s *suite) {
	a := s.create(bins())
	s.run(a)
	s.ask(a, "remember this")
	s.exec(a, "write", "kept", "file.txt")
	if err := a.Stop(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.next()
	b := s.found()[a.UUID()]
	s.run(b)
	if res := s.exec(b, "read", "", "file.txt"); res.Stdout != "kept" {
		s.Errorf("the file is %+v", res)
	}
	if l, ok := b.(executor.SessionLister); ok {
		if infos, err := l.ListSessions(s.Context()); err != nil || len(infos) != 1 || infos[0].MessageCount != 2 {
			s.Errorf("sessions %+v, %v", infos, err)
		}
	}
}

func restoreRemoved(s *suite) {
	a, b := s.create(agentfile), s.create(agentfile)
	s.stop(a, s.run(a))
	if err := a.Remove(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.next()
	agents := s.found()
	if len(agents) != 1 || agents[b.UUID()] == nil {
		s.Errorf("found %v", agents)
	}
	// Its id is free again.
	c, err := s.p.Create(s.Context(), a.UUID(), s.w.image(s.T, agentfile))
	if err != nil {
		s.Fatal(err)
	}
	s.tidy(c)
	s.stop(c, s.run(c))
}

func takeOver(s *suite) {
	a := s.create(agentfile)
	if _, ok := a.(executor.Attacher); !ok || s.o.Close == nil {
		s.Skip("the agent is no executor.Attacher, or Options.Close is not set")
	}
	done := s.run(a)
	s.ask(a, "before")
	s.next()
	if err := s.ended(done); err == nil {
		s.Error("a run that was let go ended as if it had been stopped")
	}
	b := s.found()[a.UUID()]
	if b == nil {
		s.Fatal("it was not found")
	}
	if ok, err := b.(executor.Attacher).Attach(s.Context()); !ok || err != nil {
		s.Fatalf("attach: %v, %v", ok, err)
	}
	s.ready(b, nil)
	if got := s.ask(b, "after"); got != "after" {
		s.Errorf("answer %q", got)
	}
	if l, ok := b.(executor.SessionLister); ok {
		// The same process still has what it was told before.
		if infos, err := l.ListSessions(s.Context()); err != nil || len(infos) != 1 || infos[0].MessageCount != 4 {
			s.Errorf("sessions %+v, %v", infos, err)
		}
	}
	s.stop(b, nil)
	if ok, err := b.(executor.Attacher).Attach(s.Context()); ok || err != nil {
		s.Errorf("a stopped agent was attached: %v, %v", ok, err)
	}
}
