package executortest

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/executor"
	"github.com/otters-sh/otters/spec"
)

func failures(s *suite) {
	for name, c := range map[string]struct {
		file      string
		overrides []spec.Override
		ref       spec.Reference
		reason    executor.FailureReason
		// says is in the error, and pulls tells that programs may have been pulled.
		says  string
		pulls bool
	}{
		"an image that is not there":        {ref: spec.Reference{Name: "nobody/nothing", Tag: "none"}, reason: executor.FailurePull, says: "nobody/nothing"},
		"a runtime that can't be pulled":    {overrides: []spec.Override{spec.WithRuntime(gone)}, reason: executor.FailurePull, says: "the registry is gone", pulls: true},
		"a tool that can't be pulled":       {file: agentfile + "BIN lost " + gone + "\n", reason: executor.FailurePull, says: "lost", pulls: true},
		"a setting that must be given":      {file: agentfile + "CONFIG region!\n", reason: executor.FailureConfig, says: "region"},
		"a runtime that refuses its config": {overrides: []spec.Override{says("exit 78")}, reason: executor.FailureConfig, pulls: true},
		"no model":                          {file: "FROM scratch\nRUNTIME " + inheriting + "\n", reason: executor.FailureModel},
		"a model of an unknown provider":    {overrides: []spec.Override{spec.WithModel("nobody/otter")}, reason: executor.FailureModel, says: "no such provider"},
		"a runtime that is no program":      {overrides: []spec.Override{spec.WithRuntime(broken)}, reason: executor.FailureInit, pulls: true},
		"a runtime that exits":              {overrides: []spec.Override{says("exit 3")}, reason: executor.FailureCrashed, pulls: true},
		"a runtime that exits with 0":       {overrides: []spec.Override{says("exit 0")}, reason: executor.FailureCrashed, pulls: true},
	} {
		file, ref := c.file, c.ref
		if file == "" {
			file = agentfile
		}
		if ref == (spec.Reference{}) {
			ref = s.w.image(s.T, file)
		}
		s.w.mu.Lock()
		s.w.pulls = nil
		s.w.mu.Unlock()
		a, err := s.p.Create(s.Context(), uuid.New(), ref, c.overrides...)
		if err != nil {
			s.Errorf("%s: Create: %v", name, err)
			continue
		}
		s.tidy(a)
		err = a.Run(s.Context())
		if st, r := a.StatusTracker().Snapshot(); err == nil || st != executor.StatusFailed || r != c.reason {
			s.Errorf("%s: the agent is %v (%q), want failed (%q): %v", name, st, r, c.reason, err)
			continue
		}
		if !strings.Contains(err.Error(), c.says) {
			s.Errorf("%s: error %q lacks %q", name, err, c.says)
		}
		if len(s.w.pulls) > 0 && !c.pulls {
			s.Errorf("%s: %v were pulled before it was seen", name, s.w.pulls)
		}
		if err := a.Remove(s.Context()); err != nil {
			s.Errorf("%s: Remove: %v", name, err)
		}
	}
	// The twin that is right.
	a := s.create(agentfile+"CONFIG region!\nBIN echo "+tool+"\n", spec.WithConfig("region", ""))
	s.stop(a, s.run(a))
}

func failedAgain(s *suite) {
	a := s.create(agentfile)
	fail := true
	s.w.mu.Lock()
	s.w.pulling = func(context.Context) error {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		if fail {
			return context.DeadlineExceeded
		}
		return nil
	}
	s.w.mu.Unlock()
	if err := a.Run(s.Context()); err == nil {
		s.Fatal("the agent ran")
	}
	s.status(a, executor.StatusFailed, executor.FailurePull)
	s.w.mu.Lock()
	fail = false
	s.w.mu.Unlock()
	s.stop(a, s.run(a))
}

// readinessTimeout: the supervisor gives up on a runtime that never answers with true.
func readinessTimeout(s *suite) {
	a := s.create(agentfile, says("deaf"))
	done := s.start(a)
	if err := a.Probe(s.Context()); err == nil {
		s.Error("a deaf runtime passes for ready")
	}
	if !a.StatusTracker().SetFailure(executor.FailureReadinessTimeout) {
		s.Fatalf("readiness_timeout was refused from %v", a.Status())
	}
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		s.Fatal(err)
	}
	_ = s.ended(done)
	s.status(a, executor.StatusFailed, executor.FailureReadinessTimeout)
}
