//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/otters-sh/otters/internal/modelserver"
	"github.com/otters-sh/otters/loop"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
)

// benchTurn measures what the loop itself costs, with a model and a tool that cost nothing, and then
// the whole runtime's cost of an event.
func benchTurn(ctx context.Context, b *built, runs int) ([]row, error) {
	const steps = 50
	var perStep samples
	var perEvent = map[int]samples{1000: nil, 10000: nil}
	var records int
	for range runs + 3 {
		took, _, err := turnOf(ctx, chatter{steps: steps})
		if err != nil {
			return nil, err
		}
		perStep = append(perStep, took/steps)
		for n := range perEvent {
			took, r, err := turnOf(ctx, chatter{events: n})
			if err != nil {
				return nil, err
			}
			perEvent[n], records = append(perEvent[n], took/time.Duration(n)), r
		}
	}
	thousand := row{Name: "loop, per event of 1,000 p50", Value: us(perEvent[1000].quantile(.5)), Unit: "us"}
	tenThousand := row{Name: "loop, per event of 10,000 p50", Value: us(perEvent[10000].quantile(.5)), Unit: "us"}
	whole, err := runtimeEvents(ctx, b, max(5, runs/10))
	if err != nil {
		return nil, fmt.Errorf("runtime: %w", err)
	}
	return append([]row{
		row{Name: "loop, per step with a call p50", Value: us(perStep.quantile(.5)), Unit: "us"}.under(100),
		thousand.under(5), tenThousand.under(5), tenThousand.linear(thousand),
		row{Name: "records of a 10,000-event answer", Value: float64(records), Unit: "writes"}.under(3),
	}, whole...), nil
}

// linear names the row a second time as a ratio to the same cost of a tenth of the events.
func (r row) linear(tenth row) row {
	r.Name += ", beside a tenth of them"
	return r.over(tenth, 1.5)
}

// chatter is a model that asks for calls, or that talks.
type chatter struct{ steps, events int }

func (c chatter) Stream(_ context.Context, req loop.Request) iter.Seq2[loop.Delta, error] {
	return func(yield func(loop.Delta, error) bool) {
		step := len(req.Messages)/2 + 1
		if step < c.steps && !yield(loop.Delta{Kind: loop.DeltaCall, ID: strconv.Itoa(step), Name: "nothing", Text: `{"n":` + strconv.Itoa(step) + `}`}, nil) {
			return
		}
		for range c.events {
			if !yield(loop.Delta{Text: "a word "}, nil) {
				return
			}
		}
		yield(loop.Delta{Kind: loop.DeltaFinish}, nil)
	}
}

// nothing is a tool that does nothing.
type nothing struct{}

func (nothing) Spec() loop.ToolSpec { return loop.ToolSpec{Name: "nothing"} }

func (nothing) Call(context.Context, loop.Call) (string, error) { return "", nil }

type counter struct{ records int }

func (c *counter) Record(context.Context, loop.Message) error {
	c.records++
	return nil
}

func turnOf(ctx context.Context, m chatter) (time.Duration, int, error) {
	l := loop.New(loop.Config{Model: m, Tools: []loop.Tool{nothing{}}, MaxIterations: m.steps + 1})
	var rec counter
	events := 0
	start := time.Now()
	out, err := l.Run(ctx, loop.Turn{Prompt: "go", Recorder: &rec, Observe: func(loop.Event) { events++ }})
	took := time.Since(start)
	if err == nil && (out.Steps != max(1, m.steps) || events < m.events || out.Reason != loop.Done) {
		err = fmt.Errorf("%d steps and %d events, reason %s", out.Steps, events, out.Reason)
	}
	return took, rec.records, err
}

// runtimeEvents prompts a runtime started by hand, with the model's server beside it.
func runtimeEvents(ctx context.Context, b *built, runs int) (rows []row, err error) {
	upstream := modelserver.Start(burst)
	defer upstream.Close()
	root, err := handTree("scripted/m")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(root)) }()
	cmd := handRun(b, root)
	cmd.Args = []string{cmd.Path, "serve", "--root", root}
	cmd.Env = append(cmd.Env, "SCRIPTED_API_KEY=otr_x", "SCRIPTED_API_BASE="+upstream.URL)
	_, err = spawnWith(ctx, cmd, func(address string) error {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		c := agentv1.NewAgentRuntimeClient(conn)
		cost := make(map[string]samples)
		for range runs {
			for _, prompt := range []string{"20", "1000", "10000", "1000.", "10000."} {
				took, _, err := promptDirect(ctx, c, prompt)
				if err != nil {
					return err
				}
				cost[prompt] = append(cost[prompt], took)
			}
		}
		per := func(n float64, prompt, name string) row {
			return row{Name: name, Value: us(cost[prompt].quantile(.5)) / n, Unit: "us"}
		}
		thousand, ten := per(1000, "1000", "runtime, per event of 1,000 p50"), per(10000, "10000", "runtime, per event of 10,000 p50")
		said, more := per(1000, "1000.", "runtime, per event of 1,000 in sentences p50"), per(10000, "10000.", "runtime, per event of 10,000 in sentences p50")
		rows = []row{cost["20"].row("runtime, turn of 20 events p50", .5), thousand, ten, ten.linear(thousand), said, more, more.linear(said)}
		return nil
	})
	return rows, err
}

// handTree makes the least tree a runtime serves.
func handTree(model string) (string, error) {
	root, err := os.MkdirTemp("", "otters-bench-tree-")
	if err != nil {
		return "", err
	}
	for _, dir := range []string{"etc/context", "workspace", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			return "", err
		}
	}
	yaml := "id: 0193-1\nname: bench\nmodel: " + model + "\n"
	return root, os.WriteFile(filepath.Join(root, "etc/agent.yaml"), []byte(yaml), 0o600)
}

// memory is a process's private and resident memory in MiB.
func memory(cmd *exec.Cmd) (private, resident float64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	return kilobytes(string(data), "Anonymous:") / 1024, kilobytes(string(data), "Rss:") / 1024, nil
}
