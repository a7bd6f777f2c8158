package client

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// Info tells what the daemon is and where it keeps things.
func (c *Client) Info(ctx context.Context) (*daemonv1.InfoResponse, error) {
	r, err := c.api.Info(ctx, &daemonv1.InfoRequest{})
	return call(ctx, c, r, err)
}

// Shutdown asks the daemon to end, with stopAgents after stopping every agent. It returns before
// the process is gone.
func (c *Client) Shutdown(ctx context.Context, stopAgents bool) (*daemonv1.ShutdownResponse, error) {
	r, err := c.api.Shutdown(ctx, &daemonv1.ShutdownRequest{StopAgents: stopAgents})
	return call(ctx, c, r, err)
}

// Images lists the tags of the embedded registry.
func (c *Client) Images(ctx context.Context) ([]*daemonv1.Image, error) {
	r, err := c.api.ListImages(ctx, &daemonv1.ListImagesRequest{})
	r, err = call(ctx, c, r, err)
	return r.GetImages(), err
}

// Create creates an agent of an image and starts it; WaitReady waits for it.
func (c *Client) Create(ctx context.Context, req *daemonv1.CreateAgentRequest) (*daemonv1.AgentSummary, error) {
	r, err := c.api.CreateAgent(ctx, req)
	r, err = call(ctx, c, r, err)
	return r.GetAgent(), err
}

// Agents lists every agent, oldest first.
func (c *Client) Agents(ctx context.Context) ([]*daemonv1.AgentSummary, error) {
	r, err := c.api.ListAgents(ctx, &daemonv1.ListAgentsRequest{})
	r, err = call(ctx, c, r, err)
	return r.GetAgents(), err
}

// Agent returns everything known of one agent, named by name, id, or prefix of the id.
func (c *Client) Agent(ctx context.Context, agent string) (*daemonv1.Agent, error) {
	r, err := c.api.GetAgent(ctx, &daemonv1.GetAgentRequest{Agent: agent})
	r, err = call(ctx, c, r, err)
	return r.GetAgent(), err
}

// Watch yields the agent's state now and after each change, until it is removed or the loop ends.
// It may miss a state, never the latest one.
func (c *Client) Watch(ctx context.Context, agent string) iter.Seq2[*daemonv1.AgentSummary, error] {
	return func(yield func(*daemonv1.AgentSummary, error) bool) {
		for r, err := range receive(ctx, c, func(ctx context.Context) (grpc.ServerStreamingClient[daemonv1.WatchAgentResponse], error) {
			return c.api.WatchAgent(ctx, &daemonv1.WatchAgentRequest{Agent: agent})
		}) {
			if !yield(r.GetAgent(), err) {
				return
			}
		}
	}
}

// WaitReady waits until the agent is past pulling and starting and returns the state it came to:
// "ready" or "working" when all went well, else the one it ended in.
func (c *Client) WaitReady(ctx context.Context, agent string) (*daemonv1.AgentSummary, error) {
	for state, err := range c.Watch(ctx, agent) {
		if err != nil {
			return nil, err
		}
		if s := state.GetStatus(); s != "pulling" && s != "starting" {
			return state, nil
		}
		agent = state.GetName()
	}
	return &daemonv1.AgentSummary{Name: agent, Status: "removed"}, nil
}

// Start starts a stopped or failed agent; it returns when the start is under way.
func (c *Client) Start(ctx context.Context, agent string) (*daemonv1.AgentSummary, error) {
	r, err := c.api.StartAgent(ctx, &daemonv1.StartAgentRequest{Agent: agent})
	r, err = call(ctx, c, r, err)
	return r.GetAgent(), err
}

// Stop stops an agent and returns when it has stopped.
func (c *Client) Stop(ctx context.Context, agent string) (*daemonv1.AgentSummary, error) {
	r, err := c.api.StopAgent(ctx, &daemonv1.StopAgentRequest{Agent: agent})
	r, err = call(ctx, c, r, err)
	return r.GetAgent(), err
}

// Restart stops an agent, where it runs, and starts it; it returns when the start is under way.
func (c *Client) Restart(ctx context.Context, agent string) (*daemonv1.AgentSummary, error) {
	r, err := c.api.RestartAgent(ctx, &daemonv1.RestartAgentRequest{Agent: agent})
	r, err = call(ctx, c, r, err)
	return r.GetAgent(), err
}

// Kill ends an agent at once, or sends its runtime another signal, by name or number; an empty one is
// SIGKILL.
func (c *Client) Kill(ctx context.Context, agent, signal string) (*daemonv1.AgentSummary, error) {
	r, err := c.api.KillAgent(ctx, &daemonv1.KillAgentRequest{Agent: agent, Signal: signal})
	r, err = call(ctx, c, r, err)
	return r.GetAgent(), err
}

// Remove removes a stopped or failed agent with its workspace, with force a running one too.
func (c *Client) Remove(ctx context.Context, agent string, force bool) (*daemonv1.RemoveAgentResponse, error) {
	r, err := c.api.RemoveAgent(ctx, &daemonv1.RemoveAgentRequest{Agent: agent, Force: force})
	return call(ctx, c, r, err)
}

// Prompt sends a prompt and yields the events of the turn as they happen. Ending the loop or the
// context cancels the turn.
func (c *Client) Prompt(ctx context.Context, req *daemonv1.PromptRequest) iter.Seq2[*daemonv1.PromptResponse, error] {
	return receive(ctx, c, func(ctx context.Context) (grpc.ServerStreamingClient[daemonv1.PromptResponse], error) {
		return c.api.Prompt(ctx, req)
	})
}

// Logs yields the lines that the agent's runtime wrote, oldest first; with Follow it goes on until the
// agent is removed or the loop ends.
func (c *Client) Logs(ctx context.Context, req *daemonv1.LogsRequest) iter.Seq2[*daemonv1.LogsResponse, error] {
	return receive(ctx, c, func(ctx context.Context) (grpc.ServerStreamingClient[daemonv1.LogsResponse], error) {
		return c.api.Logs(ctx, req)
	})
}
