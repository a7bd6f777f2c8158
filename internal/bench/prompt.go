//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/otters-sh/otters/internal/modelserver"
	agentv1 "github.com/otters-sh/otters/proto/openotters/agent/v1"
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
	"github.com/otters-sh/otters/system"
)

// benchPrompt measures what the daemon adds to a prompt, by sending the same prompt to the same
// runtime through the daemon and directly, in turns. Gateway and model are in both; the model is a
// server of the bench's own, which answers the prompt N with N events in one write.
func benchPrompt(ctx context.Context, b *built, runs int) ([]row, error) {
	upstream := modelserver.Start(burst)
	defer upstream.Close()
	d, err := startDaemon(ctx, b, fmt.Sprintf("providers:\n  - name: scripted\n    api-key: sk-bench\n    api-base: %s\n", upstream.URL))
	if err != nil {
		return nil, err
	}
	defer d.stop()
	if err := d.build(ctx, "bench", "FROM scratch\nMODEL scripted/m\n"); err != nil {
		return nil, err
	}
	// A runtime given by its path binds its own address and asks nobody for a token, so that it can
	// be dialled directly.
	agent, err := d.create(ctx, "prompted", b.path("otters-runtime"))
	if err != nil {
		return nil, err
	}
	conn, err := system.DialLoopback(ctx, agent.Address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	direct := agentv1.NewAgentRuntimeClient(conn)
	var short comparison
	err = b.relayed(ctx, "bytes", agent.Address, func(bytes agentv1.AgentRuntimeClient) error {
		return b.relayed(ctx, "grpc", agent.Address, func(relay agentv1.AgentRuntimeClient) (err error) {
			short, err = comparePrompts(ctx, d, []agentv1.AgentRuntimeClient{direct, bytes, relay}, agent, 20, max(runs*5, 200))
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	long, err := comparePrompts(ctx, d, []agentv1.AgentRuntimeClient{direct}, agent, 2000, max(runs/2, 20))
	if err != nil {
		return nil, err
	}
	gateway, err := gatewayShare(ctx, runs)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	perEvent := row{Name: "added per event at 2,000 events p50", Value: us(long.added(long.daemon)) / float64(long.events), Unit: "us"}
	return append([]row{
		short.without[0].row("20 events, runtime dialled p50", .5),
		short.without[1].row("20 events, by a relay of bytes p50", .5),
		short.without[2].row("20 events, by a bare gRPC relay p50", .5),
		short.daemon.row("20 events, by the daemon p50", .5),
		row{Name: "added by a relay of bytes p50", Value: ms(short.added(short.without[1])), Unit: "ms"},
		row{Name: "added by a bare gRPC relay p50", Value: ms(short.added(short.without[2])), Unit: "ms"},
		row{Name: "added to 20 events p50", Value: ms(short.added(short.daemon)), Unit: "ms"}.under(0.25),
		long.without[0].row("2,000 events, runtime dialled p50", .5),
		long.daemon.row("2,000 events, by the daemon p50", .5),
		perEvent.under(5),
	}, gateway...), nil
}

// burst answers a number with that many events, sent at once. Where a full stop follows it, every tenth
// word ends a sentence.
func burst(req modelserver.Request) modelserver.Answer {
	number, sentences := strings.CutSuffix(req.Last().Content, ".")
	count, err := strconv.Atoi(number)
	if err != nil {
		return modelserver.Answer{Status: http.StatusBadRequest, Text: "want a number"}
	}
	var b strings.Builder
	chunk := func(delta, finish string) {
		fmt.Fprintf(&b, `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`+"\n\n", delta, finish)
	}
	for i := range count {
		end := " "
		if sentences && i%10 == 9 {
			end = ". "
		}
		chunk(fmt.Sprintf(`{"role":"assistant","content":"%d%s"}`, i, end), "null")
	}
	chunk("{}", `"stop"`)
	b.WriteString("data: [DONE]\n\n")
	return modelserver.Answer{Raw: b.String()}
}

// comparison is one prompt sent several ways: without the daemon, first by dialling the runtime
// itself, and by the daemon.
type comparison struct {
	without []samples
	daemon  samples
	events  int
}

// added is the difference of the medians to dialling.
func (c comparison) added(s samples) time.Duration { return s.quantile(.5) - c.without[0].quantile(.5) }

// comparePrompts sends a prompt each way in turns, the first of without being the runtime itself.
func comparePrompts(ctx context.Context, d *daemon, without []agentv1.AgentRuntimeClient, agent *daemonv1.Agent, count, runs int) (comparison, error) {
	const warm = 5
	c := comparison{without: make([]samples, len(without))}
	text := strconv.Itoa(count)
	for i := range runs + warm {
		for way, client := range without {
			took, n, err := promptDirect(ctx, client, text)
			if err != nil {
				return c, fmt.Errorf("way %d without the daemon: %w", way, err)
			}
			if i >= warm {
				c.without[way] = append(c.without[way], took)
			}
			c.events = n
		}
		took, n, err := promptDaemon(ctx, d, agent.Summary.Id, text)
		if err != nil {
			return c, fmt.Errorf("daemon: %w", err)
		}
		if n != c.events || n < count {
			return c, fmt.Errorf("%d events directly and %d by the daemon, for %d numbers", c.events, n, count)
		}
		if i >= warm {
			c.daemon = append(c.daemon, took)
		}
	}
	return c, nil
}

// relayed starts a bare relay to the runtime at addr for as long as then runs. One of bytes is the least that a
// process between client and runtime can cost, one of gRPC the least that one with gRPC can.
func (b *built) relayed(ctx context.Context, kind, addr string, then func(agentv1.AgentRuntimeClient) error) error {
	_, err := spawnWith(ctx, exec.Command(b.path("bare"), kind, addr), func(address string) error {
		conn, err := system.DialLoopback(ctx, address)
		if err != nil {
			return err
		}
		defer conn.Close()
		return then(agentv1.NewAgentRuntimeClient(conn))
	})
	return err
}

// promptDirect sends a prompt in a new session to the runtime itself.
func promptDirect(ctx context.Context, c agentv1.AgentRuntimeClient, text string) (time.Duration, int, error) {
	session := uuid.NewString()
	start := time.Now()
	stream, err := c.ChatStream(ctx, &agentv1.ChatStreamRequest{SessionId: session, Prompt: text})
	if err != nil {
		return 0, 0, err
	}
	events := 0
	for {
		ev, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return time.Since(start), events, nil
		}
		if err != nil {
			return 0, 0, err
		}
		if ev.Type == "error" {
			return 0, 0, errors.New(ev.Content)
		}
		events++
	}
}

// promptDaemon sends the same by the daemon.
func promptDaemon(ctx context.Context, d *daemon, agent, text string) (time.Duration, int, error) {
	session := uuid.NewString()
	start := time.Now()
	events := 0
	for ev, err := range d.client.Prompt(ctx, &daemonv1.PromptRequest{Agent: agent, SessionId: session, Text: text}) {
		if err != nil {
			return 0, 0, err
		}
		if ev.Type == "error" {
			return 0, 0, errors.New(ev.Content)
		}
		events++
	}
	return time.Since(start), events, nil
}
