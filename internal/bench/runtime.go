//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// settle is how long a program is left alone before its memory is read.
const settle = 200 * time.Millisecond

// benchRuntime measures the runtime's start and idle memory beside a program with gRPC alone.
func benchRuntime(ctx context.Context, b *built, runs int) (rows []row, err error) {
	root, err := handTree("offline/otter")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	var bare, own program
	for i := range runs + 3 {
		for _, p := range []struct {
			*program
			cmd *exec.Cmd
		}{{&bare, exec.Command(b.path("bare"))}, {&own, handRun(b, root)}} {
			took, err := spawnWith(ctx, p.cmd, func(string) error { return p.weigh(ctx, p.cmd, i) })
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.cmd.Path, err)
			}
			if i >= 3 {
				p.ready = append(p.ready, took)
			}
		}
	}
	floor := bare.ready.row("bare gRPC program, first Ready p50", .5)
	memory := row{Name: "bare gRPC program, idle private", Value: bare.private, Unit: "MiB"}
	return []row{
		floor, bare.ready.row("bare gRPC program, first Ready p95", .95),
		own.ready.row("runtime, first Ready p50", .5).over(floor, 2), own.ready.row("runtime, first Ready p95", .95),
		memory, row{Name: "runtime, idle private", Value: own.private, Unit: "MiB"}.over(memory, 2),
		{Name: "bare gRPC program, resident", Value: bare.resident, Unit: "MiB"},
		{Name: "runtime, resident", Value: own.resident, Unit: "MiB"},
	}, nil
}

// program is what was measured of one; its memory is the mean of the first few runs.
type program struct {
	ready             samples
	private, resident float64
}

// weighed is in how many runs memory is read.
const weighed = 5

func (p *program) weigh(ctx context.Context, cmd *exec.Cmd, run int) error {
	if run >= weighed {
		return nil
	}
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	private, resident, err := memory(cmd)
	p.private, p.resident = p.private+private/weighed, p.resident+resident/weighed
	return err
}

// kilobytes finds a figure in the text of smaps_rollup.
func kilobytes(text, name string) float64 {
	_, rest, _ := strings.Cut(text, name)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	v, _ := strconv.ParseFloat(fields[0], 64)
	return v
}
