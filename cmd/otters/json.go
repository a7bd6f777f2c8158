package main

import (
	daemonv1 "github.com/otters-sh/otters/proto/otters/daemon/v1"
)

// The types of this file are what --format json prints. Times are RFC 3339 in UTC, and empty where
// they are not known; lists are never null.

type imageJSON struct {
	Reference   string `json:"reference"`
	Digest      string `json:"digest"`
	MediaType   string `json:"media_type"`
	Kind        string `json:"kind"`
	Size        int64  `json:"size"`
	CreatedAt   string `json:"created_at"`
	Description string `json:"description"`
}

func newImageJSON(i *daemonv1.Image) imageJSON {
	return imageJSON{
		Reference: i.GetReference(), Digest: i.GetDigest(), MediaType: i.GetMediaType(), Kind: i.GetKind(),
		Size: i.GetSize(), CreatedAt: millis(i.GetCreatedAt() * 1000), Description: i.GetDescription(),
	}
}

type summaryJSON struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Image     string `json:"image"`
	Digest    string `json:"digest"`
	Model     string `json:"model"`
	Status    string `json:"status"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	CreatedAt string `json:"created_at"`
	StartedAt string `json:"started_at"`
	// Attempts counts restarts in a row; NextTryAt is empty where none is due.
	Attempts  int32  `json:"attempts"`
	NextTryAt string `json:"next_try_at"`
	// QueuePlace is 1 for the agent that starts next, 0 for one that does not wait to start.
	QueuePlace int32 `json:"queue_place"`
}

func newSummaryJSON(s *daemonv1.AgentSummary) summaryJSON {
	return summaryJSON{
		ID: s.GetId(), Name: s.GetName(), Image: s.GetImage(), Digest: s.GetDigest(), Model: s.GetModel(),
		Status: s.GetStatus(), Reason: s.GetReason(), Message: s.GetMessage(),
		CreatedAt: millis(s.GetCreatedAtMs()), StartedAt: millis(s.GetStartedAtMs()),
		Attempts: s.GetAttempts(), NextTryAt: millis(s.GetNextTryAtMs()), QueuePlace: s.GetQueuePlace(),
	}
}

type confinementJSON struct {
	Level    string   `json:"level"`
	OwnUser  bool     `json:"own_user"`
	Enforced []string `json:"enforced"`
	Open     []string `json:"open"`
}

func newConfinementJSON(c *daemonv1.Confinement) confinementJSON {
	return confinementJSON{
		Level: c.GetLevel(), OwnUser: c.GetOwnUser(),
		Enforced: notNil(c.GetEnforced()), Open: notNil(c.GetOpen()),
	}
}

type toolJSON struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Ref         string `json:"ref"`
	Digest      string `json:"digest"`
}

type exitJSON struct {
	Code   int32    `json:"code"`
	Signal string   `json:"signal"`
	At     string   `json:"at"`
	Stderr []string `json:"stderr"`
	// OutOfMemory tells that the kernel killed it for want of memory.
	OutOfMemory bool `json:"out_of_memory"`
}

type limitJSON struct {
	// Name is memory (bytes), cpus (thousandths of a processor) or pids.
	Name  string `json:"name"`
	Value int64  `json:"value"`
	// Mechanism is cgroup v2, cgroup v1 or rlimit.
	Mechanism string `json:"mechanism"`
}

type agentJSON struct {
	summaryJSON
	Root          string            `json:"root"`
	Address       string            `json:"address"`
	PID           int32             `json:"pid"`
	MonitorPID    int32             `json:"monitor_pid"`
	UID           int64             `json:"uid"`
	Confinement   confinementJSON   `json:"confinement"`
	RuntimeRef    string            `json:"runtime_ref"`
	RuntimeDigest string            `json:"runtime_digest"`
	Tools         []toolJSON        `json:"tools"`
	Envs          []string          `json:"envs"`
	Configs       map[string]string `json:"configs"`
	// LastExit is null where the runtime never ended.
	LastExit          *exitJSON `json:"last_exit"`
	ServeTokenChecked bool      `json:"serve_token_checked"`
	LogFile           string    `json:"log_file"`
	Restart           string    `json:"restart"`
	LastFailure       string    `json:"last_failure"`
	StopTimeoutMs     int64     `json:"stop_timeout_ms"`
	// Mounts are as -v has them: HOST:TARGET[:DESC][:ro].
	Mounts []string    `json:"mounts"`
	Limits []limitJSON `json:"limits"`
	// AllowNet are the destinations that a proxy opens.
	AllowNet []string `json:"allow_net"`
	// Warnings are what a running agent's runtime says is to be known.
	Warnings []string `json:"warnings"`
}

func newAgentJSON(a *daemonv1.Agent) agentJSON {
	out := agentJSON{
		summaryJSON: newSummaryJSON(a.GetSummary()),
		Root:        a.GetRoot(), Address: a.GetAddress(), PID: a.GetPid(), MonitorPID: a.GetMonitorPid(), UID: a.GetUid(),
		Confinement: newConfinementJSON(a.GetConfinement()),
		RuntimeRef:  a.GetRuntimeRef(), RuntimeDigest: a.GetRuntimeDigest(),
		Mounts: []string{}, Limits: []limitJSON{}, Tools: []toolJSON{}, Envs: notNil(a.GetEnvs()), Configs: a.GetConfigs(),
		ServeTokenChecked: a.GetServeTokenChecked(), LogFile: a.GetLogFile(),
		Restart: a.GetRestart(), LastFailure: a.GetLastFailure(), StopTimeoutMs: a.GetStopTimeoutMs(),
		AllowNet: notNil(a.GetAllowNet()), Warnings: notNil(a.GetWarnings()),
	}
	if out.Configs == nil {
		out.Configs = map[string]string{}
	}
	for _, m := range a.GetMounts() {
		out.Mounts = append(out.Mounts, shown(m))
	}
	for _, l := range a.GetLimits() {
		out.Limits = append(out.Limits, limitJSON{l.GetName(), l.GetValue(), l.GetMechanism()})
	}
	for _, t := range a.GetTools() {
		out.Tools = append(out.Tools, toolJSON{t.GetName(), t.GetDescription(), t.GetRef(), t.GetDigest()})
	}
	if e := a.GetLastExit(); e != nil {
		out.LastExit = &exitJSON{e.GetCode(), e.GetSignal(), millis(e.GetAtMs()), notNil(e.GetStderr()), e.GetOutOfMemory()}
	}
	return out
}

type infoJSON struct {
	Version       string          `json:"version"`
	PID           int32           `json:"pid"`
	Home          string          `json:"home"`
	Socket        string          `json:"socket"`
	Registry      string          `json:"registry"`
	StartedAt     string          `json:"started_at"`
	Agents        int32           `json:"agents"`
	AgentsRunning int32           `json:"agents_running"`
	Confinement   confinementJSON `json:"confinement"`
	Providers     []string        `json:"providers"`
	Platform      string          `json:"platform"`
	SchemaVersion int32           `json:"schema_version"`
}

func newInfoJSON(i *daemonv1.InfoResponse) infoJSON {
	return infoJSON{
		Version: i.GetVersion(), PID: i.GetPid(), Home: i.GetHome(), Socket: i.GetSocket(), Registry: i.GetRegistry(),
		StartedAt: millis(i.GetStartedAtMs()), Agents: i.GetAgents(), AgentsRunning: i.GetAgentsRunning(),
		Confinement: newConfinementJSON(i.GetConfinement()), Providers: notNil(i.GetProviders()),
		Platform: i.GetPlatform(), SchemaVersion: i.GetSchemaVersion(),
	}
}

func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// eventJSON is an event of a turn, a line of its own; fields that are empty are left out.
type eventJSON struct {
	RunID      string     `json:"run_id,omitempty"`
	SessionID  string     `json:"session_id,omitempty"`
	Type       string     `json:"type"`
	Step       int32      `json:"step,omitempty"`
	Tool       string     `json:"tool,omitempty"`
	ToolID     string     `json:"tool_id,omitempty"`
	Content    string     `json:"content,omitempty"`
	DurationMs int64      `json:"duration_ms,omitempty"`
	Usage      *usageJSON `json:"usage,omitempty"`
	Reason     string     `json:"reason,omitempty"`
}

type usageJSON struct {
	InputTokens     int64 `json:"input_tokens"`
	OutputTokens    int64 `json:"output_tokens"`
	CachedTokens    int64 `json:"cached_tokens"`
	ReasoningTokens int64 `json:"reasoning_tokens"`
}

func newEventJSON(ev *daemonv1.PromptResponse) eventJSON {
	out := eventJSON{
		RunID: ev.GetRunId(), SessionID: ev.GetSessionId(), Type: ev.GetType(), Step: ev.GetStep(), Tool: ev.GetTool(), ToolID: ev.GetToolId(),
		Content: ev.GetContent(), DurationMs: ev.GetDurationMs(), Reason: ev.GetReason(),
	}
	if u := ev.GetUsage(); u != nil {
		out.Usage = &usageJSON{u.GetInputTokens(), u.GetOutputTokens(), u.GetCachedTokens(), u.GetReasoningTokens()}
	}
	return out
}
