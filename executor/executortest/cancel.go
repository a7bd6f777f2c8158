package executortest

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/otters-sh/otters/executor"
)

// holdFirstPull makes the first pull wait for its context, and tells when it is entered.
func (s *suite) holdFirstPull() <-chan struct{} {
	entered := make(chan struct{})
	var once sync.Once
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.pulling = func(ctx context.Context) error {
		first := false
		once.Do(func() { first = true })
		if !first {
			return nil
		}
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}
	return entered
}

// whileIn waits for a pull to be entered, by what ends on done.
func (s *suite) whileIn(entered <-chan struct{}, done <-chan error) {
	s.Helper()
	select {
	case <-entered:
	case err := <-done:
		s.Fatalf("it ended ahead of its first pull: %v", err)
	}
}

func cancelPrepare(s *suite) {
	entered := s.holdFirstPull()
	a := s.create(agentfile)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	done, other := make(chan error, 1), make(chan error, 1)
	go func() { done <- a.Prepare(ctx) }()
	s.whileIn(entered, done)
	// Another agent may wait for the same program.
	b := s.create(agentfile)
	go func() { other <- b.Prepare(s.Context()) }()
	cancel()
	if err := s.ended(done); !errors.Is(err, context.Canceled) {
		s.Errorf("Prepare: %v", err)
	}
	if err := s.ended(other); err != nil {
		s.Errorf("Prepare of another agent: %v", err)
	}
	if a.Runtime() != nil {
		s.Error("there is a runtime")
	}
	s.status(a, executor.StatusPulling, executor.FailureNone)
	if err := a.Prepare(s.Context()); err != nil {
		s.Errorf("the next Prepare: %v", err)
	}
	s.stop(a, s.run(a))
}

func cancelPull(s *suite) {
	entered := s.holdFirstPull()
	a := s.create(agentfile)
	done := make(chan error, 1)
	go func() { done <- a.Run(context.Background()) }()
	s.whileIn(entered, done)
	s.stop(a, done)
	s.stop(a, s.run(a))
}

func cancelStart(s *suite) {
	a := s.create(agentfile, says("deaf"))
	s.stop(a, s.start(a))
	s.stop(a, s.start(a))
}

func cancelRun(s *suite) {
	a := s.create(agentfile)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	if _, err := executor.WaitForStatus(ctx, a, executor.StatusStarting, executor.StatusFailed); err != nil {
		s.Fatal(err)
	}
	s.ready(a, done)
	cancel()
	if err := s.ended(done); err != nil && !errors.Is(err, context.Canceled) {
		s.Errorf("Run: %v", err)
	}
	s.status(a, executor.StatusStopped, executor.FailureNone)
	s.stop(a, s.run(a))
	// One that has ended before is no failure either.
	b := s.create(agentfile)
	if err := b.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		s.Errorf("Run: %v", err)
	}
	s.status(b, executor.StatusStopped, executor.FailureNone)
	s.stop(b, s.run(b))
}

func (s *suite) streamer(a executor.Agent) executor.StreamPrompter {
	s.Helper()
	p, ok := a.(executor.StreamPrompter)
	if !ok {
		s.Skip("the agent is no executor.StreamPrompter")
	}
	return p
}

func cancelCall(s *suite) {
	a := s.create(agentfile)
	p := s.streamer(a)
	s.run(a)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	if err := p.PromptStream(ctx, executor.PromptRequest{Prompt: "hang"}, func(executor.PromptEvent) { cancel() }); err == nil {
		s.Error("a cancelled turn ended well")
	}
	if got := s.ask(a, "still here"); got != "still here" {
		s.Errorf("answer %q", got)
	}
	s.status(a, executor.StatusReady, executor.FailureNone)
}

func stopDuringCall(s *suite) {
	a := s.create(agentfile)
	p := s.streamer(a)
	done := s.run(a)
	begun, ended := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		ended <- p.PromptStream(context.Background(), executor.PromptRequest{Prompt: "hang"}, func(executor.PromptEvent) {
			once.Do(func() { close(begun) })
		})
	}()
	<-begun
	s.stop(a, done)
	if err := s.ended(ended); err == nil {
		s.Error("the turn ended well")
	}
	// A call on an agent that does not run ends at once.
	if err := p.PromptStream(s.Context(), executor.PromptRequest{Prompt: "x"}, func(executor.PromptEvent) {}); err == nil {
		s.Error("a stopped agent answered")
	}
	if pr, ok := a.(executor.Prompter); ok {
		if err := pr.Prompt(s.Context(), executor.PromptRequest{Prompt: "x"}, io.Discard); err == nil {
			s.Error("a stopped agent answered")
		}
	}
}
