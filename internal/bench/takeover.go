//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

const (
	// takeOverRuns is how often a daemon is killed at most; a row needs no more.
	takeOverRuns = 20
	// takeOverTime bounds one take-over.
	takeOverTime = time.Minute
)

// benchTakeOver kills the daemon of many idle agents again and again, and measures from the start of the next
// one until it tells of all of them that they are ready, as they were, and until a prompt is answered; beside
// the start of the same daemon while it had no agents.
func benchTakeOver(ctx context.Context, b *built, agents, runs int) ([]row, error) {
	d, err := startDaemon(ctx, b)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	if err := d.build(ctx, "bench", "FROM scratch\nMODEL offline/otter\n"); err != nil {
		return nil, err
	}
	runs = min(runs, takeOverRuns)
	var alone, all, prompted, without, with samples
	for range runs {
		quiet()
		took, ran, err := d.replace(ctx, b, func(ctx context.Context) error { return d.same(ctx, nil) })
		if err != nil {
			return nil, fmt.Errorf("without agents: %w", err)
		}
		alone, without = append(alone, took), append(without, ran)
	}
	was, err := d.createMany(ctx, agents)
	if err != nil {
		return nil, err
	}
	for i := range runs {
		quiet()
		// By turns, so that neither stands in the way of the other.
		took, ran, err := d.replace(ctx, b, func(ctx context.Context) error { return d.same(ctx, was) })
		if err != nil {
			return nil, err
		}
		all, with = append(all, took), append(with, ran)
		quiet()
		took, _, err = d.replace(ctx, b, func(ctx context.Context) error {
			for {
				_, _, err := promptDaemon(ctx, d, was[i%len(was)].GetId(), "x")
				if err == nil {
					return nil
				}
				if pause(ctx, time.Millisecond) != nil {
					return err
				}
			}
		})
		if err != nil {
			return nil, fmt.Errorf("prompt: %w", err)
		}
		prompted = append(prompted, took)
	}
	floor := alone.row("start of a daemon without agents p50", .5)
	ready := fmt.Sprintf("take-over of %d agents, all ready", agents)
	return []row{
		{Name: "agents", Value: float64(agents)},
		floor, alone.row("start of a daemon without agents, slowest", 1),
		all.row(ready+" p50", .5).under(1000).beside(floor), all.row(ready+", slowest", 1).under(1000),
		prompted.row("take-over until one has answered a prompt p50", .5).under(1000).beside(floor),
		prompted.row("take-over until one has answered a prompt, slowest", 1).under(1000),
		{Name: "processors' time of the daemon for each agent p50", Value: ms(with.quantile(.5)-without.quantile(.5)) / float64(agents), Unit: "ms"},
	}, nil
}

// createMany makes agents, some at a time, and tells how they stand.
func (d *daemon) createMany(ctx context.Context, agents int) ([]*daemonv1.AgentSummary, error) {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i := range agents {
		group.Go(func() error {
			_, err := d.create(gctx, agentName(i), "")
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return d.client.Agents(ctx)
}

// replace kills the daemon, starts the next one, and returns the time from its start until done returns, and
// how long it ran on processors for that.
func (d *daemon) replace(ctx context.Context, b *built, done func(context.Context) error) (took, busy time.Duration, err error) {
	_ = d.client.Close()
	d.client = nil
	if err := d.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return 0, 0, err
	}
	<-d.exited
	ctx, cancel := context.WithTimeout(ctx, takeOverTime)
	defer cancel()
	start := time.Now()
	if err := d.start(ctx, b); err != nil {
		return 0, 0, err
	}
	if err := done(ctx); err != nil {
		return 0, 0, err
	}
	took = time.Since(start)
	busy, err = ran(d.cmd.Process.Pid)
	return took, busy, err
}

// same returns when the agents are ready, with the starts that they had.
func (d *daemon) same(ctx context.Context, was []*daemonv1.AgentSummary) error {
	started := make(map[string]int64, len(was))
	for _, a := range was {
		started[a.GetId()] = a.GetStartedAtMs()
	}
	for {
		now, err := d.client.Agents(ctx)
		if err != nil {
			return err
		}
		if len(now) != len(was) {
			return fmt.Errorf("%d agents, there were %d", len(now), len(was))
		}
		ready := 0
		for _, a := range now {
			if a.GetStartedAtMs() != started[a.GetId()] {
				return fmt.Errorf("agent %s was started again", a.GetName())
			}
			switch a.GetStatus() {
			case "ready":
				ready++
			case "starting":
			default:
				return fmt.Errorf("agent %s is %s: %s", a.GetName(), a.GetStatus(), a.GetMessage())
			}
		}
		if ready == len(now) {
			return nil
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return errors.Join(fmt.Errorf("%d of %d agents are ready", ready, len(now)), err)
		}
	}
}
